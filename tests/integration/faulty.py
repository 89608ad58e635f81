"""Games that do harm to their process; in a file of their own, so that a process that plays them imports little."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from lit_agentrl import seeds
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.games.frozen_lake import FrozenLake

GROWN_MB = 4096


def do_harm(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hang":
        time.sleep(600)
    elif how == "doze":  # longer than it may take, and not for ever
        time.sleep(1.5)
    elif how == "grow":
        [bytearray(2**20) for _ in range(GROWN_MB)]
    raise RuntimeError("the game broke")


class FaultyLake(FrozenLake):
    """FrozenLake that fails at the second action of member 1 of group ``victim``, in iteration 1 of a run of seed 0."""

    def __init__(self, *, how: str, victim: int, **options: Any) -> None:
        super().__init__(**options)
        self._how, self._victim, self._left = how, seeds.make_key(0, "train/noise", 1, 0, victim, 1), -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self._left = 2 if (options or {}).get("noise_seed") == self._victim else -1
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._left == 0:
            do_harm(self._how)
        return super().step(action)


class FaultyBandit(Bandit):
    """Bandit that fails at the beginning of one in so many episodes, by their noise seeds."""

    def __init__(self, *, how: str, one_in: int, **options: Any) -> None:
        super().__init__(**options)
        self._how, self._one_in = how, one_in

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        if options and options["noise_seed"] % self._one_in == 0:
            do_harm(self._how)
        return super().reset(seed=seed, options=options)
