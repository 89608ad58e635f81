"""Whole runs with adapters: exact resume, evaluation, export, and learning."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from lit_agentrl.entry.cli import main_evaluate, main_train
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.lora import LoRA
from lit_agentrl.models.policy import Policy, load_nano
from tests.conftest import nano_tokenizer
from tests.integration.conftest import TINY, assert_equal_runs
from tests.integration.test_learning import RISE, SMALL

ADAPTED = ["model/lora=default", "model.lora.r=4", "algo/kl=loss_k3", "optim.lr=1e-3"]


@pytest.mark.slow
def test_resume_is_exact_and_the_run_can_be_evaluated_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, extended = tmp_path / "straight", tmp_path / "extended"
    for folder, iterations in ((straight, 3), (extended, 2)):
        main_train([*TINY, *ADAPTED, "val.every=1", f"hydra.run.dir={folder}", f"trainer.max_epochs={iterations}"])
    main_train([f"resume={extended}", "trainer.max_epochs=3"])
    assert_equal_runs(straight, extended)

    best = torch.load(straight / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["state_dict"] and all("lora_" in name for name in best["state_dict"])
    assert best["policy"]["adapters"]["base"] == "nano"
    states = best["optimizer_states"][0]["state"].values()
    assert len(states) == len(best["state_dict"])
    capsys.readouterr()
    main_evaluate([f"run={straight}", "episodes=4", "checkpoint=best"])
    assert "bandit" in capsys.readouterr().out

    network = load_nano(lora=LoRA(r=4)).network
    network.load_state_dict({n.removeprefix("network."): t for n, t in best["state_dict"].items()}, strict=False)
    tokens_BT = torch.randint(1, 200, (4, 40), generator=torch.Generator().manual_seed(0))
    rows = {"tokens_BT": tokens_BT, "is_action_BT": torch.arange(40).expand(4, 40) > 0}
    with torch.no_grad():
        exported = score_tokens(AutoModelForCausalLM.from_pretrained(straight / "hf"), **rows).logp_BT
        torch.testing.assert_close(exported, score_tokens(network, **rows).logp_BT, rtol=0, atol=1e-5)
        start = score_tokens(load_nano().network, **rows).logp_BT
    assert float((exported - start).abs().max()) > 1e-4


@pytest.mark.slow
def test_the_better_arm_is_learnt(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    main_train([*SMALL, "model/lora=default", "optim.lr=2e-3", "trainer.max_epochs=25", f"hydra.run.dir={folder}"])
    games = json.loads((folder / "summary.json").read_text())["games"]
    (game,) = [each for each in games if each["split"] == "test"]
    start, last = game["start"]["success"], game["last"]["success"]
    print(f"{start['mean']:.3f} -> {last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}]")
    assert last["mean"] >= start["mean"] + RISE and last["low"] > start["high"]
