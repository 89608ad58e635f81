"""``data=``: runs that train on what is recorded, and play evaluations alone."""

from __future__ import annotations

import csv
import json
import math
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lit_agentrl.cli.collect import main as main_collect
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from tests.commands import Refused
from tests.conftest import thinned
from tests.integration.conftest import checkpoint_of, command, outcome, run

SMALL = (
    "env=bandit rollout.max_reply_tokens=8 trainer.accelerator=cpu val.every=9 val.episodes=1 "
    "test.episodes=0 ~callbacks.progress"
)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recorded") / "episodes"
    main_collect(shlex.split(f"model=nano env=bandit episodes=8 members=4 temperature=3 out={place}"))
    return place


def pairs(file: Path) -> str:
    """Six different pairs, by messages of which nobody knows the log-probs."""
    words = ["Up", "Down", "Left", "Right"]
    found = [
        {"prompt": f"P {one}", "chosen": f"<answer>{one}</answer>", "rejected": f"<answer>{two}||{two}</answer>"}
        for one in words[:3] for two in words[2:]
    ]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, found)))
    return f"algo=gvpo data=pairs data.path={file}"


def rows(folder: Path | str) -> list[dict[str, str]]:
    with (Path(folder) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.sweep
def test_recorded_pairs_are_sorted_over_an_iteration(in_empty_folder: Path) -> None:
    """The policy is the reference at first, and every loss log 2; then others are compared than those of a pair."""
    options = pairs(Path("d.jsonl")).replace("algo=gvpo", "data.batch=6 trainer.max_epochs=4 optim.lr=1e-3")
    curves = {}
    for algo, label in (("dpo", ""), ("aot", ""), ("aot_unpaired", "algo/label=above_group")):
        main_train(shlex.split(f"{SMALL} algo={algo} {label} {options} hydra.run.dir={algo}"))
        curves[algo] = [float(row["train/loss"]) for row in rows(algo)[1:]]
    for curve in curves.values():
        assert curve[0] == pytest.approx(math.log(2), abs=1e-5)
        assert sorted(curve, reverse=True) == curve
    gaps = [abs(one - other) for one, other in zip(curves["dpo"], curves["aot"], strict=True)]
    assert gaps[0] < 1e-5 and max(gaps) > 1e-3


@pytest.mark.slow
@pytest.mark.sweep
def test_a_policy_is_measured_on_pairs_that_it_is_not_trained_on(
    in_empty_folder: Path, refused: Refused
) -> None:
    """The loss starts at log 2, it falls on pairs of other prompts too, and a cached reference changes nothing."""
    pair = {"chosen": "<answer>Up</answer>", "rejected": "<answer>Down||Down</answer>"}
    Path("d.jsonl").write_text("\n".join(json.dumps({"prompt": f"P {k}", **pair}) for k in range(24)))
    options = "algo=dpo data=pairs data.path=d.jsonl data.batch=4 data.held_out=0.4 optim.lr=1e-3 val.every=1"
    options += " callbacks.best.monitor=val/data_loss callbacks.best.mode=min"
    found = {}
    for cache in ("false", "true"):
        end = f"data.cache_reference={cache} trainer.max_epochs=3 hydra.run.dir=run_{cache}"
        main_train(shlex.split(f"{SMALL.replace('val.every=9', '')} {options} {end}"))
        found[cache] = [
            (row["val/data_loss"], row["val/data_reward_accuracy"]) for row in rows(f"run_{cache}")
        ]
    assert found["true"] == found["false"]
    losses = [float(loss) for loss, _ in found["false"]]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5) and losses[-1] < 0.5
    assert float(found["false"][-1][1]) == 1 and rows("run_false")[1]["val/success"]
    few = f"{SMALL} algo=dpo data=pairs data.path=d.jsonl data.batch=4 data.held_out=0.001"
    none = "algo=dpo data=pairs data.path=d.jsonl data.batch=4 callbacks.best.monitor=val/data_loss"
    assert "callbacks.best.monitor=val/data_loss is not measured" in refused(f"{SMALL} {none}")
    assert "data.held_out=0.001 leaves none of 24 groups to validate on; raise it" in refused(few)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_on_recorded_episodes_plays_evaluations_alone(
    episodes: Path, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(episodes, "mine")
    main_train(
        shlex.split(
            f"{SMALL} algo=reinforce data=unpaired data.batch=2 data.path=mine trainer.max_epochs=2 hydra.run.dir=run"
        )
    )
    said = capsys.readouterr().out
    assert "data: " in said and "2 groups an iteration" in said
    start, first, second = rows("run")
    assert not [name for name in first if name.startswith(("rollout/", "speed/"))]
    assert float(first["data/episodes"]) == 2 and first["train/loss"] and second["val/success"]
    assert float(second["data/pass"]) == 2 * float(first["data/pass"])
    lines = [
        json.loads(line)["episode"] for line in Path("run/transcripts/train.jsonl").read_text().splitlines()
    ]
    assert {line["source"] for line in lines} == {4}
    shutil.rmtree("mine")  # an evaluation has no use for it
    main_evaluate(shlex.split("run=run episodes=1"))
    assert "last weights" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.sweep
def test_rows_of_a_file_are_trained_on_and_bad_ones_named(in_empty_folder: Path) -> None:
    reply = "<answer>{}</answer>"
    good = [{"prompt": "P", "chosen": reply.format("Up"), "rejected": reply.format("Down")}] * 3
    Path("d.jsonl").write_text("\n".join(map(json.dumps, [*good, {"prompt": "P"}])))
    options = "algo=gvpo data=pairs data.batch=2 data.path=d.jsonl data.max_bad_share=0.25 hydra.run.dir=run"
    main_train(shlex.split(f"{SMALL} {options} trainer.max_epochs=1"))
    [note] = [
        line for line in json.loads(Path("run/summary.json").read_text())["warnings"] if "left out" in line
    ]
    assert "left out 1 of 4 rows (1 no_column); the first: d.jsonl line 4: column chosen is missing" in note
    assert rows("run")[1]["train/logp_gap"] == "0.0" and float(rows("run")[1]["train/loss"]) >= 0


@pytest.mark.parametrize(
    ("options", "said"),
    thinned([
        ("algo=gvpo data=pairs rollout.overlap=true", "not given by data=pairs: a worker plays; set data=rollouts"),
        ("algo=gvpo data=demonstrations", "groups of 2 episodes or more, not given by data=demonstrations"),
        ("algo=gvpo data=pairs reward=[format]", "rewards of played episodes; set data=rollouts, or reward=none"),
        ("algo=gvpo data=pairs worker=process", "data=rollouts, or worker=none"),
        ("algo=gvpo data=pairs algo/structure=tree", "algo.structure=Trees needs episodes that are played in training"),
        ("algo=remax data=pairs", "algo.structure=Greedy needs episodes that are played in training"),
        ("algo=gvpo data=pairs filter=none", "filter=none has no effect: nothing is played in training"),
        ("algo=gvpo data=pairs rollout.members=4", "rollout.members=4 has no effect: nothing is played in training"),
        ("algo=gvpo data=pairs update.minibatches=3", "needs 3 groups in an iteration, not given by data.batch=2"),
        ("algo=gvpo data=pairs data.path=nowhere", "data.path=nowhere is not there"),
        ("algo=gvpo data=pairs data.batch=500", "data.batch=500 exceeds the"),
        ("algo=gvpo data=pears", "unknown option data=pears"),
        ("algo=bradley_terry data=beside", "algo=bradley_terry needs recorded episodes, not given by data=beside"),
        ("algo=grpo data=beside data.coef=0", "data.coef=0 must be finite and > 0"),
        ("algo=grpo data=beside update/gradients=by_spread", "or update/gradients=none"),
        ("algo=grpo data=beside data.path=d.jsonl", "d.jsonl is not there"),
        ("algo=gvpo data.batch=2", "data.batch"),
    ]),
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(
    options: str, said: str, episodes: Path, in_empty_folder: Path, refused: Refused
) -> None:
    given = (
        options
        if "data.path" in options or not {"data=pairs", "data=beside"} & {*options.split()}
        else f"{options} data.path={episodes}"
    )
    given = f"{given} data.path={episodes}" if "demonstrations" in given else given
    small = " ".join(
        word for word in SMALL.split() if not word.startswith("data.") and "." in word.split("=")[0]
    )
    if "data.batch" not in options and "data=" in options:
        small += " data.batch=2"
    assert said in refused(f"env=bandit {small} trainer.max_epochs=1 {given}")


@pytest.mark.slow
@pytest.mark.sweep
def test_recorded_numbers_keep_their_precision(in_empty_folder: Path) -> None:
    options = f"{SMALL} {pairs(in_empty_folder / 'd.jsonl')} data.batch=4 trainer.precision=bf16-true"
    main_train(shlex.split(f"{options} trainer.max_epochs=1 hydra.run.dir=run"))
    assert math.isfinite(float(rows("run")[1]["train/loss"]))


def test_options_of_an_experiment_for_other_data_are_one_line(
    in_empty_folder: Path, refused: Refused
) -> None:
    said = refused("experiment=sokoban_strong data=rollouts")
    assert "data=rollouts has no option batch, which the experiment sets; leave out data=rollouts" in said


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_that_is_continued_is_the_same_to_the_bit(in_empty_folder: Path) -> None:
    options = f"{SMALL} {pairs(in_empty_folder / 'd.jsonl')} data.batch=4 update.epochs=2"
    main_train(shlex.split(f"{options} trainer.max_epochs=5 hydra.run.dir=whole"))
    main_train(shlex.split(f"{options} trainer.max_epochs=2 hydra.run.dir=parts"))
    main_train(shlex.split("resume=parts trainer.max_epochs=5"))
    whole, parts = rows("whole"), rows("parts")
    for one, other in zip(whole, parts, strict=True):
        names = [name for name in one if name.startswith(("data/", "train/"))]
        assert {name: one[name] for name in names} == {name: other[name] for name in names}


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("algo", ["iql algo/advantage=iql_executor algo/structure=two_level", "cql", "ilql"])
def test_values_are_learnt_from_recorded_plans(algo: str, in_empty_folder: Path) -> None:
    """Of an executor by IQL, or of tokens by CQL and ILQL; continued it is the same to the bit, slow weights too."""
    small = f"{SMALL} env.max_turns=3 update.minibatches=2"
    main_train(
        shlex.split(
            f"{small} algo=hrl_tar rollout.prompts=2 rollout.members=2 trainer.max_epochs=1 hydra.run.dir=planned"
        )
    )
    main_collect(shlex.split("run=planned episodes=4 members=2 out=plans"))
    options = f"{small} algo={algo} data=demonstrations data.path=plans data.batch=4"
    main_train(shlex.split(f"{options} trainer.max_epochs=3 hydra.run.dir=whole"))
    main_train(shlex.split(f"{options} trainer.max_epochs=1 hydra.run.dir=parts"))
    main_train(shlex.split("resume=parts trainer.max_epochs=3"))
    found = [checkpoint_of(Path(name))["state_dict"] for name in ("whole", "parts")]
    assert any(name.startswith("critic.slow.") for name in found[0]) and found[0].keys() == found[1].keys()
    assert all(torch.equal(weight, found[1][name]) for name, weight in found[0].items())
    assert float(rows("whole")[2]["critic/loss"]) > 0


def texts(file: Path) -> str:
    """Seven different texts, of which the longest is longer than any episode."""
    found = [{"prompt": "P", "completion": "Up " * n} for n in (1, 2, 3, 4, 5, 6, 60)]
    file.write_text("\n".join(map(json.dumps, found)))
    return f"data=beside data.path={file}"


@pytest.mark.slow
@pytest.mark.sweep
def test_texts_are_imitated_beside_what_is_played(
    episodes: Path, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Continued it is the same to the bit; episodes that were recorded do as well."""
    small = f"{SMALL} algo=ppo rollout.prompts=4 rollout.members=2 {texts(Path('d.jsonl'))} data.batch=7"
    main_train(shlex.split(f"{small} trainer.max_epochs=4 optim.lr=1e-3 hydra.run.dir=whole"))
    assert "data: 7 groups, 7 episodes; 7 groups an iteration" in capsys.readouterr().out
    main_train(shlex.split(f"{small} trainer.max_epochs=2 optim.lr=1e-3 hydra.run.dir=parts"))
    main_train(shlex.split("resume=parts trainer.max_epochs=4"))
    found = [checkpoint_of(Path(name))["state_dict"] for name in ("whole", "parts")]
    assert all(torch.equal(weight, found[1][name]) for name, weight in found[0].items())
    _, first, *_, last = rows("whole")
    assert float(last["train/imitation_nll"]) < float(first["train/imitation_nll"]) - 1
    assert float(first["train/logp_gap"]) < 1e-5 and first["rollout/success"] and first["data/pass"]
    shutil.copytree(episodes, "mine")
    beside = "data=beside data.path=mine data.batch=4 data.coef=0.1 rollout.overlap=true trainer.max_epochs=2"
    main_train(shlex.split(f"{SMALL} algo=grpo rollout.prompts=4 {beside} hydra.run.dir=ahead"))
    assert rows("ahead")[2]["train/imitation_nll"]


@pytest.mark.slow
@pytest.mark.parametrize("made", [pairs, pytest.param(texts, marks=pytest.mark.long)])
def test_two_processes_train_as_one(made: Callable[[Path], str], tmp_path: Path) -> None:
    options = shlex.split(f"{SMALL} {made(tmp_path / 'd.jsonl')} data.batch=3 trainer.max_epochs=3")
    for name, layout in (("one", ["strategy=single"]), ("two", ["strategy=ddp", "trainer.devices=2"])):
        done = run(command(*options, *layout, f"hydra.run.dir={tmp_path / name}"))
        assert done.returncode == 0, done.stderr
    (_, one), (_, two) = outcome(tmp_path / "one"), outcome(tmp_path / "two")
    for mine, other in zip(one[1:], two[1:], strict=True):
        for column in ("train/loss", "train/grad_norm", "data/return_mean", "data/action_tokens"):
            assert float(other[column]) == pytest.approx(float(mine[column]), rel=1e-5, abs=1e-6), column
