"""A real ``vllm serve`` is given weights, and one that does not take them is found out."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import lit_agentrl
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.served.openai import OpenAIEngine
from lit_agentrl.models.policy import load_nano
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.rollout.sync import SyncError, WeightSync
from tests.rollout.test_process import rules

pytestmark = pytest.mark.vllm
PACKAGE = Path(lit_agentrl.__file__).parent
EXTENSION = "lit_agentrl.engines.served.vllm_worker.Extension"
PUSH = yaml.safe_load((CONFIG_DIR / "engine/vllm_serve.yaml").read_text())["push"]
STOCK = [
    {"path": "/collective_rpc", "json": {"method": "reload_weights", "kwargs": {"weights_path": "{folder}"}}}
]
WAYS = [SamplingParams(t, max_reply_tokens=16, max_context_tokens=300) for t in (1.0, 0.7)]
ENV = {
    "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


@contextmanager
def vllm_serve(log: Path, *options: str) -> Iterator[str]:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("vllm")), "serve", str(PACKAGE / "models/nano"),
        "--served-model-name", "nano", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--enforce-eager", "--max-model-len", "512", "--logprobs-mode", "processed_logprobs", *options,
    ]  # fmt: skip
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **ENV})
        try:
            _await(f"http://127.0.0.1:{port}", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(60)


def _await(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-2000:])


def synced(url: str, folder: Path, push: Sequence[Any], versions: int) -> list[float]:
    """The largest gap of each version, of weights that move by a fiftieth of their deviation."""
    network = load_nano().network
    held = replace(
        rules(),
        engine=partial(
            OpenAIEngine,
            url=url,
            mode="tokens",
            model="nano",
            weights_folder=str(folder),
            push=push,
            retries=0,
        ),
    )
    engine: Any = held.open_engine(network)
    sync, gaps = WeightSync(engine, network, held, nullcontext), []
    try:
        for version in range(versions):
            torch.manual_seed(version)
            with torch.no_grad():
                for weight in network.parameters():
                    weight += 0.02 * version * weight.std() * torch.randn_like(weight)
            sync.load(None, version)
            gaps.append(max(sync.probe(way)["engine/sync_gap"] for way in WAYS))
    finally:
        engine.stop()
    return gaps


def test_five_versions_arrive_and_a_cache_that_is_not_emptied_is_found_out(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    with vllm_serve(tmp_path / "log", "--worker-extension-cls", EXTENSION) as url:
        gaps = synced(url, folder, PUSH, 5)
        assert max(gaps) < 1e-4, gaps
        with pytest.raises(SyncError, match="a reply sampled at temperature 1 differ"):
            synced(url, folder, PUSH[:1], 3)
    assert not list(folder.iterdir())


def test_a_reload_that_loads_nothing_is_found_out(tmp_path: Path) -> None:
    """On a CPU, where vLLM packs linear layers: what it says of itself is that all went well."""
    with vllm_serve(tmp_path / "log") as url:
        with pytest.raises(SyncError, match="a fixed text differ"):
            synced(url, tmp_path, STOCK, 3)
        with pytest.raises(ValueError, match="load_folder"):
            synced(url, tmp_path, PUSH, 1)
