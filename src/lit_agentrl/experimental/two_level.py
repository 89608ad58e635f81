"""Two levels of one policy: a planner says what is to be done, an executor acts, and one of them may be frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.checks import require_one_of, require_whole
from lit_agentrl.episode import PLANNER, Episode, Message, Turn
from lit_agentrl.facts import PLANS, WHOLE_CONTEXT
from lit_agentrl.rollout.hooks import NO_HOOK, Moment, PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import SoFar
from lit_agentrl.rollout.structures.refill import Refill

_ONCE = 1_000_000  # more replies than any episode has
_ASK = "First plan what you will do next, in one or two sentences. Do not act yet: this reply is no turn."


@dataclass(frozen=True)
class PlanHook(PlayHook):
    """Ask for a plan before each ``every`` replies that act; the game plays nothing of it."""

    every: int

    def is_plan(self, number: int) -> bool:
        """Return whether the reply of this number is a plan."""
        return number % (self.every + 1) == 0

    def before_turn(self, turn: Turn, number: int) -> None:
        turn.player = PLANNER if self.is_plan(number) else ""

    def is_action(self, turn: Turn) -> bool:
        return turn.player != PLANNER

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        *before, last = written
        is_compact, text = moment.prompt.style == "compact", last["content"]
        if moment.turns and moment.turns[-1].player == PLANNER:
            # the embedded policy acts on the last text that it reads
            budget = f"turns {moment.turns_left} actions {moment.actions_left}"
            text = f"act\n{budget}\n{moment.observation}" if is_compact else "Now follow your plan."
        elif self.is_plan(len(moment.turns)):
            text = f"{text}\n{'plan' if is_compact else _ASK}"
        return [*before, last | {"content": text}]


class TwoLevel(Refill):
    """Before every ``every`` replies that act, the policy writes one that is a plan: HRL-TAR.

    A planner's turn is asked for in words, and the game plays nothing of it: no action, no point, no turn of the game's
    budget.  It stands in the dialogue, and the replies after it are those of the executor.  Evaluations are played so
    too.  Groups are refilled as by `Refill`.

    Args:
        every: replies of the executor for each plan; 0: there is no plan, and episodes are independent; None: one plan
            an episode.
        trains: level whose tokens the loss has: ``both``, ``planner``, ``executor``, or ``alternate``: the executor and
            the planner in turn.  Tokens of the other one count in no loss and no mean; advantages see them.
        period: iterations in which a level trains before the other does, with ``alternate``; None: 1.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value out of range, or one that nothing would read.
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
        self._every = _ONCE if every is None else every
        self._hook = PlanHook(self._every) if self._every else NO_HOOK
        self._trains, self._period = trains, period or 1
        self.provides = Refill.provides | ({PLANS} if self._every else frozenset())
        super().__init__(max_waves)

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        return self.evaluated(super().plan(prompts, members))

    def evaluated(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        return [replace(spec, extra=self._hook) for spec in specs]

    def left_out(self, iteration: int, rows: TrajectoryBatch) -> Tensor | None:
        trained = self._trained(iteration)
        if trained == "both":
            return None
        return rows.is_action_BT & (rows.is_plan_BT if trained == "executor" else ~rows.is_plan_BT)

    def learn(self, so_far: SoFar) -> Mapping[str, tuple[float, float]]:
        played = [episode for episode in so_far.sampled if not episode.failed]
        taken = [turn for episode in played for turn in episode.turns if len(turn.reply_tokens)]
        plans = [turn for turn in taken if turn.player == PLANNER]
        acts = [turn for turn in taken if turn.player != PLANNER]
        trained = self._trained(so_far.iteration)
        subtasks = [points for episode in played for points in subtask_returns(episode)]
        return {
            "plans": (len(plans), len(played)),
            "plan_tokens": (sum(len(turn.reply_tokens) for turn in plans), len(plans)),
            "executor_tokens": (sum(len(turn.reply_tokens) for turn in acts), len(acts)),
            "plan_entropy": _entropy(plans),
            "executor_entropy": _entropy(acts),
            "executor_invalid_share": (sum(not turn.is_valid for turn in acts), len(acts)),
            "subtask_return": (sum(subtasks), len(subtasks)),
            "planner_trains": (float(bool(self._every) and trained != "executor"), 1.0),
            "executor_trains": (float(trained != "planner"), 1.0),
        }

    def _trained(self, iteration: int) -> str:
        if self._trains != "alternate":
            return self._trains
        return ("executor", "planner")[iteration // self._period % 2]


def subtask_returns(episode: Episode) -> list[float]:
    """Points as training sees them, from each plan to the next one or the end."""
    found: list[float] = []
    for turn in episode.turns:
        if turn.player == PLANNER or not found:
            found.append(0.0)
        found[-1] += turn.training_reward
    return found


def _entropy(turns: Sequence[Turn]) -> tuple[float, int]:
    """Nats, summed over tokens, and how many these are."""
    return (
        sum(float(turn.reply_entropies.sum()) for turn in turns),
        sum(len(turn.reply_entropies) for turn in turns),
    )
