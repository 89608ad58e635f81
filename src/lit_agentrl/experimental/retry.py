"""A structure that lets the policy retry single-turn games after a wrong answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.facts import WHOLE_CONTEXT
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage, replace_by_outcome
from lit_agentrl.rollout.hooks import PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill


@dataclass(frozen=True)
class RetryHook(PlayHook):
    """A hook that restarts the same task after each reply that does not solve it.

    Attributes:
        tries: maximum number of replies in an episode.
        feedback: the whole message before each new try.
    """

    tries: int
    feedback: str

    def count_tries(self) -> int:
        return self.tries

    def after_turn(self, turn: Turn, *, is_solved: bool) -> str | None:
        return None if is_solved else self.feedback


class Retry(StructureHook, Refill):
    """A structure that gives unary feedback on a wrong answer and allows another try.

    UFO, arXiv 2507.14295: a question becomes an episode of at most ``tries`` answers, and a success ends it.
    Validation and test allow one try.  Groups are refilled as by `Refill`.

    Args:
        tries: maximum number of replies in an episode.
        feedback: the whole message after a reply that does not solve the task.
        max_waves: see `Refill`.

    Raises:
        ValueError: ``tries`` is below 2, or ``feedback`` is blank.
    """

    requires = frozenset({WHOLE_CONTEXT})
    curves = ("tries", "first_success")

    def __init__(
        self,
        *,
        tries: int = 5,
        feedback: str = "Incorrect. Please think again.",
        max_waves: int | None = None,
    ) -> None:
        require_whole("tries", tries, 2, alternative="; algo/structure=refill has one")
        require(
            isinstance(feedback, str) and bool(feedback.strip()),
            "feedback",
            repr(feedback),
            "a text that is not blank",
        )
        self._hook = RetryHook(tries, feedback)
        super().__init__(max_waves)

    def check_game(self, task: Task) -> None:
        if task.max_turns != 1:
            raise ValueError(
                f"it has max_turns={task.max_turns}, but only single-turn games can be retried; set env.max_turns=1, "
                "or algo/structure=refill"
            )

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        specs = super().plan(prompts, members)
        return [replace(spec, extra=self._hook) for spec in specs]

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        played = [episode for episode in progress.sampled if not episode.failed]
        return {
            "tries": (sum(len(episode.turns) for episode in played), len(played)),
            "first_success": (sum(e.success and len(e.turns) == 1 for e in played), len(played)),
        }


@dataclass(kw_only=True)
class Tries(RewardPart):
    """A reward for early success without repeated answers: UFO, arXiv 2507.14295.

    ``discount^k 1[solved] - repeats (1 - E / T)``, where k counts the tries before the last one.  T is the number of
    turns with a valid answer, E the number of distinct answers among them; without valid answers the second term is 0.

    Args:
        discount: gamma, in (0, 1].
        counts: the tries that k counts: ``valid``, those with a valid answer, as in the release; ``all``: invalid
            replies as well.
        repeats: lambda, the weight of the share of repeated answers, finite and >= 0.
        keep_penalties: whether to add the protocol penalties.

    Raises:
        ValueError: an option is out of range.
    """

    stage: ClassVar[Stage] = Stage.TASK
    discount: float = 0.5
    repeats: float = 0.5
    counts: str = "valid"
    keep_penalties: bool = True

    def __post_init__(self) -> None:
        require_one_of("counts", self.counts, ("valid", "all"))
        require_number("discount", self.discount, "in (0, 1]", lambda value: 0 < value <= 1)
        require_number("repeats", self.repeats, "finite and >= 0", lambda value: value >= 0)
        require(isinstance(self.keep_penalties, bool), "keep_penalties", self.keep_penalties, "true or false")

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Replace the rewards of each episode by its score at the last turn."""
        return replace_by_outcome(
            episodes,
            [self._compute_score(episode) for episode in episodes],
            keep_penalties=self.keep_penalties,
        )

    def _compute_score(self, episode: Episode) -> float:
        answers = episode.answers
        repeated = 1 - len(set(answers)) / len(answers) if answers else 0.0
        before = episode.turns[:-1]
        tries = len(before) if self.counts == "all" else sum(turn.is_valid for turn in before)
        return episode.success * self.discount**tries - self.repeats * repeated
