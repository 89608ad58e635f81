"""What the tests of Java worlds share: whether there is Java, which of its processes run, and how full they are."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import psutil
import pytest

from lit_agentrl.envs.adapters.base import Replayed
from lit_agentrl.envs.adapters.java import find_java
from lit_agentrl.envs.world import World

NO_JAVA = "no Java runtime (Debian: apt install default-jre-headless)"


def has_java() -> bool:
    try:
        return bool(find_java())
    except ValueError:
        return False


needs_java = pytest.mark.skipif(not has_java(), reason=NO_JAVA)


def find_javas(library: str = "", *, of_workers: bool = True) -> list[psutil.Process]:
    """The Java processes that this process started, itself or through its workers, of a library or of all."""
    found = psutil.Process().children(recursive=of_workers)
    return [process for process in found if _is_java(process) and library in " ".join(process.cmdline())]


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java" and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_end(processes: Iterable[psutil.Process], seconds: float = 20.0) -> bool:
    """Whether all have ended within that time."""
    ends = time.monotonic() + seconds
    while any(_is_java(process) for process in processes):
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True


def play_out(env: World, rng: np.random.Generator, steps: int) -> list[Any]:
    """What random play sees, up to so many steps from here."""
    trace: list[Any] = []
    for _ in range(steps):
        action = env.random_action(rng)
        assert action is not None
        trace.append((action, *env.step(action), env.state_key()))
        if trace[-1][3]:
            break
    return trace


def choose(env: World, observation: str) -> str:
    """A legal action as JSON, drawn by what is seen; here, so that a worker imports no torch for it."""
    rng = np.random.default_rng(list(observation.encode()))
    return json.dumps(env.random_action(rng))


def start_variation(env: Replayed, number: int) -> str:
    """Start the variation of a number, and return what is seen."""

    def begin(seed: int) -> str:
        env._begin(number)
        return env._get_content()

    vars(env)["_draw_instance"] = begin  # it stays, because a state is restored by replay
    return env.reset(seed=0)[0]


def play_best(env: Replayed) -> tuple[float, int, bool]:
    """Return, steps and success of best play from here."""
    total, steps, info = 0.0, 0, {"success": False}
    while plan := env.optimal_actions(horizon=999):
        _, reward, is_over, _, info = env.step(plan[0])
        total, steps = total + reward, steps + 1
        if is_over:
            break
    return total, steps, info["success"]


def measure_use(library: str) -> tuple[int, int, int]:
    """Java processes of a library, open files of these and this one, and memory of Java in MB."""
    gc.collect()  # connections of worlds that are gone are closed with them
    javas = find_javas(library)
    files = sum(process.num_fds() for process in (psutil.Process(), *javas))
    return len(javas), files, sum(process.memory_info().rss for process in javas) >> 20
