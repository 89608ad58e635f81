"""Routers of a mixture of experts within an update: balanced over real tokens, held to recorded choices, left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import Policy
from lit_agentrl.models.routers import Routing, find_routers, freeze_routers
from lit_agentrl.models.routing import Routers
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.models.moe import moe
from tests.rl.ragged import fresh
from tests.update.bare import BareModule, float64, gradient, off_policy, play_on_ranks, step

RANKS = [[0], [1, 2, 3, 4, 5]]


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


def module(routing: Routing, *, lr: float = 1e-30, **update: Any) -> BareModule:
    policy = Policy(network=moe(), tokenizer=None, name="moe", routing=routing)  # type: ignore[arg-type]
    if routing.frozen:
        freeze_routers(policy.network)
    made = BareModule(
        policy, objective=fresh("grpo"), optim=OptimSettings(optimizer=torch.optim.SGD, lr=lr),
        update=UpdateSettings(**{"grad_clip": 1e9, "max_logp_gap": 1e9, **update}),
    )  # fmt: skip
    made.prepare()
    return made


@cache
def played() -> TrajectoryBatch:
    """Rows whose recorded log-probs are those of the network."""
    batch = off_policy()
    with torch.no_grad():
        logp_BT = score_tokens(moe(), tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT).logp_BT
    return replace(batch, sampler_logp_BT=logp_BT)


@cache
def whole(routing: Routing) -> tuple[Tensor, float]:
    made = module(routing, packing=False)
    step(made, played())
    return gradient(made), made.row.get("train/router_loss", 0.0)


BALANCED = Routing(loss=0.1)
REPLAYED = Routing(loss=0.1, replay="old")
OVER_BATCH = Routing(loss=0.1, loss_over="batch")
OVER_BATCH_REPLAYED = Routing(loss=0.1, loss_over="batch", replay="old")
KINDS = {
    "balanced": BALANCED,
    "replayed": REPLAYED,
    "over_batch": OVER_BATCH,
    "over_batch_replayed": OVER_BATCH_REPLAYED,
}
kinds = pytest.mark.parametrize("routing", list(KINDS.values()), ids=list(KINDS))


@kinds
@pytest.mark.parametrize("packing", [False, True, "auto"])
@pytest.mark.parametrize("budget", [60, 10**6])
def test_padding_packing_and_micro_batches_do_not_matter(routing: Routing, packing: Any, budget: int) -> None:
    made = module(routing, packing=packing, tokens_per_microbatch=budget)
    step(made, played())
    expected, loss = whole(routing)
    assert (gradient(made) - expected).norm() <= 1e-5 * expected.norm()  # the routers of Mixtral are float32
    assert made.row["train/router_loss"] == pytest.approx(loss, rel=1e-6)


@kinds
def test_ranks_do_not_matter(routing: Routing, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [played().select(torch.isin(played().group_B, torch.tensor(g))).trim() for g in RANKS]
    modules = [module(routing, packing=False, tokens_per_microbatch=60) for _ in shares]
    expected, loss = whole(routing)
    assert (play_on_ranks(monkeypatch, modules, shares) - expected).norm() <= 1e-5 * expected.norm()
    assert modules[0].row["train/router_loss"] == pytest.approx(loss, rel=1e-6)


def test_the_loss_is_the_mean_of_rows_and_its_weight_counts() -> None:
    """Of rows with sampled tokens: as many copies of padding as one likes change nothing."""
    network, batch = moe(), played()
    with torch.no_grad(), Routers(network, "router_loss=1").trace(batch.tokens_BT) as seen:
        score_tokens(network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT)
        balance_B = seen.compute_balance(batch.is_real_BT)
    assert whole(BALANCED)[1] == pytest.approx(float(balance_B[batch.is_action_BT.any(1)].mean()), rel=1e-6)
    plain, once, twice = (whole(Routing(loss=loss))[0] for loss in (0.0, 0.1, 0.2))
    assert (once - plain).norm() > 1e-6
    torch.testing.assert_close(twice - plain, 2 * (once - plain), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_loss_over_a_batch_is_that_of_a_loop_over_its_tokens(
    minibatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row alone through transformers' own forward; loads counted token by token, over each minibatch."""
    batch, parts = played(), []
    made = module(OVER_BATCH, minibatches=minibatches, tokens_per_microbatch=60)
    real = type(made.updater._stepper)._add_denominators

    def count(self: Any, minibatch: dict[str, Tensor]) -> dict[str, Tensor]:
        parts.append(minibatch)
        return real(self, minibatch)

    monkeypatch.setattr(type(made.updater._stepper), "_add_denominators", count)
    step(made, batch)
    assert len(parts) == minibatches
    total, number = 0.0, 0
    for part in parts:
        shares: list[list[Tensor]] = [[], []]  # of each layer, by token
        for row in torch.nonzero(part["is_action_BT"].any(1)).flatten():
            length = int(part["is_real_BT"][row].sum())
            tokens = part["tokens_BT"][row : row + 1, : length - 1]
            with torch.no_grad():
                found = moe()(tokens, output_router_logits=True).router_logits
            for layer, logits in enumerate(found):
                shares[layer] += list(logits.double().softmax(-1))
        loss = 0.0
        for tokens_of_layer in shares:
            chosen = [set(share.topk(2).indices.tolist()) for share in tokens_of_layer]
            for expert in range(4):
                f = sum(expert in taken for taken in chosen) / len(chosen)
                loss += 4 * f * float(sum(share[expert] for share in tokens_of_layer)) / len(chosen) / 2
        total, number = total + loss * len(shares[0]), number + len(shares[0])
    assert made.row["train/router_loss"] == pytest.approx(total / number, rel=1e-5)


def test_the_gradient_of_the_loss_over_a_batch_is_that_of_all_rows_at_once() -> None:
    """Without loops of ours: one padded pass, choices as numbers, autograd."""
    network, batch = moe(), played()
    routers = Routers(network, "router_loss=1")
    is_counted_BT = batch.is_real_BT & batch.is_action_BT.any(1)[:, None]
    is_counted_BT[:, :-1] &= batch.is_real_BT[:, 1:]
    is_counted_BT[:, -1] = False
    with routers.trace(batch.tokens_BT) as seen:
        score_tokens(network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT)
    losses = []
    for logits_NE in seen.logits:
        share = logits_NE.double().softmax(-1).view(batch.num_rows, -1, 4)[is_counted_BT[:, :-1]]
        f = torch.zeros_like(share).scatter(1, share.topk(2).indices, 1.0).mean(0)
        losses.append(4 * (f * share.mean(0)).sum())
    (0.1 * torch.stack(losses).mean()).backward()
    expected = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in network.parameters()]
    )
    found = whole(OVER_BATCH)[0] - whole(Routing())[0]
    assert (found - expected).norm() <= 1e-4 * expected.norm()
    assert (whole(BALANCED)[0] - whole(OVER_BATCH)[0]).norm() > 0.01 * expected.norm()


@pytest.mark.slow
@pytest.mark.parametrize("over", ["row", "batch"])
def test_the_loss_evens_loads_out(over: Any) -> None:
    made, found = module(Routing(loss=50.0, loss_over=over), lr=0.01), []
    for iteration in range(15):
        step(made, played(), iteration)
        found.append(made.row["train/router_loss"])
    assert min(found) >= 0 and found[-1] < found[0]


def test_replay_changes_nothing_in_the_first_step() -> None:
    weights = []
    for routing in (Routing(), Routing(replay="old")):
        made = module(routing, lr=0.1, packing=False)
        step(made, played())
        weights.append(torch.cat([p.detach().flatten() for p in made.parameters()]))
        assert made.row["train/logp_gap_max"] <= 1e-6 and made.row["train/approx_kl"] == pytest.approx(
            0, abs=1e-9
        )
    assert torch.equal(*weights) and made.row["train/routing_flips"] == 0


def test_after_some_steps_the_experts_are_still_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(Routing(replay="old"), lr=0.3, minibatches=3, epochs=2, packing=False)
    routers, batch = Routers(made.network, "routing_replay=old"), played()
    before_BK = made.updater.networks.choose_experts(batch.to_dict())
    taken: list[tuple[Tensor, Tensor]] = []
    real = type(made.updater.networks).score

    def scores(self: Any, part: dict[str, Tensor], *args: Any, **options: Any) -> Any:
        found = real(self, part, *args, **options)
        taken.append((part["trajectory_B"], part["experts_BK"]))
        return found

    monkeypatch.setattr(type(made.updater.networks), "score", scores)
    step(made, batch)
    row_of = {int(t): row for row, t in enumerate(batch.trajectory_B)}
    assert len(row_of) == batch.num_rows and len(taken) >= 6
    for trajectory_B, experts_BK in taken:
        assert torch.equal(experts_BK, before_BK[[row_of[int(t)] for t in trajectory_B]])
    assert made.row["train/routing_flips"] > 0.01
    now_BK = made.updater.networks.choose_experts(batch.to_dict())
    assert not torch.equal(now_BK, before_BK) and routers.num_choices == 4


def test_frozen_routers_stay_and_are_in_no_optimizer() -> None:
    made = module(Routing(loss=0.1, frozen=True), lr=0.1)
    before = [router.weight.clone() for router in find_routers(made.network)]
    step(made, played())
    frozen = {id(router.weight) for router in find_routers(made.network)}
    held = {id(p) for group in made._built_optimizers[0].param_groups for p in group["params"]}
    assert not frozen & held
    assert all(torch.equal(a, b.weight) for a, b in zip(before, find_routers(made.network), strict=True))
    assert all(router.weight.grad is None for router in find_routers(made.network))


def test_shared_packing_and_replay_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^update\.packing=shared computes common prefixes once.* use update\.packing=true or auto",
    ):
        module(Routing(replay="old"), packing="shared")
