"""Players of an evaluation are rated against each other, game by game."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lit_agentrl.config.errors import UserError
from lit_agentrl.evaluate.results_file import _READ, read_compared
from lit_agentrl.evaluate.rivals import add_ratings, require_rivals
from lit_agentrl.report.ratings import Glicko, update_glicko2


def make_record(env: str, *solved: bool | None) -> dict[str, Any]:
    return {"env": env, "solved": list(solved)}


def test_the_rows_of_a_game_are_rated_on_its_tasks() -> None:
    first, second = make_record("a", True, True, False), make_record("a", False, None, False)
    alone = make_record("b", True)
    add_ratings([first, alone, second])
    by_hand = update_glicko2(Glicko(), [(Glicko(), 1.0), (Glicko(), 0.5)])
    rating = first["rating"]
    assert rating["mean"] == by_hand.rating > 1500 > second["rating"]["mean"] and "rating" not in alone
    assert rating["high"] - rating["low"] == pytest.approx(2 * 1.96 * by_hand.deviation) and rating["n"] == 3
    with pytest.raises(UserError, match="game a: .*the same episodes and members"):
        add_ratings([first, make_record("a", True)])


@pytest.mark.parametrize(
    ("options", "others", "models", "is_refused"),
    [
        ({}, 0, 1, True),
        ({"temperature": [0, 1]}, 0, 1, False),
        ({"shots": [0, 2]}, 0, 1, False),
        ({}, 1, 1, False),
        ({}, 0, 2, False),
        ({"ratings": False}, 0, 1, False),
    ],
)
def test_a_single_player_has_no_rating(
    options: dict[str, Any], others: int, models: int, is_refused: bool
) -> None:
    cfg = OmegaConf.create({"ratings": True, "temperature": 1.0, "shots": [0], "baselines": False} | options)
    compared = [make_record("a", True)] * others
    if is_refused:
        with pytest.raises(UserError, match="ratings=true .*compare="):
            require_rivals(cfg, compared, num_models=models)
    else:
        require_rivals(cfg, compared, num_models=models)


@pytest.mark.parametrize("ratings", [False, True])
def test_a_compared_file_without_outcomes_is_refused_for_ratings_alone(ratings: bool, tmp_path: Path) -> None:
    estimate = {"mean": 0.5, "low": 0.25, "high": 0.75}
    record: dict[str, Any] = dict.fromkeys(_READ) | {
        "model": "m", "env": "a", "success": estimate, "return": estimate, "temperature": 1.0, "cut_share": 0.0,
        "levels": {"chance_success": None, "oracle_success": None},
    }  # fmt: skip
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"config": {"run": None}, "results": [record]}))
    cfg = OmegaConf.create({"compare": str(path), "ratings": ratings})
    if ratings:
        with pytest.raises(UserError, match="old.json lacks solved; evaluate it by this version"):
            read_compared(cfg)
    else:
        assert read_compared(cfg)[0]["model"] == "m"
