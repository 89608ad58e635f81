"""Scores of several heads: of recorded episodes, of rows of files, and what is no score of theirs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_agentrl.data.pairs import Pairs
from lit_agentrl.data.ranked import Ranked
from lit_agentrl.data.reading import read
from lit_agentrl.data.unpaired import Unpaired
from lit_agentrl.episode import Episode
from tests.data.test_reading import file, folder, played, student

NAN = math.nan
ANSWERS = {"prompt": "P", "completions": ["a", "b", "c"]}


def told(member: int, worth: float, *costs: Any, prompt: int = 0) -> Episode:
    made = played(prompt, member, worth)
    for turn, cost in zip(made.turns, costs, strict=True):
        turn.cost = cost
    return made


def labels(kind: Any) -> torch.Tensor:
    found: torch.Tensor = read(kind, student(), seed=0).make_batch(0).columns["label_BH"]
    return found


def test_recorded_episodes_have_a_score_for_each_head(tmp_path: Path) -> None:
    """A game that tells no costs says nothing to that head; a tie in one is no tie in the other."""
    path = folder(tmp_path, [told(0, 2.0, 1.0, None), told(1, 2.0, 0.5, 2.0), told(2, 2.0, None, None)])
    kind = Ranked(path=path, batch=1, score=["cost", "success", "return"])
    expected = torch.tensor([[1.0, 1.0, 2.0], [2.5, 1.0, 2.0], [NAN, 1.0, 2.0]])
    assert torch.equal(labels(kind).nan_to_num(-9), expected.nan_to_num(-9))
    recorded = read(kind, student(), seed=0)
    assert [e.training_return for e in recorded.groups[0]] == [2.0, 2.0, 2.0]  # stays what it was
    shares = [recorded.make_batch(0, rank=rank, world_size=2).columns["label_BH"].shape for rank in (0, 1)]
    assert shares == [(3, 3), (0, 3)]  # a rank without episodes has the column too
    tied = folder(tmp_path / "t", [told(0, 2.0, 1.0, None), told(1, 2.0, 1.0, None)])
    with pytest.raises(ValueError, match="none of its 2 rows makes a group"):
        read(Ranked(path=tied, batch=1, score=["cost", "success"]), student(), seed=0)


def test_rows_have_scores_by_name_of_which_some_may_be_missing(tmp_path: Path) -> None:
    scores = [{"helpful": 3, "harmless": 1}, {"helpful": 1}, {"harmless": None, "helpful": 1, "x": "y"}]
    path = file(tmp_path, [ANSWERS | {"scores": scores}])
    found = labels(Ranked(path=path, batch=1, score=["harmless", "helpful"]))
    assert torch.equal(found.nan_to_num(-9), torch.tensor([[1.0, 3.0], [-9.0, 1.0], [-9.0, 1.0]]))
    alone = {"prompt": "P", "completion": "a"}
    rows = [
        alone | {"scores": {"helpful": 2}},
        {"prompt": "Q", "completion": "b", "helpful": 0, "harmless": 4},
    ]
    found = labels(Unpaired(path=file(tmp_path, rows, "u.jsonl"), batch=2, score=["harmless", "helpful"]))
    assert sorted(found.nan_to_num(-9).tolist()) == [[-9.0, 2.0], [4.0, 0.0]]


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([1, 2, 3], "column scores must hold a number for each of a, b, by name"),
        ([{"a": 1}, {"c": 1}, {"a": 2}], "column scores has none of a, b (there are c)"),
        ([{"a": 1}, {"a": "x"}, {"a": 2}], "column a is 'x'; write a finite number"),
        ([{"a": 1}, {"a": True}, {"a": 2}], "column a is 'True'; write a finite number"),
        ([{"a": 1, "b": 2}] * 3, "all scores are equal for each head"),
        ([{"a": 1}, {"b": 2}, {"b": 2}], "all scores are equal for each head"),  # no two that can be compared
        ({"a": [1, 2, 3]}, "column scores must be a list"),
    ],
)
def test_a_malformed_row_is_one_line(scores: Any, said: str, tmp_path: Path) -> None:
    path = file(tmp_path, [ANSWERS | {"scores": scores}])
    with pytest.raises(ValueError) as raised:
        read(Ranked(path=path, batch=1, score=["a", "b"]), student(), seed=0)
    assert said in str(raised.value) and "line 1: " in str(raised.value) and "\n" not in str(raised.value)


def test_names_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, [told(0, 1.0, "x", 1.0), told(1, 0.0, 1.0, 1.0)])
    for kind, score, said in (
        (Ranked, ["success"], r"score=\[success\] must name two scores or more"),
        (Ranked, ["success", "success"], "each once"),
        (Ranked, ["success", "a/b"], "'a/b' is part of metric names"),
        (Pairs, ["success", "cost"], "data=pairs has none; set data=ranked"),
        (Ranked, ["success", "fun"], "score=fun is not a score of recorded episodes"),
        (Ranked, ["success", "cost"], "f episode 1: the cost of a turn is 'x', not a finite"),
    ):
        with pytest.raises(ValueError, match=said):
            read(kind(path=path, batch=1, score=score), student(), seed=0)
