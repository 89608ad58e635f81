"""The Python API: what a notebook does with a run, from its options to single turns, and what it is told."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import lit_agentrl
from lit_agentrl.api import Job, Result, RunError, UserError, _convert_errors, compose, train
from lit_agentrl.cli.play import main as main_play
from lit_agentrl.config.overrides import format_overrides, parse
from lit_agentrl.models.policy import load_nano
from lit_agentrl.report.table import Metrics, as_text

ROOT = Path(__file__).resolve().parent.parent
SMALL: dict[str, Any] = {
    "env": "bandit",
    "rollout": {"prompts": 2, "members": 2, "max_reply_tokens": 12, "max_context_tokens": 256},
    "trainer": {"max_epochs": 2, "accelerator": "cpu"},
    "val": {"episodes": 2, "every": 1},
    "test": {"episodes": 0},
    "callbacks": {"progress": None},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train("algo/clip=clip_higher", folder=tmp_path_factory.mktemp("api") / "a run", **SMALL)


def narrow(text: str) -> str:
    """The text, which fits a terminal."""
    assert max(map(len, text.splitlines())) <= 80, text
    return text


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_from_keywords_leaves_what_a_command_leaves(result: Result) -> None:
    summary = result.summary
    assert (summary["status"], summary["iterations"]) == ("completed", 2)
    assert summary["versions"]["lit_agentrl"] == lit_agentrl.__version__
    assert summary["command"].startswith(
        "lit-agentrl train algo/clip=clip_higher env=bandit rollout.prompts=2"
    )
    assert {"metrics.csv", "summary.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt", "hf"} <= set(
        result.paths
    )
    assert "completed: 2 of 2 iterations" in narrow(repr(result)) and "bandit" in repr(result)
    assert repr(Result(str(result.folder))) == repr(result)


@pytest.mark.slow
def test_metrics_are_a_table(result: Result) -> None:
    metrics = result.metrics
    assert metrics["iteration"] == [0, 1, 2] and len(metrics) == 3
    assert metrics.rows[0]["rollout/success"] is None and None not in metrics["val/success"]
    assert "val" in narrow(repr(metrics)) and f"of {len(metrics.columns)} columns" in repr(metrics)
    with pytest.raises(KeyError, match="val/sucess is not a metric of this run"):
        metrics["val/sucess"]


def test_a_long_table_shows_its_end(tmp_path: Path) -> None:
    shown = repr(Metrics([{"iteration": float(i), "val/success": i / 99} for i in range(99)]))
    assert "the last 20 of 99 rows" in " ".join(shown.split()) and " 98 " in shown and " 78 " not in shown
    assert Metrics.read(tmp_path / "none.csv").rows == []


def test_printed_objects_stand_one_below_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    table = Metrics([{"iteration": 0.0, "val/success": 0.5}])
    print(table, table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("┏") for line in lines if "┏" in line] == [True, True]


@pytest.mark.slow
def test_the_policy_is_that_of_its_checkpoint(result: Result) -> None:
    saved = torch.load(result.paths["checkpoints/last.ckpt"], weights_only=True)["state_dict"]
    start, last = result.policy("start").network.state_dict(), result.policy().network.state_dict()
    assert all(torch.equal(last[name], saved[f"network.{name}"]) for name in last)
    assert any(not torch.equal(last[name], start[name]) for name in last)
    assert all(torch.equal(start[name], weight) for name, weight in load_nano().network.state_dict().items())


@pytest.mark.slow
def test_an_episode_is_the_one_that_an_evaluation_plays(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = result.evaluate(env="bandit", episodes=6, seed=4)
    (record,) = scores.records
    assert json.loads(scores.path.read_text())["results"] == scores.records and "success" in narrow(
        repr(scores)
    )
    played = result.play(env="bandit", instance=2, seed=4)
    (turn,) = played.turns
    assert played.episode.group == 2 and turn.reply_text and turn.observation
    assert record["solved"][2] == played.episode.success
    capsys.readouterr()
    main_play([f"run='{result.folder}'", "env=bandit", "instance=2", "seed=4"])
    doing, *shown, hint = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert doing.startswith("playing 1 episode of bandit") and shown == narrow(repr(played)).splitlines()
    assert hint == "messages=true shows all that the policy reads"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rollout": {"promts": 3}}, "unknown option rollout.promts; did you mean rollout.prompts"),
        ({"seed": {1, 2}}, "seed cannot be a set; write numbers"),
        ({"config_dir": "/no/such"}, "--config-dir /no/such is not a folder"),
    ],
)
def test_an_option_that_makes_no_sense_is_our_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(**options)


@pytest.mark.slow
def test_what_is_asked_of_a_run_is_checked(result: Result, tmp_path: Path) -> None:
    for ask, message in [
        (lambda: Result(tmp_path), "is not the folder of a run"),
        (lambda: result.evaluate(envs="bandit"), "unknown option envs=bandit; did you mean env"),
        (lambda: result.evaluate(split="dev"), "split=dev must be one of train, val, test"),
        (lambda: result.play(instance=-1), "instance=-1 must be a whole number >= 0"),
        (lambda: result.play(env=["bandit", "sokoban"]), "must be the name of one game"),
        (lambda: result.play(episodes=3), "call it once per instance"),
        (lambda: result.policy("newest"), "checkpoint=newest is unknown; valid: last, best, start"),
        (lambda: result.resume(seed=3), "seed=3 cannot be given with resume="),
    ]:
        with pytest.raises(UserError, match=message):
            ask()


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RuntimeError("boom\nmore"), RunError), (ValueError("boom"), UserError), (SystemExit("boom"), RunError)],
)
def test_every_error_is_ours(error: BaseException, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="boom") as raised, _convert_errors():
        raise error
    assert raised.value.__cause__ is error
    assert "traceback=true" not in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_run_that_fails_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr("lit_agentrl.runs.training.train", fails)
    monkeypatch.setattr("lit_agentrl.runs.jobs.check_jobs", lambda *_, **__: [])
    with pytest.raises(RunError, match="^RuntimeError: no memory$"):
        Job((f"hydra.run.dir='{tmp_path}/run'",), (), OmegaConf.create({})).train()


@pytest.mark.slow
def test_an_interrupt_is_one_and_interrupts_still_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as Lightning does
        raise KeyboardInterrupt

    monkeypatch.setattr("lit_agentrl.runs.training.train", interrupted)
    monkeypatch.setattr("lit_agentrl.runs.jobs.check_jobs", lambda *_, **__: [])
    before, argv = signal.getsignal(signal.SIGINT), list(sys.argv)
    with pytest.raises(KeyboardInterrupt) as raised:
        Job((f"hydra.run.dir='{tmp_path}/run'",), (), OmegaConf.create({})).train()
    assert raised.value.folder == tmp_path / "run"  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGINT) is before and sys.argv == argv


def test_a_notebook_may_use_hydra_for_itself(tmp_path: Path) -> None:
    with initialize_config_dir(version_base="1.3", config_dir=str(tmp_path)):
        theirs = GlobalHydra.instance().hydra
        assert "epsilon" in compose(env="bandit").config.algo.clip
        assert GlobalHydra.instance().hydra is theirs


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=60)
@given(VALUES)
def test_a_value_is_read_as_it_was_given(value: Any) -> None:
    (override,) = parse(format_overrides({"key": value}))
    assert override.value() == value and type(override.value()) is type(value)
    assert not override.is_sweep_override()


def test_names_are_written_out() -> None:
    assert format_overrides({"a": {"b": {"c": 1}, "d": {}}, "algo/clip": "clip_higher", "x": [{"y": math.inf}]}) == [
        "a.b.c=1", "a.d={}", "algo/clip=clip_higher", "x=[{y:inf}]",
    ]  # fmt: skip


def cells() -> Iterator[str]:
    for cell in json.loads((ROOT / "examples/notebook/first_run.ipynb").read_text(encoding="utf-8"))["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])


@pytest.mark.slow
@pytest.mark.sweep
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells():
        *lines, last = cell.splitlines()
        exec("\n".join(lines), names)
        shown = repr(eval(last, names))
        assert shown
    assert len(list(cells())) <= 10 and names["result"].summary["status"] == "completed"
    assert os.listdir(tmp_path) == ["outputs"]


def test_the_ten_lines_of_the_page_are_the_api() -> None:
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    assert 8 <= len([line for line in code.splitlines() if line]) <= 12
    for word in (
        "compose(",
        ".train()",
        ".summary",
        ".metrics",
        ".policy(",
        ".evaluate(",
        ".play(",
        ".turns",
    ):
        assert word in code
    compile(code, "train.md", "exec")
    assert as_text("x") == "x"
