"""Models that no run has trained: one behind an API on several games, and one on this machine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.commands.evaluate import main as main_evaluate
from lit_agentrl.commands.train import main as main_train
from lit_agentrl.entry.errors import UserError
from lit_agentrl.entry.options import options_of_model
from tests.engines.server import chat_of, serving
from tests.entry.conftest import Refused

REMOTE = "model=remote engine=openai engine.mode=chat engine.model=gpt/x engine.url="


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


def test_a_model_of_this_machine_is_measured(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main_evaluate(["model=nano", "env=bandit", "episodes=4", "baselines=true"])
    told = capsys.readouterr().out
    assert "nano, split test" in told and "oracle" in told and "policy is better by" in told
    [file] = Path("outputs/evaluations").iterdir()
    [record] = json.loads(file.read_text())["results"]
    found = record["baselines"]
    assert set(found) == {"random", "oracle"} and found["oracle"]["success"]["mean"] == 1.0
    for each in found.values():  # of the very same instances
        gap = record["success"]["mean"] - each["success"]["mean"]
        assert each["difference"]["mean"] == pytest.approx(gap) and each["difference"]["n"] == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("model=remote env=bandit", "model has no network here; use engine=openai"),
        (REMOTE.removesuffix(" engine.url=") + " env=bandit", "engine.url has no value"),
        (REMOTE + "http://x", "env has no value; name the games"),
        (REMOTE + "http://x env=mixture", "env=mixture is a mixture"),
        (
            REMOTE + "http://x env=bandit engine.key_variable=NONE_SUCH",
            "engine.key_variable=NONE_SUCH: the environment",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(options: str, said: str, refused: Refused) -> None:
    assert said in refused(options, main_evaluate)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_model_behind_an_api_cannot_be_trained(refused: Refused, tmp_path: Path) -> None:
    place = f"env=bandit hydra.run.dir={tmp_path}/r"
    assert "nothing could be trained" in refused(f"model=remote {place}", main_train)
    assert "be evaluated (lit-agentrl evaluate" in refused(f"{REMOTE}http://x {place}", main_train)


def test_options_of_a_run_and_of_a_model_are_told_apart() -> None:
    assert (
        options_of_model(["run=outputs/x", "env=bandit"]) is None and options_of_model(["env=bandit"]) is None
    )
    found = options_of_model(["model=nano", "env=bandit", "rollout.max_reply_tokens=9", "seed=3"])
    assert found is not None and found[1] == ["model=nano", "rollout.max_reply_tokens=9"]
    assert found[0].seed == 3 and "run" not in found[0]
    for words in (["model=nano", "checkpoint=best"], ["model=nano", "optim.lr=1"]):
        with pytest.raises(UserError):
            options_of_model(words)
