"""Running success rates of numbered training tasks, by which samplers choose tasks."""

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
from lit_agentrl.facts import IN_ORDER, PLAYED, REPEATED
from lit_agentrl.requirements import Requirement
from lit_agentrl.task_sampler import Address, Draw, TaskSampler


def draw_by_weight(
    weight_N: NDArray[np.float64], count: int, *, seed: int, address: Sequence[int]
) -> list[int]:
    """Draw distinct indices with probabilities in proportion to their weights, one after another.

    Indices are ordered by ``-ln(1 - u_n) / weight_n`` (Efraimidis and Spirakis 2006, in logarithms), with ``u_n`` in
    [0, 1) keyed by seed, address and n.  If fewer than ``count`` weights are positive, their indices are repeated in
    the same order.

    Args:
        weight_N: weights, >= 0, at least one of them positive.
        count: number of indices to draw.
        seed: run seed.
        address: key of the draw within the run.

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
    """A sampler that prefers tasks by how often they were solved.

    ``rate = (solved + prior * prior_episodes) / (played + prior_episodes)``.  When an iteration plays a task, its
    earlier counts are multiplied by ``keep``, and the new episodes are added.  Tasks of equal content, such as two
    numbers that show the same row of a file, share their counts once both were played, if the game gives
    ``instance_id``.  Failed episodes, those that the policy did not play alone, and tasks that this process did not
    draw do not count.

    If k of N tasks are preferred, the weight of task n is ``floor / N + (1 - floor) * [n is preferred] / k``; if no
    task is preferred, all weights are equal.

    Args:
        floor: share of the weight that is spread equally over all tasks, in [0, 1].
        prior: success rate of a task that was not played yet, in [0, 1].
        prior_episodes: weight of the prior, in episodes, > 0.
        keep: factor of a task's earlier counts when it is played again, in [0, 1].

    Raises:
        ValueError: a value is out of range.
    """

    requires = frozenset(
        {
            Requirement(fact, reason="it learns which tasks are solved", remedy="task_sampler=uniform")
            for fact in (PLAYED, REPEATED)
        }
        | {Requirement(IN_ORDER, reason="it chooses by the success of all earlier iterations")}
    )

    def __init__(self, *, floor: float, prior: float, prior_episodes: float, keep: float) -> None:
        for name, value in (("floor", floor), ("prior", prior), ("keep", keep)):
            require_number(name, value, "in [0, 1]", lambda number: 0 <= number <= 1)
        require_number("prior_episodes", prior_episodes, "> 0", lambda number: number > 0)
        self._floor, self._prior, self._prior_episodes, self._keep = floor, prior, prior_episodes, keep
        self._numbers: dict[int, int] = {}  # numbers of tasks drawn in this process, by instance seed
        self._preferred: list[bool] = []  # whether each task drawn in this iteration was preferred
        self._contents: dict[int, str] = {}  # content of each task that was played, by number
        self._counts: dict[str, tuple[float, float]] = {}  # played and solved episodes, by content

    @abstractmethod
    def prefer(self, rate_N: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which tasks are preferred, by their estimated success rates, (N,)."""

    def weigh(self, is_preferred_N: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the weights of the tasks, (N,), which sum to 1."""
        total, preferred = len(is_preferred_N), int(is_preferred_N.sum())
        if not preferred:
            return np.full(total, 1 / total)
        weight_N: NDArray[np.float64] = self._floor / total + (1 - self._floor) * is_preferred_N / preferred
        return weight_N

    def choose(self, draw: Draw) -> list[Address]:
        assert draw.instances is not None, "`requires` has it"
        is_preferred_N = self.prefer(np.array([self.estimate(number) for number in range(draw.instances)]))
        weight_N = self.weigh(is_preferred_N)
        numbers = draw_by_weight(weight_N, draw.prompts, seed=draw.seed, address=(draw.iteration, draw.wave))
        self._numbers |= {seeds.make_key(draw.seed, "instance", number): number for number in numbers}
        earlier = self._preferred if draw.wave else []
        self._preferred = [*earlier, *is_preferred_N[numbers].tolist()]
        return [(number,) for number in numbers]

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        own = [
            (number, _describe_content(number, episode), episode.success)
            for episode in episodes
            if episode.source is Source.ROLLOUT and not episode.failed
            if (number := self._numbers.get(episode.instance_seed)) is not None
        ]
        visits: dict[str, list[bool]] = {}
        for number, content, is_solved in sorted(gather_objects(own)):
            self._contents[number] = content
            visits.setdefault(content, []).append(is_solved)
        for content, results in visits.items():
            played, solved = self._counts.get(content, (0.0, 0.0))
            self._counts[content] = (self._keep * played + len(results), self._keep * solved + sum(results))
        curves = {"seen_tasks": float(len(self._contents))}
        if self._preferred:
            curves["preferred_share"] = sum(self._preferred) / len(self._preferred)
        if self._contents:
            curves["mean_rate"] = float(np.mean([self.estimate(number) for number in sorted(self._contents)]))
        return curves

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
