"""Recorded episodes compared by a judge: both orders, ratings, and what is refused."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.cli.label import main as main_label
from lit_agentrl.data.episodes import EpisodeFolder, open_folder
from lit_agentrl.data.pairs import Pairs
from lit_agentrl.data.ratings import ELO, estimate_ratings, find_connected
from lit_agentrl.episode import Episode
from tests.commands import Refused
from tests.engines.server import chat_of, serving
from tests.rewards.conftest import episode, turn


def test_ratings_are_the_maximum_and_need_a_chain_of_verdicts() -> None:
    strength = [value / ELO for value in estimate_ratings([(0, 1, 1.0), (0, 1, 1.0), (0, 1, 0.0)], 2)]
    # the slope at the maximum: wins less expected wins, less the prior
    expected = 3 / (1 + math.exp(-2 * strength[0]))
    assert 2 - expected == pytest.approx(0.1 * strength[0], abs=1e-9) and sum(strength) == pytest.approx(0)
    assert estimate_ratings([(0, 1, 0.5)], 2) == [0.0, 0.0]
    high, middle, low = estimate_ratings([(0, 1, 1.0), (1, 2, 1.0)], 3)
    assert high > middle > low and middle == pytest.approx(0)
    assert find_connected([(0, 1, 1.0), (2, 3, 0.5), (3, 4, 1.0)], 6) == [2, 3, 4]


def recorded(folder: Path, broken: bool = False) -> list[Episode]:
    """Two prompts of three episodes, whose texts say how good they are."""
    found = []
    for seed in (1, 2):
        for member in range(3):
            one = episode(
                [turn(2 + member, reply_text=f"worth {member}", reward=float(member))], member=member
            )
            one.instance_seed = seed
            found.append(one)
    folder.mkdir()
    made = EpisodeFolder(folder, {"policy": {"tokenizer": "t"}}, planned=1 + broken)
    made.add("game-0", found)
    return found


def judge(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Prefers the higher worth, but of worths 0 and 1 whatever stands first."""
    text = body["messages"][-1]["content"]
    shown = [int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("| worth ")]
    assert len(shown) == 2
    better = 1 if shown[0] > shown[1] or sum(shown) == 1 else 2
    return chat_of(f"<critique>c</critique><better>{better}</better>")


@pytest.mark.slow
@pytest.mark.sweep
def test_a_judge_rates_what_was_recorded(
    in_empty_folder: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    recorded(Path("episodes"))
    asked: list[Any] = []
    with serving(judge, None, asked) as url:
        command = (
            f"data=episodes out=judged shard=1 reward=judge reward.judge.engine.url={url} "
            "'reward.judge.principles=[win]'"
        )
        main_label(shlex.split(command))
        said = capsys.readouterr().out
        assert (
            "6 comparisons, each in both orders: 0.667 consistent, 0.333 inconsistent, 0.000 unread" in said
        )
        assert "agrees with the returns in 1.000 of 4" in said and "6 of 6 episodes are rated" in said
        assert len(asked) == 12
        main_label(shlex.split(command))
        assert "judged is complete: 6 episodes" in capsys.readouterr().out and len(asked) == 12
        folder = open_folder(Path("judged"))
        assert folder is not None and folder.is_complete and folder.described["judged"]["rounds"] == 1
        first = list(folder.read())[:3]
        assert max(first, key=lambda e: e.training_return).turns[0].reply_text == "worth 2"
        [pair] = Pairs(path="judged").make_groups(first)
        assert pair[0].turns[0].reply_text == "worth 2" and first[2].total_reward == 2.0
        for options, wrong in (
            ("rounds=2", "judged holds the labels of another command: judged.rounds is 1 there, and 2 here"),
            ("reward.judge.weight=2", "reward.judge.weight=2 has no effect: pairs are compared"),
            ("rounds=0", "rounds=0 must be a whole number"),
            ("max_unread_share=2", "max_unread_share=2 must be in [0, 1]"),
        ):
            assert wrong in refused(f"{command} {options}".replace("rounds=1", ""), main_label)
        assert "reward must be judge or judge_local" in refused(
            "data=episodes out=o reward=count", main_label
        )
        assert "data has no value" in refused(f"out=o reward=judge reward.judge.engine.url={url}", main_label)
        said = refused(
            command.replace("'reward.judge.principles=[win]'", "").replace("judged", "other"), main_label
        )
        assert "the judge gave no readable verdict in 3 of 3 comparisons" in said
    recorded(Path("half"), broken=True)
    assert "data=half is empty or incomplete" in refused(command.replace("=episodes", "=half"), main_label)
