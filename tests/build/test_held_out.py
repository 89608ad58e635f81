"""Runs on own data without a world: a share of the prompts is held out, and judges."""

from __future__ import annotations

import csv
import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.build.recorded import describe_default_world
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.composition import compose_job
from tests.commands import Refused

SMALL = "trainer.accelerator=cpu rollout.max_reply_tokens=8 optim.lr=1e-3 ~callbacks.progress data.batch=4 val.every=1"
PAIRS = "algo=dpo data=pairs data.path=d.jsonl"


def write_rows(count: int = 24) -> None:
    """Write as many rows, which are pairs and demonstrations alike."""
    words = {"chosen": "<answer>Up</answer>", "rejected": "<answer>Down||Down</answer>"}
    rows = ({"prompt": f"P {k}", "completion": words["chosen"], **words} for k in range(count))
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))


def train(options: str) -> dict[str, Any]:
    main_train(shlex.split(f"{SMALL} {options} hydra.run.dir=run"))
    return read_summary("run")


def read_summary(folder: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((Path(folder) / "summary.json").read_text())
    return summary


def read_rows(folder: str) -> list[dict[str, str]]:
    with (Path(folder) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("words", "world"),
    [
        ("", "sokoban"),
        ("data=pairs", None),
        ("data=unpaired", None),
        ("data=ranked", None),
        ("data=demonstrations", None),
        ("data=demonstrations experiment=quick", None),
        ("data=pairs env=bandit", "bandit"),
        ("data=beside", "sokoban"),
        ("experiment=sokoban_strong", "sokoban"),
    ],
)
def test_data_are_learnt_from_without_a_world_unless_one_is_named(words: str, world: str | None) -> None:
    given = ["data.path=x"] if words else []
    assert compose_job("train", [*words.split(), *given]).env.get("name") == world


def test_held_out_pairs_judge_a_run_that_names_no_world(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows()
    summary = train(f"{PAIRS} trainer.max_epochs=2")
    said = " ".join(capsys.readouterr().out.split())  # a caption is wrapped
    assert (
        "best and hf/ go by val/data_loss, lower is better" in said and "best: chosen by the lowest" in said
    )
    assert (
        "so few hardly tell weights apart: raise data.held_out, such as 0.3" in said
        and "1 groups" not in said
    )
    start, _, last = read_rows("run")
    assert "val/success" not in last
    assert float(start["val/data_loss"]) == pytest.approx(math.log(2), abs=1e-5)
    assert float(last["val/data_loss"]) < 0.6 and float(last["val/data_reward_margin"]) > 0
    assert summary["monitored"] == {
        "name": "val/data_loss", "mode": "min", "value": float(last["val/data_loss"]), "iteration": 2,
    }  # fmt: skip
    assert summary["games"] == [] and set(summary["held_out"]) == {"start", "best", "last"}
    assert summary["held_out_rows"]["groups"] == 4 and len(summary["held_out_rows"]["fingerprint"]) == 16
    assert summary["held_out"]["best"]["reward_accuracy"] == float(last["val/data_reward_accuracy"])
    assert Path("run/hf/model.safetensors").is_file()


def test_held_out_demonstrations_are_measured_by_their_likelihood(in_empty_folder: Path) -> None:
    write_rows()
    summary = train("algo=sft data=demonstrations data.path=d.jsonl trainer.max_epochs=1")
    for row in read_rows("run"):
        nll = float(row["val/data_nll"])
        assert nll == pytest.approx(float(row["val/data_loss"]), rel=1e-5)  # algo=sft minimises it
        assert float(row["val/data_perplexity"]) == pytest.approx(math.exp(nll), rel=1e-5)
    held_out = summary["held_out"]
    assert held_out["last"]["perplexity"] < held_out["start"]["perplexity"]


def test_a_few_rows_are_trained_on_whole(in_empty_folder: Path) -> None:
    write_rows(4)  # of which the default share would leave less than a batch, or hold out none
    summary = train(f"{PAIRS} trainer.max_epochs=1")
    [note] = [line for line in summary["warnings"] if "held_out" in line]
    assert "data.held_out=0.1 of 4 groups leaves too few" in note and "hf/ will hold the last weights" in note
    assert summary["status"] == "completed" and summary["monitored"] is None
    assert Path("run/hf/model.safetensors").is_file() and not Path("run/checkpoints/best.ckpt").exists()


def test_dialogues_that_open_alike_stay_together_and_the_run_says_so(
    in_empty_folder: Path, refused: Refused
) -> None:
    def write(**more: str) -> None:
        rows = [
            {"messages": [
                {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"},
                {"role": "user", "content": f"P {k}"}, {"role": "assistant", "content": "<answer>Up</answer>"},
            ], **{name: f"{text} {k}" for name, text in more.items()}}
            for k in range(24)
        ]  # fmt: skip
        Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))

    words = "algo=sft data=demonstrations data.path=d.jsonl trainer.max_epochs=1"
    cause = "24 of 24 groups begin with the same messages before the first reply"
    write()
    [note] = [line for line in train(words)["warnings"] if "held_out" in line]
    assert f"last weights; {cause}" in note and "a column held_out_with" in note
    assert cause in refused(f"{SMALL} {words} data.held_out=0.3 hydra.run.dir=other")
    write(held_out_with="row")
    main_train(shlex.split(f"{SMALL} {words} data.held_out=0.3 hydra.run.dir=again"))
    summary = read_summary("again")
    assert "last" in summary["held_out"] and not [
        line for line in summary["warnings"] if "begin with" in line
    ]


def test_a_named_world_is_played_and_judges(in_empty_folder: Path) -> None:
    write_rows()
    summary = train(f"{PAIRS} env=bandit val.episodes=2 test.episodes=0 trainer.max_epochs=1")
    assert "val/data_loss" not in read_rows("run")[1] and summary["held_out"] == {}
    assert summary["monitored"]["name"] == "val/success" and summary["games"][0]["name"] == "bandit"


def test_a_reward_model_is_judged_by_pairs_as_ever(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows()
    summary = train("algo=bradley_terry data=pairs data.path=d.jsonl trainer.max_epochs=1")
    assert summary["monitored"]["name"] == "val/success" and summary["games"][0]["name"] == "pairs"
    assert summary["held_out_rows"]["groups"] > 0
    tested = [game for game in summary["games"] if game["split"] == "test"]
    assert tested and all(game[stage] for game in tested for stage in ("start", "best", "last"))
    assert "one run, one seed" in capsys.readouterr().out


def test_words_that_the_model_does_not_know_are_told(in_empty_folder: Path) -> None:
    rows = [{"prompt": f"Describe mountain number {k}", "completion": "Beautiful snow"} for k in range(24)]
    Path("d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    summary = train("algo=sft data=demonstrations data.path=d.jsonl trainer.max_epochs=1")
    assert any("spells the words letter by letter" in line for line in summary["warnings"])


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_without_a_world_is_continued_and_evaluated(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    write_rows()
    whole = train(f"{PAIRS} trainer.max_epochs=3")
    main_train(shlex.split(f"{SMALL} {PAIRS} trainer.max_epochs=1 hydra.run.dir=parts"))
    main_train(shlex.split("resume=parts trainer.max_epochs=3"))
    parts = read_summary("parts")
    assert parts["held_out"] == whole["held_out"] and parts["monitored"] == whole["monitored"]
    said = refused("run=parts episodes=1", main_evaluate)
    assert "run=parts names no world" in said and "transformers, as parts/hf/README.md shows" in said
    main_evaluate(shlex.split("run=parts env=bandit episodes=1"))
    assert "bandit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("val.envs=[bandit]", "val.envs=[bandit]: no env is named, so held-out data judge"),
        ("val.temperature=0.5", "val.temperature=0.5 has no effect: no env is named"),
        ("callbacks.best.monitor=val/success", "callbacks.best.monitor=val/success is not measured"),
        ("data.held_out=0.001", "data.held_out=0.001 leaves none of 24 groups to validate on; raise it"),
    ],
)
def test_what_needs_a_world_or_held_out_data_is_one_line(
    options: str, said: str, in_empty_folder: Path, refused: Refused
) -> None:
    write_rows()
    assert said in refused(f"{SMALL} {PAIRS} trainer.max_epochs=1 {options}")


@pytest.mark.slow
def test_an_own_data_set_that_chooses_no_world_is_told_of_it(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows()
    mine = Path("conf/data/mine.yaml")
    mine.parent.mkdir(parents=True)
    target = "_target_: lit_agentrl.data.pairs.Pairs"
    mine.write_text(f"{target}\npath: d.jsonl\n")
    options = (
        f"{SMALL.replace('data.batch=4 ', '')} --config-dir conf algo=dpo data=mine trainer.max_epochs=1"
    )
    main_train(shlex.split(f"{options} val.episodes=2 test.episodes=0 hydra.run.dir=run"))
    told = "warning: data=mine is judged by the default world, env=sokoban"
    assert told in capsys.readouterr().out
    mine.write_text(
        f"defaults:\n  - _self_\n  - override /env@_global_.env: _none\n{target}\npath: d.jsonl\n"
    )
    main_train(shlex.split(f"{options} hydra.run.dir=run2"))
    told = capsys.readouterr().out
    assert "judged by the default world" not in told and "judged by" in told


def test_a_world_that_somebody_named_is_not_told_of() -> None:
    told = describe_default_world(["data=mine"], name="sokoban")
    assert "override /env@_global_.env: _none" in told and "env=sokoban" in told
    for overrides in (["data=pairs"], ["data=mine", "env=bandit"], ["data=mine", "experiment=x"], ["seed=1"]):
        assert not describe_default_world(overrides, name="sokoban")
