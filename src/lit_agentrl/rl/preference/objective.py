"""The objective of pairs, composed of one function per axis, with an optional NLL term.

The axes are pairing, score, reference, divergence, margin, link and smoothing.  A pair consists of two units of sampled
tokens of a group; the one with the higher return is chosen.  A group can be the rollouts of a prompt, or a recorded
pair, which is a group of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lit_agentrl.checks import name_errors, require
from lit_agentrl.rl.binding import bind, tensor_names, try_out, with_computed
from lit_agentrl.rl.objective import REF_KL, Objective, Requirements, Tensors
from lit_agentrl.rl.policy.penalties import cleaned, policy_metrics
from lit_agentrl.rl.preference.critic_terms import Ranking, Targets
from lit_agentrl.rl.preference.links import certain
from lit_agentrl.rl.preference.margins import check_margin, none
from lit_agentrl.rl.preference.pair_columns import kept_pairs, link_losses, pair_metrics, sum_and_count
from lit_agentrl.rl.preference.pairing import Pairs
from lit_agentrl.rl.preference.scores import reverse_kl
from lit_agentrl.rl.preference.sorting import check_sorted, of_rows, reordered, to_rows


@dataclass(frozen=True, kw_only=True)
class NLL:
    """``coef * (-log p)`` of chosen units, which keeps their log-prob from falling.

    Attributes:
        coef: weight, > 0.
        of: ``best``: the best unit of each group with a pair; ``pairs``: the chosen side of each pair, so that a unit
            counts once for each of its pairs.  The two are equal if each group has one pair, as recorded pairs have.
        per: ``unit``: the mean over units of the mean over their tokens, as in Llama 3 (arXiv 2407.21783, coef 0.2) and
            iterative RPO (arXiv 2404.19733, coef 1.0); ``token``: the mean over all their tokens, as in trl and CPO.
    """

    coef: float
    of: Literal["best", "pairs"] = "best"
    per: Literal["unit", "token"] = "unit"

    def __post_init__(self) -> None:
        """Check the constants."""
        is_valid = 0 < self.coef < math.inf
        require(is_valid, "coef", self.coef, "finite and > 0; algo/nll=none switches the term off")
        require(self.of in ("best", "pairs"), "of", self.of, "best or pairs")
        require(self.per in ("unit", "token"), "per", self.per, "unit or token")

    def imitated(self, pairs: Pairs) -> Tensor:
        """Return the units to imitate, int64."""
        return pairs.best() if self.of == "best" else pairs.chosen_P

    def divisor(self, pairs: Pairs) -> Tensor:
        """Count the units to imitate, or their tokens."""
        length_U = pairs.units.length_N[self.imitated(pairs)]
        return length_U.sum() if self.per == "token" else length_U.new_tensor(len(length_U))

    def summed(self, pairs: Pairs, logp_BT: Tensor) -> Tensor:
        """Sum the NLL of the units to imitate; the caller divides by the minibatch's `divisor`.

        Gradient flows through ``logp_BT`` (nats).
        """
        units, imitated_U = pairs.units, self.imitated(pairs)
        nll_U = -units.sum(units.read(logp_BT))[imitated_U]
        return (nll_U / units.length_N[imitated_U] if self.per == "unit" else nll_U).sum()


@dataclass(frozen=True, kw_only=True)
class PreferenceLoss(Objective):
    """Mean of a link function over pairs, plus an optional `NLL`.

    ``weight/P sum over pairs of link(z)`` with ``z = beta * (s(chosen) - s(rejected)) + margin``.  ``s`` is the
    divergence of the score of ``logp - reference``, which covers sampled tokens only, so observations are not learnt.
    Gradient flows through ``logp_BT`` and, with a margin over the vocabulary, through ``ref_kl_BT``.

    Attributes:
        name: name in messages.
        pairing: returns `Pairs`; see ``pairing.py``.
        score: returns one number per side from its tokens; see ``scores.py``.
        reference: returns the log-probs to subtract, (B, T); see ``scores.py``.
        divergence: function of the score; see ``scores.py``.
        margin: returns the number to add to z; see ``margins.py``.
        link: returns the loss of each pair; see ``links.py``.
        smoothing: corrects for wrong labels; see ``links.py``.
        nll: an `NLL` term or None.
        targets: returns `Targets` of a critic, or None without a critic; see ``critic_terms.py``.
        ranking: a loss that orders the critic's values of the two sides, or None.
        beta: units of z per nat, > 0.
        weight: weight of the loss of pairs relative to the NLL, > 0.
        over: ``pairs``: P is the number of pairs of a minibatch, on all ranks; ``groups``: the number of groups, or
            states, with a pair, so that groups with many pairs have more weight.

    Raises:
        ValueError: two parts exclude each other, or a constant is out of range; :meth:`try_out` finds other errors.
    """

    unit: ClassVar[str | None] = "group_B"
    name: str
    pairing: Callable[..., Pairs]
    score: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    link: Callable[..., Tensor]
    divergence: Callable[..., Tensor] = reverse_kl
    margin: Callable[..., Tensor] = none
    smoothing: Callable[..., Tensor] = certain
    nll: NLL | None = None
    targets: Callable[..., Targets] | None = None
    ranking: Ranking | None = None
    beta: float = 0.1
    weight: float = 1.0
    over: Literal["pairs", "groups"] = "pairs"

    def __post_init__(self) -> None:
        """Check the constants and that the parts fit together."""
        for option in ("beta", "weight"):
            value = getattr(self, option)
            require(0 < value < math.inf, option, value, "finite and > 0")
        require(self.over in ("pairs", "groups"), "over", self.over, "pairs or groups")
        if "chosen_kl_P" in tensor_names(self.margin) and "logp_BT" in tensor_names(self.reference):
            raise ValueError(
                "margin takes the KL to a reference, and algo/reference=none has none: use algo/reference=frozen"
            )
        if self._reads_vocabulary and "ref_logp_BT" not in tensor_names(self.reference):
            raise ValueError(
                "margin takes the KL to the network of a reference over the vocabulary: use algo/reference=frozen, or "
                "algo/margin=sequence_kl, which estimates it"
            )
        check_margin(self.margin, self.link)
        if self._sorts:
            check_sorted(self.reference, self.divergence, self.link)
        if self.ranking is not None and self.targets is None:
            raise ValueError(
                "ranking orders the values of a critic, and algo/targets=none has none: use algo/targets=tree"
            )

    @property
    def _sorts(self) -> bool:
        return "reordered_P" in tensor_names(self.margin)

    @property
    def _reads_vocabulary(self) -> bool:
        return "chosen_full_kl_P" in tensor_names(self.margin)

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2)

    def needs(self, tensor: str) -> bool:
        """Return True if a part reads the tensor.

        Targets also need the values of a critic, and sorting needs log-probs before the first step.
        """
        if tensor == "value_BT":
            return self.targets is not None
        if tensor == REF_KL:
            return self._reads_vocabulary
        if self._sorts and tensor in ("old_logp_BT", "sampler_logp_BT"):
            return True
        parts = (self.pairing, self.reference, self.targets)
        return any(tensor in tensor_names(part) for part in parts if part is not None)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Run every part once on a toy batch; errors begin with the part's name."""
        try_out("pairing", self.pairing, Pairs, rows)
        try_out("reference", self.reference, Tensor, rows, "BT")
        if self.targets is not None:
            try_out("targets", self.targets, Targets, rows)
        clean = cleaned(with_computed(rows))
        with torch.no_grad():
            pairs = bind(self.pairing, clean)
            columns = self._compute_columns(clean | self._compute_reordered(clean, pairs), pairs)
            for axis in ("margin", "link"):
                try_out(axis, getattr(self, axis), Tensor, {**rows, **columns})
            self._compute_losses(columns)

    def prepare(self, tensors: Tensors) -> Tensors:
        """Keep the rows of pairs and the rows with critic targets.

        ``reordered_BK`` holds ``reordered_P`` of each pair, for margins that sort.
        """
        pairs = bind(self.pairing, tensors)
        columns = kept_pairs(pairs, tensors) | self._compute_reordered(cleaned(tensors), pairs)
        if self.targets is None:
            return columns
        targets: Targets = bind(self.targets, tensors)
        return columns | vars(targets) | {"keep_B": columns["keep_B"] | targets.is_value_target_BT.any(1)}

    def count(self, tensors: Tensors) -> Tensors:
        """Count pairs, groups with a pair, and imitated units or tokens."""
        pairs = bind(self.pairing, tensors)
        counts = {
            "num_pairs": pairs.set_P.new_tensor(len(pairs.set_P)),
            "num_sets": pairs.set_P.new_tensor(len(pairs.set_P.unique())),
        }
        return counts if self.nll is None else counts | {"num_imitated": self.nll.divisor(pairs)}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return these groups' share of the loss, and metrics."""
        clean = cleaned(tensors)
        pairs = bind(self.pairing, clean)
        columns = self._compute_columns(clean, pairs)
        count = tensors["num_pairs" if self.over == "pairs" else "num_sets"]
        loss = self.weight * self._compute_losses(columns).sum() / count.clamp(min=1)
        if self.nll is not None:
            nll = self.nll.summed(pairs, clean["logp_BT"])
            loss = loss + self.nll.coef * nll / tensors["num_imitated"].clamp(min=1)
        zero = clean["logp_BT"].sum() * 0  # keeps the loss connected to the network if there is no pair
        return loss.to(zero.dtype) + zero, pair_metrics(columns) | policy_metrics(clean)

    def value_loss(self, tensors: Tensors) -> tuple[Tensor, Tensors] | None:
        """Return the ranking loss of the pairs of these groups, and metrics."""
        if self.ranking is None:
            return None
        value_BT = tensors["value_BT"]
        difference_P = self.ranking.value_differences(bind(self.pairing, tensors), value_BT)
        loss_P = self.ranking.losses(difference_P)
        count = tensors["num_pairs" if self.over == "pairs" else "num_sets"]
        metrics = {"critic_ranking": loss_P, "critic_ranked_rightly": (difference_P > 0).double()}
        loss = self.ranking.coef * loss_P.sum() / count.clamp(min=1)
        return loss.to(value_BT.dtype), {name: sum_and_count(x_P.detach()) for name, x_P in metrics.items()}

    def _compute_columns(self, clean: Tensors, pairs: Pairs) -> Tensors:
        """Compute the columns of pairs, float64; ``z_P`` does not include the margin."""
        units, sides = pairs.units, {"chosen": pairs.chosen_P, "rejected": pairs.rejected_P}
        logp_A = units.read(clean["logp_BT"])
        x_A = logp_A - units.read(bind(self.reference, clean))
        old_A = units.read(clean.get("old_logp_BT", clean["logp_BT"]))
        has_reference = "logp_BT" not in tensor_names(self.reference)
        unit_values = {
            "logp": units.sum(logp_A),
            "moved": units.sum((x_A if has_reference else logp_A - old_A).detach()),
            "kl": self.beta * units.sum(torch.expm1(x_A.clamp(max=20)) - x_A),
            "length": units.length_N,
        }
        if self._reads_vocabulary:
            unit_values["full_kl"] = self.beta * units.sum(units.read(clean[REF_KL]))
        if units.visits_N is not None:
            unit_values["visits"] = units.visits_N
        columns = {"gap_P": pairs.gap_P, "set_P": pairs.set_P}
        for (side, side_P), other_P in zip(sides.items(), reversed(sides.values()), strict=True):
            with name_errors("score"):
                score_P = self.score(x_A, units=units, side_S=side_P, other_S=other_P)
            with name_errors("divergence"):
                columns[f"{side}_P"] = self.beta * self.divergence(score_P)
            columns |= {f"{side}_{name}_P": value_N[side_P] for name, value_N in unit_values.items()}
        columns["z_P"] = columns["chosen_P"] - columns["rejected_P"]
        if self._sorts:
            columns["reordered_P"] = of_rows(clean["reordered_BK"], pairs, clean["is_action_BT"])
        return columns

    def _compute_reordered(self, clean: Tensors, pairs: Pairs) -> Tensors:
        """Compute ``reordered_BK`` from the policy before the first step, if the margin sorts."""
        if not self._sorts:
            return {}
        policy_BT, reference_BT = clean["old_logp_BT"], bind(self.reference, clean)
        with name_errors("score"):
            gap_P = reordered(pairs, self.score, policy_BT=policy_BT, reference_BT=reference_BT)
        return {"reordered_BK": to_rows(self.beta * gap_P, pairs, clean["is_action_BT"])}

    def _compute_losses(self, columns: Tensors) -> Tensor:
        """Compute the loss of each pair."""
        return link_losses(columns, margin=self.margin, link=self.link, smoothing=self.smoothing)


def no_nll() -> None:
    """Use no NLL term."""
