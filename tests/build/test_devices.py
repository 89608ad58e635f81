"""What a config leaves to ``auto`` is chosen by the device, said in one line, and saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build import assembly, devices
from lit_agentrl.build.devices import CPU, GIB, ON_CPU, Device, choose_for_device, find_device, save_choice
from lit_agentrl.build.memory import plan_memory
from lit_agentrl.config.composition import compose_job
from lit_agentrl.engines.served import vllm
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
    long = ("rollout.max_reply_tokens=256", "rollout.max_context_tokens=2048")
    one = composed("model=hf", f"model.name={folder}", "update.checkpoint_activations=false", *long)
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


def test_memory_of_other_programs_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    used, asked, reserved = {"a": "52224", "b": "70656"}, [], 2 * GIB  # 51 and 69 GiB

    def run(command: list[str], **_: object) -> SimpleNamespace:
        assert command[0] == "nvidia-smi"
        asked.append(command[1])
        return SimpleNamespace(stdout=used[command[1].removeprefix("--id=GPU-")] + "\n")

    def describe(number: int) -> SimpleNamespace:
        return SimpleNamespace(name="H100", total_memory=80 * GIB, major=9, uuid="ab"[number])

    fakes = {
        "is_available": lambda: True, "device_count": lambda: 2, "get_device_properties": describe,
        "memory_reserved": lambda number: reserved,
    }  # fmt: skip
    for name, fake in fakes.items():
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(devices.CUDAAccelerator, "parse_devices", lambda given: list(range(given)))
    monkeypatch.setattr(devices.subprocess, "run", run)
    devices._measure_taken.cache_clear()
    trainer = composed("trainer.accelerator=cuda", "trainer.devices=1").trainer
    one = find_device(trainer)
    assert one.taken == 51 * GIB - reserved - GIB  # without what this process holds, and a context
    assert one.compute_limit(1.0) == 80 * GIB - 51 * GIB + reserved
    assert find_device(trainer) == one and asked == ["--id=GPU-a"]  # equal for all copies of a config
    trainer.devices = 2
    assert find_device(trainer).taken == 69 * GIB - reserved - GIB  # the one that more is taken of
    devices._measure_taken.cache_clear()
    used["a"] = "[N/A]"  # a part of a card
    trainer.devices = 1
    assert find_device(trainer).taken == 0
    devices._measure_taken.cache_clear()


def test_slow_weights_and_shared_rows_are_planned() -> None:
    def plan(*words: str) -> dict[str, float]:
        found = plan_memory(composed(*words))
        assert found is not None
        return found.count_terms()

    once, shared = plan("update.packing=true"), plan("update.packing=shared")
    assert shared["activations"] > 1.2 * once["activations"]
    assert plan("update.packing=auto")["activations"] == once["activations"]  # on a GPU not shared
    critic, slow = (plan("algo=ppo", f"critic.target_rate={rate}")["critic"] for rate in (1, 0.1))
    assert slow == pytest.approx(1.25 * critic, rel=0.01)  # weights, gradients and two moments, and one more


def test_a_shared_card_gives_smaller_micro_batches_and_the_line_says_why() -> None:
    free, shared = composed(), composed()
    assert "taken" not in choose_for_device(free, RTX)
    line = choose_for_device(shared, replace(RTX, taken=22 * GIB))
    assert "(23.5 GiB, 22.0 of them taken by other programs): trainer" in line
    assert shared["update"].tokens_per_microbatch < free["update"].tokens_per_microbatch


def test_what_else_plays_on_the_card_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "require_vllm", lambda: "0.32.0")
    folder = write_shape(tmp_path, "Qwen/Qwen2.5-0.5B-Instruct")

    def plan(*words: str) -> dict[str, float]:
        cfg = composed("model=hf", f"model.name={folder}", "trainer.precision=bf16-mixed", *words)
        found = plan_memory(cfg)
        assert found is not None
        return found.count_terms()

    alone = plan()
    assert alone["players"] == alone["vllm"] == 0 < alone["play copy"]
    assert plan("engine.play_copy=false")["play copy"] == plan("engine.window=0")["play copy"] == 0
    for words in (["worker=process"], ["rollout.overlap=true"]):
        assert plan(*words)["players"] > alone["weights"] + alone["kv cache"]
    assert (
        plan("worker=process", "worker.count=2", "worker.share=2")["players"]
        == 2 * plan("worker=process")["players"]
    )
    assert plan("worker=process", "worker.device=cpu")["players"] == 0
    served = plan("engine=vllm")
    assert served["kv cache"] == served["play copy"] == 0 and served["vllm"] > alone["play copy"]
    assert plan("engine=vllm", "engine.cache_gb=2")["vllm"] == alone["play copy"] + 2 * GIB
    whole, half = plan("algo/kl=loss_k3"), plan("algo/kl=loss_k3", "algo.kl.reference_dtype=bfloat16")
    assert whole["reference"] == whole["weights"] == 2 * half["reference"]
    assert (
        plan("algo=tdpo", "data=pairs", "data.path=rows.jsonl", "env=sokoban")["reference"]
        == whole["weights"]
    )
    sorts = plan("rollout.top_p=0.9", "rollout.allow_truncated_sampling=true")
    assert sorts["graphs"] > 1.5 * alone["graphs"]


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
