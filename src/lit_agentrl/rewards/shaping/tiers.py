"""Tiered outcome reward: bad format, failure, success, and success with all tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.checks import require, require_number
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import RewardPart, Rewards, Stage, replace_by_outcome


@dataclass(kw_only=True)
class Tiers(RewardPart):
    """Tiered reward at the last turn: ARPO, arXiv 2507.19849.

    An episode with a reply that is not well-formed gets ``broken``.  Otherwise a failure gets 0 and a success 1, plus
    ``bonus`` if each of ``tools`` was called.

    Args:
        broken: reward of an episode with a reply that is not well-formed.
        bonus: see above; the paper uses 0.1 for search and Python in one episode.
        tools: names of tools, or of actions of a game without tools; empty: no bonus.
        keep_penalties: add the protocol penalties.
    """

    stage: ClassVar[Stage] = Stage.TASK
    broken: float = -1.0
    bonus: float = 0.1
    tools: Sequence[str] = ()
    keep_penalties: bool = False

    def __post_init__(self) -> None:
        require_number("broken", self.broken, "finite and <= 0", lambda value: value <= 0)
        require_number("bonus", self.bonus, "finite and >= 0", lambda value: value >= 0)
        is_list = not isinstance(self.tools, str) and all(isinstance(tool, str) for tool in self.tools)
        require(is_list, "tools", self.tools, "a list of names")
        require(isinstance(self.keep_penalties, bool), "keep_penalties", self.keep_penalties, "true or false")

    def check_game(self, task: Task, env: World, observation: str) -> None:
        """Refuse names that are neither tools nor actions of the game."""
        names = [tool.name for tool in env.tools()] or list(env.action_names() or ())
        for name in self.tools:
            if name not in names:
                raise ValueError(
                    f"tools=[{','.join(self.tools)}] names {name}, and {task.name} has no such tool or action"
                    f"{': ' + ', '.join(names) if names else ', but free text'}; leave it out"
                )

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Replace the rewards by the tier at the last turn of each episode."""
        return replace_by_outcome(
            episodes,
            [self._compute_score(episode) for episode in episodes],
            keep_penalties=self.keep_penalties,
        )

    def _compute_score(self, episode: Episode) -> float:
        if not all(turn.is_well_formed for turn in episode.turns):
            return self.broken
        if not episode.success:
            return 0.0
        called = {get_called_name(action) for turn in episode.turns for action in turn.actions}
        return 1.0 + (self.bonus if self.tools and called >= set(self.tools) else 0.0)


def get_called_name(action: str) -> str:
    """Return the tool name of a JSON call; any other action is its own name."""
    try:
        call = json.loads(action)
    except (ValueError, RecursionError):  # free text may be anything
        return action
    return str(call["name"]) if isinstance(call, dict) and "name" in call else action
