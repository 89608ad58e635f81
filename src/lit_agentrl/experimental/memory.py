"""A structure that adds episodes of earlier iterations to the new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lit_agentrl import seeds
from lit_agentrl.checks import require_whole
from lit_agentrl.distributed import gather_objects
from lit_agentrl.episode import Episode, Source
from lit_agentrl.facts import PLAYED, READS_OLD_LOG_PROBS, SEPARATE_MEMBERS
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.pack import get_trajectory_id
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.refill import Refill

_FIRST_STORED_MEMBER = 1 << 19  # stored episodes that are added to a group have member numbers from here on


class Memory(Refill):
    """A structure that stores recent episodes and trains on some of them again: ArCHer.

    For each new episode, ``rows`` stored episodes are drawn at random with replacement, as ArCHer's off-policy data.
    They keep their rewards, and the log-probs of the weights that sampled them.  They may belong to any task, so
    advantages that compare the episodes of a group are refused.  `archer` uses stored episodes only for the critic.
    Groups are refilled as by `Refill`.

    Args:
        iterations: number of iterations whose episodes are stored.
        rows: number of stored episodes added for each new episode; 0 stores none.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range.
    """

    curves = ("kept_episodes", "remembered_share", "remembered_age")
    requires = frozenset(
        {
            READS_OLD_LOG_PROBS,
            PLAYED,
            Requirement(SEPARATE_MEMBERS, reason="it puts episodes of other prompts into a group"),
        }
    )

    def __init__(self, *, iterations: int = 4, rows: int = 1, max_waves: int | None = None) -> None:
        require_whole("iterations", iterations, 1)
        require_whole("rows", rows, 0, 16)
        self._iterations, self._rows = iterations, rows
        super().__init__(max_waves)
        self._stored: list[Episode] = []  # oldest first

    def train_on(self, progress: Progress) -> Sequence[Episode]:
        return [*progress.sampled, *self._draw_stored(progress)]

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        drawn = self._draw_stored(progress)
        ages = [
            progress.iteration - self._stored[index].iteration for index, _ in self._draw_indices(progress)
        ]
        if self._rows:
            episodes = [
                replace(e, env_seconds=0.0) for e in progress.sampled if not e.failed and e.num_action_tokens
            ]
            # every rank stores the episodes of all ranks in the same order
            new = sorted(gather_objects(episodes), key=get_trajectory_id)
            oldest = progress.iteration + 1 - self._iterations
            self._stored = [e for e in [*self._stored, *new] if e.iteration >= oldest]
        trained = len(drawn) + len(progress.sampled)
        return {
            "kept_episodes": (len(self._stored), 1.0),
            "remembered_share": (len(drawn), trained),
            "remembered_age": (sum(ages), len(ages)),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"kept": [episode.to_plain() for episode in self._stored]} if self._stored else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stored = [Episode.from_plain(plain) for plain in state["kept"]]

    def _draw_indices(self, progress: Progress) -> list[tuple[int, Episode]]:
        """Draw the index of each added stored episode, with the new episode that it follows."""
        if not self._stored:
            return []
        return [
            (
                seeds.make_key(progress.seed, "memory", progress.iteration, e.group, e.member, n)
                % len(self._stored),
                e,
            )
            for e in progress.sampled
            for n in range(self._rows)
        ]

    def _draw_stored(self, progress: Progress) -> list[Episode]:
        stored = []
        for number, (index, new) in enumerate(self._draw_indices(progress)):
            member = _FIRST_STORED_MEMBER + new.member * self._rows + number % max(self._rows, 1)
            stored.append(
                replace(self._stored[index], group=new.group, member=member, tree=None, source=Source.REPLAY)
            )
        return stored
