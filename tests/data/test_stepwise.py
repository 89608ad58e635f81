"""``data=stepwise``: labels of turns and of steps become what `so_far` reads, and what is wrong is one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.reading import read
from lit_agentrl.data.stepwise import Stepwise, set_step_returns
from lit_agentrl.episode import Episode
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.preference.step_labels import so_far
from lit_agentrl.rollout.pack import pack
from tests.data.test_reading import TALK, file, folder, learnt, played, reply, student


def labels_of(*episodes: Episode) -> list[float]:
    """The label at each turn end, row by row."""
    rows = pack(episodes).to_dict()
    return [round(float(each), 6) for each in bind(so_far, rows)[rows["is_turn_end_BT"]]]


def test_labels_stand_at_the_ends_of_turns_and_of_steps(tmp_path: Path) -> None:
    rows = [
        {"messages": TALK, "labels": [True, 0.25]},
        {"prompt": "# P", "completions": [reply("Up"), reply("Left"), reply("Down")], "labels": [1, 0.5, 0]},
    ]
    [[talk], [steps]] = read(Stepwise(path=file(tmp_path, rows), batch=1), student(), seed=0).groups
    assert (labels_of(talk), talk.training_return) == ([1.0, 0.25], 0.25)
    assert (labels_of(steps), steps.training_return) == ([1.0, 0.5, 0.0], 0.0)
    packed = pack([steps])
    assert packed.num_rows == 1 and int(packed.is_action_BT.int().diff().clamp(min=0).sum()) == 1  # one reply
    assert ["Left" in text for text in learnt(steps)] == [False, True, False]
    # where each turn has a row of its own, the rows before it count too
    alone = replace(talk, turns=[replace(turn, starts_row=True) for turn in talk.turns])
    assert labels_of(alone) == [1.0, 0.25]


def test_recorded_episodes_have_success_as_the_label_of_every_turn(tmp_path: Path) -> None:
    episodes = [played(0, 0, 3.0), played(0, 1, -1.0)]
    found = read(Stepwise(path=folder(tmp_path / "f", episodes), batch=1), student(), seed=0).groups
    assert [set(labels_of(episode)) for [episode] in found] == [{float(e.success)} for e in episodes]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": TALK}, "column labels must be a list with a label for each of the replies"),
        ({"messages": TALK, "labels": [1]}, "column labels has 1 entries, and there are 2 replies"),
        ({"messages": TALK, "labels": [1, None]}, "column labels holds 'None'; write true, false, or a number"),
        ({"messages": TALK, "labels": [1, 1.5]}, "column labels holds '1.5'; write true, false"),
        ({"prompt": "# P", "completions": ["Up", " "], "labels": [1, 1]}, "a list of texts, the steps of one answer"),
        ({"prompt": "# P", "completions": ["Up"], "labels": [1, 1]}, "has 2 entries, and there are 1 steps"),
        ({"completions": ["Up"], "labels": [1]}, "column prompt is missing"),
        ({"labels": [1]}, "it has neither messages nor completions"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_one_line(row: dict[str, Any], said: str, tmp_path: Path) -> None:
    kind = Stepwise(path=file(tmp_path, [row]), batch=1)
    with pytest.raises(ValueError, match="d.jsonl line 1") as raised:
        read(kind, student(), seed=0)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_labels_of_continuations_are_taken_as_they_were_written(tmp_path: Path) -> None:
    given = [[0.25, 0.0], [0.5, 1.0]]
    episodes = [set_step_returns(played(0, n, 1.0), each) for n, each in enumerate(given)]
    path = folder(tmp_path / "f", episodes, continuations=4)
    found = read(Stepwise(path=path, batch=1, score="labels"), student(), seed=0)
    assert [labels_of(episode) for [episode] in found.groups] == given
    for kind, said in (
        (Stepwise(path=path, batch=1), "ignores the labels of turns .* set data.score=labels"),
        (Demonstrations(path=path, batch=1), "has labels of turns and no rewards; set data.score=success"),
        (
            Stepwise(path=folder(tmp_path / "g", episodes), batch=1, score="labels"),
            "collect it with continuations=16",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            read(kind, student(), seed=0)


def test_held_out_episodes_have_the_same_labels(tmp_path: Path) -> None:
    """Of each turn; those of success once stood at the last turn alone."""
    kind = Stepwise(path=folder(tmp_path / "f", [played(0, 0, 3.0)]), batch=1)
    [group] = kind.make_held_out_groups([played(0, 0, 3.0)])
    assert set(labels_of(*group)) == {1.0}
