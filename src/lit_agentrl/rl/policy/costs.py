"""Costs held within a limit beside the reward: Safe RLHF, arXiv 2310.12773.

The policy maximises the return subject to ``J <= limit``, where J is the mean over episodes of the summed costs.  A
Lagrange multiplier lambda weighs both, and moves once an iteration.
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
_COMPARES = ("reward_BT", "group_B")  # an advantage that takes one of these is one of rewards
# what of an episode, or of a critic, tells of its reward alone
_OF_REWARD = ("baseline_B", "success_B", "source_B", "q_BT", "target_value_BT", "implicit_q_BT")


def none() -> None:
    """Costs, if a game tells any, have no part in training."""


@dataclass(kw_only=True)
class Lagrange:
    """``A = (A_R - lambda A_C) / (1 + lambda)``; after each iteration ``log lambda += rate lambda (J - limit)``.

    J is the mean summed cost of the iteration's episodes, ``A_C`` what the algorithm's advantage makes of costs in
    place of rewards.  lambda is ``coef``, a `Term`.

    Attributes:
        limit: of J, in units of cost.
        coef: lambda at the start, > 0; state, kept in checkpoints.
        rate: of a step of log lambda, > 0.
        max_coef: upper bound of lambda, >= ``coef``.

    Raises:
        ValueError: a constant out of range.
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
        """Checks the constants."""
        require_number("limit", self.limit, "finite", math.isfinite)
        for name in ("coef", "rate", "max_coef"):
            require_number(name, getattr(self, name), "finite and > 0", lambda value: value > 0)
        require(self.coef <= self.max_coef, "coef", self.coef, f"at most max_coef={self.max_coef}")

    def weigh(self, of_rewards: Tensors, of_costs: Tensors) -> Tensors:
        """The advantage of both, and what a critic of costs learns, from those of rewards and of negative costs.

        Args:
            of_rewards: ``advantage_BT`` of rewards.
            of_costs: the same of what `as_rewards` gives, and ``return_BT`` where there is a critic.
        """
        both_BT = of_rewards["advantage_BT"] + self.coef * of_costs["advantage_BT"]
        found = {"advantage_BT": both_BT / (1 + self.coef)}
        return found | {"cost_return_BT": -of_costs["return_BT"]} if "return_BT" in of_costs else found

    def update(self, measured: float, num_tokens: int) -> dict[str, float]:
        """Moves lambda by the iteration's J; one that is not finite leaves it.  Returns the one that was used."""
        used = self.coef
        if math.isfinite(measured):
            step = math.log(used) + self.rate * used * (measured - self.limit)
            self.coef = math.exp(min(max(step, math.log(COEF_MIN)), math.log(self.max_coef)))
        return {"train/cost_multiplier": used}


def check_costs(cost: Lagrange | None, advantage: Callable[..., Advantage]) -> None:
    """Refuses an advantage that means nothing when costs stand in place of rewards.

    Raises:
        ValueError: naming the remedy.
    """
    names = tensor_names(advantage)
    remedy = "use algo/cost=none, or algo/advantage=gae_token"
    if cost is not None and not any(name in names for name in _COMPARES):
        raise ValueError(
            f"cost={type(cost).__name__} never acts, since this algo/advantage weighs no rewards: {remedy}"
        )
    if cost is not None and (found := [name for name in _OF_REWARD if name in names]):
        raise ValueError(
            f"cost={type(cost).__name__} has this algo/advantage look at costs, and it also takes {found[0]}, which "
            f"tells of rewards: {remedy}"
        )


def as_rewards(tensors: Mapping[str, Tensor]) -> Tensors:
    """The columns with negative costs in place of rewards, so that a KL that rewards pay for is added to costs.

    Takes ``cost_BT``, ``is_action_BT``, ``return_B``, ``trajectory_B`` and, of a critic, ``cost_value_BT``.  A
    trajectory whose return is NaN has no summed cost either.
    """
    check_shapes(cost_BT=tensors["cost_BT"], is_action_BT=tensors["is_action_BT"])
    found = {"reward_BT": -tensors["cost_BT"], "return_B": -_totals(tensors).to(tensors["return_B"].dtype)}
    if "cost_value_BT" in tensors:
        found["value_BT"] = -tensors["cost_value_BT"]
    return {**tensors, **found}


def mean_cost(tensors: Mapping[str, Tensor]) -> Tensor:
    """J: the mean over trajectories of summed costs, a float64 scalar; NaN without any.

    Trajectories whose return is NaN are left out; one of several rows counts once.
    """
    index_B, num = trajectory_index(tensors["trajectory_B"])
    first_S = torch.full((num,), -1, dtype=torch.int64, device=index_B.device)
    first_S[index_B] = torch.arange(len(index_B), device=index_B.device)
    total_S = _totals(tensors)[first_S]
    return total_S[~total_S.isnan()].mean()


def _totals(tensors: Mapping[str, Tensor]) -> Tensor:
    """Of each row the summed cost of its trajectory, float64; NaN where its return is."""
    index_B, num = trajectory_index(tensors["trajectory_B"])
    own_BT = torch.where(tensors["is_action_BT"], tensors["cost_BT"].double(), 0.0)
    total_B = segment_sum(own_BT.sum(1), index_B, num)[index_B]
    return torch.where(tensors["return_B"].isnan(), torch.nan, total_B)
