"""The beginning of a solution for prompts that no episode solves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise

import torch

from lit_agentrl.checks import require_whole
from lit_agentrl.distributed import sum_over_ranks
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import SoFar
from lit_agentrl.rollout.structures.refill import Refill


class Hint(Refill):
    """Plays a group that no member solves again, told more and more of the solution.

    GHPO, arXiv 2507.10628, by its released code: the whole group is played again with the first of ``shares`` of the
    reference solution at the end of the opening, then with the next, until a member solves it or there are no more.
    What is trained on are the episodes of the last try, with the prompt that they had.  The reference is the best play
    that the game knows.  Groups are refilled as by `Refill`, once all hints are given.

    Args:
        shares: of the solution, growing.
        start: iterations before the first hint.
        max_waves: see `Refill`; waves of hints count as well.

    Raises:
        ValueError: shares that do not grow within (0, 1], or a start below 0.
    """

    curves = ("hinted_share", "hint_solved_share", "hint")

    def __init__(
        self, *, shares: Sequence[float] = (0.25, 0.5, 0.75), start: int = 0, max_waves: int | None = None
    ) -> None:
        require_whole("start", start, 0)
        given = list(shares) if isinstance(shares, Sequence) and not isinstance(shares, str) else []
        numbers = [share for share in given if isinstance(share, int | float) and 0 < share <= 1]
        grows = all(low < high for low, high in pairwise(numbers))
        if not given or len(numbers) < len(given) or not grows:
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
                    "it knows no solution (optimal_actions gives none) that a hint could be the beginning of; choose "
                    "algo/structure=refill"
                )

    def after_wave(self, so_far: SoFar) -> Sequence[EpisodeSpec]:
        unsolved = self._unsolved(so_far)
        if not int(sum_over_ranks(torch.tensor(len(unsolved)))):  # ranks draw further prompts together
            return super().after_wave(so_far)
        return [
            EpisodeSpec(
                e.iteration, e.group, e.member + so_far.members, e.task, e.instance_seed, so_far.waves,
                hint=self._shares[e.member // so_far.members],
            )
            for tried in unsolved
            for e in tried
        ]  # fmt: skip

    def train_on(self, so_far: SoFar) -> Sequence[Episode]:
        last = {e.group: e.member // so_far.members for e in so_far.sampled}  # tries are played in order
        return [e for e in so_far.sampled if e.member // so_far.members == last[e.group]]

    def learn(self, so_far: SoFar) -> Mapping[str, tuple[float, float]]:
        tries = self._last_tries(so_far)
        hinted = [tried for tried in tries if tried[0].hint]
        return {
            "hinted_share": (len(hinted), len(tries)),
            "hint_solved_share": (sum(any(e.success for e in tried) for tried in hinted), len(hinted)),
            "hint": (sum(tried[0].hint for tried in hinted), len(hinted)),
        }

    def _unsolved(self, so_far: SoFar) -> list[list[Episode]]:
        """Last tries that no member solved, and that a further hint may follow."""
        if so_far.iteration < self._start:
            return []
        return [
            tried
            for tried in self._last_tries(so_far)
            if tried[0].member // so_far.members < len(self._shares)
            and not all(e.failed for e in tried)
            and not any(e.success for e in tried)
        ]

    def _last_tries(self, so_far: SoFar) -> list[list[Episode]]:
        groups: dict[int, list[Episode]] = {}
        for episode in self.train_on(so_far):
            groups.setdefault(episode.group, []).append(episode)
        return list(groups.values())
