"""Exact rows: what the expected update of shipped algorithms is, in games whose episodes are listed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lit_agentrl.certificates.certificate import EXACT, MEMBERS, measure_direction
from lit_agentrl.certificates.estimator import Estimator, compute_loss_gradients
from lit_agentrl.certificates.exact import make_table
from lit_agentrl.certificates.games import Move, TableGame, list_paths
from lit_agentrl.certificates.objectives import list_gradients
from lit_agentrl.certificates.shipped import LENGTHS, ONE_TURN, PROMPTS, REPEAT, STOP, TURNS
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rl.objective import Objective
from tests.rl.ragged import fresh
from tests.update.bare import build, float64, gpt2, off_policy, step
from tests.update.bare import gradient as gradient_of_step

TIGHT = {"atol": 1e-10, "rtol": 0}


def expected_update(objective: Objective, game: TableGame, members: int = MEMBERS) -> torch.Tensor:
    return Estimator(objective, game).compute_moments(members).mean


def gradient(game: TableGame, name: str = "return") -> torch.Tensor:
    return list_gradients(make_table(game), 0.0)[name]


def test_leave_one_out_is_the_gradient_of_the_return() -> None:
    objective = fresh("rloo")
    for game in (ONE_TURN, PROMPTS, LENGTHS, TURNS, STOP, REPEAT):
        torch.testing.assert_close(expected_update(objective, game), gradient(game), **TIGHT)


def test_the_expected_update_is_the_finite_difference_of_the_expected_return() -> None:
    """An independent way: every path's probability from softmax by hand, central differences of the mean."""

    def mean_return(logits: list[float]) -> float:
        a, b, c = (
            torch.tensor(logits[i : i + 2], dtype=torch.float64).softmax(0).tolist() for i in (0, 2, 4)
        )
        return a[0] * 0.3 + a[1] * (b[0] * 1.0 + b[1] * (c[0] * 0.0 + c[1] * 0.7))

    logits, h = [0.2, 0.0, 0.0, 0.5, -0.3, 0.0], 1e-5
    difference = []
    for i in range(6):
        up, down = ([x + sign * h * (j == i) for j, x in enumerate(logits)] for sign in (1, -1))
        difference.append((mean_return(up) - mean_return(down)) / (2 * h))
    found = expected_update(fresh("rloo"), LENGTHS)
    torch.testing.assert_close(found, torch.tensor(difference, dtype=torch.float64), **TIGHT)


def test_grpo_weights_a_prompt_by_what_the_std_of_its_groups_makes_of_it() -> None:
    """For solved or not, with k of N solved, the advantage of a success is (1 - k/N)/(std + eps), ddof 1."""
    members, eps = 4, 1e-6

    def weight(p: float) -> float:
        total = 0.0
        for k in range(1, members):
            std = math.sqrt(k * (members - k) / members / (members - 1))
            # E of mean_i A_i d log p_i / d logit: successes move it by 1 - p, failures by -p
            moved = k * (1 - k / members) * (1 - p) + (members - k) * (k / members) * p
            chance = math.comb(members, k) * p**k * (1 - p) ** (members - k)
            total += chance * moved / (std + eps) / members
        return total / (p * (1 - p))

    found = expected_update(fresh("grpo"), PROMPTS)
    easy, hard = (p * (1 - p) * weight(p) / 2 for p in (0.5, 0.1))
    expected = torch.tensor([-easy, easy, -hard, hard], dtype=torch.float64)
    torch.testing.assert_close(found, expected, **TIGHT)
    # so it weights prompts by neither the return alone nor by its std alone
    assert 1.0 < weight(0.1) / weight(0.5) < 0.25 / 0.09


def test_dr_grpo_is_unbiased_after_a_constant() -> None:
    objective = fresh("dr_grpo")
    scale = (MEMBERS - 1) / MEMBERS / objective.aggregate.keywords["max_tokens"]  # type: ignore[attr-defined]
    for game in (PROMPTS, LENGTHS, TURNS, STOP):
        torch.testing.assert_close(expected_update(objective, game), scale * gradient(game), **TIGHT)


def test_remax_is_the_gradient_of_the_return() -> None:
    for game in (PROMPTS, LENGTHS, STOP):
        torch.testing.assert_close(expected_update(fresh("remax"), game), gradient(game), **TIGHT)


def test_gae_at_lambda_1_with_exact_values_is_the_gradient_of_the_return() -> None:
    exact = fresh(
        "ppo", "advantage=gae_token_raw", "advantage.gae_lambda=1.0", "aggregate=seq_mean_token_sum"
    )
    for game in (LENGTHS, TURNS, STOP):
        torch.testing.assert_close(expected_update(exact, game), gradient(game), **TIGHT)


def test_a_mean_over_the_tokens_of_a_sequence_maximises_the_return_per_token() -> None:
    """Of (R - mean) / tokens, not of the return: a long success counts for less than a short one."""
    objective = fresh("rloo", "aggregate=seq_mean_token_mean")
    found = measure_direction(objective, LENGTHS)
    assert (found.objective, found.objective_bias <= EXACT, found.is_exact) == (
        "return / tokens",
        True,
        False,
    )
    torch.testing.assert_close(
        expected_update(objective, LENGTHS), gradient(LENGTHS, "return / tokens"), **TIGHT
    )


def test_a_mean_over_all_tokens_is_biased_where_lengths_differ_and_only_there() -> None:
    objective = fresh("rloo", "aggregate=token_mean")
    assert not measure_direction(objective, LENGTHS).is_exact
    assert all(measure_direction(objective, game).is_exact for game in (ONE_TURN, REPEAT))


@pytest.mark.parametrize("lag", [1, 4])
def test_a_ratio_of_whole_replies_corrects_for_an_older_policy_and_one_of_tokens_does_not(lag: int) -> None:
    late = replace(LENGTHS, lag=lag)
    # the ratio of a trajectory stands at each of its tokens, so that their mean counts it once
    whole = fresh("rloo", "ratio=trajectory", "aggregate=seq_mean_token_mean")
    torch.testing.assert_close(expected_update(whole, late), gradient(late), **TIGHT)
    assert not measure_direction(fresh("rloo", "ratio=trajectory"), late).is_exact
    token = measure_direction(fresh("rloo", "ratio=token"), late)
    assert not token.is_exact and token.cosine > 0.99


def test_a_ratio_of_turns_is_biased_where_an_older_policy_played_several_turns() -> None:
    late = replace(TURNS, lag=4)
    assert measure_direction(
        fresh("rloo", "ratio=trajectory", "aggregate=seq_mean_token_mean"), late
    ).is_exact
    assert not measure_direction(fresh("rloo", "ratio=turn", "aggregate=seq_mean_turn_mean"), late).is_exact


def test_a_batch_with_too_many_others_is_sampled_with_an_interval_that_holds_the_exact_update() -> None:
    estimator = Estimator(fresh("rloo"), ONE_TURN)
    sampled, exact = estimator.compute_moments(2, most=1), estimator.compute_moments(2)
    assert exact.half_width == 0 < sampled.half_width < 0.1 * float(exact.mean.norm())
    assert float((sampled.mean - exact.mean).norm()) < sampled.half_width
    assert sampled.variance == pytest.approx(exact.variance, rel=0.1)
    again = estimator.compute_moments(2, most=1)
    assert torch.equal(again.mean, sampled.mean)  # common random numbers


@pytest.mark.parametrize("name", ["grpo", "loop", "dpo"])
def test_the_updates_are_those_that_a_run_makes(name: str) -> None:
    with float64():
        objective, batch = fresh(name), off_policy()
        module = build(objective)
        step(module, batch)
        network, rows = gpt2(), batch.to_dict()
        given = {"tokens_BT": rows["tokens_BT"], "is_action_BT": rows["is_action_BT"]}
        logp_BT = score_tokens(network, **given).logp_BT.detach()
        columns = {"logp_BT": logp_BT, "entropy_BT": torch.zeros_like(logp_BT), "ref_logp_BT": logp_BT}
        columns["old_logp_BT"] = rows["sampler_logp_BT"]
        if objective.needs("sampler_logp_BT"):
            columns["old_logp_BT"] = logp_BT
        found = compute_loss_gradients(objective, rows | columns)
        assert found is not None
        kept, gradients = found
        again_BT = score_tokens(network, **{key: kept[key] for key in given}).logp_BT
        (gradients["logp_BT"] * torch.where(kept["is_action_BT"], again_BT, 0.0)).sum().backward()
        own = torch.cat([weight.grad.flatten() for weight in network.parameters() if weight.grad is not None])
        made = gradient_of_step(module)
    assert float(made.norm()) > 1e-3
    torch.testing.assert_close(own, made, rtol=1e-9, atol=1e-12)


def test_games_that_cannot_be_listed_are_refused() -> None:
    for moves, told in (
        ({"a": (Move(to="a"),)}, "game mine: an episode has more than 32 tokens"),
        ({"a": (Move(to="b"),)}, "game mine: state b has no moves"),
        ({"a": (Move(reward=1.0, ends_turn=False),)}, "game mine: a token of a pays or ends the episode"),
    ):
        with pytest.raises(ValueError, match=told):
            list_paths(TableGame("mine", "", ("a",), moves))


def test_reinforce_pp_is_scaled_by_the_std_of_its_batch() -> None:
    """Two arms, returns 0 and 1, one group of two: only mixed groups teach, with advantages of half over the std."""
    p = 0.3
    game = TableGame(
        "arms", "", ("a",), {"a": (Move(), Move(reward=1.0))}, {"a": (0.0, math.log(p / (1 - p)))}
    )
    std = math.sqrt(0.5 + 1e-8)  # of 0 and 1, ddof 1, as `masked_whiten` has it
    expected = 2 * p * (1 - p) * (0.5 / std) / 2
    found = expected_update(fresh("reinforce_pp"), game, members=2)
    torch.testing.assert_close(found, torch.tensor([-expected, expected], dtype=torch.float64), **TIGHT)


def test_loop_is_unbiased_where_replies_are_equally_long_and_not_where_they_differ() -> None:
    objective = fresh("loop")
    assert all(measure_direction(objective, game).is_exact for game in (ONE_TURN, STOP, REPEAT))
    assert not measure_direction(objective, LENGTHS).is_exact


@pytest.mark.parametrize("name", ["dapo", "cispo", "gspo", "gmpo", "sapo", "gigpo"])
def test_of_one_token_the_kin_of_grpo_are_grpo(name: str) -> None:
    """Clips and means of tokens do nothing there; the steps of gigpo are the episodes once more."""
    factor = 2.0 if name == "gigpo" else 1.0
    torch.testing.assert_close(
        expected_update(fresh(name), ONE_TURN), factor * expected_update(fresh("grpo"), ONE_TURN), **TIGHT
    )


@pytest.mark.parametrize(
    "game",
    [ONE_TURN, *(pytest.param(g, marks=pytest.mark.slow) for g in (PROMPTS, LENGTHS, TURNS, STOP, REPEAT))],
)
def test_gvpo_and_sppo_are_multiples_of_one_gradient(game: TableGame) -> None:
    """GVPO: beta times that of the return.  SPPO: 2 eta times that of the wins."""
    torch.testing.assert_close(expected_update(fresh("gvpo"), game), 0.1 * gradient(game), **TIGHT)
    torch.testing.assert_close(
        expected_update(fresh("sppo"), game), 20 * gradient(game, "wins"), atol=1e-9, rtol=0
    )
