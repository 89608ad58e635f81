"""Faults of tools and steps: a wrapper of any world, chosen by ``env.faults``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolCall, read_call
from lit_agentrl.checks import require, require_number
from lit_agentrl.envs.splits import keyed_rng
from lit_agentrl.envs.world import World
from lit_agentrl.envs.wrapped import WrappedWorld

_FAULTS = 107  # purpose key


@dataclass(frozen=True)
class Faults:
    """The rate of failing actions, and the message after one.

    Attributes:
        rate: probability that an action fails, independently of others, in [0, 1).
        message: text that is shown after a fault; null shows only the last observation again.

    Raises:
        ValueError: an option is out of range.
    """

    rate: float = 0.1
    message: str | None = "Error: the request failed. Try again."

    def __post_init__(self) -> None:
        require_number("rate", self.rate, "a number from 0 to below 1", lambda rate: 0 <= rate < 1)
        is_text = isinstance(self.message, str) and bool(self.message.strip())
        require(self.message is None or is_text, "message", self.message, "a text that is not blank, or null")


class FaultyWorld(WrappedWorld):
    """A world in which an action fails with probability ``rate``.

    A failed action does not reach the world: its state stays, it earns 0, costs nothing and is valid, though it uses up
    an action of the episode.  After it the policy reads the message, followed by the last observation unless actions
    are tool calls.  An unknown action or a malformed call never fails: the world refuses it.  Faults are drawn from
    ``seed`` and ``noise_seed``, separately from the draws of the world, so the same seeds give the same faults.
    ``info["counts"]["faults"]`` counts the faults.

    Best play is that of the world, asked again after each action.

    Args:
        world: the world that is wrapped.
        faults: rate and message.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world)
        self._faults = faults
        self._noise = np.random.default_rng(0)
        self._observation = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        seed = self.choose_seed(seed)
        self._observation, info = self._world.reset(seed=seed, options=options)
        self._noise = keyed_rng(seed, (options or {}).get("noise_seed", seed), _FAULTS)
        return self._observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        has_failed = self._is_known(action) and bool(self._noise.random() < self._faults.rate)
        if has_failed:
            info: dict[str, Any] = {"success": False, "reward_parts": {}, "counts": {"faults": 1.0}}
            return self._describe_fault(), 0.0, False, False, info
        self._observation, reward, terminated, truncated, info = self._world.step(action)
        counts = {**info.get("counts", {}), "faults": 0.0}
        return self._observation, reward, terminated, truncated, {**info, "counts": counts}

    def _is_known(self, action: str) -> bool:
        """Return whether an action has the form that the world asks for."""
        kind = self.action_format()
        if kind == "tools":
            return isinstance(read_call(action, self.tools()), ToolCall)
        names = self.action_names() if kind == "names" else None
        return names is None or action.lower() in (name.lower() for name in names)

    def _describe_fault(self) -> str:
        if self._faults.message is None:
            return self._observation
        if self.action_format() == "tools":
            return self._faults.message
        return f"{self._faults.message}\n{self._observation}"

    def rekey(self, noise_seed: int) -> None:
        """Seed the faults, and everything random of the world, with ``noise_seed``."""
        self._world.rekey(noise_seed)
        self._noise = keyed_rng(noise_seed, 0, _FAULTS)

    def state_dict(self) -> dict[str, Any]:
        return {
            "world": self._world.state_dict(), "noise": self._noise.bit_generator.state, "seen": self._observation,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._world.load_state_dict(state["world"])
        self._noise.bit_generator.state = state["noise"]
        self._observation = str(state["seen"])
