"""Every shipped experiment for large models passes the checks of its own settings, and is planned for its card."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build.devices import choose_for_device
from lit_agentrl.build.memory import plan_memory
from lit_agentrl.build.parts import build_parts
from lit_agentrl.build.precision import describe_lost_steps, describe_uncorrected
from lit_agentrl.config.composition import compose_job, make_task_loader
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.engines.served import vllm
from lit_agentrl.paths import list_options
from tests.build.test_devices import H100
from tests.conftest import thinned
from tests.shapes import write_shape

NAMES = [file.stem for file in list_options("experiment/grid_full") if not file.stem.startswith("_")]


def compose_run(*words: str) -> DictConfig:
    cfg = compose_job("train", words)
    OmegaConf.set_struct(cfg, False)
    cfg.run_dir = "."
    return cfg


def list_swept(cfg: DictConfig, key: str) -> list[str]:
    """The values of a key over which a grid sweeps, as options."""
    swept: Any = OmegaConf.to_container(cfg.hydra.sweeper.params, resolve=False)
    return [f"{key}={name}" for name in str(swept.get(key, "")).split(",") if name]


@pytest.mark.parametrize("name", thinned(NAMES, one_in=4))
def test_a_grid_of_a_large_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "require_vllm", lambda: "0.32.0")
    folder = write_shape(tmp_path, "Qwen/Qwen2.5-0.5B-Instruct")
    words = [f"experiment=grid_full/{name}", f"model.name={folder}"]
    grid = compose_run(*words)
    words += list_swept(grid, "env")[:1]  # whose other options may be of this game
    algorithms = list_swept(grid, "algo")
    for more in itertools.islice([[a] for a in algorithms] or [[]], 6):
        cfg = compose_run(*words, *more)
        del cfg["hydra"]
        check_targets(cfg)
        choose_for_device(cfg, H100)
        parts = build_parts(cfg, make_task_loader())
        assert describe_uncorrected(cfg) == "" and describe_lost_steps(cfg, parts.optim) == ""
        plan = plan_memory(cfg)
        assert plan is not None and H100.has_room(plan)


def test_a_narrow_probe_in_half_precision_is_refused(tmp_path: Path) -> None:
    cfg = compose_run("engine=vllm", "trainer.precision=bf16-mixed")
    with pytest.raises(
        ValueError, match="engine.max_sync_gap=0.001 under trainer.precision=bf16-mixed: .* set"
    ):
        build_parts(cfg, make_task_loader())
    assert "algo/correction=truncated weighs" in describe_uncorrected(cfg)
