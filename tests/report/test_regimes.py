"""The plane of the four regimes: what evaluations left, read as data, and drawn as it moved."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.__main__ import main
from lit_agentrl.report.page.regimes import Setting, ThoughtInformation, classify_regime, parse
from tests.report.conftest import MakeRun
from tests.report.test_page import EVIL, Tags


def evaluation(mutual: Any, entropy: float, **config: Any) -> str:
    thoughts = {"any_turn": {"mutual": mutual, "conditional_entropy": entropy, "observations": 8}}
    record = {"env": "bandit", "split": "test", "temperature": 1.0, "thoughts": thoughts}
    return json.dumps({"config": {"run": "r", "checkpoint": None, **config}, "results": [record]})


def test_each_quarter_has_its_name() -> None:
    bounds = {"entropy_bound": 1.0, "mutual_bound": 1.0}
    found = [
        classify_regime(conditional_entropy=h, mutual=i, **bounds) for h in (2.0, 0.0) for i in (2.0, 0.0)
    ]
    assert found == ["diverse", "template", "compressed", "low entropy"]


def test_a_file_says_which_weights_it_measured() -> None:
    played, thinking = Setting("bandit", "test", 1.0, ()), ThoughtInformation(1.0, 0.5, math.log(8))
    assert parse(evaluation(1.0, 0.5)) == {(played, "last"): thinking}
    assert parse(evaluation(1.0, 0.5, checkpoint="start")) == {(played, "start"): thinking}
    assert parse(evaluation(1.0, 0.5, run="a/checkpoints/best.ckpt")) == {(played, "best"): thinking}
    assert parse(evaluation(1.0, 0.5, run="a/checkpoints/iteration_7.ckpt")) == {}
    assert parse('{"config": {}, "results": [{"env": "bandit"}]}') == {}
    for bad in (evaluation("1", 0.5), evaluation(float("nan"), 0.5), evaluation(True, 0.5)):
        with pytest.raises(ValueError, match="is not a finite number"):
            parse(bad)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_page_shows_how_thoughts_moved(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, (lr, last) in enumerate([(1, (0.1, 1.0)), (1, (1.9, 0.9)), (2, (0.2, 0.1))]):
        folder = make_run(f"runs/{seed}", seed, lr=lr) / "evaluations"
        folder.mkdir()
        (folder / "start_test_bandit_seed0.json").write_text(evaluation(1.9, 1.0, checkpoint="start"))
        (folder / "last_test_bandit_seed0.json").write_text(evaluation(*last, variant=[]))
    (folder / "last_test_evil_seed0.json").write_text(evaluation(1.0, 1.0, variant=[EVIL]))
    (folder / "odd.json").write_text("[")
    main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "r")])
    assert "1 damaged file" in capsys.readouterr().out
    text = (tmp_path / "r" / "index.html").read_text()
    tags = Tags(text)
    assert "script" not in [tag for tag, _ in tags.found]
    labels = [str(a["aria-label"]) for tag, a in tags.found if tag == "figure"]
    label = next(each for each in labels if each.endswith("against entropy") and "script" not in each)
    assert label == "Four regimes of thoughts on bandit: information against entropy"
    assert (
        "Runs by regime: lr=1: 1 × diverse, 1 × diverse → template; lr=2: 1 × diverse → low entropy." in text
    )
    for words in ("compressed", "low entropy", "template", "diverse", "I(X;Z), nats per thought"):
        assert words in text
