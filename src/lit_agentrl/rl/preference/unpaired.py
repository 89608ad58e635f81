"""An objective of single trajectories that are desirable or not, such as KTO's: label x score x reference x value.

It needs no pairs: where the return of a trajectory says that it is desirable, its log-prob shall rise over the
reference's by more than a baseline, else fall.
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


# ---------------------------------------------------------------------- labels: what is desirable
def above(*, return_B: Tensor, threshold: float = 0.0) -> Tensor:
    """``R > threshold``, bool (B,); ``threshold`` is finite, in points."""
    require(math.isfinite(threshold), "threshold", threshold, "finite")
    return return_B > threshold


def solved(*, success_B: Tensor) -> Tensor:
    """The game was solved, bool (B,)."""
    return success_B.clone()


def above_group(*, return_B: Tensor, group_B: Tensor, trajectory_B: Tensor) -> Tensor:
    """``R > mean of its group``, bool (B,); nothing is desirable where all are alike."""
    found = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    moments = group_moments(found.return_S, found.group_S, found.num_groups)
    return found.to_rows(moments.centred_N, return_B) > 0


# ---------------------------------------------------------------------- baselines: what a reward is compared with
def zero(reward_S: Tensor) -> Tensor:
    """0: APO-zero without pairs."""
    return reward_S.new_zeros(())


def kl(reward_S: Tensor) -> Tensor:
    """``max(0, mean reward)``: KTO's z0 times beta, an estimate of ``beta KL(policy || reference)``.

    KTO takes the mean over mismatched pairs of prompt and reply, which say nothing about an agent: an episode does not
    fit another game.  Here the trajectories themselves are what the policy, or whoever was recorded, played.
    """
    return reward_S.mean().clamp(min=0) if len(reward_S) else zero(reward_S)


def mean_reward(reward_S: Tensor) -> Tensor:
    """The mean reward: BCO's shift, without its running average."""
    return reward_S.mean() if len(reward_S) else zero(reward_S)


def same_rank(reward_S: Tensor, *, is_desirable_S: Tensor) -> Tensor:
    """The reward of the same rank on the other side, one number a trajectory: AOT of unpaired data, arXiv 2406.05882.

    Desirable and undesirable ones are sorted apart.  With `binary`, n of both and one step, the loss is the paper's,
    ``1/n sum over ranks of -log sigmoid(reward of the desirable one - reward of the undesirable one)``.  Its gradient
    is half of the paper's: the mean is over 2n trajectories, and each is compared with a number that stays.  Where
    there are not as many of both, it is the one at the same quantile, see `at_same_rank`; where there are none it is
    NaN, and the trajectory is left out.
    """
    level_S = torch.empty_like(reward_S)
    for is_own_S in (is_desirable_S, ~is_desirable_S):
        level_S[is_own_S] = at_same_rank(reward_S[is_own_S], reward_S[~is_own_S])
    return level_S


# ---------------------------------------------------------------------- values: the loss of one trajectory
def prospect(*, advance_S: Tensor) -> Tensor:
    """``1 - sigmoid(a)``: KTO, arXiv 2402.01306, equation 8.

    ``a = reward - baseline`` of what is desirable, the negative of what is not; carries gradient.
    """
    return torch.sigmoid(-advance_S)


def binary(*, advance_S: Tensor) -> Tensor:
    """``-log sigmoid(a)``: BCO, arXiv 2404.04656; ``a`` as of `prospect`."""
    return -logsigmoid(advance_S)


@dataclass(frozen=True, kw_only=True)
class PointwiseLoss(Objective):
    """``1/S sum over trajectories of weight * value(+-(beta s - baseline))``.

    ``s`` is the divergence of the score of ``logp - reference`` over sampled tokens.

    Attributes:
        name: for messages.
        label: returns (B,), what is desirable.
        score, reference, divergence, beta: as of `PreferenceLoss`.
        baseline: from the rewards of all trajectories under the policy before the first step: one number, or one a
            trajectory, NaN where it is left out.  It may take ``is_desirable_S`` too.
        value: returns the loss of each trajectory.
        desirable_weight, undesirable_weight: > 0; KTO asks that the first times the number of desirable ones be 1 to
            4/3 times the second times that of the others.

    Raises:
        ValueError: at construction, if parts make no sense together; :meth:`try_out` sees the others.
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
        """Checks constants, and that a baseline has a reference of its own."""
        for option in ("beta", "desirable_weight", "undesirable_weight"):
            value = getattr(self, option)
            require(0 < value < math.inf, option, value, "finite and > 0")
        if self._reads_policy and "ref_logp_BT" not in tensor_names(self.reference):
            raise ValueError(
                "baseline is the distance of the policy to a reference that stays: use algo/reference=frozen, or "
                "algo/baseline=none"
            )

    @property
    def _reads_policy(self) -> bool:
        return bare(self.baseline) is not zero

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2 if "group_B" in tensor_names(self.label) else 1)

    def needs(self, tensor: str) -> bool:
        """What label and reference take; log-probs before the first step where there is a baseline."""
        units = tensor_names(trajectory_units)
        parts = tensor_names(self.label) | tensor_names(self.reference) | units
        return tensor in parts or (self._reads_policy and tensor in ("old_logp_BT", "sampler_logp_BT"))

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Runs every part once on a toy batch, each with its name in front of what it says."""
        try_out("label", self.label, Tensor, rows, "B")
        try_out("reference", self.reference, Tensor, rows, "BT")
        clean = cleaned(with_computed(rows))
        with torch.no_grad():
            with name_errors("baseline"):
                baseline = self._level(torch.zeros(2), torch.tensor([True, False]))
            is_valid = isinstance(baseline, Tensor) and baseline.shape in ((), (2,))
            require(is_valid, "baseline", baseline, "a scalar, or a number for each trajectory")
            units = bind(trajectory_units, clean)
            reward_S = self._rewards(units, clean, "logp_BT")
            try_out("value", self.value, Tensor, {**rows, "advance_S": reward_S})

    def prepare(self, tensors: Tensors) -> Tensors:
        """``is_desirable_B``, the baseline, and the share of trajectories that are desirable."""
        is_desirable_B = bind(self.label, tensors)
        units = bind(trajectory_units, tensors)
        scored_B = ~tensors["return_B"].isnan()
        check_shapes(is_desirable_B=is_desirable_B, return_B=tensors["return_B"])
        level_B = torch.zeros(len(scored_B), dtype=torch.float64, device=scored_B.device)
        if self._reads_policy:
            row_A = units.place_A // max(tensors["is_action_BT"].shape[1], 1)
            is_desirable_S = is_desirable_B[row_A[units.start_N]]
            level = self._level(self._rewards(units, cleaned(tensors), "old_logp_BT"), is_desirable_S)
            level_B[row_A] = level.expand(len(units))[units.unit_A]
        return {
            "keep_B": scored_B & ~level_B.isnan(),
            "is_desirable_B": is_desirable_B,
            "reward_level_B": level_B,
            "desirable_share": (is_desirable_B & scored_B).sum() / scored_B.sum().clamp(min=1),
        }

    def _level(self, reward_S: Tensor, is_desirable_S: Tensor) -> Tensor:
        asked = "is_desirable_S" in tensor_names(self.baseline)
        return self.baseline(reward_S, **({"is_desirable_S": is_desirable_S} if asked else {}))

    def count(self, tensors: Tensors) -> Tensors:
        """Trajectories with a sampled token."""
        units = bind(trajectory_units, tensors)
        return {"num_units": torch.tensor(len(units), device=units.place_A.device)}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """The share of these trajectories."""
        clean = cleaned(tensors)
        units = bind(trajectory_units, clean)
        reward_S = self._rewards(units, clean, "logp_BT")
        row_S = (units.place_A // max(clean["is_action_BT"].shape[1], 1))[units.start_N]
        is_desirable_S = clean["is_desirable_B"][row_S]
        advance_S = (reward_S - clean["reward_level_B"][row_S]) * (2.0 * is_desirable_S - 1)
        weight_S = torch.where(is_desirable_S, self.desirable_weight, self.undesirable_weight)
        loss = (weight_S * bind(self.value, {"advance_S": advance_S})).sum()
        idle = clean["logp_BT"].sum() * 0  # where there is no trajectory
        metrics = self._metrics(units, clean, reward_S.detach(), is_desirable_S)
        return (loss / tensors["num_units"].clamp(min=1)).to(idle.dtype) + idle, metrics

    def _rewards(self, units: Units, clean: Tensors, policy: str) -> Tensor:
        """``beta * divergence(score)`` of each trajectory under the policy of that column; float64."""
        x_A = units.read(clean[policy]) - units.read(bind(self.reference, clean))
        every_S = torch.arange(len(units), device=x_A.device)
        with name_errors("score"):
            score_S = self.score(x_A, units=units, side_S=every_S, other_S=every_S)
        with name_errors("divergence"):
            reward_S: Tensor = self.beta * self.divergence(score_S)
        return reward_S

    @torch.no_grad()
    def _metrics(self, units: Units, clean: Tensors, reward_S: Tensor, is_desirable_S: Tensor) -> Tensors:
        logp_S = units.sum(units.read(clean["logp_BT"]))
        before = clean.get("ref_logp_BT", clean.get("old_logp_BT", clean["logp_BT"]))
        moved_S = logp_S - units.sum(units.read(before))
        found = policy_metrics(clean)
        for side, is_of_S in (("chosen", is_desirable_S), ("rejected", ~is_desirable_S)):
            values = {"reward": reward_S, "logp": logp_S, "moved": moved_S}
            for name, value_S in values.items():
                found[f"{name}_{side}"] = torch.stack([value_S[is_of_S].sum(), is_of_S.sum().to(value_S)])
        return found
