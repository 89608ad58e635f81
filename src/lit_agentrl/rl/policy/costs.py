"""Constrained optimisation of costs with a Lagrange multiplier: Safe RLHF, arXiv 2310.12773.

The policy maximises the return subject to ``J <= limit``, where J is the mean over episodes of the summed costs.  The
Lagrange multiplier lambda weights costs against rewards; it is updated once per iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lit_agentrl.checks import require, require_number
from lit_agentrl.rl.binding import tensor_names
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.masked import check_shapes, segment_sum, trajectory_index
from lit_agentrl.rl.objective import Tensors

COEF_MIN = 1e-8
_COMPARES = ("reward_BT", "group_B")  # an advantage that takes one of these depends on rewards
# columns that describe rewards and have no counterpart for costs
_OF_REWARD = ("baseline_B", "success_B", "source_B", "q_BT", "target_value_BT", "implicit_q_BT")


def none() -> None:
    """Ignore costs in training."""


@dataclass(kw_only=True)
class Lagrange:
    """A Lagrange multiplier that weights the advantage of costs, a `Term`.

    ``A = (A_R - lambda A_C) / (1 + lambda)``, and after each iteration ``log lambda += rate lambda (J - limit)``.  J is
    the mean summed cost of the episodes of the iteration; ``A_C`` is the algorithm's advantage computed from costs
    instead of rewards.

    Attributes:
        limit: upper limit of J, in units of cost.
        coef: lambda, > 0, which `update` changes and checkpoints contain.
        rate: step size of log lambda, > 0.
        max_coef: upper bound of lambda, >= ``coef``.

    Raises:
        ValueError: a constant is out of range.
    """

    limit: float
    coef: float = 1.0
    rate: float = 0.1
    max_coef: float = 20.0
    place: ClassVar[str] = "cost"
    measure: ClassVar[str] = "cost"
    measured_by: ClassVar[Callable[..., Tensor] | None] = None
    is_before: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the constants."""
        require_number("limit", self.limit, "finite", math.isfinite)
        for name in ("coef", "rate", "max_coef"):
            require_number(name, getattr(self, name), "finite and > 0", lambda value: value > 0)
        require(self.coef <= self.max_coef, "coef", self.coef, f"at most max_coef={self.max_coef}")

    def combine(self, reward_columns: Tensors, cost_columns: Tensors) -> Tensors:
        """Combine the advantages of rewards and of negative costs.

        With a critic the result also has ``cost_return_BT``, the target of the cost critic.

        Args:
            reward_columns: ``advantage_BT`` of rewards.
            cost_columns: ``advantage_BT`` computed from `as_rewards` and, with a critic, ``return_BT``.
        """
        both_BT = reward_columns["advantage_BT"] + self.coef * cost_columns["advantage_BT"]
        columns = {"advantage_BT": both_BT / (1 + self.coef)}
        if "return_BT" in cost_columns:
            columns["cost_return_BT"] = -cost_columns["return_BT"]
        return columns

    def update(self, measured: float, num_tokens: int) -> dict[str, float]:
        """Update lambda from J of the iteration; return the lambda that was used.

        If J is not finite, lambda does not change.
        """
        used = self.coef
        if math.isfinite(measured):
            log_coef = math.log(used) + self.rate * used * (measured - self.limit)
            self.coef = math.exp(min(max(log_coef, math.log(COEF_MIN)), math.log(self.max_coef)))
        return {"train/cost_multiplier": used}


def check_costs(cost: Lagrange | None, advantage: Callable[..., Advantage]) -> None:
    """Refuse an advantage that cannot be computed from costs in place of rewards.

    Raises:
        ValueError: the advantage cannot be used; the message names the remedy.
    """
    names = tensor_names(advantage)
    remedy = "use algo/cost=none, or algo/advantage=gae_token"
    if cost is not None and not any(name in names for name in _COMPARES):
        raise ValueError(
            f"cost={type(cost).__name__} has no effect, because this algo/advantage uses no rewards: {remedy}"
        )
    if cost is not None and (unusable := [name for name in _OF_REWARD if name in names]):
        raise ValueError(
            f"cost={type(cost).__name__} applies this algo/advantage to costs, but it also takes {unusable[0]}, which "
            f"describes rewards: {remedy}"
        )


def as_rewards(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the columns with negative costs in place of rewards.

    A KL term in the reward is thereby added to the costs.  ``tensors`` must have ``cost_BT``, ``is_action_BT``,
    ``return_B``, ``trajectory_B`` and, with a critic, ``cost_value_BT``.  A trajectory whose return is NaN has a NaN
    cost.
    """
    check_shapes(cost_BT=tensors["cost_BT"], is_action_BT=tensors["is_action_BT"])
    negated = {
        "reward_BT": -tensors["cost_BT"],
        "return_B": -_sum_costs(tensors).to(tensors["return_B"].dtype),
    }
    if "cost_value_BT" in tensors:
        negated["value_BT"] = -tensors["cost_value_BT"]
    return {**tensors, **negated}


def mean_cost(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return J, the mean over trajectories of summed costs, a float64 scalar.

    Trajectories whose return is NaN are left out; if there are no others, J is NaN.  A trajectory of several rows
    counts once.
    """
    index_B, num = trajectory_index(tensors["trajectory_B"])
    first_S = torch.full((num,), -1, dtype=torch.int64, device=index_B.device)
    first_S[index_B] = torch.arange(len(index_B), device=index_B.device)
    total_S = _sum_costs(tensors)[first_S]
    return total_S[~total_S.isnan()].mean()


def _sum_costs(tensors: Mapping[str, Tensor]) -> Tensor:
    """Sum the costs of each row's trajectory, (B,) float64; NaN where its return is."""
    index_B, num = trajectory_index(tensors["trajectory_B"])
    own_BT = torch.where(tensors["is_action_BT"], tensors["cost_BT"].double(), 0.0)
    total_B = segment_sum(own_BT.sum(1), index_B, num)[index_B]
    return torch.where(tensors["return_B"].isnan(), torch.nan, total_B)
