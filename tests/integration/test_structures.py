"""Structures in whole runs: what does nothing changes no bit, and two adapters are played wherever one is."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import pytest
import torch

from lit_agentrl.cli.train import main as main_train
from tests.integration.conftest import TINY, assert_equal_runs, outcome
from tests.integration.small_runs import OF_LEVELS

ROOMS = (
    "env=sokoban env.max_turns=2 rollout.prompts=2 rollout.members=4 rollout.max_context_tokens=300 val.episodes=2 "
    "val.every=2 test.episodes=0 engine.num_slots=16 trainer.max_epochs=2 trainer.accelerator=cpu algo=reinforce "
    "algo/ratio=token algo/clip=symmetric optim.lr=1e-3 callbacks.transcripts.every=9"
)
IDLE = {  # what leaves a structure nothing to do; the others play more, or other episodes, whatever they are told
    "branch": "algo.structure.base=0 algo.structure.slope=0",
    "hint": "algo.structure.start=2",
    "mcts": "algo.structure.depth=0",
    "memory": "algo.structure.rows=0",
    "refill": "",
    "refine": "algo.structure.rounds=0",
    "replay": "",  # no instance is played twice
    "tree": "algo.structure.rounds=0",
    "two_level": "algo.structure.every=0",
}


def played(
    folder: Path, structure: str, options: str = ""
) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    """Final weights and what was measured, but for what the structure alone measures."""
    main_train([*shlex.split(f"{ROOMS} algo/structure={structure} {options}"), f"hydra.run.dir={folder}"])
    weights, rows = outcome(folder)
    return weights, [{k: v for k, v in row.items() if not k.startswith("structure/")} for row in rows]


@cache
def independent(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    return played(folder, "independent")


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("structure", IDLE)
def test_without_anything_to_do_a_run_is_the_independent_one_to_the_bit(
    structure: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    weights, rows = independent(tmp_path_factory.getbasetemp() / "independent")
    own, own_rows = played(tmp_path, structure, IDLE[structure])
    assert own.keys() == weights.keys() and all(torch.equal(own[name], weights[name]) for name in weights)
    assert own_rows == rows


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.usefixtures("one_thread")
def test_a_process_plays_with_two_adapters_what_the_trainer_plays(tmp_path: Path) -> None:
    """Rows and weights, where others play to the same bit; and played ahead, with the weights of the update before."""
    given = f"algo=hrl_tar {OF_LEVELS} optim.lr=1e-2 trainer.max_epochs=3 val.every=3"
    kinds = {"here": "worker.share=2", "there": "worker=process worker.count=2 worker.share=2"}
    kinds["ahead"] = "rollout.overlap=true"
    for name, choice in kinds.items():
        tiny = [option for option in TINY if not option.startswith("val.every")]
        main_train([*tiny, *given.split(), *choice.split(), f"hydra.run.dir={tmp_path / name}"])
    assert_equal_runs(tmp_path / "here", tmp_path / "there")
    (_, *here), (_, *ahead) = (outcome(tmp_path / name)[1] for name in ("here", "ahead"))
    assert [float(row["train/staleness"]) for row in ahead] == [0, 1, 1]
    assert ahead[0]["rollout/return_mean"] == here[0]["rollout/return_mean"], (
        "the first is played by the start"
    )
    for level in ("planner", "executor"):
        weights = outcome(tmp_path / "ahead")[0]
        assert all(weight.abs().max() > 0 for name, weight in weights.items() if f"lora_B.{level}" in name)
