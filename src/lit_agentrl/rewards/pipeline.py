"""Compose the reward parts of a run: task, shaping, normalisation, caps, trip-wire."""

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
from lit_agentrl.rewards.base import (
    Probe,
    RewardContext,
    RewardPart,
    Rewards,
    Stage,
    require_places,
    require_rewards,
)
from lit_agentrl.rewards.tripwire import TripWire


class RewardPipeline:
    """All reward parts of a run; they fill ``Turn.shaping`` and ``Turn.shaped_reward``.

    Parts act by stage, within a stage in the order given.  If there are parts but no `TripWire`, one with default
    options is added.  Without parts, episodes are not changed.

    Args:
        parts: reward parts by name.

    Raises:
        ValueError: two parts replace the task's reward; a part learns from the episodes of its own process only; or an
            entry is not a reward part or has no stage or no valid ``sees``.
    """

    def __init__(self, parts: Mapping[str, RewardPart] | None = None) -> None:
        parts = dict(parts or {})
        for name, part in parts.items():
            require(isinstance(part, RewardPart), f"{name}._target_", type(part).__name__, "a RewardPart")
            if not isinstance(getattr(part, "stage", None), Stage):
                raise ValueError(
                    f"{name} has no stage; set when {type(part).__name__} acts, such as stage = Stage.SHAPING"
                )
            require_one_of(f"{name}.sees", part.sees, ("own", "all"))
            part.name = name
        task_parts = [name for name, part in parts.items() if part.stage is Stage.TASK]
        if len(task_parts) > 1:
            raise ValueError(f"{' and '.join(task_parts)} each replace the task's reward; choose one")
        if parts and not any(isinstance(part, TripWire) for part in parts.values()):
            parts["tripwire"] = TripWire()
            parts["tripwire"].name = "tripwire"
        for name, part in parts.items():
            if part.sees == "own" and type(part).learn is not RewardPart.learn:
                raise ValueError(f"{name} learns, and processes must learn the same: set sees = 'all'")
        self.parts = dict(sorted(parts.items(), key=lambda item: item[1].stage))
        self._is_set_up = False

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def probes(self) -> dict[str, Probe]:
        """Measurements that parts need before each turn, by part."""
        return {name: part.probe for name, part in self.parts.items() if part.probe is not None}

    def setup(self, context: RewardContext) -> None:
        """Set up all parts; only the first call has an effect."""
        for part in () if self._is_set_up else self.parts.values():
            with _name_errors(part):
                part.setup(context)
        self._is_set_up = True

    def close(self) -> None:
        """Release the resources of all parts."""
        for part in self.parts.values() if self._is_set_up else ():
            part.close()

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> list[Episode]:
        """Compute the training reward of every turn; collective.

        Args:
            episodes: episodes of this process from all waves so far; it is called after each wave.
            iteration: counts from 0.

        Returns:
            The episodes that a part could not score (`RewardPart.left_out`); they must not be trained on.

        Raises:
            ValueError: a part raised, or returned rewards of the wrong shape or not finite; the message names it.
        """
        scored = select_trainable(episodes)
        if not self or not _count_episodes(scored):
            return []
        unscored: list[Episode] = []
        rewards = [[turn.reward for turn in episode.turns] for episode in scored]
        for episode in scored:
            for turn in episode.turns:
                turn.shaping, turn.told_cost, turn.early_rewards = {}, None, []
        for name, part in self.parts.items():
            if not scored and part.sees == "own":
                continue
            with _name_errors(part):
                changed = part.apply(rewards, scored, iteration=iteration)
                dropped = {id(episode) for episode in part.left_out(scored)}
            require_rewards(name, changed, scored)
            if part.stage is not Stage.WATCH:
                _record_shaping(name, changed, rewards, scored)
            unscored += [episode for episode in scored if id(episode) in dropped]
            rewards = [
                row for row, episode in zip(changed, scored, strict=True) if id(episode) not in dropped
            ]
            scored = [episode for episode in scored if id(episode) not in dropped]
        for episode, row in zip(scored, rewards, strict=True):
            for turn, value in zip(episode.turns, row, strict=True):
                turn.shaped_reward = value
        self._set_costs(scored)
        self._set_places(scored)
        return unscored

    def _set_places(self, scored: Sequence[Episode]) -> None:
        """Set what is paid inside replies to the sum over the parts."""
        for name, part in self.parts.items():
            if not scored:
                continue
            with _name_errors(part):
                places = part.places(scored)
            if places is None:
                continue
            require_places(name, places, scored)
            for episode, row in zip(scored, places, strict=True):
                for turn, reward_by_index in zip(episode.turns, row, strict=True):
                    turn.early_rewards += reward_by_index.items()

    def _set_costs(self, scored: Sequence[Episode]) -> None:
        """Set the cost of each turn to the sum over the parts that compute costs."""
        for name, part in self.parts.items():
            if not scored:
                continue
            with _name_errors(part):
                costs = part.costs(scored)
            if costs is None:
                continue
            require_rewards(name, costs, scored)
            for episode, row in zip(scored, costs, strict=True):
                for turn, cost in zip(episode.turns, row, strict=True):
                    turn.told_cost = cost + (turn.told_cost or 0.0)

    def try_out(self, episodes: Sequence[Episode]) -> None:
        """Score toy episodes with copies of the parts that need no `RewardPart.setup`.

        Raises:
            ValueError: as for :meth:`score`, but before any rollout.
        """
        scored = select_trainable(episodes)
        rewards = [[turn.reward for turn in episode.turns] for episode in scored]
        for name, part in self.parts.items():
            if scored and type(part).setup is RewardPart.setup:
                with _name_errors(part):
                    rewards = copy.deepcopy(part).apply(rewards, scored, iteration=0)
                require_rewards(name, rewards, scored)

    def learn(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Update the parts from the scored episodes of an iteration; collective.

        Returns:
            Metrics: ``reward/<part>``, the mean over episodes of the reward that a part added; ``reward/total``, the
            mean training return; and the metrics of the parts.
        """
        scored = select_trainable(episodes)
        if not self or not _count_episodes(scored):
            return {}
        curves: dict[str, float] = {}
        for name, part in self.parts.items():
            if part.stage is not Stage.WATCH:
                curves[f"reward/{name}"] = _average(
                    [math.fsum(t.shaping.get(name, 0.0) for t in e.turns) for e in scored]
                )
        for name, part in self._list_called(scored):
            with _name_errors(part):
                metrics = part.curves(scored, iteration=iteration)
                curves |= {f"reward/{name}_{key}": value for key, value in metrics.items()}
        curves["reward/total"] = _average([episode.training_return for episode in scored])
        for _, part in self._list_called(scored):
            with _name_errors(part):
                part.learn(scored, iteration=iteration)
        return curves

    def _list_called(self, scored: Sequence[Episode]) -> list[tuple[str, RewardPart]]:
        """List the parts to call; without episodes, only those that gather from all processes."""
        return [(name, part) for name, part in self.parts.items() if scored or part.sees == "all"]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the parts by name; parts without state are left out."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`.

        Without parts, as in evaluation, the states are ignored.
        """
        for name, state in states.items() if self else ():
            self.parts[name].load_state_dict(state)


def select_trainable(episodes: Sequence[Episode]) -> list[Episode]:
    """Select the episodes that did not fail and have sampled tokens."""
    return [e for e in episodes if not e.failed and e.num_action_tokens]


@contextmanager
def _name_errors(part: RewardPart) -> Iterator[None]:
    """Name the part in errors that it raises, except process-group failures."""
    asks_others = part.sees == "all" and get_world_size() > 1
    with blame(f"reward.{part.name}", but=(RuntimeError,) if asks_others else ()):
        yield


def _record_shaping(name: str, changed: Rewards, rewards: Rewards, episodes: Sequence[Episode]) -> None:
    for episode, new, old in zip(episodes, changed, rewards, strict=True):
        for turn, after, before in zip(episode.turns, new, old, strict=True):
            turn.shaping[name] = after - before


def _count_episodes(episodes: Sequence[Episode]) -> int:
    """Count the episodes of all processes."""
    return int(sum_over_ranks(torch.tensor(len(episodes))))


def _average(values: Sequence[float]) -> float:
    """Average over the episodes of all processes."""
    gathered = gather_rows({"values": torch.tensor(values, dtype=torch.float64)})[0]["values"].tolist()
    return math.fsum(gathered) / len(gathered)
