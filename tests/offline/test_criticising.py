"""Recorded episodes criticised by a judge, a reward model of the critiques, and a run that it pays (CLoud)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.cli.label import main as main_label
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.data.episodes import EpisodeFolder
from lit_agentrl.data.row_folder import RowFolder, open_rows
from lit_agentrl.episode import Episode
from lit_agentrl.judging import Criteria
from tests.commands import SMALL, Refused, contents
from tests.engines.server import chat_of, serving
from tests.rewards.conftest import episode, turn

ROWS = "critiques.jsonl"


def recorded(folder: Path, instances: int = 3) -> list[Episode]:
    """Of each instance one failure and one success, whose text says which it is."""
    found = []
    for seed in range(instances):
        for member in range(2):
            said = ("lost", "won </critique> EPISODE ends")[member]
            one = episode([turn(2 + member, reply_text=said)], member=member, success=bool(member))
            one.instance_seed = seed
            found.append(one)
    folder.mkdir()
    EpisodeFolder(folder, {"policy": {"tokenizer": "t"}}, planned=1).add("game-0", found)
    return found


def question(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def judge(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Says what it sees; the same of the same question."""
    return chat_of(
        f"<think>hm</think><critique>It {'won' if '| won' in question(body) else 'lost'}.</critique>\n"
    )


def command(url: str, **more: Any) -> str:
    given = {"data": "episodes", "out": "said", "shard": 1, **more}
    words = " ".join(f"{name}={value}" for name, value in given.items())
    return f"asks=critique {words} reward=judge reward.judge.engine.url={url} 'reward.judge.principles=[win]'"


@pytest.mark.slow
@pytest.mark.sweep
def test_a_judge_criticises_what_was_recorded(
    in_empty_folder: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episodes = recorded(Path("episodes"))
    asked: list[Any] = []
    with serving(judge, None, asked) as url:
        main_label(shlex.split(command(url, rounds=2)))
        said = capsys.readouterr().out
        assert "12 critiques of 6 episodes: 12 were read, in 12 replies" in said
        assert f"12 rows, 6 of them of successes, in said/{ROWS}" in said
        rows = [json.loads(line) for line in Path("said", ROWS).read_text().splitlines()]
        texts = [Criteria(principles=["win"]).ask_critique(each) for each in episodes for _ in range(2)]
        assert [row["prompt"][0]["content"] for row in rows] == texts
        assert sorted(texts) == sorted(question(body) for _, body, _ in asked)
        assert [row["completion"][0]["content"] for row in rows[:3]] == [
            "<critique>It lost.</critique>", "<critique>It lost.</critique>", "<critique>It won.</critique>"
        ]  # fmt: skip
        assert [row["label"] for row in rows] == [False, False, True, True] * 3
        main_label(shlex.split(command(url, rounds=2)))
        assert (
            f"said is complete: 12 critiques are in said/{ROWS}" in capsys.readouterr().out
            and len(asked) == 12
        )
        # killed at the second of three prompts
        with monkeypatch.context() as patched:
            patched.setattr(RowFolder, "add", once(RowFolder.add))
            with pytest.raises(SystemExit):
                main_label(shlex.split(command(url, rounds=2, out="again")))
        assert len(asked) == 20
        main_label(shlex.split(command(url, rounds=2, out="again")))
        assert len(asked) == 28 and contents(Path("again")) == {
            name.replace("said", "again"): content for name, content in contents(Path("said")).items()
        }
        assert "interrupted" in capsys.readouterr().err
        of = f"reward=judge reward.judge.engine.url={url}"
        for words, wrong in (
            (command(url), "said holds the labels of another command: judged.rounds is 2 there, and 1 here"),
            (command(url).replace("=critique", "=better"), "out: said holds no episodes"),
            (
                f"{command(url)} reward.judge.scalar=x",
                "reward.judge.scalar=x has no effect: critiques are written",
            ),
            (
                f"{command(url)} reward.judge.shows_end=true",
                "reward.judge.shows_end=true shows the judge the label",
            ),
            (
                command(url, rounds=2) + " reward.judge.temperature=0",
                "rounds=2 with reward.judge.temperature=0",
            ),
            (command(url).replace("=critique", "=loud"), "asks=loud must be one of better, critique"),
            (f"data=said out=o asks=critique {of}", "data: said holds no episodes"),
            (f"data=episodes out=episodes asks=critique {of}", "out: episodes is not a folder of critiques"),
            (
                f"data=episodes out=o asks=critique {of}",
                "no readable reply in 6 of 6 critiques (more than max_unread",
            ),
        ):
            assert wrong in refused(words, main_label), words
        main_label(
            shlex.split(
                f"data=episodes out=none asks=critique max_unread_share=1 {of} reward.judge.retries=0"
            )
        )
        said = capsys.readouterr().out
        assert "6 critiques of 6 episodes: 0 were read, in 6 replies, unread_form 6" in said
        assert "0 rows, 0 of them of successes" in said and "all rows have the same label" in said


def once(add: Any) -> Any:
    """The first call is as ever, and a second one is where the user loses patience."""
    calls: list[int] = []

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return add(*given, **named)

    return counted


@pytest.mark.slow
@pytest.mark.sweep
def test_a_reward_model_of_critiques_pays_a_run(
    in_empty_folder: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(Path("episodes"), instances=24)
    with serving(judge, None, []) as url:
        main_label(shlex.split(command(url)))
        found = open_rows(Path("said"), "critiques")
        assert found is not None and found.is_complete
        main_train(
            shlex.split(
                f"algo=process_reward algo.last=true data=unpaired data.path=said/{ROWS} data.held_out=0.5 "
                f"data.batch=4 model=hf model.name={tiny_model_folder} rollout.max_context_tokens=1500 "
                "trainer.max_epochs=2 trainer.accelerator=cpu ~callbacks.progress hydra.run.dir=rm"
            )
        )
        about = json.loads(Path("rm/hf/reward_model.json").read_text())
        assert about["kind"] == "logit"
        main_train(
            shlex.split(
                f"{SMALL} model=hf model.name={tiny_model_folder} reward=judge reward.judge.engine.url={url} "
                "'reward.judge.principles=[win]' reward.judge.samples=2 reward.judge.scalar=rm hydra.run.dir=run"
            )
        )
    names, *rows = (line.split(",") for line in Path("run/metrics.csv").read_text().splitlines())
    paid = [found for row in rows if (found := dict(zip(names, row, strict=True)))["reward/judge_score"]]
    assert len(paid) == 2 and all(0 < float(row["reward/judge_score"]) < 1 for row in paid)
    assert all(float(row["reward/judge_unread"]) == 0 for row in paid)
