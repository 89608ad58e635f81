"""Objectives of reward models: comparisons and rankings; see ``step_labels.py`` for steps.

They read ``score_BT``, the output of a head on the hidden state after a sampled token, instead of log-probs.  `prepare`
marks the tokens to score in ``is_scored_BT``; elsewhere the score is 0 and carries no gradient.
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
from lit_agentrl.rl.preference.margins import check_margin, none
from lit_agentrl.rl.preference.pair_columns import kept_pairs, link_losses, score_metrics
from lit_agentrl.rl.preference.pairing import Pairs
from lit_agentrl.rl.preference.units import Units, trajectory_units

UNITS = ("return_B", "group_B", "trajectory_B", "is_action_BT", "turn_BT", "first_turn_B")


def ends(units: Units) -> Tensor:
    """Index in the flattened (B, T) of the last token of each unit, int64 (N,)."""
    return units.place_A[units.start_N + units.length_N.long() - 1]


def is_end(units: Units, is_action_BT: Tensor) -> Tensor:
    """True at the last sampled token of each unit, (B, T)."""
    is_end_BT = torch.zeros_like(is_action_BT)
    is_end_BT.view(-1)[ends(units)] = True
    return is_end_BT


@dataclass(frozen=True, kw_only=True)
class ComparedScores(Objective):
    """Loss of a reward model on pairs, such as Bradley–Terry.

    ``mean over pairs of link(r(chosen) - r(rejected) + margin) + centring * (r(chosen) + r(rejected))^2``, where ``r``
    is the score after the last token of a trajectory.  Equal returns are not a pair.

    With the logistic link it is Bradley–Terry, as in InstructGPT, arXiv 2203.02155, equation 1, where all K answers of
    a prompt are one batch element.  Margins are those of Llama 2, arXiv 2307.09288, equation 2; the centring term is
    that of arXiv 2312.09244.

    A cost model (Safe RLHF, arXiv 2310.12773, equation 6) scores costs, so higher is worse, and adds
    ``-log sigmoid(s r)`` of both sides, with ``s = 1`` if the cost of a trajectory exceeds ``zero_at``, else -1.  A
    score above 0 then means that an answer is too costly.

    Attributes:
        name: name in messages.
        pairing: returns `Pairs`; see ``pairing.py``.
        link: returns the loss of each pair; see ``links.py``.
        margin: see ``margins.py``.
        smoothing: corrects for wrong labels; see ``links.py``.
        centring: weight of the term that keeps scores near 0, >= 0; a loss of differences does not determine their
            mean.
        over: ``pairs``: the mean is over pairs; ``groups``: the mean is over groups of the means over their pairs, so
            that a prompt with many answers has no more weight than one with two.
        zero_at: for a cost model, the cost up to which a trajectory is harmless; None for a reward model.
        referred: whether a reference answer precedes each trajectory, see `data.referred`; the score is then
            ``r(reference, trajectory)``, as in POLAR, arXiv 2507.05197.

    Raises:
        ValueError: a constant is out of range, or the margin needs a reference policy.
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
        """Check the constants."""
        require(0 <= self.centring < math.inf, "centring", self.centring, "finite and >= 0")
        require(self.over in ("pairs", "groups"), "over", self.over, "pairs or groups")
        if self.zero_at is not None:
            require_number("zero_at", self.zero_at, "a finite number, or null")
        require(isinstance(self.referred, bool), "referred", self.referred, "true or false")
        if self.referred and self.zero_at is not None:
            raise ValueError(
                "zero_at is for cost models, and referred=true scores similarity; set zero_at=null"
            )
        if tensor_names(self.margin).keys() & {"chosen_kl_P", "chosen_full_kl_P", "reordered_P"}:
            raise ValueError(
                "margin needs a reference policy, and a reward model has none: use algo/margin=none"
            )
        check_margin(self.margin, self.link)

    @property
    def score_kind(self) -> ScoreKind:
        if self.referred:
            return "referred"
        return "score" if self.zero_at is None else "cost"

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2)

    def needs(self, tensor: str) -> bool:
        """Return True for the tensors of the pairing."""
        return tensor in tensor_names(self.pairing)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Run every part once on a toy batch; errors begin with its name."""
        try_out("pairing", self.pairing, Pairs, rows)
        with torch.no_grad():
            columns = self._compute_columns(bind(self.pairing, rows), torch.zeros(rows["is_action_BT"].shape))
            for axis in ("margin", "link"):
                try_out(axis, getattr(self, axis), Tensor, {**rows, **columns})
            link_losses(columns, margin=self.margin, link=self.link, smoothing=self.smoothing)

    def prepare(self, tensors: Tensors) -> Tensors:
        """Keep the rows of pairs, and mark the last token of each unit for scoring.

        For a cost model, ``is_costly_BT`` marks the last tokens of units whose cost exceeds ``zero_at``.
        """
        pairs = bind(self.pairing, tensors)
        is_end_BT = is_end(pairs.units, tensors["is_action_BT"])
        columns = kept_pairs(pairs, tensors) | {"is_scored_BT": is_end_BT}
        if self.zero_at is not None:
            columns["is_costly_BT"] = is_end_BT & (tensors["return_B"] > self.zero_at)[:, None]
        return columns

    def count(self, tensors: Tensors) -> Tensors:
        """Count pairs, or groups with a pair."""
        pairs = bind(self.pairing, tensors)
        counted = pairs.chosen_P if self.over == "pairs" else torch.unique(pairs.set_P)
        return {"num_compared": torch.tensor(len(counted), device=counted.device)}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return the share of these groups in the loss, and metrics."""
        pairs = bind(self.pairing, tensors)
        columns = self._compute_columns(pairs, tensors["score_BT"])
        losses_P = link_losses(columns, margin=self.margin, link=self.link, smoothing=self.smoothing)
        losses_P = losses_P + self.centring * (columns["chosen_P"] + columns["rejected_P"]).square()
        if self.zero_at is not None:
            sign_N = torch.where(pairs.units.value_N > self.zero_at, 1.0, -1.0)
            for side, place_P in (("chosen_P", pairs.chosen_P), ("rejected_P", pairs.rejected_P)):
                losses_P = losses_P - logsigmoid(sign_N[place_P] * columns[side])
        if self.over == "groups":
            _, number_P, count = torch.unique(pairs.set_P, return_inverse=True, return_counts=True)
            losses_P = losses_P / count[number_P]
        return shared(losses_P.sum(), tensors), score_metrics(columns)

    def _compute_columns(self, pairs: Pairs, score_BT: Tensor) -> Tensors:
        """Compute the columns of pairs, float64."""
        score_N = score_BT.flatten()[ends(pairs.units)].double()
        chosen_P, rejected_P = score_N[pairs.chosen_P], score_N[pairs.rejected_P]
        length_N = pairs.units.length_N
        return {
            "gap_P": pairs.gap_P, "chosen_P": chosen_P, "rejected_P": rejected_P, "z_P": chosen_P - rejected_P,
            "chosen_length_P": length_N[pairs.chosen_P], "rejected_length_P": length_N[pairs.rejected_P],
            "set_P": pairs.set_P,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankedScores(Objective):
    """Plackett–Luce loss of a reward model over the ranking of each group.

    ``mean over groups of -sum_i log( exp r_i / (exp r_i + sum over j worse than i of exp r_j) )``: the best trajectory
    is drawn first, then the best of the rest, and so on.  Trajectories of equal return are not compared with each
    other.  For two trajectories it is Bradley–Terry.

    Attributes:
        name: name in messages.
        centring: weight of the mean of ``r^2`` over trajectories, >= 0; it keeps scores near 0.
        first: number of draws; None for all.  1 is the softmax loss of the best trajectory.

    Raises:
        ValueError: a constant is out of range.
    """

    unit: ClassVar[str | None] = "group_B"
    reads: ClassVar[tuple[str, ...]] = SCORES
    name: str
    centring: float = 0.01
    first: int | None = None

    def __post_init__(self) -> None:
        """Check the constants."""
        require(0 <= self.centring < math.inf, "centring", self.centring, "finite and >= 0")
        is_number = isinstance(self.first, int) and not isinstance(self.first, bool) and self.first >= 1
        require(self.first is None or is_number, "first", self.first, "a whole number >= 1, or null")

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2)

    def needs(self, tensor: str) -> bool:
        """Return True for the tensors that define trajectories."""
        return tensor in UNITS

    def prepare(self, tensors: Tensors) -> Tensors:
        """Mark the last token of each trajectory for scoring."""
        return {"is_scored_BT": is_end(bind(trajectory_units, tensors), tensors["is_action_BT"])}

    def count(self, tensors: Tensors) -> Tensors:
        """Count the groups with different returns."""
        units = bind(trajectory_units, tensors)
        sets = torch.unique(units.set_N[_compare_values(units).any(1)])
        return {"num_compared": torch.tensor(len(sets), device=sets.device)}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return the share of these groups in the loss, and metrics."""
        units = bind(trajectory_units, tensors)
        score_N = tensors["score_BT"].flatten()[ends(units)].double()
        is_worse_NN = _compare_values(units)
        is_same_NN = units.set_N[:, None] == units.set_N
        num_better_N = is_worse_NN.sum(0)
        is_drawn_N = is_worse_NN.any(1) & (num_better_N < (self.first or len(units) + 1))
        is_candidate_NN = is_worse_NN | torch.eye(len(units), dtype=torch.bool, device=score_N.device)
        total_N = torch.where(is_candidate_NN, score_N[None], -math.inf).logsumexp(1)
        loss = ((total_N - score_N) * is_drawn_N).sum()
        is_compared_N = is_worse_NN.any(1) | is_worse_NN.any(0)
        size_N = (is_same_NN & is_compared_N).sum(1).clamp(min=1)
        loss = loss + self.centring * (score_N.square() / size_N * is_compared_N).sum()
        better_P, worse_P = is_worse_NN.nonzero(as_tuple=True)
        columns = {
            "chosen_P": score_N[better_P], "rejected_P": score_N[worse_P],
            "chosen_length_P": units.length_N[better_P], "rejected_length_P": units.length_N[worse_P],
        }  # fmt: skip
        return shared(loss, tensors), score_metrics(columns)


def _compare_values(units: Units) -> Tensor:
    """Compare the values of units of a group.

    Returns:
        ``is_worse_NN``, True at (i, j) if unit j is in the group of unit i and has a lower value.
    """
    is_same_NN = units.set_N[:, None] == units.set_N
    return is_same_NN & (units.value_N[:, None] > units.value_N)


def shared(total: Tensor, tensors: Tensors) -> Tensor:
    """Divide a sum by ``num_compared``; keep it connected to the scores even without pairs."""
    zero = tensors["score_BT"].sum() * 0
    return (total / tensors["num_compared"].clamp(min=1)).to(zero.dtype) + zero
