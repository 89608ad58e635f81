"""XPO and Nash-MD: golden numbers, what they are without their own terms, and that nothing else counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_agentrl.experimental.exploring import Exploring, against_opponent, opposed, own
from lit_agentrl.rl.objective import metric_values
from lit_agentrl.rl.preference import links, scores
from tests.rl.pairs import loss_of as pairs_loss
from tests.rl.pairs import objective, rows, three
from tests.rl.ragged import fresh, loss_of, ragged

pytestmark = pytest.mark.usefixtures("in_float64")


def xpo(alpha: float = 0.01, **parts: Any) -> Exploring:
    given = {
        "pairing": opposed,
        "score": scores.summed,
        "reference": scores.frozen,
        "link": links.logistic,
    }
    return Exploring(**{"name": "xpo", "beta": 0.1, "alpha": alpha, **given, **parts})


def one_pair() -> dict[str, Tensor]:
    """The policy's side wins: log-ratios 1 and -0.5; the reference's reply has a log-prob of -4 nats."""
    made = rows([[[(-6.0, -6.5)] * 2], [[(-2.0, -1.75)], [(-2.0, -1.75)]]], [1.0, 0.0])
    return made | {"is_opponent_B": torch.tensor([False, True])}


def dpo(z: float) -> float:
    return math.log1p(math.exp(-z))


def test_the_golden_number() -> None:
    assert pairs_loss(xpo(), one_pair()) == pytest.approx(dpo(0.15) + 0.01 * -4.0, abs=1e-12)
    assert pairs_loss(xpo(), one_pair()) == pytest.approx(0.580957, abs=1e-6)
    flipped = one_pair() | {"return_B": torch.tensor([0.0, 1.0])}
    assert pairs_loss(xpo(), flipped) == pytest.approx(dpo(-0.15) + 0.01 * -4.0, abs=1e-12)
    tied = one_pair() | {"return_B": torch.tensor([1.0, 1.0])}  # no pair, and optimism all the same
    assert pairs_loss(xpo(), tied) == pytest.approx(0.01 * -4.0, abs=1e-12)
    assert bool(xpo().prepare(tied)["keep_B"].tolist() == [False, True])


def test_the_gradient_reaches_sampled_tokens_of_both_sides_alone() -> None:
    batch = one_pair()
    logp_BT = batch["logp_BT"].clone().requires_grad_()
    tensors = batch | {"logp_BT": logp_BT}
    loss, metrics = xpo().loss(tensors | xpo().count(tensors))
    (grad_BT,) = torch.autograd.grad(loss, logp_BT)
    pull = 0.1 / (1 + math.exp(0.15))
    side_B1 = torch.tensor([[-pull], [pull + 0.01]], dtype=torch.float64)
    torch.testing.assert_close(grad_BT, torch.where(batch["is_action_BT"], side_B1, 0.0))
    assert metric_values(metrics)["opponent_logp"] == -4.0


@pytest.mark.parametrize("seed", range(3))
def test_without_optimism_it_is_dpo_on_the_same_pairs_to_the_bit(seed: int) -> None:
    batch, plain = ragged(seed), objective(pairing=opposed)
    for one, other in zip(loss_of(xpo(0.0), batch), loss_of(plain, batch), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(xpo(0.0).prepare(batch)["keep_B"], plain.prepare(batch)["keep_B"])
    recorded = three() | {"is_opponent_B": torch.tensor([False, True] * 3)}
    assert pairs_loss(xpo(0.0), recorded) == pairs_loss(objective(), recorded)


def ready(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    keep_B = xpo(0.5).prepare(batch)["keep_B"]
    kept = {name: tensor[keep_B] for name, tensor in batch.items()}
    return kept | xpo(0.5).count(kept)


def share(tensors: dict[str, Tensor], rows_B: Tensor | slice = slice(None)) -> float:
    part = {name: t[rows_B] if t.dim() else t for name, t in tensors.items()}
    return float(xpo(0.5).loss(part)[0])


def test_micro_batches_add_up_and_fillers_and_padding_do_not_count() -> None:
    batch = ragged(1, sizes=(4, 3, 5, 2))
    batch["return_B"][12:] = 0.25  # a group without a pair
    tensors = ready(batch)
    whole, first_B = share(tensors), tensors["group_B"] <= 1
    assert share(tensors, first_B) + share(tensors, ~first_B) == pytest.approx(whole, abs=1e-12)
    assert bool((tensors["group_B"] == 3).any()), "the reference's trajectory of that group is kept"
    wide = {n: torch.nn.functional.pad(t, (0, 3)) if n.endswith("_BT") else t for n, t in tensors.items()}
    assert share(wide) == pytest.approx(whole, abs=1e-12)
    filler = {name: t[:1].clone() if t.dim() else t for name, t in tensors.items()}
    filler |= {
        "is_action_BT": torch.zeros_like(filler["is_action_BT"]), "return_B": torch.tensor([math.nan]),
        "trajectory_B": torch.tensor([-1]), "is_opponent_B": torch.tensor([True]), "group_B": torch.tensor([-1]),
    }  # fmt: skip
    assert share(filler) == 0.0 and int(xpo().count(filler)["num_explored"]) == 0
    garbage = torch.where(tensors["is_action_BT"], tensors["logp_BT"], 1e6)
    assert share(tensors | {"logp_BT": garbage}) == whole


def test_the_mean_is_over_trajectories_not_over_rows() -> None:
    whole = one_pair()
    split = {name: t[[0, 1, 1]].clone() for name, t in whole.items()}
    split["is_action_BT"][1] &= split["turn_BT"][1] == 0
    split["is_action_BT"][2] &= split["turn_BT"][2] == 1
    split["first_turn_B"] = torch.tensor([0, 0, 1])
    assert pairs_loss(xpo(), split) == pytest.approx(pairs_loss(xpo(), whole), abs=1e-12)


def test_distances_are_those_of_the_policys_own_rows() -> None:
    batch = one_pair()
    batch["old_logp_BT"] = batch["logp_BT"] - torch.tensor([[0.25], [3.0]])
    metrics = xpo().loss(batch | xpo().count(batch))[1]
    assert metric_values(metrics)["approx_kl"] == -0.25
    assert xpo().measured(batch)["is_action_BT"].any(1).tolist() == [True, False]


@pytest.mark.parametrize("alpha", [-1.0, math.inf, math.nan])
def test_an_optimism_that_makes_no_sense(alpha: float) -> None:
    with pytest.raises(ValueError, match=r"alpha=.* must be finite and >= 0"):
        xpo(alpha)


# ------------------------------------------------------------------ Nash-MD
def duel(returns: list[float], opponents: list[bool]) -> dict[str, Tensor]:
    """A group of one reply each of two tokens; that of the policy has log-probs -1 and -2, log-ratios 0.2 and -0.1."""
    made = rows([[[(-1.0, -1.2), (-2.0, -1.9)]] for _ in returns], returns)
    more = {"is_opponent_B": torch.tensor(opponents), "group_B": torch.zeros(len(returns), dtype=torch.int64)}
    return {**made, **more, "reward_BT": torch.zeros_like(made["logp_BT"])}


def nash(beta: float) -> Any:
    return fresh("nash_md", f"kl.coef={beta}")


def test_the_gradient_is_that_of_the_golden_number() -> None:
    batch = duel([0.5, 0.1, 0.2, 0.3, 0.4, 0.9], [False] + [True] * 5)  # beats four of five: p = 0.8
    logp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    log_ratio = torch.tensor([0.2, -0.1], dtype=torch.float64)
    golden = 0.1 * (log_ratio * logp).sum() - 0.3 * logp.sum()
    assert float(golden.detach()) == pytest.approx(0.9)
    golden.backward()
    _, grad_BT = loss_of(nash(0.1), batch)
    assert logp.grad is not None
    torch.testing.assert_close(grad_BT[0][batch["is_action_BT"][0]], logp.grad)
    assert not grad_BT[1:].any(), "opponents are there to be compared with"
    assert not grad_BT[~batch["is_action_BT"]].any()


def test_win_rates_are_over_opponents_alone_and_a_tie_is_a_half() -> None:
    batch = duel([1.0, 0.5, 0.5, 0.0, math.nan, 0.7], [False, False, True, True, True, False])
    names = ("return_B", "group_B", "trajectory_B", "is_action_BT", "is_opponent_B")
    found = against_opponent(**{name: batch[name] for name in names})
    values = [
        float(row[mask][0]) for row, mask in zip(found.advantage_BT, batch["is_action_BT"], strict=True)
    ]
    assert values == [0.5, 0.25, 0.0, 0.0, 0.0, 0.5]
    alone = batch | {"is_opponent_B": torch.zeros(6, dtype=torch.bool)}
    found = against_opponent(**{name: alone[name] for name in names})
    assert not found.advantage_BT.any()
    assert own(is_opponent_B=batch["is_opponent_B"]).tolist() == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]


def test_groups_are_apart() -> None:
    one, other = duel([1.0, 0.0], [False, True]), duel([0.0, 1.0], [False, True])
    other = other | {"group_B": other["group_B"] + 1, "trajectory_B": other["trajectory_B"] + 2}
    both = {name: torch.cat([one[name], other[name]]) for name in one}
    _, grad_BT = loss_of(nash(0.1), both)
    alone = [loss_of(nash(0.1), each)[1] for each in (one, other)]
    torch.testing.assert_close(grad_BT, torch.cat(alone) / 2)


def whole(coef: float) -> Any:
    return fresh("nash_md", "advantage=against_opponent_regularised", f"advantage.coef={coef}", "kl=none")


def test_the_whole_log_ratio_is_taken_off_the_win_rate() -> None:
    batch = duel([0.5, 0.1, 0.2, 0.3, 0.4, 0.9], [False] + [True] * 5)  # beats four of five: p = 0.8
    batch["old_logp_BT"] = batch["logp_BT"]
    prepared = whole(0.1).prepare(batch)
    is_action_T = batch["is_action_BT"][0]
    assert prepared["advantage_BT"][0][is_action_T].tolist() == pytest.approx([0.29, 0.29])
    assert not prepared["advantage_BT"][1:].any(), "opponents are there to be compared with"
    in_rows = batch | {"trajectory_B": torch.tensor([0, 0, 1, 2, 3, 4]), "group_B": torch.zeros(6).long()}
    in_rows |= {"return_B": torch.tensor([0.5, 0.5, 0.1, 0.2, 0.3, 0.9])}
    in_rows |= {
        "is_opponent_B": torch.tensor([False] * 2 + [True] * 4)
    }  # one trajectory of two rows: p = 0.75
    rows_BT = whole(0.1).prepare(in_rows)["advantage_BT"][:2][batch["is_action_BT"][:2]]
    assert rows_BT.tolist() == pytest.approx([0.25 - 0.1 * 0.2] * 4)


@pytest.mark.parametrize("coef", ["0", "-1", ".inf"])
def test_a_whole_log_ratio_needs_a_weight(coef: str) -> None:
    algorithm = fresh(
        "nash_md", "advantage=against_opponent_regularised", f"advantage.coef={coef}", "kl=none"
    )
    with pytest.raises(ValueError, match=r"coef=.* must be finite and > 0"):
        algorithm.prepare(duel([1.0, 0.0], [False, True]))


@pytest.mark.slow
def test_the_expected_step_is_the_gradient_of_the_win_rate_minus_the_kl() -> None:
    """Enumerate replies of two tokens, the second of which depends on the first, and differentiate the sums."""
    draw = torch.Generator().manual_seed(0)
    logits, reference, played = (
        torch.randn(4, 3, generator=draw) for _ in range(3)
    )  # row 0, then one per first
    worth = torch.randn(9, generator=draw)
    replies = [(a, b) for a in range(3) for b in range(3)]

    def logps(table: Tensor) -> Tensor:
        """Log-prob of both tokens of each reply, (9, 2)."""
        table = table.log_softmax(1)
        return torch.stack([torch.stack([table[0, a], table[1 + a, b]]) for a, b in replies])

    free = logits.clone().requires_grad_()
    policy, opponent = logps(free).sum(1).exp(), logps(played).sum(1).exp()
    wins = (worth[:, None] > worth[None, :]).double() + 0.5 * (worth[:, None] == worth[None, :]).double()
    kl = (policy * (logps(free) - logps(reference)).sum(1)).sum()
    (expected,) = torch.autograd.grad(policy @ wins @ opponent - 0.3 * kl, free)

    def step(algorithm: Any) -> Tensor:
        """The mean update over all pairs of the policy's reply and the opponent's."""
        total = torch.zeros_like(logits)
        for i in range(9):
            for j in range(9):
                batch = duel([float(worth[i]), float(worth[j])], [False, True])
                for name, table in (("logp_BT", logits), ("old_logp_BT", logits), ("ref_logp_BT", reference)):
                    pair_BT = torch.full_like(batch["logp_BT"], math.nan)
                    pair_BT[batch["is_action_BT"]] = logps(table)[[i, j]].flatten()
                    batch[name] = pair_BT
                _, grad_BT = loss_of(algorithm, batch)
                mine = logits.clone().requires_grad_()
                pushed = (grad_BT[0][batch["is_action_BT"][0]] * logps(mine)[i]).sum()
                total -= policy[i].item() * opponent[j].item() * torch.autograd.grad(pushed, mine)[0]
        return total

    torch.testing.assert_close(step(whole(0.3)), expected, rtol=0, atol=1e-12)
    by_token = step(fresh("nash_md", "kl.coef=0.3"))
    torch.testing.assert_close(
        by_token[1:], expected[1:], rtol=0, atol=1e-12
    )  # nothing follows the last token
    assert (by_token[0] - expected[0]).abs().max() > 0.01
