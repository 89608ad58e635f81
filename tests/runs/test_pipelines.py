"""Pipelines: what recipes come to in each round, what is refused, and a run that is ended and goes on."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.cli.pipeline import main as main_pipeline
from lit_agentrl.models.policy import NANO_FOLDER
from lit_agentrl.runs.pipelines.recipes import Stage, list_recipes, read
from lit_agentrl.runs.pipelines.stages import RECORD, Pipeline
from tests.commands import Refused
from tests.conftest import thinned
from tests.engines.server import chat_of, serving
from tests.runs.test_killed import left

JUDGE = ["reward=judge", "reward.judge.engine.url=http://localhost:1/v1", "reward.judge.engine.model=m"]


def words(stage: Stage) -> dict[str, str]:
    """The options of a stage by key."""
    return {key: value for key, _, value in (word.partition("=") for word in stage.words)}


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(sorted(list_recipes(), key="iterated_dpo".__ne__), one_in=99))
def test_every_recipe_composes_and_hands_the_policy_on(name: str, in_empty_folder: Path) -> None:
    recipe = read(name)
    assert 10 < len(recipe.description) <= 66  # a line of the help
    judge = JUDGE if recipe.has_placeholder("judge") else []
    found = Pipeline.of([f"recipe={name}", "out=it", "rounds=2", "prompts=7", "seed=3", *judge]).stages
    assert [s.name for s in found] == [*recipe.stages] * 2 and not Path("it").exists()
    assert len({s.folder for s in found}) == len(found)
    first, again = (words(found[i]) for i in (0, len(recipe.stages)))
    assert first["model"] == "nano" and (first["seed"], again["seed"]) == ("300", "301")
    assert again["model"] == "hf" and again["model.name"] == f"it/round_1/{recipe.policy[-1]}/hf"
    if found[0].command == "collect":
        assert (first["first"], again["first"], again["episodes"]) == ("0", "7", "7")
    text = " ".join(word for stage in found for word in stage.words)
    assert "{" not in text


@pytest.mark.slow
def test_places_are_filled_and_own_words_stand_last(in_empty_folder: Path) -> None:
    Path("own.yaml").write_text(
        "# Mine\nrounds: 2\npolicy: [b, c]\nstages:\n"
        "  a: [collect, '{policy}', '{env}', 'episodes={prompts}']\n"
        "  b: [train, algo=sft, data=demonstrations, 'data.path={all.a}', '{policy}', '{env}']\n"
        "  c: [train, algo=grpo, reward=judge_local, 'reward.judge.model.name={weights}', '{policy}', '{env}']\n"
    )
    said = "recipe=own.yaml model=nano_tools dialect=tool_call env=pocket env.game.levels=[0] prompts=2"
    found = Pipeline.of(
        [*said.split(), "out='o=1'", "b.algo/aggregate=token_mean", "a.members=3", "a.episodes=9"]
    ).stages
    a, b, c, _, b2, _ = found
    game = "env=pocket env.game.levels=[0]"
    assert (
        " ".join(a.words)
        == f"model=nano_tools dialect=tool_call {game} members=3 episodes=9 out='o=1/round_1/a'"
    )
    assert "data.path=['o=1/round_1/a']" in b.words and "algo/aggregate=token_mean" in b.words
    assert words(c)["reward.judge.model.name"] == words(c)["model.name"] == "'o=1/round_1/b/hf'"
    assert "dialect=tool_call" in c.words and "model=nano_tools" not in c.words
    assert words(b2)["data.path"] == "['o=1/round_1/a','o=1/round_2/a']"
    said = "recipe=iterated_dpo out=o model=hf model.name=templates model.dtype=bfloat16 rounds=2"
    *_, again = Pipeline.of(said.split()).stages
    assert (words(again)["model.dtype"], words(again)["model.name"]) == ("bfloat16", "o/round_1/trained/hf")
    mine = Pipeline.of(
        ["recipe=self_rewarding", "out=o", "rounds=1", "model=hf", "model.name=templates"]
    ).stages[1]
    assert (
        words(mine)["reward.judge.model.name"] == "templates"
    )  # the user's folder, whatever the package holds
    start = Pipeline.of(["recipe=self_rewarding", "out=o", "rounds=1"]).stages[1]
    assert words(start)["reward.judge.model.name"] == str(NANO_FOLDER)


OK = "recipe=iterated_dpo out=o"
WRONG = {
    "out=o": "recipe has no value",
    "recipe=iterated_dpo": "out has no value",
    "recipe=iterated_dop out=o": "there is no recipe iterated_dop; did you mean iterated_dpo?",
    "recipe=missing.yaml out=o": "missing.yaml: No such file",
    f"{OK} rounds=0": "rounds=0 must be a whole number from 1 to 99",
    f"{OK} prompts=x": "prompts=x must be a whole number",
    f"{OK} members=0": "members=0 must be",
    f"{OK} seed=-1": "seed=-1 must be",
    f"{OK} seed=0,1": "seed=0,1 is a sweep",
    f"{OK} seed=1 seed=2": "seed is given twice",
    f"{OK} algo=dpo": "unknown option algo=dpo; valid: recipe, out",
    f"{OK} -m": "pipeline takes no -m",
    f"{OK} reward=judge": "reward=judge would be ignored: no stage of recipe=iterated_dpo reads it",
    "recipe=elo_dpo out=o": "recipe=elo_dpo needs a judge; set reward=judge",
    "recipe=elo_dpo out=o reward=judge": "stage rated: reward.judge.engine.url has no value",
    "recipe=elo_dpo out=o reward=jugde": "stage rated: unknown option reward=jugde; did you mean judge",
    f"{OK} trianed.optim.lr=1": "unknown option trianed.optim.lr=1; did you mean trained?",
    f"{OK} trained.optim.lrr=1": "stage trained: unknown option optim.lrr; did you mean optim.lr?",
    f"{OK} trained.optim.lr=1 trained.optim.lr=2": "optim.lr is given twice",
    f"{OK} recorded.out=x": "stage recorded: out is given twice",
    f"{OK} trained.hydra.run.dir=x": "stage trained: hydra.run.dir is given twice",
    f"{OK} recorded.episdoes=1": "stage recorded: unknown option episdoes=1; did you mean episodes?",
    f"{OK} env=sokobn": "unknown option env=sokobn; did you mean sokoban?",
    f"{OK} model=hf": "stage recorded: model.name has no value; set it",
    "recipe=self_rewarding out=o model=remote": "{weights}",
    "recipe=a.yaml out=o": "recipe=a.yaml: it must have the keys",
    "recipe=b.yaml out=o": "stages.x[0]=evaluate must be train, collect, label",
    "recipe=c.yaml out=o": "stages.x: data.path={y} has the placeholder {y}, which has no value there",
    "recipe=d.yaml out=o": "policy must be a list of stages that train",
    "recipe=e.yaml out=o": "choose another name",
    "recipe=f.yaml out=o": "f.yaml",
}


@pytest.mark.slow
@pytest.mark.sweep
def test_what_makes_no_sense_is_refused_before_anything_begins(
    in_empty_folder: Path, refused: Refused
) -> None:
    for name, (policy, stages) in {
        "b": ("[]", "{x: [evaluate]}"),
        "c": ("[x]", "{x: [train, 'data.path={y}'], y: [collect]}"),
        "d": ("[x]", "{x: [collect, '{policy}']}"),
        "e": ("[]", "{seed: [train]}"),
        "f": ("[]", "[["),
    }.items():
        Path(f"{name}.yaml").write_text(f"rounds: 1\npolicy: {policy}\nstages: {stages}\n")
    Path("a.yaml").write_text("rounds: 1\n")
    for command, message in WRONG.items():
        assert message in refused(command, main_pipeline), command
    assert not Path("o").exists()
    Path("o").mkdir()
    Path("o/thesis.txt").touch()
    assert "holds no pipeline; name a new folder" in refused(OK, main_pipeline)
    Path("o", RECORD).write_text("[1]")
    assert "is damaged" in refused(OK, main_pipeline)


def call(command: str, *, until: str = "") -> tuple[int, str]:
    """The status of a process and what it printed; interrupted once it has printed ``until``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lit_agentrl", "pipeline", *shlex.split(command)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # a suite that a shell plays in the background ignores interrupts, and so would what it starts
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line)
        if until and until in line:
            process.send_signal(signal.SIGINT)
            until = ""
    return process.wait(), "".join(told)


@pytest.mark.slow
@pytest.mark.sweep
def test_an_interrupted_pipeline_goes_on_and_ends_as_one_that_was_not(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    small = "trained.data.batch=2 trained.trainer.max_epochs=4 trained.val.episodes=4 trained.test.episodes=4"
    command = f"recipe=iterated_dpo env=bandit rounds=2 prompts=8 members=8 trained.val.every=4 {small}"
    main_pipeline(shlex.split(f"{command} out=whole"))
    told = capsys.readouterr().out
    assert "whole: all stages are done; lit-agentrl report whole/round_1/trained" in told
    assert "round 2 of 2, trained: success val bandit " in told
    status, told = call(f"{command} out=cut", until="iteration 2/4")
    assert (
        status == 130 and "interrupted in round 1 of 2, trained; repeat the command to continue there" in told
    ), told
    told = refused(f"{command} out=cut trained.optim.lr=1e-3", main_pipeline)
    assert "cut holds round_1/trained of another command (optim.lr=1e-3 is new)" in told
    main_pipeline(shlex.split(f"{command} out=cut"))
    assert "round 1 of 2, recorded: done, cut/round_1/recorded" in capsys.readouterr().out
    for stage in ("round_1/trained", "round_2/trained"):
        one, other = (left(Path(folder, stage)) for folder in ("whole", "cut"))
        assert one == other
    assert set(json.loads(Path("cut", RECORD).read_text())) == {
        f"round_{n}/{name}" for n in (1, 2) for name in ("recorded", "trained")
    }
    main_pipeline(shlex.split(f"{command} out=cut".replace("rounds=2", "rounds=1")))
    assert "round 1 of 1, trained: done, success" in capsys.readouterr().out  # fewer rounds, all there


def prefers_the_longer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A judge of two texts."""
    blocks = re.findall(r"number \d begins\n(.*?)\nEPISODE", body["messages"][-1]["content"], re.DOTALL)
    one, other = map(len, blocks)
    return chat_of(f"<critique>c</critique><better>{'tie' if one == other else 1 + (one < other)}</better>")


@pytest.mark.slow
@pytest.mark.sweep
def test_a_judge_is_asked_in_its_stage_and_the_policy_learns_from_its_ratings(in_empty_folder: Path) -> None:
    asked: list[Any] = []
    with serving(prefers_the_longer, None, asked) as url:
        judge = f"reward=judge reward.judge.engine.url={url} 'reward.judge.principles=[long]'"
        game = "env=bandit rounds=1 prompts=4 members=3 trained.data.batch=2 trained.test.episodes=0"
        short = "trained.trainer.max_epochs=2 trained.val.every=2 trained.val.episodes=4"
        status, told = call(f"recipe=elo_dpo out=o {game} {short} {judge}")
    assert status == 0 and "round 1 of 1, trained: success val bandit" in told, told
    assert "are rated, in o/round_1/rated" in told and len(asked) >= 2
    config = Path("o/round_1/trained/.hydra/config.yaml").read_text()
    assert "path: o/round_1/rated" in config


@pytest.mark.slow
@pytest.mark.sweep
def test_a_stage_that_fails_ends_the_pipeline_with_its_name(in_empty_folder: Path) -> None:
    status, told = call("recipe=expert_iteration out=o model=hf model.name=nowhere rounds=1")
    assert status == 1 and "error: round 1 of 1, recorded failed; fix the error above" in told
    assert "nowhere" in told.splitlines()[1]
