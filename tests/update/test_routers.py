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
from lit_agentrl.models.routers import Routing, find_routers, freeze
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
        freeze(policy.network)
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


@pytest.mark.parametrize("routing", [BALANCED, REPLAYED], ids=["balanced", "replayed"])
@pytest.mark.parametrize("packing", [False, True, "auto"])
@pytest.mark.parametrize("budget", [60, 10**6])
def test_padding_packing_and_micro_batches_do_not_matter(routing: Routing, packing: Any, budget: int) -> None:
    made = module(routing, packing=packing, tokens_per_microbatch=budget)
    step(made, played())
    expected, loss = whole(routing)
    assert (gradient(made) - expected).norm() <= 1e-5 * expected.norm()  # the routers of Mixtral are float32
    assert made.row["train/router_loss"] == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("routing", [BALANCED, REPLAYED], ids=["balanced", "replayed"])
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


def test_the_loss_evens_loads_out() -> None:
    made, found = module(Routing(loss=50.0), lr=0.01), []
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
