"""A run that trains nothing and keeps lessons: through a server, resumed, evaluated."""

from __future__ import annotations

import csv
import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from tests.commands import Refused
from tests.engines.server import Model, serving
from tests.integration.conftest import command, run
from tests.integration.taught import TAUGHT, taught

RUN = (
    f"{TAUGHT.replace('nano', 'remote')} rollout.prompts=4 "
    "rollout.members=4 val.episodes=16 val.every=1 test.episodes=0 trainer.accelerator=cpu logger=csv "
    "~callbacks.progress"
)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [
            {name: value for name, value in row.items() if not name.startswith(("time/", "speed/"))}
            for row in csv.DictReader(file)
        ]


def go(url: str, folder: str, iterations: int) -> list[dict[str, str]]:
    main_train(shlex.split(f"{RUN} engine.url={url} trainer.max_epochs={iterations} hydra.run.dir={folder}"))
    return table(Path(folder))


@pytest.mark.slow
@pytest.mark.sweep
def test_a_model_behind_an_api_learns(in_empty_folder: Path) -> None:
    with serving(taught) as url:
        start, first, second = go(url, "run", 2)
    # at first it takes either machine; then all know which, so that there is nothing to compare
    assert float(start["val/success"]) < 0.9 and float(first["rollout/success"]) < 0.9
    assert (
        float(first["val/success"]) == float(second["val/success"]) == float(second["rollout/success"]) == 1
    )
    assert float(first["structure/items"]) == 1 and float(second["structure/asked"]) == 0
    assert float(first["engine/requests"]) == 16 + float(first["structure/asked"])
    [file] = Path("run", "experience").iterdir()
    assert file.name == "iteration_1.txt" and file.read_text() == "G0: Take the risky one\n"
    assert not Path("run", "hf").exists()  # there is no policy to be loaded


@pytest.mark.slow
@pytest.mark.sweep
def test_several_lessons_are_worth_what_the_model_makes_of_them(in_empty_folder: Path) -> None:
    """Of those who are told k of three lessons, a share of (3 + k) / 6 takes the better machine: as the run reports."""
    said: list[tuple[str, dict[str, Any], Any]] = []
    with serving(partial(taught, lessons=3), said=said) as url:
        rows = go(url, "run", 5)
    asked = [body for _, body, _ in said if body["messages"][0]["content"].startswith("bandit\n")]
    right: dict[int, list[bool]] = {}
    for body in asked:
        text = body["messages"][0]["content"]
        right.setdefault(text.count(": Take"), []).append(body["seed"] % 6 < 3 + text.count(": Take"))
    assert sorted(right)[-1] == 3 and all(right[3]), "all three, and no lesson is asked for after them"
    solved = sum(float(row[name] or 0) for row in rows for name in ("val/success", "rollout/success"))
    # the best list is the last one, which is not measured once more
    assert 16 * solved == pytest.approx(sum(map(sum, right.values())))
    assert float(rows[-1]["val/success"]) == 1 and float(rows[-1]["structure/asked"]) == 0
    assert sum(float(row["structure/updated"]) for row in rows[1:]) >= 2


@pytest.mark.slow
@pytest.mark.sweep
def test_it_is_resumed_and_evaluated_with_its_lessons(in_empty_folder: Path) -> None:
    with serving(taught) as url:
        whole = go(url, "whole", 3)
        go(url, "cut", 1)
        main_train(shlex.split("resume=cut trust_run=true trainer.max_epochs=3"))
        for checkpoint in ("best", "start"):
            main_evaluate(
                shlex.split(f"run=whole checkpoint={checkpoint} trust_run=true episodes=8 split=val")
            )
    assert whole == table(Path("cut"))
    states = [
        torch.load(Path(run, "checkpoints", "last.ckpt"), weights_only=True)["callbacks"]["RolloutCallback"]
        for run in ("whole", "cut")
    ]
    assert states[0] == states[1] == {"algo.structure": {"items": ["Take the risky one"]}}
    best, start = (
        json.loads(file.read_text())["results"][0]["success"]["mean"]
        for file in sorted(Path("whole", "evaluations").iterdir())
    )
    assert best == 1.0 > start


@pytest.mark.slow
@pytest.mark.sweep
def test_two_processes_keep_the_list_of_one(tmp_path: Path) -> None:
    """Of the embedded policy's tokenizer, whose vocabulary holds the names of the machines."""
    options = RUN.replace("model=remote", "model=nano").split()
    layouts = {"one": ["strategy=single"], "two": ["strategy=ddp", "trainer.devices=2"]}
    with serving(taught) as url:
        for name, layout in layouts.items():
            place = [f"engine.url={url}", f"hydra.run.dir={tmp_path / name}", "trainer.max_epochs=2"]
            done = run(command(*options, *layout, *place))
            assert done.returncode == 0, done.stderr
    one, two = (table(tmp_path / name) for name in layouts)
    for row in (*one, *two):
        del row["rollout/distinct_2"]  # a share of the bigrams of each rank
    assert one == two and float(one[2]["structure/items"]) == float(one[2]["val/success"]) == 1
    for name in layouts:
        assert (tmp_path / name / "experience" / "iteration_1.txt").read_text() == "G0: Take the risky one\n"


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("engine", ["engine=native", "tokens", "worker=process worker.share=2"])
def test_other_engines_are_asked_as_well(engine: str, in_empty_folder: Path, tiny_model_folder: Path) -> None:
    """A policy of random weights writes no operation that can be read; what it is asked is counted all the same."""
    options = RUN.replace(
        "model=remote engine=openai engine.mode=chat", f"model=hf model.name={tiny_model_folder}"
    )
    run_it = f"{options} trainer.max_epochs=2 hydra.run.dir=run env.game.payoff=expected"
    network = AutoModelForCausalLM.from_pretrained(tiny_model_folder)
    with serving(Model(network, (5,))) as url:
        chosen = f"engine=openai engine.url={url}" if engine == "tokens" else engine
        main_train(shlex.split(f"{run_it} {chosen} model.chat_template=null"))
    rows = table(Path("run"))
    assert all(float(row["structure/items"]) == 0 for row in rows[1:])
    assert not Path("run", "experience").exists() and Path("run", "hf").exists()


@pytest.mark.slow
@pytest.mark.sweep
def test_a_worker_has_nothing_to_play_with(in_empty_folder: Path, refused: Refused) -> None:
    with serving(taught) as url:
        said = refused(f"{RUN} engine.url={url} worker=process worker.share=2 hydra.run.dir=run")
    assert "model has no network here, and a server answers to one process; use worker=none" in said


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("option", ["optim.lr=0.1", "update=four_minibatches", "update.epochs=2"])
def test_options_of_training_are_refused(option: str, refused: Refused, tmp_path: Path) -> None:
    said = refused(f"algo=training_free_grpo env=bandit {option} hydra.run.dir={tmp_path}/r", main_train)
    assert f"{option} has no effect: the algorithm takes no step" in said
