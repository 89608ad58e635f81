"""A structure that puts earlier successes into groups in which every episode fails."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lit_agentrl import seeds
from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.distributed import gather_objects
from lit_agentrl.episode import Episode, Source
from lit_agentrl.facts import PLAYED, READS_OLD_LOG_PROBS
from lit_agentrl.rollout.pack import get_trajectory_id
from lit_agentrl.rollout.structures.base import Progress, group_episodes
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill


class Replay(StructureHook, Refill):
    """A structure that stores successes by task and adds them to failed groups.

    ARPO-replay (arXiv 2505.16282), as in its released code: a group fails if the population standard deviation of its
    scores is below ``max_std`` and their mean below ``max_mean``.  A success, drawn at random from those stored for the
    same task, then replaces the first episode of the group.  The success keeps its rewards and the log-probs of the
    weights that sampled it.  Episodes of the iteration whose score is above ``min_score`` are stored afterwards.  The
    score is 1 for an episode that solved its task, else 0.  Groups are refilled as by `Refill`.

    Only tasks that are played repeatedly can be replayed (``rollout.instances``).

    Args:
        size: number of successes stored per task, the most recent ones.
        instances: number of tasks with stored successes; the task without a new success for longest is removed first.
        min_score, max_std, max_mean: see above.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range.
    """

    curves = ("replaced_share", "kept_instances")
    wants_repeats = True
    requires = frozenset({READS_OLD_LOG_PROBS, PLAYED})

    def __init__(
        self,
        *,
        size: int = 8,
        instances: int = 1024,
        min_score: float = 0.1,
        max_std: float = 0.05,
        max_mean: float = 0.2,
        max_waves: int | None = None,
    ) -> None:
        require_whole("size", size, 1)
        require_whole("instances", instances, 1)
        require_number("min_score", min_score, "in [0, 1)", lambda value: 0 <= value < 1)
        require_number("max_std", max_std, "> 0", lambda value: value > 0)
        require_number("max_mean", max_mean, "in (0, 1]", lambda value: 0 < value <= 1)
        self._size, self._instances = size, instances
        self._min_score, self._max_std, self._max_mean = min_score, max_std, max_mean
        super().__init__(max_waves)
        self._stored: dict[str, list[Episode]] = {}  # ordered by the time of the last success

    def train_on(self, progress: Progress) -> Sequence[Episode]:
        replaced = self._choose_replacements(progress)
        return [replaced.get(get_trajectory_id(episode), episode) for episode in progress.sampled]

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        replaced, groups = len(self._choose_replacements(progress)), len(group_episodes(progress.sampled))
        successes = [e for e in progress.sampled if not e.failed and float(e.success) > self._min_score]
        # every rank stores the successes of all ranks, since another rank may play the task next
        for episode in sorted(gather_objects(successes), key=get_trajectory_id):
            earlier = self._stored.pop(_make_task_key(episode), [])
            stored = replace(episode, env_seconds=0.0)  # a resumed run could not reproduce the time
            self._stored[_make_task_key(episode)] = [*earlier, stored][-self._size :]
        while len(self._stored) > self._instances:
            del self._stored[next(iter(self._stored))]
        return {"replaced_share": (replaced, groups), "kept_instances": (len(self._stored), 1)}

    def state_dict(self) -> dict[str, Any]:
        return {name: [episode.to_plain() for episode in episodes] for name, episodes in self._stored.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stored = {
            str(name): [Episode.from_plain(plain) for plain in episodes][-self._size :]
            for name, episodes in list(state.items())[-self._instances :]
        }

    def _choose_replacements(self, progress: Progress) -> dict[int, Episode]:
        """Return stored successes by the id of the trajectory that each replaces."""
        replacements: dict[int, Episode] = {}
        for group, episodes in group_episodes(progress.sampled).items():
            stored = self._stored.get(_make_task_key(episodes[0]))
            scores = [float(episode.success) for episode in episodes]
            fails = statistics.pstdev(scores) < self._max_std and statistics.fmean(scores) < self._max_mean
            if stored is None or not fails:
                continue
            first, number = episodes[0], seeds.make_key(progress.seed, "replay", progress.iteration, group)
            replacements[get_trajectory_id(first)] = replace(
                stored[number % len(stored)],
                iteration=first.iteration, wave=first.wave, group=group, member=first.member, task=first.task,
                source=Source.REPLAY,
            )  # fmt: skip
        return replacements


def _make_task_key(episode: Episode) -> str:
    """Return a key that is equal for episodes of the same task instance."""
    return f"{episode.task_name}/{episode.instance_id or episode.instance_seed}"
