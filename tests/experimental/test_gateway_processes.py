"""Processes of programs end with their episode and with the trainer, and all that they have started with them."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.experimental.gateway.exchange import Exchange, ProgramEnd
from lit_agentrl.experimental.gateway.folders import ProgramFolder, remove_left
from lit_agentrl.experimental.gateway.processes import Process
from lit_agentrl.experimental.gateway.programs import Command, Function
from lit_agentrl.experimental.gateway.server import Gateway
from lit_agentrl.experimental.gateway.task import ProgramTask
from lit_agentrl.experimental.gateway.world import AgentProgram
from lit_agentrl.rollout.worlds import pool as worlds
from lit_agentrl.rollout.worlds.environments import Call
from tests.conftest import ROOT
from tests.integration.conftest import command, environment

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found in /proc"
)
AGENTS = "tests.experimental.gateway_forks"
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(60)
    os._exit(0)
while not (os.path.exists(sys.argv[1]) and open(sys.argv[1]).read()):
    time.sleep(0.01)
"""


def is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(is_true: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_true()


def play(program: Any, seconds: float = 20.0) -> ProgramEnd:
    """The end of an episode without a call."""
    exchange = Exchange(is_parallel=False)
    program.start(exchange, "{}", "http://127.0.0.1:9/v1", "key")
    end = exchange.take_next(seconds)
    assert isinstance(end, ProgramEnd)
    return end


def test_a_program_outlives_the_thread_that_asked_for_it() -> None:
    """The thread of a game that hung is given up, and its other games go on in another one."""
    started: list[Process] = []
    thread = threading.Thread(target=lambda: started.append(Process(["sleep", "60"], {})))
    thread.start()
    thread.join()
    assert not wait_until(lambda: not started[0].is_alive, 0.2)
    started[0].kill()
    assert not started[0].is_alive and started[0].wait() == -signal.SIGKILL


def test_a_daemon_ends_with_its_episode(tmp_path: Path) -> None:
    script, place = DAEMON + "print('{\"reward\": 1}')", tmp_path / "number"
    assert play(Command([sys.executable, "-S", "-c", script, str(place)])) == ProgramEnd({"reward": 1})
    assert not is_running(int(place.read_text()))


@pytest.mark.slow
def test_a_function_that_forks_and_dies_is_reported_at_once() -> None:
    end = play(Function(f"{AGENTS}.fork_and_die"))
    assert "killed by signal 9" in end.problem


@pytest.mark.slow
def test_a_function_cannot_read_the_tasks_that_follow() -> None:
    program = Function(f"{AGENTS}.read_input")
    assert [play(program).result for _ in range(3)] == [1.0, 1.0, 1.0]
    program.close()


TRAINER = """
import sys, time
from lit_agentrl.experimental.gateway.processes import Process
Process([sys.executable, "-S", "-c", *sys.argv[1:]], {})
time.sleep(60)
"""


@pytest.mark.slow
def test_all_processes_of_a_program_end_with_a_killed_trainer(tmp_path: Path) -> None:
    """Its child, and a daemon of another session."""
    place, child = tmp_path / "number", tmp_path / "child"
    script = (
        DAEMON
        + 'import subprocess\nopen(sys.argv[2], "w").write(str(subprocess.Popen(["sleep", "60"]).pid))\ntime.sleep(60)'
    )
    command = [sys.executable, "-c", TRAINER, script, str(place), str(child)]
    trainer = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    assert wait_until(lambda: child.exists() and bool(child.read_text()))
    numbers = [int(file.read_text()) for file in (place, child)]
    assert all(map(is_running, numbers))
    trainer.kill()
    trainer.wait()
    assert wait_until(lambda: not any(map(is_running, numbers)))


def heed_interrupts() -> None:
    """Undo what a shell does to its background jobs: they ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_no_program_outlives_a_trainer_that_is_ended(name: str, tmp_path: Path) -> None:
    """In the middle of two episodes."""
    place = tmp_path / "numbers"
    options = [
        "env=program", "context=program", "env.game.mode=function", f"env.game.function={AGENTS}.linger",
        "experiment=quick", "test.episodes=0", "val.episodes=2", f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    variables = {**environment(), "LINGERING": str(place)}
    with (tmp_path / "out").open("w") as out:
        trainer = subprocess.Popen(
            command(*options), cwd=ROOT, env=variables, stdout=out, stderr=out, preexec_fn=heed_interrupts
        )
    assert wait_until(lambda: place.exists() and place.read_text().count("\n") == 2, 240.0)
    trainer.send_signal(signal.Signals[name])
    assert trainer.wait(60.0) != 0
    numbers = [int(number) for number in place.read_text().split()]
    assert wait_until(lambda: not any(map(is_running, numbers)))


def test_a_program_of_a_killed_trainer_is_refused_by_the_resumed_one() -> None:
    """Also if the system gives the resumed trainer the same port: no key follows from the seeds of the run."""
    gateway, keys, exchanges = Gateway(), [], [Exchange(is_parallel=False) for _ in range(2)]
    for exchange in exchanges:
        random.seed(0)
        keys.append(gateway.open(exchange, max_bytes=1000))
    gateway.close(keys[0])  # as the end of its trainer does
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "go"}]}).encode()
    head = {"Authorization": f"Bearer {keys[0]}"}
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(gateway.url + "/chat/completions", body, head))
    with pytest.raises(TimeoutError):
        exchanges[1].take_next(0.05)
    assert len({*keys}) == 2


def test_a_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="folder of a program cannot be made .*set TMPDIR"):
        play(Command(["true"]))


def test_closing_ends_a_program_that_plays_and_starts_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C must not wait for a program, nor for the episodes that wait for its worker."""
    monkeypatch.setattr(worlds, "_END_S", 90.0)
    script = 'echo $$ >> "$NUMBERS"; sleep 600'
    monkeypatch.setenv("NUMBERS", str(tmp_path / "numbers"))
    world = partial(AgentProgram, mode="command", command=["sh", "-c", script], timeout_s=600.0)
    limits = {"max_turns": 2, "max_actions_per_turn": 1, "max_actions": 2, "invalid_penalty": 0.0}
    task = ProgramTask("sleep", world, **limits, hosting=Hosting(where="thread", workers=1))
    pool = worlds.WorkerPool(task, {}, queue.SimpleQueue())
    for key in range(3):
        pool.ask(Call("reset", key, ("train", key, key, None, False)))
    numbers = tmp_path / "numbers"
    assert wait_until(lambda: numbers.exists() and numbers.read_text().endswith("\n"))
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 60
    [number] = numbers.read_text().split()
    assert not is_running(int(number))


OWNER = """
import sys, time
from lit_agentrl.experimental.gateway.folders import ProgramFolder
folder = ProgramFolder()
print(folder.path, flush=True)
time.sleep(60)
"""


def test_the_folders_of_killed_trainers_are_removed_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    trainers = [
        subprocess.Popen([sys.executable, "-S", "-c", OWNER], env=variables, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    left, used = (Path(str(each.stdout and each.stdout.readline().decode().strip())) for each in trainers)
    trainers[0].kill()
    trainers[0].wait()
    others = [tmp_path / "program-1", tmp_path / "lit-agentrl-program-of-another", tmp_path / "real"]
    for folder in others:
        folder.mkdir()
    (tmp_path / "lit-agentrl-program-link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "owner.lock").touch()
    mine = ProgramFolder()
    remove_left(tmp_path)  # another trainer starts
    assert not left.exists() and used.is_dir() and mine.path.is_dir()
    assert all(folder.is_dir() for folder in others)
    trainers[1].kill()
    trainers[1].wait()
    mine.close()
    mine.close()
    remove_left(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "lit-agentrl-program-link"])


def test_a_program_leaves_no_folder_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = Command(["sleep", "60"])
    program.start(Exchange(is_parallel=False), "{}", "http://127.0.0.1:9/v1", "key")
    assert len(list(tmp_path.iterdir())) == 1
    program.stop()
    assert not list(tmp_path.iterdir())


RESULTS = {
    "deep": ("head -c 60000 /dev/zero | tr '\\0' '[' > $LIT_AGENTRL_RESULT", "names no reward"),
    "empty": (": > $LIT_AGENTRL_RESULT; echo 1", "is empty; its disk may be full"),
    "a folder in its place": ("mkdir $LIT_AGENTRL_RESULT", "names no reward"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_file_without_a_reward_is_an_error_at_once(name: str) -> None:
    script, problem = RESULTS[name]
    assert problem in play(Command(["sh", "-c", script])).problem
