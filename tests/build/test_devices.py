"""What a config leaves to ``auto`` is chosen by the device, said in one line, and saved."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build import assembly
from lit_agentrl.build.devices import CPU, GIB, ON_CPU, Device, choose_for_device, save_choice
from lit_agentrl.build.memory import plan_memory
from lit_agentrl.config.composition import compose_job
from tests.shapes import write_shape

H100 = Device("NVIDIA H100 80GB HBM3", int(79.1 * GIB), has_bfloat16=True)
RTX = Device("NVIDIA GeForce RTX 4090", int(23.5 * GIB), has_bfloat16=True)
OLD = Device("Tesla T4", int(14.6 * GIB))
LONG = ("rollout.max_reply_tokens=256", "rollout.max_context_tokens=4096")


def composed(*words: str) -> DictConfig:
    cfg = compose_job("train", words)
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    cfg.run_dir = "."
    return cfg


def values(cfg: DictConfig) -> list[object]:
    return [OmegaConf.select(cfg, key) for key in ON_CPU]


@pytest.mark.parametrize("device", [CPU, None])
def test_on_a_cpu_nothing_changes(device):
    cfg = composed("trainer.accelerator=cpu")
    assert choose_for_device(cfg, device) == ""
    assert values(cfg) == ["32-true", 128, False, 2048, 1024]


@pytest.mark.parametrize("size", ["0.5B", "3B"])
@pytest.mark.parametrize("more", [(), LONG])
def test_a_large_model_fits_on_a_card_of_80_gb_without_further_options(tmp_path, size, more):
    folder = write_shape(tmp_path, f"Qwen/Qwen2.5-{size}-Instruct")
    cfg = composed("model=hf", f"model.name={folder}", *more)
    line = choose_for_device(cfg, H100)
    precision, slots, checkpointing, tokens, chunk = values(cfg)
    assert precision == "bf16-mixed" and slots >= 32
    assert checkpointing is (
        size == "3B" and more is LONG
    )  # what fits as it is costs no further third of the work
    plan = plan_memory(cfg)
    assert H100.has_room(plan)
    assert line == (
        f"chosen for NVIDIA H100 80GB HBM3 (79.1 GiB): trainer.precision=bf16-mixed engine.num_slots={slots} "
        f"update.checkpoint_activations={str(checkpointing).lower()} update.tokens_per_microbatch={tokens} "
        f"update.logits_chunk={chunk}; planned peak "
        f"{plan.count_terms()['peak'] / GIB:.1f} GiB"
    )


def test_explicit_options_win(tmp_path):
    folder = write_shape(tmp_path, "Qwen/Qwen2.5-3B-Instruct")
    given = (
        "trainer.precision=32-true", "engine.num_slots=48", "update.checkpoint_activations=false",
        "update.tokens_per_microbatch=512", "update.logits_chunk=null",
    )  # fmt: skip
    cfg = composed("model=hf", f"model.name={folder}", *given)
    assert choose_for_device(cfg, H100) == "" and values(cfg) == ["32-true", 48, False, 512, None]
    one = composed("model=hf", f"model.name={folder}", "update.checkpoint_activations=false", *LONG)
    line = choose_for_device(one, H100)
    assert "update.checkpoint_activations" not in line and "too much" not in line
    assert one["update"].checkpoint_activations is False and one.engine.num_slots < 32


def test_what_does_not_fit_is_said(tmp_path):
    folder = write_shape(tmp_path, "Qwen/Qwen2.5-3B-Instruct")
    cfg = composed("model=hf", f"model.name={folder}")
    assert "which is likely too much: use model/lora=default" in choose_for_device(cfg, RTX)
    assert values(cfg) == ["bf16-mixed", 1, True, 2048, 1024]
    stored = composed("model=hf", f"model.name={folder}", "model/lora=default", *LONG)
    assert "which is likely too much: use model.dtype=bfloat16" in choose_for_device(stored, RTX)
    adapted = composed(
        "model=hf", f"model.name={folder}", "model/lora=default", "model.dtype=bfloat16", *LONG
    )
    assert "too much" not in choose_for_device(adapted, RTX) and adapted.engine.num_slots >= 32


def test_a_card_without_bfloat16_keeps_32_bits():
    cfg = composed()
    line = choose_for_device(cfg, OLD)
    assert "Tesla T4 (14.6 GiB): trainer.precision=32-true engine.num_slots=128" in line


def test_slots_are_the_episodes_of_an_iteration_where_they_fit():
    cfg = composed("rollout.prompts=64", "rollout.members=16")
    choose_for_device(cfg, H100)
    assert cfg.engine.num_slots == 1024


def test_fsdp_that_computes_in_bfloat16_keeps_the_precision_of_the_trainer(tmp_path):
    folder = write_shape(tmp_path, "Qwen/Qwen2.5-7B-Instruct")
    eight = ("strategy=fsdp", "strategy.compute_dtype=bfloat16", "strategy.activation_checkpointing=true")
    cfg = composed("model=hf", f"model.name={folder}", *eight, *LONG)
    choose_for_device(cfg, H100)
    assert cfg.trainer.precision == "32-true"


def test_a_network_of_own_code_is_not_planned():
    cfg = composed("model=remote")
    assert "cannot be planned" in choose_for_device(cfg, H100)
    assert values(cfg) == ["bf16-mixed", 128, False, 2048, 1024]


def test_deterministic_kernels_that_a_gpu_lacks_are_refused(monkeypatch):
    """PyTorch raises an error for a cumulative sum on a GPU, in the middle of the first rollout."""
    monkeypatch.setattr(assembly, "is_on_cuda", lambda accelerator: True)
    with pytest.raises(ValueError, match=r"^trainer.deterministic=true: .*; use trainer.deterministic=warn$"):
        assembly.build_trainer(composed("+trainer.deterministic=true"), [], [])


def test_the_choice_is_saved(tmp_path: Path):
    cfg = composed()
    place = tmp_path / ".hydra" / "config.yaml"
    save_choice(cfg, tmp_path)  # a run without a saved config
    place.parent.mkdir()
    OmegaConf.save(cfg, place)
    choose_for_device(cfg, H100)
    save_choice(cfg, tmp_path)
    assert values(OmegaConf.load(place)) == values(cfg) and cfg.trainer.precision == "bf16-mixed"
