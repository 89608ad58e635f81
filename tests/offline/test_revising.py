"""Replies revised by a judge: which, the rows that show them, a run that imitates them, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_agentrl.cli.collect import main as main_collect
from lit_agentrl.cli.label import main as main_label
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.episodes import open_folder
from lit_agentrl.data.pairs import Pairs, keep_only_turn
from lit_agentrl.data.reading import read
from lit_agentrl.data.row_folder import RowFolder
from lit_agentrl.episode import Episode
from lit_agentrl.offline.revising import build_row, choose_turns
from tests.commands import Refused, contents
from tests.data.test_reading import file, student
from tests.engines.server import chat_of, serving
from tests.offline.test_criticising import once, question
from tests.rewards.conftest import episode, turn

ROWS = "revisions.jsonl"
END = student().chat.end_of_turn_ids[:1]


def of_turns(*starts: int, replies: str = "abcdef", member: int = 0) -> Episode:
    """Six turns, of which these begin a row."""
    turns = [turn(reply_text=said, starts_row=k in starts) for k, said in enumerate(replies)]
    return episode(turns, member=member)


def test_turns_are_drawn_by_their_address() -> None:
    assert choose_turns(of_turns(), 99, 0) == [0, 1, 2, 3, 4, 5]
    drawn = [choose_turns(of_turns(member=member), 2, 0) for member in range(200)]
    assert all(len(set(places)) == 2 and places == sorted(places) for places in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=6)
    assert counts.min() > 40 and counts.max() < 95  # 400 draws over six turns
    assert (
        choose_turns(of_turns(), 3, 7) == choose_turns(of_turns(), 3, 7)
        and choose_turns(of_turns(), 3, 7) != drawn[0]
    )
    # what a policy read anew is no dialogue from the opening on; a blank reply is nothing to learn from
    assert choose_turns(of_turns(0, 3), 99, 0) == [0, 1, 2]
    assert choose_turns(of_turns(replies="a \nb"), 99, 0) == [0, 3]
    assert choose_turns(episode([]), 3, 0) == []


@pytest.mark.slow
@pytest.mark.sweep
def test_a_row_is_read_as_the_episode_was(in_empty_folder: Path) -> None:
    main_collect(shlex.split("model=nano env=sokoban plays=best members=1 episodes=6 out=best"))
    found = open_folder(Path("best"))
    assert found is not None
    episodes = sorted(found.read(), key=lambda each: -len(each.turns))
    longest = episodes[0]
    assert len(longest.turns) > 1
    for place, turn_ in enumerate(longest.turns):
        same = build_row(longest, place, turn_.reply_text)
        [[made]] = read(Demonstrations(path=file(Path(), [same]), batch=1), student(900), seed=0).groups
        expected = keep_only_turn(longest, place).turns[0]
        assert made.turns[0].prefix_tokens.tolist() == expected.prefix_tokens.tolist()
        # in a file a reply is closed; one that the answer's end tag has stopped is closed by what comes next
        assert made.turns[0].reply_tokens.tolist() == [*expected.reply_tokens, *END]
    # a pair is the revision and the reply
    row = build_row(longest, 1, "better")
    [[better, given]] = read(Pairs(path=file(Path(), [row]), batch=1), student(900), seed=0).groups
    assert better.turns[0].reply_text == "better" and better.training_return > given.training_return
    assert given.turns[0].reply_tokens.tolist() == [*longest.turns[1].reply_tokens, *END]
    assert row["held_out_with"] == f"sokoban|{longest.instance_seed}"


# ---------------------------------------------------------------------- by a server
UP = "<think>up is free</think><answer>Up</answer>"


def judge(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Would always go up, and says so where it is asked with principles."""
    return chat_of(f"<think>hm</think><critique>It should go up.</critique>\n<revision>{UP}</revision>\n")


def command(url: str, **more: Any) -> str:
    given = {"data": "episodes", "out": "said", "shard": 2, "rounds": 2, **more}
    words = " ".join(f"{name}={value}" for name, value in given.items())
    return (
        f"asks=revision {words} reward=judge reward.judge.engine.url={url} 'reward.judge.principles=[go up]'"
    )


@pytest.mark.slow
@pytest.mark.sweep
def test_a_judge_revises_and_a_policy_imitates_it(
    in_empty_folder: Path,
    capsys: pytest.CaptureFixture[str],
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main_collect(shlex.split("model=nano env=sokoban episodes=6 members=2 out=episodes"))
    capsys.readouterr()
    asked: list[Any] = []
    with serving(judge, None, asked) as url:
        main_label(shlex.split(command(url)))
        said = capsys.readouterr().out
        number = sum(min(2, len(each.turns)) for each in open_folder(Path("episodes")).read())  # type: ignore[union-attr]
        assert f"{number} replies to revise: {number} revisions were read, in {number} replies" in said
        rows = [json.loads(line) for line in Path("said", ROWS).read_text().splitlines()]
        assert f"{len(rows)} rows in said/{ROWS}" in said and len(asked) == number
        assert all(
            row["chosen"] == row["completion"] == [{"role": "assistant", "content": UP}] for row in rows
        )
        assert all(row["rejected"][0]["content"] != UP for row in rows)
        assert all("It is data" in question(body) for _, body, _ in asked)
        main_label(shlex.split(command(url)))
        assert f"said is complete: {len(rows)} revisions are in said/{ROWS}" in capsys.readouterr().out
        # killed at the second of three shards
        with monkeypatch.context() as patched:
            patched.setattr(RowFolder, "add", once(RowFolder.add))
            with pytest.raises(SystemExit):
                main_label(shlex.split(command(url, out="again")))
        main_label(shlex.split(command(url, out="again")))
        assert contents(Path("again")) == {
            name.replace("said", "again"): content for name, content in contents(Path("said")).items()
        }
        assert "interrupted" in capsys.readouterr().err
        for words, wrong in (
            (
                command(url, rounds=1),
                "said holds the labels of another command: judged.rounds is 2 there, and 1",
            ),
            (
                command(url).replace("=revision", "=critique"),
                "out: said is not a folder of critiques",
            ),
            (f"{command(url)} reward.judge.shows_end=true", "reward.judge.shows_end=true shows how the game"),
            (f"{command(url)} reward.judge.samples=2", "reward.judge.samples=2 has no effect: revisions are"),
            (command(url, rounds=0), "rounds=0 must be"),
        ):
            assert wrong in refused(words, main_label), words
    run = "trainer.max_epochs=2 trainer.accelerator=cpu ~callbacks.progress val.episodes=4 test.episodes=4"
    for algorithm in ("algo=sft data=demonstrations", "algo=dpo data=pairs"):
        main_train(
            shlex.split(
                f"{algorithm} data.path=said/{ROWS} data.batch=4 model=nano env=sokoban {run} "
                f"hydra.run.dir={algorithm[5:8]}"
            )
        )
    told = refused("algo=sft data=demonstrations data.path=said model=nano env=sokoban", main_train)
    assert f"path=said is a folder of revisions; name its file, said/{ROWS}" in told
