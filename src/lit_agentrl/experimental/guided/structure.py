"""Tree search whose evaluations choose replies by the critic's values: SVPO."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.engines.base import Engine
from lit_agentrl.episode import EndReason, Episode, Segment, Turn
from lit_agentrl.experimental.guided.engine import GUIDED, GuidedEngine
from lit_agentrl.experimental.mcts import Mcts
from lit_agentrl.facts import PLAYED_HERE, TOKEN_IDS, VALUES, WHOLE_WEIGHTS
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.hooks import NO_HOOK, PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.hook import Training, Values


@dataclass(frozen=True)
class GuidedHook(PlayHook):
    """A hook whose replies are written by the guided player."""

    def before_turn(self, turn: Turn, turns: Sequence[Turn]) -> None:
        turn.player = GUIDED


def compute_reply_values(
    values: Values, history: Sequence[int], replies: Sequence[Sequence[int]]
) -> list[float]:
    """Return ``Q(s, a)`` of each reply a after a history s, in units of reward.

    Q is the critic's value before the last token of the reply, where all other tokens of the reply are known.  SVPO's
    critic has its targets there, see `tree_steps.tree`.  For a reply of one token Q is ``V(s)``.
    """
    q_values = []
    for reply in replies:
        before = [*history, *reply[:-1]]
        last = Turn(
            observation="", prefix_tokens=before, prefix_segments=[Segment.PROMPT] * len(before), starts_row=True,  # type: ignore[arg-type]
            reply_tokens=reply[-1:], reply_segments=[Segment.OTHER], reply_logps=[0.0], reply_entropies=[0.0],  # type: ignore[arg-type]
        )  # fmt: skip
        [value] = values(Episode(0, 0, 0, 0, "", 0, turns=[last], end=EndReason.TURN_LIMIT))
        q_values.append(value)
    return q_values


class Guided(Mcts):
    """A tree search whose evaluations are decoded by the critic: SVPO, arXiv 2406.10858.

    In validation and test each reply is ``argmax over i of Q(s, a_i)`` with ``a_1 … a_samples`` drawn independently
    from the policy at ``temperature``; ties go to the first.  Q is that of `compute_reply_values`, without gradient.
    Training is that of `Mcts`; with ``depth=0`` it plays independent episodes, so that any critic can be used.

    Departs: the paper was not at hand; a summary says that the value model chooses among sampled steps.  A step is a
    whole reply here, and no beam of several partial solutions is kept.

    Args:
        samples: number of replies from which one is chosen; 1 plays the policy alone.
        temperature: sampling temperature of these replies, instead of that of the evaluation; > 0.
        constant, width, depth, together, score, critic_share, max_waves: see `Mcts`.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self, *, samples: int = 4, temperature: float = 1.0, constant: float = math.sqrt(2), width: int = 2,
        depth: int | None = None, together: int = 1, score: str = "return", critic_share: float = 0.0,
        max_waves: int | None = None,
    ) -> None:  # fmt: skip
        require_whole("samples", samples, 1)
        require_number("temperature", temperature, "a finite number > 0", lambda value: value > 0)
        super().__init__(constant, width, depth, together, score, critic_share, max_waves)
        self._samples, self._temperature = samples, temperature
        reason = "evaluations choose replies by the critic's values"
        facts = (VALUES, PLAYED_HERE, WHOLE_WEIGHTS, TOKEN_IDS)
        others = {each for each in self.requires if getattr(each, "fact", each) not in facts}
        own = {Requirement(fact, reason=reason, remedy="algo/structure=mcts") for fact in facts}
        self.requires = frozenset(others | own)
        self._values: Values | None = None

    def setup(self, training: Training) -> None:
        super().setup(training)
        self._values = training.values

    def plan_evaluation(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        return [replace(spec, extra=GuidedHook()) if spec.extra == NO_HOOK else spec for spec in specs]

    def wrap_engine(self, make: Callable[..., Engine]) -> Callable[..., Engine]:
        def make_guided(**given: Any) -> Engine:
            return GuidedEngine(
                make(**given), self._choose, samples=self._samples, temperature=self._temperature
            )

        return make_guided

    def _choose(self, history: Sequence[int], replies: Sequence[Sequence[int]]) -> int:
        assert self._values is not None, "setup() sets the values before anything is played"
        values = compute_reply_values(self._values, history, replies)
        return values.index(max(values))
