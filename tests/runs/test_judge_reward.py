"""A run that is paid by a judge behind an API."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.cli.train import main as main_train
from tests.commands import SMALL
from tests.engines.server import chat_of, serving
from tests.rewards.test_judge import reply


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_asks_a_server(tmp_path: Path, tiny_model_folder: Path) -> None:
    asked: list[Any] = []
    with serving(lambda path, body: chat_of(reply(7)), None, asked) as url:
        judged = f"reward=judge reward.judge.engine.url={url} reward.judge.engine.model=gpt/x reward.judge.samples=2"
        main_train(
            shlex.split(
                f"{SMALL.replace('max_epochs=2', 'max_epochs=1')} model=hf model.name={tiny_model_folder} {judged} "
                f"reward.judge.engine.price_in=2000 hydra.run.dir={tmp_path}/r"
            )
        )
    assert len(asked) == 8 and asked[0][0] == "/v1/chat/completions" and asked[0][1]["model"] == "gpt/x"
    names, *rows = (line.split(",") for line in (tmp_path / "r" / "metrics.csv").read_text().splitlines())
    [paid] = [found for row in rows if (found := dict(zip(names, row, strict=True)))["reward/judge_score"]]
    assert float(paid["reward/judge_score"]) == 0.7
    assert float(paid["reward/judge_cost"]) == 8 * 10 * 2000 / 1e6
