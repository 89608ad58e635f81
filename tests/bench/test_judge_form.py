"""The rows that teach the form of a judge are read by the code that asks for it."""

from __future__ import annotations

from scripts.bench.judge_form import CRITERIA, make_rows
from tests.data.test_reading import played


def test_verdicts_are_read_and_name_the_better_episode() -> None:
    episodes = [
        played(0, member, total, opening=[{"role": "user", "content": "room"}])
        for member, total in enumerate((1.0, 0.0, 1.0))
    ]
    found = make_rows(episodes, 480)
    said = [row["messages"][-1]["content"] for row in found if len(row["messages"]) == 2]
    verdicts = [CRITERIA.read_better(text) for text in said if "<better>" in text]
    assert sorted(verdicts) == [0, 0, 1, 1, 2, 2], "each pair in both orders"
    assert make_rows(episodes, 480) == found and len(make_rows(episodes, 1)) == 2
