"""Models that no run has trained: one behind an API on several games, and one on this machine."""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.play import main as main_play
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.run_options import split_model_options
from lit_agentrl.evaluate.model_evaluation import open_model
from lit_agentrl.evaluate.playthroughs import play_model
from lit_agentrl.evaluate.results_file import read_compared
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.rollout.evaluation import Evaluation
from lit_agentrl.rollout.settings import make_eval_params
from tests.commands import Refused
from tests.conftest import ROOT, served_game
from tests.engines.server import chat_of, serving

REMOTE = "model=remote engine=openai engine.mode=chat engine.model=gpt/x engine.url="
WORLDS = sorted(file.stem for file in (CONFIG_DIR / "env").glob("[!_]*.yaml"))
UNPLAYED = {
    "mixture": "env=mixture is a mixture; name its games",
    "bfcl": "this game needs bfcl-eval",
    "textworld": "this game needs textworld|dialect cannot write actions",
    "openenv": "env.game.url has no value",  # its server has tests of its own
}


@pytest.mark.slow
def test_an_api_is_measured_on_several_games(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    asked: list[Any] = []
    with serving(lambda path, body: chat_of("<answer>Up</answer>"), None, asked) as url:
        played = "env=[bandit,frozen_lake] episodes=2 engine.price_in=2000 engine.price_out=1000"
        main_evaluate(shlex.split(f"{REMOTE}{url} engine.key_variable=MY_KEY {played}"))
    said = capsys.readouterr().out
    assert f"cost {len(asked) * (10 * 2000 + 4 * 1000) / 1e6:.4g}" in said
    assert "gpt/x, split test" in said and f"engine: requests {len(asked)}, failed 0" in said
    [file] = Path("outputs/evaluations").iterdir()
    kept = file.read_text()
    found = json.loads(kept)
    assert file.name == "gpt-x_test_bandit-frozen_lake_seed0.json" and "sk-secret" not in kept
    assert [each["env"] for each in found["results"]] == ["bandit", "frozen_lake"]
    assert found["results"][0]["invalid_share"] == 1.0 and found["results"][1]["invalid_share"] == 0.0
    assert (
        found["engine"]["requests"] == len(asked) > 4
        and found["config"]["described"]["engine"]["mode"] == "chat"
    )


@pytest.mark.slow
def test_an_api_is_shown_solved_episodes(in_empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Any] = []
    with serving(lambda path, body: chat_of("<answer>Up</answer>"), None, asked) as url:
        main_evaluate(shlex.split(f"{REMOTE}{url} env=bandit prompt=full episodes=2 baselines=true shots=2"))
    plain, shown = [], []
    for _, body, *_ in asked:
        messages = [each for each in body["messages"] if each["role"] != "system"]
        (shown if len(messages) > 1 else plain).append(messages)
    assert len(shown) == 2 and shown[0][:-1] == shown[1][:-1]
    own = [sorted(each[-1]["content"] for each in wave) for wave in (shown, plain[:2], plain[2:])]
    assert len(set(own[0])) == 2 and own[0] == own[1] == own[2]  # two bandits, asked side by side
    assert {each["role"] for each in shown[0][1::2]} == {"assistant"}
    assert all("<answer>" in each["content"] for each in shown[0][1::2])
    assert "few-shot" in capsys.readouterr().out


def own_options(world: str) -> list[str]:
    """What a world leaves to its user: a file, a program, a server."""
    if world == "dataset":
        return [f"env.game.path={ROOT}/examples/own_data/problems.jsonl"]
    if world == "mcp":
        server = f"[{sys.executable},-S,{ROOT}/tests/envs/mcp_raw.py]"
        return [f"env.game.command={server}", f"env.game.path={ROOT}/examples/own_mcp/tasks.jsonl"]
    return [f"env.game.url={served_game()}"] if world == "remote" else []


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("dialect", ["answer", "tool_call"])
@pytest.mark.parametrize("world", WORLDS)
def test_an_api_is_measured_on_every_world_or_refused_in_one_line(
    world: str, dialect: str, in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A world that is new in ``conf/env`` is played here, too."""
    asked: list[Any] = []
    with serving(lambda path, body: chat_of("<answer>Up</answer>"), None, asked) as url:
        options = f"{REMOTE}{url} env={world} dialect={dialect} prompt=full episodes=2"
        try:
            main_evaluate([*options.split(), *own_options(world)])
        except SystemExit:
            said = capsys.readouterr().err
            assert said.startswith("error: ") and said.count("\n") == 1 and not asked, said
            why = UNPLAYED.get(world)
            if why is None and dialect == "tool_call":  # the world has no tools
                why = f"dialect cannot write actions of format [a-z]+, which {world} takes"
            assert why is not None and re.search(why, said), said
            return
    [file] = Path("outputs/evaluations").iterdir()
    found = json.loads(file.read_text())
    [record] = found["results"]
    assert record["env"] == world and len(record["solved"]) == 2 and not record["failed"]
    assert found["engine"]["failed"] == 0 and found["engine"]["requests"] == len(asked) >= 2
    for _, body, _ in asked:
        assert body["messages"][-1]["role"] == "user" and all(each["content"] for each in body["messages"])


@pytest.mark.slow
def test_a_model_of_this_machine_is_measured(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main_evaluate(["model=nano", "env=bandit", "episodes=4", "baselines=true", "shots=2"])
    told = capsys.readouterr().out
    assert "nano, split test" in told and "few-shot" in told and "lead of the policy" in told
    [file] = Path("outputs/evaluations").iterdir()
    record, shown = json.loads(file.read_text())["results"]
    assert [each["shots"] for each in (record, shown)] == [0, 2] and list(shown["baselines"]) == [
        "random",
        "oracle",
    ]
    found = record["baselines"]
    assert found["few-shot"]["success"] == shown["success"]
    assert (
        list(found) == ["greedy", "few-shot", "random", "oracle"]
        and found["oracle"]["success"]["mean"] == 1.0
    )
    for each in found.values():  # of the very same instances
        gap = record["success"]["mean"] - each["success"]["mean"]
        assert each["difference"]["mean"] == pytest.approx(gap) and each["difference"]["n"] == 4


@pytest.mark.slow
def test_one_table_has_a_row_per_game_model_shots_and_temperature(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    asked = "env=[bandit,frozen_lake] episodes=2 shots=[0,1] temperature=[0,1]"
    main_evaluate([*asked.split(), "model=[nano,nano_tools]"])
    table = capsys.readouterr().out.split("split test")[1]
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    first = cells[: next(k for k, row in enumerate(cells) if row[3:4] == ["reward of a task"])]
    rows = [
        (row[1].split(",")[0], *row[2:4]) for row in first if len(row) == 6 and row[2]
    ]  # names may be wrapped
    played = [(model, value, "2") for model in ("nano", "nano_tools") for value in "01" for _ in "01"]
    assert rows == [("chance", "–", "2000"), *played, ("oracle", "–", "2000")] * 2
    files = sorted(Path("outputs/evaluations").iterdir(), key=lambda file: len(file.name))
    records = [record for file in files for record in json.loads(file.read_text())["results"]]
    assert len(records) == 16 and all(record["reply_tokens"] > 0 for record in records)
    assert {record["model"] for record in records} == {"nano", "nano_tools"}

    main_evaluate(["model=nano", "env=bandit", "episodes=3", f"compare={files[1]}"])
    compared = capsys.readouterr().out
    assert compared.count("nano_tools") == 16 and "bandit" in compared and "frozen_lake" in compared
    [alone] = [file for file in Path("outputs/evaluations").iterdir() if file not in files]
    content = json.loads(alone.read_text())
    assert len(content["results"]) == 1 and "compare" not in content["config"]
    said = refused(f"model=nano env=bandit split=val compare={files[1]}", main_evaluate)
    assert f"compare={files[1]} was played with split=test, here it is val" in said
    said = refused(f"model=nano env=bandit env.game.payoff=expected compare={files[1]}", main_evaluate)
    assert "was played with variant=null, here it is [env.game.payoff=expected]" in said
    alone.write_text("{}")
    assert "is no file that evaluate of this version wrote" in refused(
        f"model=nano env=bandit compare={alone}", main_evaluate
    )


@pytest.mark.slow
def test_tokens_of_a_reply_are_those_that_a_server_counts_and_cut_replies_are_said(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(path: str, body: Any) -> Any:
        return (
            chat_of("<answer>Up</answer>")
            if len(body["messages"]) < 3
            else chat_of("I think", finish_reason="length")
        )

    with serving(answer, None, []) as url:
        main_evaluate(shlex.split(f"{REMOTE}{url} env=bandit episodes=2 shots=[0,1]"))
    assert (
        "100% of the replies of bandit were cut at rollout.max_reply_tokens=1024" in capsys.readouterr().out
    )
    [file] = Path("outputs/evaluations").iterdir()
    plain, shown = json.loads(file.read_text())["results"]
    assert plain["reply_tokens"] == shown["reply_tokens"] == 4.0  # the text has more bytes
    assert (plain["cut_share"], shown["cut_share"]) == (0.0, 1.0)


@pytest.mark.slow
def test_a_run_is_evaluated_after_shots_alone(run_copy: Path) -> None:
    for options in ("shots=1", "shots=[0,1]"):
        main_evaluate([f"run={run_copy}", "episodes=3", *options.split()])
    files = sorted((run_copy / "evaluations").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    [alone], both = (json.loads(file.read_text())["results"] for file in files)
    assert [record["shots"] for record in both] == [0, 1] and both[1] == alone


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("model=remote env=bandit", "model has no network here; use engine=openai"),
        (REMOTE.removesuffix(" engine.url=") + " env=bandit", "engine.url has no value"),
        (REMOTE + "http://x", "env has no value; name the games"),
        (REMOTE + "http://x env=mixture", "env=mixture is a mixture"),
        ("model=nano env=bandit shots=[]", "shots=[] must be a whole number >= 0, or a list of them"),
        ("model=nano env=bandit shots=[1,-1]", "shots=-1 must be a whole number from 0 to 1000"),
        ("model=nano env=bandit shots=[1,1]", "shots=[1, 1] names a value twice"),
        ("model=nano env=bandit temperature=[1,1]", "temperature=[1, 1] names a value twice"),
        (
            "model=nano env=bandit shots=1 best_of=2 members=2 reward_model=x",
            "shots=[1] plays none; add 0 to shots",
        ),
        ("model=[nano,nano] env=bandit", "model=[nano, nano] must name models, each once"),
        ("model=[] env=bandit", "model=[] must name models"),
        ("model=[nano,hf] model.name=x env=bandit", "model.name=x belongs to one model, and 2 are named"),
        ("model=nano env=bandit compare=none.json", "compare=none.json cannot be read: No such file"),
        ("model=nano env=sokoban baselines=true shots=30 episodes=1", "shots=30 makes episodes longer"),
        (
            REMOTE + "http://x env=bandit engine.key_variable=NONE_SUCH",
            "engine.key_variable=NONE_SUCH: the environment",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(options: str, said: str, refused: Refused) -> None:
    assert said in refused(options, main_evaluate)


RECORD = {
    "env": "bandit", "model": "m", "shots": 0, "temperature": 1.0, "success": {"mean": 0.5}, "return": {"mean": 0.5},
    "normalised": None, "levels": {"chance_success": None, "oracle_success": None}, "cut_share": 0.0, "reply_tokens": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        {"config": [], "results": [RECORD]},
        {"config": {"run": 3}, "results": [RECORD]},
        {"config": {}, "results": [RECORD | {"success": None}]},
        {"config": {}, "results": [RECORD | {"levels": {}}]},
        {"config": {}, "results": RECORD},
        [],
    ],
)
def test_a_compared_file_with_other_types_is_refused_before_anything_plays(
    content: Any, tmp_path: Path
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(content))
    cfg = OmegaConf.create({"compare": [str(path)], "split": "test"})
    with pytest.raises(UserError, match="is no file that evaluate of this version wrote"):
        read_compared(cfg)
    cfg.compare = None
    assert read_compared(cfg) == []


@pytest.mark.slow
@pytest.mark.sweep
def test_a_model_behind_an_api_cannot_be_trained(refused: Refused, tmp_path: Path) -> None:
    place = f"env=bandit hydra.run.dir={tmp_path}/r"
    assert "no network that could be trained" in refused(f"model=remote {place}", main_train)
    assert "an engine of texts can only be evaluated" in refused(f"{REMOTE}http://x {place}", main_train)


def test_options_of_a_run_and_of_a_model_are_told_apart() -> None:
    assert (
        split_model_options(["run=outputs/x", "env=bandit"]) is None
        and split_model_options(["env=bandit"]) is None
    )
    found = split_model_options(["model=nano", "env=bandit", "rollout.max_reply_tokens=9", "seed=3"])
    assert found is not None and found[1] == ["model=nano", "rollout.max_reply_tokens=9"]
    assert found[0].seed == 3 and "run" not in found[0]
    for words in (["model=nano", "checkpoint=best"], ["model=nano", "optim.lr=1"]):
        with pytest.raises(UserError):
            split_model_options(words)


def test_play_takes_a_model_as_evaluate_does(refused: Refused) -> None:
    found = split_model_options(["model=nano", "env=bandit", "instance=3"], "play")
    assert found is not None and found[1] == ["model=nano"] and found[0].instance == 3
    assert "env has no value; name the game to play, such as env=bandit" in refused("model=nano", main_play)
    assert "checkpoint would be ignored" in refused("model=nano env=bandit checkpoint=best", main_play)
    assert "messages=3 must be true or false" in refused("model=nano env=bandit messages=3", main_play)


def test_config_folders_of_the_user_go_with_a_model(
    in_empty_folder: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = in_empty_folder / "own" / "env"
    conf.mkdir(parents=True)
    (conf / "short.yaml").write_text("defaults: [bandit]\nname: short\nmax_turns: 1\n")
    main_evaluate(["--config-dir", "own", "model=nano", "env=[bandit,short]", "episodes=2"])
    assert "short" in capsys.readouterr().out
    main_play(["model=nano", "env=short", "--config-dir=own"])
    assert "turn 1" in capsys.readouterr().out
    assert "there is no game named short" in refused("model=nano env=short", main_evaluate)
    assert "--config-dir none is not a folder" in refused("-cd none model=nano env=short", main_play)
    assert "takes --config-dir with model= alone" in refused("--config-dir own run=x", main_evaluate)


@pytest.mark.slow
def test_a_model_plays_the_very_episodes_that_its_evaluation_counts(in_empty_folder: Path) -> None:
    described = ["model=nano"]
    cfg, _ = split_model_options([*described, "env=bandit", "episodes=3"]) or ({}, [])
    with closing(open_model(cfg, described)) as model:
        (spec,) = model.games.test
        params = make_eval_params(model.settings, 1.0, "evaluate")
        counted = model.play(0, spec, Evaluation("test", params)).episodes
    cfg, _ = split_model_options([*described, "env=bandit", "episodes=2", "instance=1"], "play") or ({}, [])
    played = play_model(cfg, described)
    assert [each.episode.group for each in played] == [1, 2]
    for each, other in zip(played, counted[1:], strict=True):
        assert [turn.reply_text for turn in each.turns] == [turn.reply_text for turn in other.turns]
    assert "nano" in played[0].note and "test instance 1" in str(played[0])
    assert "<|assistant|>" not in str(played[0])
    (read,) = play_model(OmegaConf.merge(cfg, {"messages": True, "episodes": 1}), described)
    assert "<|user|>" in str(read) and "<|assistant|>" in str(read)
