"""The steps of an iteration end once the policy has moved too far, alike on all ranks; hand-computed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from lit_agentrl import distributed
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from lit_agentrl.update.stop import KLStop
from tests.rl.ragged import fresh
from tests.update.bare import BareModule, ThreadedDist, build, float64, off_policy, step

SGD = OptimSettings(optimizer=torch.optim.SGD, lr=0.5)


@pytest.fixture(autouse=True, scope="module")
def double() -> Iterator[None]:
    with float64():
        yield


def moved(bound: float, per: str, **update: int) -> BareModule:
    module = build(fresh("loop"), optim=SGD, stop=KLStop(bound=bound, per=per), **{"epochs": 3, **update})
    step(module, off_policy(distance=0.0))
    return module


def by_hand(per: str) -> float:
    """The KL after one step, from the log-probs before and after it."""
    module, batch = build(fresh("loop"), optim=SGD), off_policy(distance=0.0)
    step(module, batch)
    keeps_B = module.row["train/kept_row_share"]
    with torch.no_grad():
        now_BT = score_tokens(
            module.network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT
        ).logp_BT
    assert keeps_B < 1
    is_kept_B = ~torch.isin(batch.group_B, torch.tensor([0, 3]))  # advantages of 0: one member, equal returns
    is_counted_BT = batch.is_action_BT & is_kept_B[:, None]
    difference = (now_BT - batch.sampler_logp_BT)[is_counted_BT]
    nats = float((difference.exp() - 1 - difference).sum())
    trajectories = len(torch.unique(batch.trajectory_B[is_counted_BT.any(1)]))
    return nats / (trajectories if per == "trajectory" else int(is_counted_BT.sum()))


@pytest.mark.parametrize("per", ["trajectory", "token"])
@pytest.mark.parametrize("budget", [60, 10**6])
def test_the_kl_is_that_of_the_coming_minibatch(per: str, budget: int) -> None:
    kl = by_hand(per)
    assert kl > 1e-3
    stopped = moved(0.99 * kl, per, tokens_per_microbatch=budget)
    assert stopped.row["train/steps"] == stopped.version == 1
    assert stopped.row["train/stop_kl_max"] == pytest.approx(kl, rel=1e-9)
    going = moved(1.01 * kl, per, tokens_per_microbatch=budget)
    assert going.row["train/steps"] == going.version >= 2
    assert going.row["train/stop_kl_max"] >= 0.999999 * kl  # the first one's, where later steps have less


def test_what_is_left_is_the_steps_taken() -> None:
    """Weights, loss and schedules are those of an iteration of as many steps."""
    stopped, one = moved(1e-9, "token"), build(fresh("loop"), optim=SGD)
    step(one, off_policy(distance=0.0))
    for mine, theirs in zip(stopped.parameters(), one.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    same = {name: value for name, value in one.row.items() if not name.startswith("time/")}
    assert same == {name: stopped.row[name] for name in same}
    free = build(fresh("loop"), optim=SGD, epochs=3)
    step(free, off_policy(distance=0.0))
    assert free.version == moved(float("inf"), "token").version == 3 and "train/steps" not in free.row


def test_a_next_iteration_begins_anew() -> None:
    module = moved(1e-9, "token")
    step(module, off_policy(distance=0.0), iteration=1)
    assert module.version == 2


def test_ranks_stop_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank's rows have moved far, the other's little: together they are beyond, or not."""
    batch, steps = off_policy(distance=0.0), []
    shares = [batch.select(torch.isin(batch.group_B, torch.tensor(g))).trim() for g in ([0, 1], [2, 4, 5])]
    for bound in (1e-9, 1e9):
        modules = [build(fresh("loop"), optim=SGD, epochs=2, stop=KLStop(bound=bound)) for _ in shares]
        with monkeypatch.context() as patch:
            dist = ThreadedDist(2)
            patch.setattr(distributed, "dist", dist)
            dist.play([partial(step, module, share) for module, share in zip(modules, shares, strict=True)])
        assert modules[0].row["train/stop_kl_max"] == modules[1].row["train/stop_kl_max"]
        steps.append([module.version for module in modules])
    assert steps == [[1, 1], [2, 2]]


def test_wrong_options() -> None:
    for options, message in (({"bound": 0}, "bound=0 must be"), ({"per": "turn"}, "per=turn must be one of")):
        with pytest.raises(ValueError, match=message):
            KLStop(**options)
    with pytest.raises(ValueError, match=r"stop\._target_=dict must be a KLStop"):
        UpdateSettings(stop={})  # type: ignore[arg-type]
