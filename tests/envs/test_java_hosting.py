"""Java worlds in worker processes: what is killed is replaced or ends, and no other episode sees it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from lit_agentrl.rollout.worlds.pool import GamePools
from tests.conftest import ROOT, load_task_yaml
from tests.envs.java import choose, find_javas, needs_java, wait_for_end

pytestmark = [needs_java, pytest.mark.slow]
EPISODES, TURNS = 6, 5


def play(name: str, victim: str = "") -> list[list[object]]:
    """What is seen of some episodes in two workers; in the third turn a process is killed."""
    task = load_task_yaml(name)
    pools = GamePools([replace(task, hosting=replace(task.hosting, workers=2))], {})
    try:
        for key in range(EPISODES):
            pools.reset(key, 0, split="train", seed=key // 2, noise_seed=key)
        seen: list[list[object]] = [[(pools.take(key)).observation] for key in range(EPISODES)]
        over: set[int] = set()
        for turn in range(TURNS):
            if turn == 2 and victim:
                javas = find_javas()
                assert len(javas) == 2, "one for each worker"
                process = javas[0].parent() if victim == "worker" else javas[0]
                assert process is not None
                process.kill()
                assert wait_for_end(javas[:1]), "Java ends with its worker"
            for key in sorted(set(range(EPISODES)) - over):
                pools.look(key, choose)
                action = pools.take(key).result
                if action is None:  # its worker was killed: only this call is lost
                    over.add(key)
                    seen[key].append("lost")
                    continue
                pools.step(key, [json.loads(action)])
                answer = pools.take(key)
                assert not answer.error
                reward = answer.steps[0].reward
                seen[key] += [action, answer.observation, reward, answer.state_key, answer.success]
                if answer.ended:
                    over.add(key)
        return seen
    finally:
        pools.close()


@pytest.mark.parametrize("name", ["textworld_express", "scienceworld"])
def test_what_is_killed_is_replaced_and_no_other_episode_sees_it(
    name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    before = find_javas()
    calm = play(name)
    assert play(name, "java") == calm, "the games of a killed Java process are played again in another"
    assert "died (exit code -9) and is replaced (1 of 10)" in capfd.readouterr().err
    with caplog.at_level(logging.WARNING):
        found = play(name, "worker")
    assert "died (exit code -9) and is replaced (1 of hosting.restarts=10)" in caplog.text
    lost = [key for key in range(EPISODES) if "lost" in found[key]]
    assert len(lost) == 1, "the one that was asked first"
    assert all(found[key] == calm[key] for key in range(EPISODES) if key not in lost)
    assert wait_for_end([process for process in find_javas() if process not in before])


PARENT = """
import os, signal
from tests.conftest import load_task_yaml
from lit_agentrl.rollout.worlds.pool import GamePools
from tests.envs.java import find_javas

pools = GamePools([load_task_yaml({name!r})], {{}})
for key in range(2):
    pools.reset(key, 0, split="train", seed=key, noise_seed=key)
for key in range(2):
    assert not pools.take(key).error
inline = load_task_yaml({name!r}).make("train")  # and one of its own
inline.reset(seed=0)
print(*(process.pid for process in find_javas()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", ["textworld_express", "scienceworld"])
def test_no_java_process_outlives_a_killed_trainer(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT.format(name=name)], stdout=subprocess.PIPE, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3
    assert wait_for_end(psutil.Process(pid) for pid in pids if psutil.pid_exists(pid))
