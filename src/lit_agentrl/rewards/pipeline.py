"""The reward parts of a run, composed: task, shaping, normalisation, caps, trip-wire."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lit_agentrl.checks import blame, require, require_one_of
from lit_agentrl.distributed import gather_rows, get_world_size, sum_over_ranks
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Points, Probe, RewardContext, RewardPart, Stage, require_points
from lit_agentrl.rewards.tripwire import TripWire


class RewardPipeline:
    """Scores an iteration's episodes: fills ``Turn.shaping`` and ``Turn.shaped_reward``.

    Parts act by stage, within a stage in the order given.  A trip-wire with its default options is added where
    there are parts and none is among them.  Without parts nothing is touched.

    Args:
        parts: by name.

    Raises:
        ValueError: two parts replace the task's reward, a part learns from its own process's episodes alone, or an
            entry is no reward part, or does not say when it acts or what it sees.
    """

    def __init__(self, parts: Mapping[str, RewardPart] | None = None) -> None:
        parts = dict(parts or {})
        for name, part in parts.items():
            require(isinstance(part, RewardPart), f"{name}._target_", type(part).__name__, "a RewardPart")
            if not isinstance(getattr(part, "stage", None), Stage):
                raise ValueError(
                    f"{name} has no stage; let {type(part).__name__} say when it acts, such as stage = Stage.SHAPING"
                )
            require_one_of(f"{name}.sees", part.sees, ("own", "all"))
            part.name = name
        task = [name for name, part in parts.items() if part.stage is Stage.TASK]
        if len(task) > 1:
            raise ValueError(f"{' and '.join(task)} each replace the task's reward; choose one")
        if parts and not any(isinstance(part, TripWire) for part in parts.values()):
            parts["tripwire"] = TripWire()
            parts["tripwire"].name = "tripwire"
        for name, part in parts.items():
            if part.sees == "own" and type(part).learn is not RewardPart.learn:
                raise ValueError(f"{name} learns, and processes must learn the same: let it say sees = 'all'")
        self.parts = dict(sorted(parts.items(), key=lambda item: item[1].stage))
        self._is_set_up = False

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def probes(self) -> dict[str, Probe]:
        """What parts want measured in the state before each turn."""
        return {name: part.probe for name, part in self.parts.items() if part.probe is not None}

    @property
    def gives_costs(self) -> bool:
        """Whether a part says what turns cost."""
        return any(type(part).costs is not RewardPart.costs for part in self.parts.values())

    def setup(self, context: RewardContext) -> None:
        """Let the parts make what needs the run; only the first call does anything."""
        for part in () if self._is_set_up else self.parts.values():
            with _told(part):
                part.setup(context)
        self._is_set_up = True

    def close(self) -> None:
        """Let the parts give back what they have opened."""
        for part in self.parts.values() if self._is_set_up else ():
            part.close()

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> list[Episode]:
        """Give every turn its training reward; collective.

        Args:
            episodes: this process's of all waves so far; it is called as often as there are waves.
            iteration: counts from 0.

        Returns:
            Those that a part could not score (`RewardPart.left_out`), which must not be trained on.

        Raises:
            ValueError: a part raised, or returned points of the wrong shape or not finite; names it.
        """
        scored = trainable(episodes)
        if not self or not _number(scored):
            return []
        unscored: list[Episode] = []
        points = [[turn.reward for turn in episode.turns] for episode in scored]
        for episode in scored:
            for turn in episode.turns:
                turn.shaping, turn.told_cost = {}, None
        for name, part in self.parts.items():
            if not scored and part.sees == "own":
                continue
            with _told(part):
                changed = part.apply(points, scored, iteration=iteration)
                dropped = {id(episode) for episode in part.left_out(scored)}
            require_points(name, changed, scored)
            if part.stage is not Stage.WATCH:
                _record(name, changed, points, scored)
            unscored += [episode for episode in scored if id(episode) in dropped]
            points = [row for row, episode in zip(changed, scored, strict=True) if id(episode) not in dropped]
            scored = [episode for episode in scored if id(episode) not in dropped]
        for episode, row in zip(scored, points, strict=True):
            for turn, value in zip(episode.turns, row, strict=True):
                turn.shaped_reward = value
        self._tell_costs(scored)
        return unscored

    def _tell_costs(self, scored: Sequence[Episode]) -> None:
        """The costs that parts tell of, summed."""
        for name, part in self.parts.items():
            if not scored:
                continue
            with _told(part):
                costs = part.costs(scored)
            if costs is None:
                continue
            require_points(name, costs, scored)
            for episode, row in zip(scored, costs, strict=True):
                for turn, cost in zip(episode.turns, row, strict=True):
                    turn.told_cost = cost + (turn.told_cost or 0.0)

    def try_out(self, episodes: Sequence[Episode]) -> None:
        """Score episodes that are thrown away, with copies of those parts that need no `RewardPart.setup`.

        Raises:
            ValueError: as of :meth:`score`, before anything is played.
        """
        scored = trainable(episodes)
        points = [[turn.reward for turn in episode.turns] for episode in scored]
        for name, part in self.parts.items():
            if scored and type(part).setup is RewardPart.setup:
                with _told(part):
                    points = copy.deepcopy(part).apply(points, scored, iteration=0)
                require_points(name, points, scored)

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Let the parts learn from the iteration's episodes, already scored; returns its curves; collective.

        ``reward/<part>``: points that a part added, mean over episodes.  ``reward/total``: mean training return.
        """
        scored = trainable(episodes)
        if not self or not _number(scored):
            return {}
        row: dict[str, float] = {}
        for name, part in self.parts.items():
            if part.stage is not Stage.WATCH:
                row[f"reward/{name}"] = _mean(
                    [math.fsum(t.shaping.get(name, 0.0) for t in e.turns) for e in scored]
                )
        for name, part in self._called(scored):
            with _told(part):
                further = part.curves(scored, iteration=iteration)
                row |= {f"reward/{name}_{key}": value for key, value in further.items()}
        row["reward/total"] = _mean([episode.training_return for episode in scored])
        for _, part in self._called(scored):
            with _told(part):
                part.learn(scored, iteration=iteration)
        return row

    def _called(self, scored: Sequence[Episode]) -> list[tuple[str, RewardPart]]:
        """Without episodes of its own, a process takes part where parts ask each other."""
        return [(name, part) for name, part in self.parts.items() if scored or part.sees == "all"]

    def state_dict(self) -> dict[str, Any]:
        """What the parts have learnt, by name; parts that learn nothing are left out."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; without parts, as where a run is only evaluated, nothing is taken over."""
        for name, state in states.items() if self else ():
            self.parts[name].load_state_dict(state)


def trainable(episodes: Sequence[Episode]) -> list[Episode]:
    """Those that did not fail and have something to train on."""
    return [e for e in episodes if not e.failed and e.num_action_tokens]


@contextmanager
def _told(part: RewardPart) -> Iterator[None]:
    """Whatever a part raises names it; but a process group that broke is told by who watches that."""
    asks_others = part.sees == "all" and get_world_size() > 1
    with blame(f"reward.{part.name}", but=(RuntimeError,) if asks_others else ()):
        yield


def _record(name: str, changed: Points, points: Points, episodes: Sequence[Episode]) -> None:
    for episode, new, old in zip(episodes, changed, points, strict=True):
        for turn, after, before in zip(episode.turns, new, old, strict=True):
            turn.shaping[name] = after - before


def _number(episodes: Sequence[Episode]) -> int:
    """Of the episodes of all processes."""
    return int(sum_over_ranks(torch.tensor(len(episodes))))


def _mean(values: Sequence[float]) -> float:
    """Over the episodes of all processes."""
    of_all = gather_rows({"values": torch.tensor(values, dtype=torch.float64)})[0]["values"].tolist()
    return math.fsum(of_all) / len(of_all)
