"""The playing process: what it plays is what this process would play, and no way of failing goes unheard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.games.frozen_lake import FrozenLake
from lit_agentrl.models.packing import enable_packing
from lit_agentrl.models.policy import copy_weights, get_named_weights
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.workers.base import play_wave
from lit_agentrl.rollout.workers.inline import LocalPlayer
from lit_agentrl.rollout.workers.opener import PlayingError
from lit_agentrl.rollout.workers.pool import Pool
from lit_agentrl.rollout.workers.process import Process, ProcessSettings, serialize_parts
from lit_agentrl.rollout.workers.share_player import SharePlayer
from lit_agentrl.rollout.workers.weights import SharedWeights
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from tests.conftest import ROOT, load_task_yaml, nano_tokenizer, tiny_network

pytestmark = pytest.mark.usefixtures("one_thread")

PARAMS = SamplingParams(max_reply_tokens=12, max_context_tokens=300)


class Broken(NativeEngine):
    """Raises what a user's engine might."""

    def poll(self, timeout: float | None = None) -> Any:
        raise OSError("no GPU left\nand more lines")


class Closing(FrozenLake):
    """Writes down that it was closed."""

    def __init__(self, *, log: Path, **options: Any) -> None:
        super().__init__(**options)
        self._log = log

    def close(self) -> None:
        with self._log.open("a") as file:
            file.write("closed\n")


class Hanging(NativeEngine):
    """Never answers."""

    def poll(self, timeout: float | None = None) -> Any:
        time.sleep(3600)


def rules(engine: Callable[..., Any] = NativeEngine, **changes: Any) -> Rules:
    options: dict[str, Any] = {
        "tasks": [load_task_yaml("frozen_lake")], "engine": partial(engine, num_slots=4), "seed": 3,
        "prompt": Prompt("compact"), "chat": ChatRenderer(nano_tokenizer()), "max_context_tokens": 300,
    }  # fmt: skip
    return Rules(**{**options, **changes})


def process(engine: Callable[..., Any] = NativeEngine, patience: float = 300.0, **options: Any) -> Pool:
    settings = ProcessSettings(**{"threads": 1, "patience": patience, "attempts": 1, **options})
    return settings.open(rules(engine), tiny_network(), torch.no_grad, is_ahead=False)


def test_a_gpu_of_a_worker_is_the_current_one_there_and_untouched_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM in a worker takes the current GPU; a tensor here would keep half a GiB of the worker's card."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch, "zeros", None)
    ProcessSettings(device=["cuda:1", "cuda"])
    with pytest.raises(
        ValueError, match=r"^device=cuda:2 cannot be used here \(there are 2 GPUs, .*cuda:0\)"
    ):
        ProcessSettings(device="cuda:2")
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    load = torch.load
    monkeypatch.setattr(
        torch, "load", lambda file, map_location, **rest: load(file, map_location="cpu", **rest)
    )
    payload = serialize_parts((rules(), tiny_network(), torch.no_grad))
    for device in ("cuda:1", "cuda", "cpu"):
        SharePlayer(payload, device, 1, lambda: None).close()
    assert current == [torch.device("cuda:1")]


def the_process(pool: Pool) -> int:
    """Its process, once it has been started."""
    while not pool.handles:
        time.sleep(0.01)
    (seat,) = pool.handles
    assert isinstance(seat, Process)
    return seat.pid


def wave(iteration: int = 0) -> Wave:
    sampled = tuple(EpisodeSpec(iteration, group, m, 0, 11 + group) for group in range(2) for m in range(3))
    greedy = tuple(EpisodeSpec(iteration, group, 0, 0, 11 + group, greedy=True) for group in range(2))
    return Wave("train", iteration, PARAMS, sampled + greedy)


@pytest.fixture(scope="module")
def playing() -> Iterator[Pool]:
    made = process()
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_it_plays_what_this_process_would_play(playing: Pool, seed: int) -> None:
    network = tiny_network(seed=seed)
    playing.load(get_named_weights(network), version=5 + seed)
    playing.submit(wave())
    for parameter in network.parameters():  # what training does meanwhile
        parameter.data.add_(1.0)
    there = playing.take()
    engine = rules().open_engine(tiny_network(seed=seed))
    engine.load(None, 5 + seed)
    here = Scheduler(rules(), engine)
    assert there.episodes == here.play(wave())
    assert len(there.episodes) == 8 and there.seconds > 0
    assert {turn.policy_version for e in there.episodes for turn in e.turns} == {5 + seed}
    assert play_wave(playing, wave(1)).episodes == here.play(wave(1))  # with the same weights


@pytest.mark.slow
def test_weights_stay_while_they_are_played_with(playing: Pool) -> None:
    playing.submit(wave(1))
    with pytest.raises(AssertionError):
        playing.load({}, version=0)
    playing.take()


@pytest.mark.slow
def test_an_error_is_told_with_its_cause() -> None:
    made = process(Broken)
    pid = the_process(made)
    with pytest.raises(
        PlayingError, match=r"^the playing process .* failed: OSError: no GPU left$"
    ) as caught:
        play_wave(made, wave())
    assert "in poll" in str(caught.value.__cause__)  # the stack of the other process
    made.stop()
    assert not _is_running(pid)


@pytest.mark.slow
def test_a_process_that_dies_is_told() -> None:
    made = process(Hanging)
    made.submit(wave())
    os.kill(the_process(made), signal.SIGKILL)
    with pytest.raises(PlayingError, match=r"died \(SIGKILL\); the machine may be out of memory"):
        made.take()
    made.stop()


@pytest.mark.slow
def test_processes_that_die_at_their_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is killed before it can begin, also where its death is known before a share is dealt."""
    begin = Process.__init__

    def begin_and_die(self: Process, *given: Any) -> None:
        begin(self, *given)
        self._process.kill()
        self._process.join()

    monkeypatch.setattr(Process, "__init__", begin_and_die)
    made = process(attempts=2)
    with pytest.raises(PlayingError, match=r"died \(SIGKILL\).* before it could begin, 2 times"):
        play_wave(made, wave())
    made.stop()


@pytest.mark.slow
def test_a_process_that_hangs_is_ended() -> None:
    made = process(Hanging, patience=5.0)
    pid = the_process(made)
    with pytest.raises(PlayingError, match=r"finished no reply for 5 s; .*raise worker\.patience"):
        play_wave(made, wave())
    made.stop()
    assert not _is_running(pid)


@pytest.mark.slow
def test_processes_that_die_or_hang_are_replaced() -> None:
    """One is killed while it plays, the other never wakes again; what is played is what this process plays."""
    made = process(patience=10.0, attempts=3, count=2, share=1)
    made.load(get_named_weights(tiny_network()), version=5)
    play_wave(made, wave(1))  # both have begun
    killed, stopped = (seat.pid for seat in made.handles if isinstance(seat, Process))
    os.kill(stopped, signal.SIGSTOP)
    made.submit(wave())
    os.kill(killed, signal.SIGKILL)
    found = made.take()
    here = LocalPlayer(rules(), tiny_network(), torch.no_grad, StrategyHooks())
    assert found.episodes == here.play_shares(wave(), 5, 1, 1).episodes
    assert found.counts["shares"] == 2 and found.counts["restarts"] == 2
    made.stop()
    assert not _is_running(killed) and not _is_running(stopped)


@pytest.mark.slow
def test_processes_that_are_stopped_while_they_start_are_replaced() -> None:
    made = process(start_patience=15.0, attempts=3, count=2, share=1)
    while len(made.handles) < 2:
        time.sleep(0.01)
    stopped = [seat.pid for seat in made.handles if isinstance(seat, Process)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    made.load(get_named_weights(tiny_network()), version=5)
    found = play_wave(made, wave())
    here = LocalPlayer(rules(), tiny_network(), torch.no_grad, StrategyHooks())
    assert found.episodes == here.play_shares(wave(), 5, 1, 1).episodes
    assert found.counts["shares"] == found.counts["attempts"] == 2 and found.counts["restarts"] >= 1
    made.stop()
    assert not any(map(_is_running, stopped))


PARENT = """
import os, signal, torch
from tests.rollout.test_process import Hanging, process, the_process, wave

if __name__ == "__main__":
    made = process(Hanging)
    made.submit(wave())
    print(the_process(made), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_no_process_outlives_a_killed_trainer(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 120
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_running(pid)


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("env", {"tasks": [lambda: None]}),
        ("engine", {"engine": lambda **kwargs: None}),
        ("reward", {"probes": {"x": lambda env, observation: 0.0}}),
    ],
)
def test_what_cannot_be_sent_is_named(option: str, changes: dict[str, Any]) -> None:
    rules().require_picklable()
    with pytest.raises(ValueError, match=rf"and {option} cannot be sent there .*top level of a module"):
        rules(**changes).require_picklable()


def test_a_snapshot_keeps_what_was_written() -> None:
    network, other = tiny_network("gpt2"), tiny_network("gpt2", seed=1)
    assert network.lm_head.weight is network.transformer.wte.weight  # tied: once in the snapshot
    shared = SharedWeights(network)
    assert "lm_head.weight" not in shared.get_views()
    shared.write(get_named_weights(network))
    network.lm_head.weight.data[3] += 1.0
    moved = shared.differing(get_named_weights(network))
    assert set(moved) == {"transformer.wte.weight"}
    assert torch.equal(moved["transformer.wte.weight"][3] + 1.0, network.lm_head.weight.data[3])
    copy_weights(shared.get_views(), other)
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        assert torch.equal(other(tokens).logits, tiny_network("gpt2")(tokens).logits)


def test_a_snapshot_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("unable to write to file </torch_1>: No space left on device (28)\nstack")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(
        ValueError, match=r"needs 0 MB of shared memory .*No space left on device \(28\)\); make"
    ):
        SharedWeights(tiny_network())


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_a_network_that_takes_packed_rows_is_played_with(tmp_path: Path) -> None:
    """A new process knows the attention that such a network names; at its end it closes its games."""
    network, task = tiny_network(), load_task_yaml("frozen_lake")
    assert not enable_packing(network)
    game = partial(Closing, log=tmp_path / "log", **task.game.keywords)  # type: ignore[attr-defined]
    of_game = rules(tasks=[replace(task, game=game)])
    made = ProcessSettings(threads=1).open(of_game, network, torch.no_grad, is_ahead=False)
    try:
        made.load(get_named_weights(network), version=1)
        assert len(play_wave(made, wave()).episodes) == 8
    finally:
        made.stop()
    assert (tmp_path / "log").read_text() == "closed\n" * 4  # one for each episode that can be under way


@pytest.mark.slow
@pytest.mark.sweep
def test_a_wave_leaves_nothing_in_the_engine() -> None:
    """Groups are larger than the room, so that an episode ends while others of its group have not begun."""
    one = Scheduler(rules(), rules().open_engine(tiny_network()))
    one.play(wave())
    other = Scheduler(rules(), rules().open_engine(tiny_network()))
    assert one.play(wave(1)) == other.play(wave(1))
