"""A structure that shows the beginning of a solution in prompts that no episode solves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch

from lit_agentrl.actions import Format
from lit_agentrl.checks import require_whole
from lit_agentrl.distributed import sum_over_ranks
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode, Message, Source
from lit_agentrl.rollout.hooks import Moment, PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.rollout.worlds.environments import Look

_INTRO = "This is the beginning of a solution, which you can refer to:"


def find_solution(env: World, observation: str, *, horizon: int) -> str | None:
    """Return the optimal actions from a world's state as JSON; None if unknown."""
    actions = env.optimal_actions(horizon=horizon)
    return None if not actions else json.dumps([str(action) for action in actions])


def cut_solution(solution: str, share: float, *, kind: Format) -> str:
    """Return the first ``share`` of a solution, at least one action or character.

    The result has ``round(share n)`` of the ``n`` actions, or of the ``n`` characters of a text, as in the released
    code of GHPO (arXiv 2507.10628).

    Args:
        solution: the result of `find_solution`.
        share: in (0, 1].
        kind: format of the game's actions.

    >>> cut_solution('["Up", "Left", "Down", "Down"]', 0.5, kind="names")
    'Up || Left'
    >>> cut_solution('["forty-two"]', 0.25, kind="text")
    'fo'
    """
    actions: list[str] = json.loads(solution)
    if kind == "text":
        text = "\n".join(actions)
        return text[: max(1, round(share * len(text)))]
    shown = actions[: max(1, round(share * len(actions)))]
    return (" || " if kind == "names" else "\n").join(shown)


@dataclass(frozen=True)
class HintHook(PlayHook):
    """A hook that appends the first ``share`` of a solution to the first prompt."""

    share: float

    no_answer: ClassVar[str] = "the game knows no solution of this task for a hint"

    def mark_episode(self, episode: Episode) -> None:
        episode.source, episode.hint = Source.HINT, self.share

    def ask_game(self, task: Task) -> Look:
        return partial(find_solution, horizon=task.action_budget)

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        if moment.turns or moment.answer is None:
            return written
        hint = cut_solution(moment.answer, self.share, kind=moment.actions.format)
        intro = "go " if moment.prompt.style == "compact" else f"{_INTRO}\n"
        *before, last = written
        return [*before, last | {"content": f"{last['content']}\n{intro}{hint}"}]


class Hint(StructureHook, Refill):
    """A structure that replays unsolved groups with growing parts of the solution: GHPO, arXiv 2507.10628.

    As in GHPO's released code, an unsolved group is played again with the first of ``shares`` of the solution at the
    end of the first prompt, then with the next share, until an episode solves the task or no share is left.  Training
    uses the episodes of the last try, with the prompt that they saw.  The solution is the optimal play that the game
    knows.  Groups are refilled as by `Refill`, once all hints are given.

    Args:
        shares: shares of the solution, increasing in (0, 1].
        start: number of iterations before the first hint.
        max_waves: see `Refill`; waves of hints count too.

    Raises:
        ValueError: ``shares`` do not increase within (0, 1], or ``start`` is negative.
    """

    curves = ("hinted_share", "hint_solved_share", "hint")

    def __init__(
        self, *, shares: Sequence[float] = (0.25, 0.5, 0.75), start: int = 0, max_waves: int | None = None
    ) -> None:
        require_whole("start", start, 0)
        listed = list(shares) if isinstance(shares, Sequence) and not isinstance(shares, str) else []
        numbers = [share for share in listed if isinstance(share, int | float) and 0 < share <= 1]
        is_increasing = all(low < high for low, high in pairwise(numbers))
        if not listed or len(numbers) < len(listed) or not is_increasing:
            raise ValueError(
                f"shares={shares} must be growing numbers above 0 and at most 1, such as [0.25,0.5,0.75]"
            )
        self._shares, self._start = numbers, start
        super().__init__(max_waves)

    def check_game(self, task: Task) -> None:
        with closing(task.make("train")) as env:
            env.reset(seed=0)
            if not env.optimal_actions(horizon=task.action_budget):
                raise ValueError(
                    "it knows no solution (optimal_actions returns none) from which to make a hint; choose "
                    "algo/structure=refill"
                )

    def after_wave(self, progress: Progress) -> Sequence[EpisodeSpec]:
        unsolved = self._list_unsolved(progress)
        if not int(sum_over_ranks(torch.tensor(len(unsolved)))):  # ranks must refill together
            return super().after_wave(progress)
        return [
            EpisodeSpec(
                e.iteration, e.group, e.member + progress.members, e.task, e.instance_seed, progress.waves,
                extra=HintHook(self._shares[e.member // progress.members]),
            )
            for episodes in unsolved
            for e in episodes
        ]  # fmt: skip

    def train_on(self, progress: Progress) -> Sequence[Episode]:
        # episodes are in the order of tries, so the last one remains
        last = {e.group: e.member // progress.members for e in progress.sampled}
        return [e for e in progress.sampled if e.member // progress.members == last[e.group]]

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        tries = self._list_last_tries(progress)
        hinted = [episodes for episodes in tries if episodes[0].hint]
        return {
            "hinted_share": (len(hinted), len(tries)),
            "hint_solved_share": (sum(any(e.success for e in episodes) for episodes in hinted), len(hinted)),
            "hint": (sum(episodes[0].hint for episodes in hinted), len(hinted)),
        }

    def _list_unsolved(self, progress: Progress) -> list[list[Episode]]:
        """Return the last tries that no episode solved and that another hint may follow."""
        if progress.iteration < self._start:
            return []
        return [
            episodes
            for episodes in self._list_last_tries(progress)
            if episodes[0].member // progress.members < len(self._shares)
            and not all(e.failed for e in episodes)
            and not any(e.success for e in episodes)
        ]

    def _list_last_tries(self, progress: Progress) -> list[list[Episode]]:
        groups: dict[int, list[Episode]] = {}
        for episode in self.train_on(progress):
            groups.setdefault(episode.group, []).append(episode)
        return list(groups.values())
