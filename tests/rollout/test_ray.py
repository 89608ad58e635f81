"""Workers of Ray: what they play is what this process plays, however many they are and however they end."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.models.policy import get_named_weights
from lit_agentrl.rollout.workers.base import play_wave
from lit_agentrl.rollout.workers.cluster import connect
from lit_agentrl.rollout.workers.inline import LocalPlayer
from lit_agentrl.rollout.workers.opener import PlayingError
from lit_agentrl.rollout.workers.pool import Pool
from lit_agentrl.rollout.workers.ray import RaySettings
from tests.conftest import ROOT, tiny_network
from tests.rollout.test_process import rules, wave

pytestmark = pytest.mark.usefixtures("one_thread")


class Telling(NativeEngine):
    """Raises what a user's engine might."""

    def poll(self, *given: Any, **options: Any) -> Any:
        raise OSError("no GPU left\nand more lines")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    yield
    ray.shutdown()


def pool(engine: Any = NativeEngine, **options: Any) -> Pool:
    settings = RaySettings(**{"share": 1, "count": 2, **options})
    return settings.open(rules(engine), tiny_network(), torch.no_grad, is_ahead=False)


def here(seed: int = 0, iteration: int = 0) -> Any:
    player = LocalPlayer(rules(), tiny_network(seed=seed), torch.no_grad, StrategyHooks())
    return player.play_shares(wave(iteration), 5, 1, 1).episodes


@pytest.mark.parametrize(
    ("count", "cpus"),
    [
        pytest.param(1, 1.0, marks=pytest.mark.long),
        pytest.param(2, 1.0, marks=pytest.mark.slow),
        pytest.param(5, 0.4, marks=pytest.mark.long),
    ],
)
def test_any_number_of_actors_play_what_this_process_plays(cluster: None, count: int, cpus: float) -> None:
    """With weights that change; two of them also die while they play."""
    made = pool(count=count, cpus=cpus)
    for seed in (0, 1):
        made.load(get_named_weights(tiny_network(seed=seed)), version=5)
        assert play_wave(made, wave()).episodes == here(seed)
    if count == 2:
        made.submit(wave(1))
        for process in of_actors():
            os.kill(process, signal.SIGKILL)
        found = made.take()
        assert found.episodes == here(1, iteration=1) and found.counts["restarts"] > 0
    made.stop()


@pytest.mark.slow
def test_what_an_engine_raises_is_one_line(cluster: None) -> None:
    made = pool(Telling, count=1)
    made.load({}, 0)
    with pytest.raises(PlayingError, match=r"^a playing worker \(worker=ray\) failed: OSError: no GPU left$"):
        play_wave(made, wave())
    made.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": None}, r"^share=null gives the whole wave to one actor; set worker\.share"),
        ({"count": "many"}, r"^count=many must be a whole number >= 1, or auto"),
        ({"count": 0}, r"^count=0 must be a whole number .*, or auto"),
        ({"cpus": 0}, r"^cpus=0 must be a number > 0"),
        ({"gpus": -1}, r"^gpus=-1 must be a number >= 0"),
        ({"gpus": float("inf")}, r"^gpus=inf must be a finite number >= 0"),
        ({"address": "head:65536"}, r"^address=head:65536 must be auto, or HOST:PORT of a cluster$"),
        ({"address": "head"}, r"^address=head must be auto, or HOST:PORT of a cluster$"),
        (
            {"address": "ray://head:10001"},
            r"^address=ray://head:10001 must be auto, or HOST:PORT of a cluster$",
        ),
    ],
)
def test_values_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RaySettings(**{"share": 1, **options})


def test_without_ray_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'lit-agentrl\[ray\]'$"):
        RaySettings(share=1)


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            PlayingError, match=rf"^worker=ray cannot reach worker\.address={address} \(.*refused\); "
        ):
            connect(ModuleType("ray"), address, count=1, cpus=1, gpus=0)


def test_a_cluster_that_does_not_let_one_in_may_ask_for_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    library = ModuleType("ray")

    def init(**options: Any) -> None:
        raise ConnectionError("Failed to connect\nand more lines")

    library.init = init  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(
            PlayingError, match=r"Failed to connect\); .* with a token, set RAY_AUTH_MODE=token$"
        ):
            connect(library, address, count=1, cpus=1, gpus=0)


def of_actors() -> list[int]:
    """The processes of this machine in which actors of this test live."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                title = file.read()
            parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if title.startswith(b"ray::PlayingActor") and parent == raylet():
            found.append(int(name))
    return found


def raylet() -> str:
    """The process that started them: that of this test's cluster, beside which there may be others."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if b"/raylet" in line.split(b"\0")[0] and node.encode() in line:
            return name
    return ""
