"""The league: results, ratings and choice against slow loops, and a run that goes on as if it had never stopped."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from lit_agentrl.batch import StepBatch
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.episode import Source
from lit_agentrl.experimental.leagues.league import League
from lit_agentrl.experimental.leagues.table import RULES, Table, solve_meta_game
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import Training
from tests.conftest import tiny_network
from tests.integration.conftest import assert_equal_runs

PROMPTS = StepBatch(0, seed_P=[7, 8], task_P=[0, 0], group_P=[0, 1])


def value_of(payoffs: np.ndarray, mixture: np.ndarray) -> float:
    """What the best reply to a mixture wins."""
    return float(max(payoffs @ mixture))


def test_the_meta_game_is_solved_as_by_linear_programming() -> None:
    rock = np.array([[0.5, 0, 1], [1, 0.5, 0], [0, 1, 0.5]])
    assert solve_meta_game(rock) == pytest.approx(np.full(3, 1 / 3), abs=0.03)
    best = np.array([[0.5, 0.1, 0.2], [0.9, 0.5, 0.6], [0.8, 0.4, 0.5]])
    assert solve_meta_game(best) == pytest.approx([0, 1, 0], abs=1e-3)
    rng = np.random.default_rng(0)
    for _ in range(20):
        upper = np.triu(rng.random((5, 5)), 1)
        payoffs = upper + np.tril(1 - upper.T, -1) + 0.5 * np.eye(5)
        # min v subject to P x <= v, sum x = 1
        solved = linprog(
            [0] * 5 + [1], A_ub=np.c_[payoffs, -np.ones(5)], b_ub=np.zeros(5), A_eq=[[1] * 5 + [0]], b_eq=[1],
            bounds=[(0, 1)] * 5 + [(None, None)],
        )  # fmt: skip
        assert solved.fun == pytest.approx(0.5), "a symmetric game has the value 1/2"
        assert value_of(payoffs, solve_meta_game(payoffs)) < 0.5 + 0.03
        assert value_of(payoffs, np.full(5, 0.2)) > 0.5


def test_rules_weigh_as_their_worked_numbers_say() -> None:
    square = np.full((3, 3), 0.5)
    assert RULES["hard"](np.array([0.5, 0.0, 1.0]), square) == pytest.approx([0.2, 0.8, 0])
    assert RULES["even"](np.array([0.5, 0.25, 1.0]), square) == pytest.approx([4 / 7, 3 / 7, 0])
    assert RULES["uniform"](np.array([0.5, 0.25, 1.0]), square) == pytest.approx([1 / 3] * 3)
    for rule in ("hard", "even"):
        assert RULES[rule](np.ones(3), square) == pytest.approx([1 / 3] * 3)


def test_results_fade_and_ratings_move_as_by_hand() -> None:
    table = Table(memory=0.5)
    table.add_member(0, 3)
    table.record(0, 3.0, 4.0)  # E = 1/2: 32 (0.75 - 0.5) = 8
    assert table.rates == [(3 + 0.5) / 5] and (table.rating, table.ratings) == (1508.0, [1492.0])
    table.add_member(10, 3)
    assert table.payoffs == [[0.5, pytest.approx(0.3)], [pytest.approx(0.7), 0.5]]
    assert table.ratings == [1492.0, 1508.0]
    table.record(1, 0.5, 1.0)
    assert table.rates == [(1.5 + 0.5) / 3, (0.5 + 0.5) / 2] and table.rating == 1508.0
    table.record(0, 0.0, 2.0)
    expected = 1 / (1 + 10 ** ((1492 - 1508) / 400))
    assert table.rating == pytest.approx(1508 - 32 * expected) and sum(table.ratings) + table.rating == 4508.0
    before = table.state_dict()
    table.record(0, 0.0, 0.0)
    assert table.ratings == before["ratings"], "an iteration without a duel moves no rating"


def test_the_oldest_but_the_first_leaves_and_the_table_stays_square() -> None:
    table = Table(memory=1.0)
    gone = []
    for name in range(5):
        gone.append(table.add_member(name, 3))
        table.record(len(table.names) - 1, float(name % 2), 1.0)
    assert gone == [None, None, None, 1, 1] and table.names == [0, 3, 4]
    payoffs = np.array(table.payoffs)
    assert payoffs.shape == (3, 3) and payoffs + payoffs.T == pytest.approx(np.ones((3, 3)))
    assert "policy" in table.format() and table.format().splitlines()[0] == "member rating 0 3 4"


def test_members_are_drawn_with_their_weights() -> None:
    table = Table(memory=1.0)
    for name in range(3):
        table.add_member(name, 9)
    table.wins, table.games = [0.0, 5.0, 9.0], [9.0, 9.0, 9.0]
    weights, cumulated = table.compute_weights("hard"), 0.0
    for member, weight in enumerate(weights):
        assert table.choose("hard", cumulated + weight / 2) == member
        cumulated += weight
    assert math.isclose(cumulated, 1.0) and table.choose("hard", 1 - 1e-12) == 2


def progress(iteration: int, returns: tuple[float, float]) -> Progress:
    """A group of a policy's and of an opponent's episode."""
    episodes: Any = [
        SimpleNamespace(
            group=0, source=source, training_return=value, total_reward=value, success=value > 0, failed=False,
        )
        for source, value in zip((Source.ROLLOUT, Source.OPPONENT), returns, strict=True)
    ]  # fmt: skip
    return Progress(iteration, 1, 2, 3, episodes, episodes, False, lambda wave: PROMPTS)


def test_the_opponent_has_the_weights_of_the_member_that_was_drawn() -> None:
    policy, league = tiny_network(seed=0), League(every=1, rule="uniform", size=3)
    opponent = league.setup(Training(lambda episode: [], None, policy))
    assert opponent is not policy
    history: list[torch.Tensor] = []
    for iteration in range(6):
        league.plan(PROMPTS, 2)
        names = league._table.names
        weight = opponent.lm_head.weight
        wanted = history[names[league._chosen]] if history else policy.lm_head.weight
        assert torch.equal(weight, wanted) and not weight.requires_grad
        history.append(policy.lm_head.weight.detach().clone())
        measured = league.learn(progress(iteration, (1.0, 0.0)))
        assert measured["win_rate"] == (1.0, 1.0) and measured["opponent_age"][0] >= 0
        with torch.no_grad():
            policy.lm_head.weight.add_(1.0)
    assert league._table.names == [0, 4, 5] and league._table.rating > 1500
    again = League(every=1, rule="uniform", size=3)
    other = again.setup(Training(lambda episode: [], None, tiny_network(seed=1)))
    again.load_state_dict(league.state_dict())
    for each in (league, again):
        each.plan(PROMPTS, 2)
    assert (
        torch.equal(other.lm_head.weight, opponent.lm_head.weight)
        and again.make_notes() == league.make_notes()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "best"}, "rule=best"),
        ({"every": 0}, "every=0"),
        ({"size": 1}, "size=1"),
        ({"memory": 1.5}, r"memory=1.5 must be in \[0, 1\]"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        League(**options)


@pytest.mark.slow
def test_a_resumed_league_goes_on_to_the_bit(tmp_path: Path) -> None:
    options = [
        "env=bandit", "rollout.prompts=2", "rollout.members=2", "rollout.max_reply_tokens=12", "test.episodes=0",
        "rollout.max_context_tokens=128", "val.episodes=2", "val.every=1", "engine.num_slots=4", "algo=nash_md",
        "algo/structure=league", "algo.structure.every=1", "algo.structure.rule=nash",
    ]  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main_train([*options, "trainer.max_epochs=3", f"hydra.run.dir={whole}"])
    main_train([*options, "trainer.max_epochs=2", f"hydra.run.dir={parts}"])
    main_train([f"resume={parts}", "trainer.max_epochs=3"])
    assert_equal_runs(whole, parts)
    tables = [sorted((folder / "league").iterdir())[-1].read_text() for folder in (whole, parts)]
    assert tables[0] == tables[1] and tables[0].startswith("member rating 0 1 2")
