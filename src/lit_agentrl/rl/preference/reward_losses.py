"""Objectives of reward models: comparisons and ranks; ``step_labels.py`` has labels of steps.

They read ``score_BT``, what a head makes of the hidden state after a sampled token, instead of log-probs.  `prepare`
says at which tokens, in ``is_scored_BT``; everywhere else the score is 0 and carries no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lit_agentrl.checks import require, require_number
from lit_agentrl.rl.binding import bind, tensor_names, try_out
from lit_agentrl.rl.objective import SCORES, Objective, Requirements, ScoreKind, Tensors
from lit_agentrl.rl.preference.links import certain
from lit_agentrl.rl.preference.margins import check_heard, none
from lit_agentrl.rl.preference.pair_columns import compared_metrics, kept_pairs, link_losses
from lit_agentrl.rl.preference.pairing import Pairs
from lit_agentrl.rl.preference.units import Units, trajectory_units

UNITS = ("return_B", "group_B", "trajectory_B", "is_action_BT", "turn_BT", "first_turn_B")


def ends(units: Units) -> Tensor:
    """Where in the flattened (B, T) the last token of each unit stands, int64 (N,)."""
    return units.place_A[units.start_N + units.length_N.long() - 1]


def is_end(units: Units, is_action_BT: Tensor) -> Tensor:
    """True at the last sampled token of each unit, (B, T)."""
    found_BT = torch.zeros_like(is_action_BT)
    found_BT.view(-1)[ends(units)] = True
    return found_BT


@dataclass(frozen=True, kw_only=True)
class ComparedScores(Objective):
    """``mean over pairs of link(r(chosen) - r(rejected) + margin) + centring * (r(chosen) + r(rejected))^2``.

    A cost model, Safe RLHF, arXiv 2310.12773, equation 6, ranks by costs, the higher the worse, and adds ``-log
    sigmoid(s r)`` of both sides, with ``s = 1`` where the cost of a trajectory exceeds ``zero_at`` and -1 elsewhere: so
    its scores have a zero, above which an answer costs too much.
    Bradley–Terry with the logistic link: InstructGPT, arXiv 2203.02155, equation 1, all K answers of a prompt in one
    batch element; Llama 2's margins, arXiv 2307.09288, equation 2; the centring term of arXiv 2312.09244.  ``r`` is the
    score after the last token of a trajectory.  Equal returns are no pair.

    Attributes:
        name: for messages.
        pairing: returns `Pairs`; see ``pairing.py``.
        link: the loss of each pair; see ``links.py``.
        margin: see ``margins.py``.
        smoothing: of labels that may be wrong; see ``links.py``.
        centring: weight of the term that holds scores around 0, >= 0; a loss of differences leaves their level open.
        over: ``pairs``: the mean is over pairs; ``groups``: over groups, of the mean over the pairs of each, so that a
            prompt with many answers counts no more than one with two.
        zero_at: a number: a cost model, and the cost up to which a trajectory is harmless.  None: a reward model.
        referred: trajectories are read behind a reference, as of `data.referred`: ``r(reference, trajectory)``
            (POLAR, arXiv 2507.05197).

    Raises:
        ValueError: a constant out of range, or a margin that a score does not have.
    """

    unit: ClassVar[str | None] = "group_B"
    reads: ClassVar[tuple[str, ...]] = SCORES
    name: str
    pairing: Callable[..., Pairs]
    link: Callable[..., Tensor]
    margin: Callable[..., Tensor] = none
    smoothing: Callable[..., Tensor] = certain
    centring: float = 0.01
    over: Literal["pairs", "groups"] = "pairs"
    zero_at: float | None = None
    referred: bool = False

    def __post_init__(self) -> None:
        """Checks the constants."""
        require(0 <= self.centring < math.inf, "centring", self.centring, "finite and >= 0")
        require(self.over in ("pairs", "groups"), "over", self.over, "pairs or groups")
        if self.zero_at is not None:
            require_number("zero_at", self.zero_at, "a finite number, or null")
        require(isinstance(self.referred, bool), "referred", self.referred, "true or false")
        if self.referred and self.zero_at is not None:
            raise ValueError("zero_at is of cost models, and referred=true scores likeness; set zero_at=null")
        if tensor_names(self.margin).keys() & {"chosen_kl_P", "reordered_P"}:
            raise ValueError("margin takes what a reference says, and a score has none: use algo/margin=none")
        check_heard(self.margin, self.link)

    @property
    def score_kind(self) -> ScoreKind:
        if self.referred:
            return "referred"
        return "score" if self.zero_at is None else "cost"

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2)

    def needs(self, tensor: str) -> bool:
        """What the pairing takes."""
        return tensor in tensor_names(self.pairing)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Runs every part once on a toy batch, each with its name in front of what it says."""
        try_out("pairing", self.pairing, Pairs, rows)
        with torch.no_grad():
            columns = self._sides(bind(self.pairing, rows), torch.zeros(rows["is_action_BT"].shape))
            for axis in ("margin", "link"):
                try_out(axis, getattr(self, axis), Tensor, {**rows, **columns})
            link_losses(columns, margin=self.margin, link=self.link, smoothing=self.smoothing)

    def prepare(self, tensors: Tensors) -> Tensors:
        """Keeps the rows of pairs, and scores the last token of what is compared; of costs, says which exceed zero."""
        pairs = bind(self.pairing, tensors)
        is_end_BT = is_end(pairs.units, tensors["is_action_BT"])
        found = kept_pairs(pairs, tensors) | {"is_scored_BT": is_end_BT}
        if self.zero_at is not None:
            found["is_costly_BT"] = is_end_BT & (tensors["return_B"] > self.zero_at)[:, None]
        return found

    def count(self, tensors: Tensors) -> Tensors:
        """Pairs, or groups that have one."""
        pairs = bind(self.pairing, tensors)
        counted = pairs.chosen_P if self.over == "pairs" else torch.unique(pairs.set_P)
        return {"num_compared": torch.tensor(len(counted), device=counted.device)}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """The share of the pairs of these groups."""
        pairs = bind(self.pairing, tensors)
        columns = self._sides(pairs, tensors["score_BT"])
        losses_P = link_losses(columns, margin=self.margin, link=self.link, smoothing=self.smoothing)
        losses_P = losses_P + self.centring * (columns["chosen_P"] + columns["rejected_P"]).square()
        if self.zero_at is not None:
            sign_N = torch.where(pairs.units.value_N > self.zero_at, 1.0, -1.0)
            for side, place_P in (("chosen_P", pairs.chosen_P), ("rejected_P", pairs.rejected_P)):
                losses_P = losses_P - logsigmoid(sign_N[place_P] * columns[side])
        if self.over == "groups":
            _, number_P, count = torch.unique(pairs.set_P, return_inverse=True, return_counts=True)
            losses_P = losses_P / count[number_P]
        return shared(losses_P.sum(), tensors), compared_metrics(columns)

    def _sides(self, pairs: Pairs, score_BT: Tensor) -> Tensors:
        """Columns of pairs; float64."""
        score_N = score_BT.flatten()[ends(pairs.units)].double()
        chosen_P, rejected_P = score_N[pairs.chosen_P], score_N[pairs.rejected_P]
        length_N = pairs.units.length_N
        return {
            "gap_P": pairs.gap_P, "chosen_P": chosen_P, "rejected_P": rejected_P, "z_P": chosen_P - rejected_P,
            "chosen_length_P": length_N[pairs.chosen_P], "rejected_length_P": length_N[pairs.rejected_P],
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankedScores(Objective):
    """``mean over groups of -sum_i log( exp r_i / (exp r_i + sum over j worse than i of exp r_j) )``.

    Plackett–Luce over all members of a group: the best is drawn first, then the best of the rest, and so on.  Members
    of equal return are not compared with each other.  Of two it is Bradley–Terry.

    Attributes:
        name: for messages.
        centring: weight of ``r^2``, the mean over members, >= 0; holds scores around 0.
        first: so many of the best are drawn; None: all.  1 is the softmax loss of the best alone.

    Raises:
        ValueError: a constant out of range.
    """

    unit: ClassVar[str | None] = "group_B"
    reads: ClassVar[tuple[str, ...]] = SCORES
    name: str
    centring: float = 0.01
    first: int | None = None

    def __post_init__(self) -> None:
        """Checks the constants."""
        require(0 <= self.centring < math.inf, "centring", self.centring, "finite and >= 0")
        is_number = isinstance(self.first, int) and not isinstance(self.first, bool) and self.first >= 1
        require(self.first is None or is_number, "first", self.first, "a whole number >= 1, or null")

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2)

    def needs(self, tensor: str) -> bool:
        """What tells trajectories, and where they end."""
        return tensor in UNITS

    def prepare(self, tensors: Tensors) -> Tensors:
        """Scores the last token of each trajectory."""
        return {"is_scored_BT": is_end(bind(trajectory_units, tensors), tensors["is_action_BT"])}

    def count(self, tensors: Tensors) -> Tensors:
        """Groups whose members are not all worth the same."""
        units = bind(trajectory_units, tensors)
        sets = torch.unique(units.set_N[_worse(units).any(1)])
        return {"num_compared": torch.tensor(len(sets), device=sets.device)}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """The share of these groups."""
        units = bind(trajectory_units, tensors)
        score_N = tensors["score_BT"].flatten()[ends(units)].double()
        is_worse_NN = _worse(units)
        is_same_NN = units.set_N[:, None] == units.set_N
        better_N = (is_worse_NN & is_same_NN).sum(0)
        is_drawn_N = is_worse_NN.any(1) & (better_N < (self.first or len(units) + 1))
        own_NN = is_worse_NN | torch.eye(len(units), dtype=torch.bool, device=score_N.device)
        total_N = torch.where(own_NN, score_N[None], -math.inf).logsumexp(1)
        loss = ((total_N - score_N) * is_drawn_N).sum()
        is_compared_N = is_worse_NN.any(1) | is_worse_NN.any(0)
        size_N = (is_same_NN & is_compared_N).sum(1).clamp(min=1)
        loss = loss + self.centring * (score_N.square() / size_N * is_compared_N).sum()
        one, other = is_worse_NN.nonzero(as_tuple=True)
        columns = {
            "chosen_P": score_N[one], "rejected_P": score_N[other],
            "chosen_length_P": units.length_N[one], "rejected_length_P": units.length_N[other],
        }  # fmt: skip
        return shared(loss, tensors), compared_metrics(columns)


def _worse(units: Units) -> Tensor:
    """True at (i, j) where j is of the group of i, and worth less."""
    is_same_NN = units.set_N[:, None] == units.set_N
    return is_same_NN & (units.value_N[:, None] > units.value_N)


def shared(total: Tensor, tensors: Tensors) -> Tensor:
    """A sum divided by what was counted; with gradient also where there is nothing."""
    idle = tensors["score_BT"].sum() * 0
    return (total / tensors["num_compared"].clamp(min=1)).to(idle.dtype) + idle
