"""Whole runs with adapters: exact resume, evaluation, export, and learning."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.lora import LoRA
from lit_agentrl.models.policy import Policy, load_nano
from tests.conftest import nano_tokenizer
from tests.integration.conftest import TINY, assert_equal_runs
from tests.integration.test_learning import RISE, SMALL

SLOW_RATE = "optim.lr=2e-4"  # of whole weights; adapters take ten times as much
ADAPTED = ["model/lora=default", "model.lora.r=4", "algo/kl=loss_k3", "optim.lr=1e-3"]


@pytest.mark.slow
@pytest.mark.sweep
def test_resume_is_exact_and_the_run_can_be_evaluated_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, extended = tmp_path / "straight", tmp_path / "extended"
    for folder, iterations in ((straight, 3), (extended, 2)):
        main_train([*TINY, *ADAPTED, f"hydra.run.dir={folder}", f"trainer.max_epochs={iterations}"])
    main_train([f"resume={extended}", "trainer.max_epochs=3"])
    assert_equal_runs(straight, extended)

    best = torch.load(straight / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["state_dict"] and all("lora_" in name for name in best["state_dict"])
    assert best["policy"]["adapters"]["base"] == "nano"
    last = torch.load(straight / "checkpoints" / "last.ckpt", weights_only=True)
    states = last["optimizer_states"][0]["state"].values()
    assert len(states) == len(best["state_dict"])
    capsys.readouterr()
    main_evaluate([f"run={straight}", "episodes=4", "checkpoint=best"])
    assert "bandit" in capsys.readouterr().out

    network = load_nano(lora=LoRA(r=4)).network
    network.load_state_dict(
        {n.removeprefix("network."): t for n, t in best["state_dict"].items()}, strict=False
    )
    tokens_BT = torch.randint(1, 200, (4, 40), generator=torch.Generator().manual_seed(0))
    rows = {"tokens_BT": tokens_BT, "is_action_BT": torch.arange(40).expand(4, 40) > 0}
    plain = AutoModelForCausalLM.from_pretrained(straight / "hf")
    with torch.no_grad():  # in float64: random tokens cost 16 nats, where float32 itself is 1e-5 off
        exported = score_tokens(plain.double(), **rows).logp_BT
        torch.testing.assert_close(
            exported, score_tokens(network.double(), **rows).logp_BT, rtol=0, atol=1e-5
        )
        start = score_tokens(load_nano().network.double(), **rows).logp_BT
    assert float((exported - start).abs().max()) > 1e-4


@pytest.mark.slow
@pytest.mark.sweep
def test_the_better_arm_is_learnt(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rest = [option for option in SMALL if option != SLOW_RATE]
    main_train(
        [*rest, "model/lora=default", "optim.lr=2e-3", "trainer.max_epochs=25", f"hydra.run.dir={folder}"]
    )
    games = json.loads((folder / "summary.json").read_text())["games"]
    (game,) = [each for each in games if each["split"] == "test"]
    start, last = game["start"]["success"], game["last"]["success"]
    print(f"{start['mean']:.3f} -> {last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}]")
    assert last["mean"] >= start["mean"] + RISE and last["low"] > start["high"]


@pytest.mark.slow
@pytest.mark.sweep
def test_a_small_random_llama_learns_to_be_brief(tmp_path: Path) -> None:
    """Every sampled token costs a point tenth; only adapters can move."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(nano_tokenizer()), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=128, max_position_embeddings=512, pad_token_id=0,
        bos_token_id=None, eos_token_id=5, initializer_range=0.2,
    )  # fmt: skip
    Policy(network=LlamaForCausalLM(config), tokenizer=nano_tokenizer(), name="small").save(
        tmp_path / "small"
    )
    main_train(
        [
            *TINY, "model=hf", f"model.name={tmp_path / 'small'}", "model/lora=default",
            "reward=length", "reward.length.free_tokens=0", "reward.length.step_tokens=1",
            "reward.length.weight=0.1", "filter.ratio=0.5", "optim.lr=1e-2", "trainer.max_epochs=12",
            f"hydra.run.dir={tmp_path / 'run'}",
        ]
    )  # fmt: skip
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["rollout/reply_tokens"]]
    first, last = (float(rows[i]["rollout/reply_tokens"]) for i in (0, -1))
    print(f"{first:.1f} -> {last:.1f} tokens a reply")
    assert first > 15 and last < 8
    state = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert all("lora_" in name for name in state)
