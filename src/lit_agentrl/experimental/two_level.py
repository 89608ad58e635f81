"""A planner and an executor: two levels of one policy, each possibly frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.episode import PLANNER, Episode, Message, Turn
from lit_agentrl.facts import PLANS, WHOLE_CONTEXT
from lit_agentrl.rl.credit.advantages import Advantage, group_mean_std
from lit_agentrl.rl.masked import check_shapes
from lit_agentrl.rl.returns import next_sampled, return_to_go, sum_over_turn, turn_index
from lit_agentrl.rollout.hooks import NO_HOOK, Moment, PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill

_UNLIMITED = 1_000_000  # more replies than any episode has
_PLAN_REQUEST = (
    "First plan what you will do next, in one or two sentences. Do not act yet: this reply is no turn."
)


@dataclass(frozen=True)
class PlanHook(PlayHook):
    """A hook that asks for a plan before every ``every`` replies that act.

    The game does not play the plan.
    """

    every: int

    def is_plan(self, number: int) -> bool:
        """Return whether the reply of this number is a plan."""
        return number % (self.every + 1) == 0

    def before_turn(self, turn: Turn, turns: Sequence[Turn]) -> None:
        turn.player = PLANNER if self.is_plan(len(turns)) else ""

    def is_action(self, turn: Turn) -> bool:
        return turn.player != PLANNER

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        *before, last = written
        is_compact, text = moment.prompt.style == "compact", last["content"]
        if moment.turns and moment.turns[-1].player == PLANNER:
            # the embedded policy acts on the observation only if it ends the prompt
            budget = f"turns {moment.turns_left} actions {moment.actions_left}"
            text = f"act\n{budget}\n{moment.observation}" if is_compact else "Now follow your plan."
        elif self.is_plan(len(moment.turns)):
            text = f"{text}\n{'plan' if is_compact else _PLAN_REQUEST}"
        return [*before, last | {"content": text}]


class TwoLevel(StructureHook, Refill):
    """A structure in which the policy plans before every ``every`` replies that act: HRL-TAR.

    The prompt asks for the plan, and the game does not play it: a plan takes no action, earns no reward and uses no
    turn of the game's budget.  It remains in the dialogue, and the replies after it are those of the executor.
    Evaluations are played in the same way.  Groups are refilled as by `Refill`.

    Args:
        every: number of executor replies per plan; 0: no plans, and independent episodes; None: one plan per episode.
        trains: level whose tokens the loss includes: ``both``, ``planner``, ``executor``, or ``alternate``, which
            alternates between executor and planner.  Tokens of the other level are excluded from losses and means, but
            not from advantages.
        period: number of iterations before the trained level changes, with ``alternate``; None: 1.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range or would have no effect.
    """

    requires = frozenset({WHOLE_CONTEXT})
    curves = (
        "plans", "plan_tokens", "executor_tokens", "plan_entropy", "executor_entropy", "executor_invalid_share",
        "subtask_return", "planner_trains", "executor_trains",
    )  # fmt: skip

    def __init__(
        self,
        every: int | None = 2,
        trains: str = "both",
        period: int | None = None,
        max_waves: int | None = None,
    ) -> None:
        if every is not None:
            require_whole("every", every, 0, alternative=", or null for one plan an episode")
        require_one_of("trains", trains, ("both", "planner", "executor", "alternate"))
        if trains != "both" and every == 0:
            raise ValueError(
                f"trains={trains}: with every=0 there is no planner; leave it out, or set every=2"
            )
        if period is not None:
            require_whole("period", period, 1, alternative=", or null for 1")
            if trains != "alternate":
                raise ValueError(f"period={period} has no effect with trains={trains}; set trains=alternate")
        self._every = _UNLIMITED if every is None else every
        self._hook = PlanHook(self._every) if self._every else NO_HOOK
        self._trains, self._period = trains, period or 1
        self.provides = Refill.provides | ({PLANS} if self._every else frozenset())
        super().__init__(max_waves)

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        return self.plan_evaluation(super().plan(prompts, members))

    def plan_evaluation(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        return [replace(spec, extra=self._hook) for spec in specs]

    def mask_tokens(self, iteration: int, rows: TrajectoryBatch) -> Tensor | None:
        trained = self._get_trained_level(iteration)
        if trained == "both":
            return None
        return rows.is_action_BT & (rows.is_plan_BT if trained == "executor" else ~rows.is_plan_BT)

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        played = [episode for episode in progress.sampled if not episode.failed]
        taken = [turn for episode in played for turn in episode.turns if len(turn.reply_tokens)]
        plans = [turn for turn in taken if turn.player == PLANNER]
        acts = [turn for turn in taken if turn.player != PLANNER]
        trained = self._get_trained_level(progress.iteration)
        subtasks = [reward for episode in played for reward in compute_subtask_returns(episode)]
        return {
            "plans": (len(plans), len(played)),
            "plan_tokens": (sum(len(turn.reply_tokens) for turn in plans), len(plans)),
            "executor_tokens": (sum(len(turn.reply_tokens) for turn in acts), len(acts)),
            "plan_entropy": _sum_entropy(plans),
            "executor_entropy": _sum_entropy(acts),
            "executor_invalid_share": (sum(not turn.is_valid for turn in acts), len(acts)),
            "subtask_return": (sum(subtasks), len(subtasks)),
            "planner_trains": (float(bool(self._every) and trained != "executor"), 1.0),
            "executor_trains": (float(trained != "planner"), 1.0),
        }

    def _get_trained_level(self, iteration: int) -> str:
        if self._trains != "alternate":
            return self._trains
        return ("executor", "planner")[iteration // self._period % 2]


def compute_subtask_returns(episode: Episode) -> list[float]:
    """Sum the training rewards from each plan to the next one or the end."""
    returns: list[float] = []
    for turn in episode.turns:
        if turn.player == PLANNER or not returns:
            returns.append(0.0)
        returns[-1] += turn.training_reward
    return returns


def _sum_entropy(turns: Sequence[Turn]) -> tuple[float, int]:
    """Return the entropy summed over tokens, in nats, and the number of tokens."""
    return (
        sum(float(turn.reply_entropies.sum()) for turn in turns),
        sum(len(turn.reply_entropies) for turn in turns),
    )


def two_level(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    is_action_BT: Tensor,
    is_turn_end_BT: Tensor,
    is_plan_BT: Tensor,
    reward_BT: Tensor,
    discount: float = 1.0,
    turn_discount: float = 1.0,
    cost: float = 0.0,
    eps: float = 1e-6,
) -> Advantage:
    """Compute advantages of planner and executor turns: HRL-TAR.

    Returns of planner turns extend to the end of the episode, those of executor turns to the next plan.  ``r_k`` is
    the sum of ``reward_BT`` over the sampled tokens of turn k:

        planner:   G_k = (r_k - cost) + d_k G_k+1,   d_k = discount where turn k+1 is a plan, else 1
        executor:  G_k = r_k + e_k G_k+1,            e_k = 0 where turn k+1 is a plan, else turn_discount
        A_k = (G_k - mean) / (std + eps), over all turns of the same level in the group

    A plan is therefore credited with the return of the episode minus costs, and an executor turn with the return of its
    sub-task, which ends with the next plan.  With one plan per episode and no cost, the planner has the advantage of
    `group_mean_std`.  ``cost`` (in reward units) is subtracted from the planner's return for each turn of either level.
    No primary source of HRL-TAR is known; these formulas are ours.  ``is_plan_BT`` marks tokens of plans; the other
    shapes are as for `group_mean_std`, and nothing carries gradient.

    Raises:
        ValueError: a constant is out of range, shapes disagree, or a row ends in sampled tokens after its last turn
            end.
    """
    for name, value in (("discount", discount), ("turn_discount", turn_discount)):
        require(0 <= value <= 1, name, value, "in [0, 1]")
    require_number("cost", cost, "a number >= 0", lambda value: value >= 0)
    check_shapes(return_B=return_B, group_B=group_B, is_action_BT=is_action_BT, is_plan_BT=is_plan_BT)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    turn_BT = turn_index(is_action_BT=is_counted_BT, is_turn_end_BT=is_turn_end_BT)
    # reward of the whole turn, used at its end
    reward_BT = sum_over_turn(x_BT=reward_BT.double(), is_action_BT=is_counted_BT, turn_BT=turn_BT)
    one = reward_BT.new_ones(())  # in the dtype of the rewards
    is_end_BT = is_counted_BT & is_turn_end_BT
    chain = {"is_action_BT": is_end_BT, "trajectory_B": trajectory_B, "first_turn_B": first_turn_B}
    is_before_plan_BT = next_sampled(x_BT=is_plan_BT.double(), **chain) > 0
    planner_BT = return_to_go(
        reward_BT=reward_BT - cost,
        discount=torch.where(is_before_plan_BT, one * discount, one),
        **chain,
    )
    executor_BT = return_to_go(
        reward_BT=reward_BT,
        discount=torch.where(is_before_plan_BT, 0 * one, one * turn_discount),
        **chain,
    )
    row_N, t_N = is_end_BT.nonzero(as_tuple=True)
    return_N = torch.where(is_plan_BT, planner_BT, executor_BT)[row_N, t_N]
    level_N2 = torch.stack([group_B[row_N], is_plan_BT[row_N, t_N].long()], dim=1)
    value_BT = torch.zeros_like(reward_BT)
    value_BT[row_N, t_N] = _normalise(return_N, torch.unique(level_N2, dim=0, return_inverse=True)[1], eps)
    advantage_BT = sum_over_turn(x_BT=value_BT, is_action_BT=is_counted_BT, turn_BT=turn_BT)
    return Advantage(advantage_BT.to(return_B.dtype))


def _normalise(value_N: Tensor, group_N: Tensor, eps: float) -> Tensor:
    """Normalise each entry by mean and std of its group."""
    return group_mean_std(
        return_B=value_N, group_B=group_N, trajectory_B=torch.arange(len(value_N), device=value_N.device),
        is_action_BT=torch.ones(len(value_N), 1, dtype=torch.bool, device=value_N.device), eps=eps,
    ).advantage_BT[:, 0]  # fmt: skip
