"""Objectives of single trajectories that are desirable or not, such as KTO.

They are composed of label, score, reference, divergence, baseline and value, and need no pairs.  The reward of a
trajectory is beta times its log-prob minus the reference's; desirable trajectories should have a reward above the
baseline, undesirable ones a reward below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lit_agentrl.checks import name_errors, require
from lit_agentrl.rl.binding import bare, bind, tensor_names, try_out, with_computed
from lit_agentrl.rl.masked import check_shapes, find_trajectories, group_moments
from lit_agentrl.rl.objective import Objective, Requirements, Tensors
from lit_agentrl.rl.policy.penalties import cleaned, policy_metrics
from lit_agentrl.rl.preference.scores import reverse_kl
from lit_agentrl.rl.preference.sorting import at_same_rank
from lit_agentrl.rl.preference.units import Units, trajectory_units


# ---------------------------------------------------------------------- labels
def above(*, return_B: Tensor, threshold: float = 0.0) -> Tensor:
    """``R > threshold``, bool (B,); ``threshold`` is finite, in reward units."""
    require(math.isfinite(threshold), "threshold", threshold, "finite")
    return return_B > threshold


def solved(*, success_B: Tensor) -> Tensor:
    """True if the game was solved, bool (B,)."""
    return success_B.clone()


def above_group(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor) -> Tensor:
    """``R > mean of its group``, bool (B,); False if all returns are equal."""
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    moments = group_moments(trajectories.return_S, trajectories.group_S, trajectories.num_groups)
    return trajectories.to_rows(moments.centred_N, return_B) > 0


# ---------------------------------------------------------------------- baselines of implicit rewards
def zero(reward_S: Tensor) -> Tensor:
    """0, as in APO-zero without pairs."""
    return reward_S.new_zeros(())


def kl(reward_S: Tensor) -> Tensor:
    """``max(0, mean reward)``: KTO's z0 times beta, an estimate of ``beta KL(policy || reference)``.

    KTO averages over mismatched pairs of prompt and reply, which agents do not have, because an episode does not fit
    another game.  Here the mean is over the trajectories themselves, whether the policy sampled them or they are
    recorded.
    """
    return reward_S.mean().clamp(min=0) if len(reward_S) else zero(reward_S)


def mean_reward(reward_S: Tensor) -> Tensor:
    """The mean reward: the shift of BCO, without its running average."""
    return reward_S.mean() if len(reward_S) else zero(reward_S)


def same_rank(reward_S: Tensor, *, is_desirable_S: Tensor) -> Tensor:
    """Return rewards of the same rank on the other side: unpaired AOT, arXiv 2406.05882.

    Desirable and undesirable trajectories are sorted separately; the result is one number per trajectory.  With
    `binary`, n trajectories of both kinds and one step, the loss is that of the paper,
    ``1/n sum over ranks of -log sigmoid(reward of the desirable trajectory - reward of the undesirable one)``.  Its
    gradient is half of the paper's, because the mean is over 2n trajectories and each is compared with a constant.  If
    the numbers of both kinds differ, the baseline is the reward at the same quantile, see `at_same_rank`; if the other
    kind has no trajectory, the baseline is NaN and the trajectory is left out.
    """
    baseline_S = torch.empty_like(reward_S)
    for is_own_S in (is_desirable_S, ~is_desirable_S):
        baseline_S[is_own_S] = at_same_rank(reward_S[is_own_S], reward_S[~is_own_S])
    return baseline_S


# ---------------------------------------------------------------------- values: losses of single trajectories
def prospect(*, advance_S: Tensor) -> Tensor:
    """``1 - sigmoid(a)``: KTO, arXiv 2402.01306, equation 8.

    ``a = reward - baseline`` of a desirable trajectory, ``baseline - reward`` of an undesirable one; it carries
    gradient.
    """
    return torch.sigmoid(-advance_S)


def binary(*, advance_S: Tensor) -> Tensor:
    """``-log sigmoid(a)``: BCO, arXiv 2404.04656; for ``a`` see `prospect`."""
    return -logsigmoid(advance_S)


@dataclass(frozen=True, kw_only=True)
class PointwiseLoss(Objective):
    """``1/S sum over trajectories of weight * value(+-(beta s - baseline))``.

    ``s`` is the divergence of the score of ``logp - reference`` over sampled tokens.

    Attributes:
        name: name in messages.
        label: returns (B,), True for desirable trajectories.
        score, reference, divergence, beta: see `PreferenceLoss`.
        baseline: computed from the rewards of all trajectories under the policy before the first step: one number, or
            one per trajectory, where NaN leaves the trajectory out.  The function may also take ``is_desirable_S``.
        value: returns the loss of each trajectory.
        desirable_weight, undesirable_weight: > 0; KTO recommends that desirable_weight times the number of desirable
            trajectories is 1 to 4/3 times undesirable_weight times the number of undesirable ones.

    Raises:
        ValueError: two parts exclude each other, or a constant is out of range; :meth:`try_out` finds other errors.
    """

    unit: ClassVar[str | None] = "trajectory_B"
    name: str
    label: Callable[..., Tensor]
    score: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    value: Callable[..., Tensor]
    baseline: Callable[..., Tensor] = zero
    divergence: Callable[..., Tensor] = reverse_kl
    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the constants, and that a baseline has a frozen reference."""
        for option in ("beta", "desirable_weight", "undesirable_weight"):
            value = getattr(self, option)
            require(0 < value < math.inf, option, value, "finite and > 0")
        if self._reads_policy and "ref_logp_BT" not in tensor_names(self.reference):
            raise ValueError(
                "baseline is the distance of the policy to a frozen reference: use algo/reference=frozen, or "
                "algo/baseline=none"
            )

    @property
    def _reads_policy(self) -> bool:
        return bare(self.baseline) is not zero

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2 if "group_B" in tensor_names(self.label) else 1)

    def needs(self, tensor: str) -> bool:
        """Return True if a part reads the tensor.

        A baseline also needs log-probs before the first step.
        """
        units = tensor_names(trajectory_units)
        parts = tensor_names(self.label) | tensor_names(self.reference) | units
        return tensor in parts or (self._reads_policy and tensor in ("old_logp_BT", "sampler_logp_BT"))

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Run every part once on a toy batch; errors begin with the part's name."""
        try_out("label", self.label, Tensor, rows, "B")
        try_out("reference", self.reference, Tensor, rows, "BT")
        clean = cleaned(with_computed(rows))
        with torch.no_grad():
            with name_errors("baseline"):
                baseline = self._compute_baseline(torch.zeros(2), torch.tensor([True, False]))
            is_valid = isinstance(baseline, Tensor) and baseline.shape in ((), (2,))
            require(is_valid, "baseline", baseline, "a scalar, or a number for each trajectory")
            units = bind(trajectory_units, clean)
            reward_S = self._compute_rewards(units, clean, "logp_BT")
            try_out("value", self.value, Tensor, {**rows, "advance_S": reward_S})

    def prepare(self, tensors: Tensors) -> Tensors:
        """Compute ``is_desirable_B``, the baseline, and the share of desirable trajectories."""
        is_desirable_B = bind(self.label, tensors)
        units = bind(trajectory_units, tensors)
        is_scored_B = ~tensors["return_B"].isnan()
        check_shapes(is_desirable_B=is_desirable_B, return_B=tensors["return_B"])
        baseline_B = torch.zeros(len(is_scored_B), dtype=torch.float64, device=is_scored_B.device)
        if self._reads_policy:
            row_A = units.place_A // max(tensors["is_action_BT"].shape[1], 1)
            is_desirable_S = is_desirable_B[row_A[units.start_N]]
            reward_S = self._compute_rewards(units, cleaned(tensors), "old_logp_BT")
            baseline = self._compute_baseline(reward_S, is_desirable_S)
            baseline_B[row_A] = baseline.expand(len(units))[units.unit_A]
        return {
            "keep_B": is_scored_B & ~baseline_B.isnan(),
            "is_desirable_B": is_desirable_B,
            "reward_level_B": baseline_B,
            "desirable_share": (is_desirable_B & is_scored_B).sum() / is_scored_B.sum().clamp(min=1),
        }

    def _compute_baseline(self, reward_S: Tensor, is_desirable_S: Tensor) -> Tensor:
        needs_labels = "is_desirable_S" in tensor_names(self.baseline)
        return self.baseline(reward_S, **({"is_desirable_S": is_desirable_S} if needs_labels else {}))

    def count(self, tensors: Tensors) -> Tensors:
        """Count the trajectories with a sampled token."""
        units = bind(trajectory_units, tensors)
        return {"num_units": torch.tensor(len(units), device=units.place_A.device)}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return these trajectories' share of the loss, and metrics."""
        clean = cleaned(tensors)
        units = bind(trajectory_units, clean)
        reward_S = self._compute_rewards(units, clean, "logp_BT")
        row_S = (units.place_A // max(clean["is_action_BT"].shape[1], 1))[units.start_N]
        is_desirable_S = clean["is_desirable_B"][row_S]
        advance_S = (reward_S - clean["reward_level_B"][row_S]) * (2.0 * is_desirable_S - 1)
        weight_S = torch.where(is_desirable_S, self.desirable_weight, self.undesirable_weight)
        loss = (weight_S * bind(self.value, {"advance_S": advance_S})).sum()
        # keeps the loss connected to the network if there is no trajectory
        zero_loss = clean["logp_BT"].sum() * 0
        metrics = self._compute_metrics(units, clean, reward_S.detach(), is_desirable_S)
        return (loss / tensors["num_units"].clamp(min=1)).to(zero_loss.dtype) + zero_loss, metrics

    def _compute_rewards(self, units: Units, clean: Tensors, policy: str) -> Tensor:
        """Compute ``beta * divergence(score)`` of each trajectory, float64.

        ``policy`` names the column of log-probs.
        """
        x_A = units.read(clean[policy]) - units.read(bind(self.reference, clean))
        every_S = torch.arange(len(units), device=x_A.device)
        with name_errors("score"):
            score_S = self.score(x_A, units=units, side_S=every_S, other_S=every_S)
        with name_errors("divergence"):
            reward_S: Tensor = self.beta * self.divergence(score_S)
        return reward_S

    @torch.no_grad()
    def _compute_metrics(
        self, units: Units, clean: Tensors, reward_S: Tensor, is_desirable_S: Tensor
    ) -> Tensors:
        logp_S = units.sum(units.read(clean["logp_BT"]))
        before_BT = clean.get("ref_logp_BT", clean.get("old_logp_BT", clean["logp_BT"]))
        moved_S = logp_S - units.sum(units.read(before_BT))
        metrics = policy_metrics(clean)
        for side, is_side_S in (("chosen", is_desirable_S), ("rejected", ~is_desirable_S)):
            values = {"reward": reward_S, "logp": logp_S, "moved": moved_S}
            for name, value_S in values.items():
                metrics[f"{name}_{side}"] = torch.stack(
                    [value_S[is_side_S].sum(), is_side_S.sum().to(value_S)]
                )
        return metrics
