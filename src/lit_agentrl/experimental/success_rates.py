"""Running success rates of numbered training tasks, by which samplers choose among them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lit_agentrl import seeds
from lit_agentrl.checks import require_number
from lit_agentrl.distributed import gather_objects
from lit_agentrl.episode import Episode, Source
from lit_agentrl.facts import PLAYED, REPEATED
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.task_sampler import Address, Draw, TaskSampler


def draw_by_weight(
    weight_N: NDArray[np.float64], count: int, *, seed: int, address: Sequence[int]
) -> list[int]:
    """Draw distinct indices with probabilities in proportion to their weights, one after another.

    Index n comes at the time ``-ln(u_n) / weight_n``, the earliest first (Efraimidis and Spirakis 2006, in logarithms),
    with ``u_n`` keyed by seed, address and n.  If fewer than ``count`` weights are positive, their indices are repeated
    in the same order.

    Args:
        weight_N: weights, >= 0, one of them positive.
        count: number of indices to draw.
        seed: run seed.
        address: of the draw.

    Raises:
        ValueError: no weight is positive.

    >>> draw_by_weight(np.array([0.0, 1.0]), 3, seed=0, address=(0, 0))
    [1, 1, 1]
    """
    positive = int(np.count_nonzero(weight_N > 0))
    if not positive:
        raise ValueError("no task has a weight above 0, so that none can be drawn")
    key = np.full(len(weight_N), seeds.make_key(seed, "task_sampler", *address), np.uint64)
    uniform_N = seeds.draw_uniforms(key, np.arange(len(weight_N), dtype=np.uint64))
    with np.errstate(divide="ignore"):
        time_N = np.where(weight_N > 0, -np.log1p(-uniform_N) / weight_N, np.inf)
    order = np.argsort(time_N, kind="stable")
    return [int(order[place % positive]) for place in range(count)]


class MeasuredSampler(TaskSampler):
    """A sampler that knows how often each task was solved, and draws tasks by weight.

    A visit to a task adds its episodes to the counts, of which a share ``keep`` of the earlier ones is left:
    ``rate = (solved + prior * prior_episodes) / (played + prior_episodes)``.  Tasks of equal content, such as two
    numbers that show the same row of a file, share their counts once both were played, if the game gives
    ``instance_id``.  Failed episodes, and those that the policy did not play alone, do not count.

    Args:
        prior: success rate of a task that was not played yet, in [0, 1].
        prior_episodes: weight of the prior, in episodes, > 0.
        keep: share of the earlier counts that a further visit keeps, in [0, 1].

    Raises:
        ValueError: a value is out of range.
    """

    requires = frozenset(
        {
            Requirement(fact, reason="it learns which tasks are solved", remedy="task_sampler=uniform")
            for fact in (PLAYED, REPEATED)
        }
    )

    def __init__(self, *, prior: float = 0.5, prior_episodes: float = 2.0, keep: float = 0.5) -> None:
        require_number("prior", prior, "in [0, 1]", lambda value: 0 <= value <= 1)
        require_number("prior_episodes", prior_episodes, "> 0", lambda value: value > 0)
        require_number("keep", keep, "in [0, 1]", lambda value: 0 <= value <= 1)
        self._prior, self._prior_episodes, self._keep = prior, prior_episodes, keep
        self._numbers: dict[int, int] = {}  # by instance seed; those that were chosen in this process
        self._contents: dict[int, str] = {}  # content of each number that was played
        self._counts: dict[str, tuple[float, float]] = {}  # played and solved episodes of each content

    @abstractmethod
    def weigh(self, draw: Draw) -> NDArray[np.float64]:
        """Return the weights (N,) of the tasks, of which one or more must be positive."""

    def choose(self, draw: Draw) -> list[Address]:
        assert draw.instances is not None, "`requires` has it"
        numbers = draw_by_weight(
            self.weigh(draw), draw.prompts, seed=draw.seed, address=(draw.iteration, draw.wave)
        )
        self._numbers |= {seeds.make_key(draw.seed, "instance", number): number for number in numbers}
        return [(number,) for number in numbers]

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        visits: dict[int, list[Episode]] = {}
        for episode in episodes:
            if episode.source is Source.ROLLOUT and not episode.failed:
                visits.setdefault(self._numbers[episode.instance_seed], []).append(episode)
        own = [
            (number, _describe_content(number, visit[0]), len(visit), sum(e.success for e in visit))
            for number, visit in visits.items()
        ]
        visited = sorted(gather_objects(own))
        for number, content, played, solved in visited:
            before = self._counts.get(content, (0.0, 0.0))
            self._contents[number] = content
            self._counts[content] = (self._keep * before[0] + played, self._keep * before[1] + solved)
        return {"seen_tasks": float(len(self._contents))}

    def estimate(self, number: int) -> float:
        """Return the estimated success rate of a task."""
        played, solved = self._counts.get(self._contents.get(number, ""), (0.0, 0.0))
        return (solved + self._prior * self._prior_episodes) / (played + self._prior_episodes)

    def state_dict(self) -> dict[str, Any]:
        return {"contents": dict(self._contents), "counts": {k: list(v) for k, v in self._counts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._contents = {int(number): str(content) for number, content in state["contents"].items()}
        self._counts = {str(k): (float(v[0]), float(v[1])) for k, v in state["counts"].items()}


def _describe_content(number: int, episode: Episode) -> str:
    return f"{episode.task_name}/{episode.instance_id or number}"
