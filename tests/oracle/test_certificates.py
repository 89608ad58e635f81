"""Advantages of verl in the certifier's games: which of them are unbiased, and how far the others miss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import comb, log
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_agentrl.certificates.certificate import Direction, measure_direction
from lit_agentrl.certificates.estimator import Estimator
from lit_agentrl.certificates.games import Move, TableGame, shift_returns
from lit_agentrl.certificates.shipped import LENGTHS, ONE_TURN, PROMPTS, REPEAT, STOP, TURNS
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.objective import Objective
from tests.rl.ragged import fresh

pytestmark = pytest.mark.oracle
GAMES = (PROMPTS, LENGTHS, TURNS, STOP, REPEAT)  # with two choices a token, so that p says all


def adapt(estimator: Callable[..., Any], *, reads_probabilities: bool = False) -> Objective:
    """Leave-one-out of ours with the advantage of verl in its place, and sums over the tokens of an episode."""

    def advantage(
        *, reward_BT: Tensor, is_action_BT: Tensor, group_B: Tensor, old_logp_BT: Tensor
    ) -> Advantage:
        more = {}
        if reads_probabilities:
            logp_BT = torch.where(is_action_BT, old_logp_BT, 0.0)
            more = {
                "old_log_probs": logp_BT,
                "sum_pi_squared": logp_BT.exp() ** 2 + (1 - logp_BT.exp()) ** 2,
            }
        advantage_BT, _ = estimator(
            token_level_rewards=torch.where(is_action_BT, reward_BT, 0.0),
            response_mask=is_action_BT.to(reward_BT.dtype),
            index=group_B.numpy(),
            **more,
        )
        return Advantage(torch.where(is_action_BT, advantage_BT, 0.0))

    return replace(fresh("rloo", "aggregate=seq_mean_token_sum"), advantage=advantage)


def certify(objective: Objective, members: int = 2) -> dict[str, Direction]:
    return {game.name: measure_direction(objective, game, members) for game in GAMES}


def test_leave_one_out_is_unbiased(verl: Any) -> None:
    found = certify(adapt(verl.compute_rloo_outcome_advantage))
    assert all(each.is_exact and each.scale == pytest.approx(1) for each in found.values())


def test_opo_is_biased_where_lengths_differ(verl: Any) -> None:
    """Its baseline holds the episode itself, with its length as weight, which depends on what was sampled."""
    found = certify(adapt(verl.compute_opo_outcome_advantage))
    assert {name for name, each in found.items() if not each.is_exact} == {"lengths"}
    assert found["lengths"].cosine == pytest.approx(0.9895, abs=1e-4)


def test_gpg_depends_on_what_counts_as_zero(verl: Any) -> None:
    """Its factor, rows over rows whose return is not 0, goes with the outcomes; returns that are shifted have none."""
    objective = adapt(verl.compute_gpg_outcome_advantage)
    found = certify(objective)
    assert found["prompts"].bias == pytest.approx(0.1176, abs=2e-3)
    assert found["lengths"].cosine == pytest.approx(0.9409, abs=1e-4)
    for game in (ONE_TURN, PROMPTS, LENGTHS, TURNS):
        shifted = measure_direction(objective, shift_returns(game, 2.0), 2)
        assert shifted.is_exact and shifted.scale == pytest.approx(0.5)


def make_bandit(chance: float) -> TableGame:
    """One token, solved with this chance."""
    moves = {"a": (Move(), Move(reward=1.0))}
    return TableGame("bandit", "one token", ("a",), moves, {"a": (0.0, log(chance / (1 - chance)))})


def compute_update(chance: float, members: int) -> float:
    """The expected update of the optimal token baseline in the logit of the rewarded token, in closed form.

    With k of N solved and weights ``W = 2 (1 - pi)^2``: ``B = k W_1 / (k W_1 + (N - k) W_0)``, and a success adds
    ``(1 - B) q``, a failure ``B p``.  For N = 2 it is ``p^2 q^2 / (p^2 + q^2)``; the gradient is ``p q``.
    """
    p, q, total = chance, 1 - chance, 0.0
    for k in range(1, members):
        baseline = k * q * q / (k * q * q + (members - k) * p * p)
        mean = (k * (1 - baseline) * q + (members - k) * baseline * p) / members
        total += comb(members, k) * p**k * q ** (members - k) * mean
    return total


@pytest.mark.parametrize("members", [2, 4, 8])
@pytest.mark.parametrize("chance", [0.5, 0.1, 0.02])
def test_the_optimal_token_baseline_forgets_hard_prompts(verl: Any, chance: float, members: int) -> None:
    """The weight of the episode itself is small if it is likely, so that a rare success is its own baseline."""
    game = make_bandit(chance)
    for name in (
        "compute_optimal_token_baseline_advantage",
        "compute_multi_turn_optimal_token_baseline_advantage",
    ):
        objective = adapt(getattr(verl, name), reads_probabilities=True)
        mean = Estimator(objective, game).compute_moments(members).mean
        expected = compute_update(chance, members)
        torch.testing.assert_close(mean, torch.tensor([-expected, expected]), atol=1e-7, rtol=1e-6)
    if members == 2:
        assert expected == pytest.approx((chance * (1 - chance)) ** 2 / (chance**2 + (1 - chance) ** 2))


def test_the_optimal_token_baseline_is_biased_in_every_game_but_one(verl: Any) -> None:
    found = certify(adapt(verl.compute_optimal_token_baseline_advantage, reads_probabilities=True))
    assert {name for name, each in found.items() if each.is_exact} == {"stop"}
    assert found["prompts"].cosine == pytest.approx(0.9646, abs=1e-4)
    assert found["lengths"].cosine == pytest.approx(0.9443, abs=1e-4)
