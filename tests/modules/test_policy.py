"""One training step: what changes the gradient and what must not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import lightning.pytorch as pl
import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.checks import NotFinite
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rl.policy import aggregation, clipping, kl, ratios
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.update.settings import OptimSettings
from tests.conftest import tiny_policy
from tests.update.conftest import algorithm, recorded, step


def close(a, b, tolerance=2e-6):
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], atol=tolerance, rtol=1e-4)


class Order(pl.Callback):
    """Notes when casts are dropped and optimizers step, and the gradients when the next rollout begins."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_before_optimizer_step(self, *_: object) -> None:
        self.events.append("step")

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        held = sum(parameter.grad is not None for parameter in pl_module.parameters())
        self.events.append(f"rollout beside {held} gradients")


def test_neither_casts_nor_gradients_take_memory_while_others_need_it(monkeypatch):
    """Under bf16-mixed the casts are half of the weights, and the gradients as much as all."""
    recorded()  # other tests use it, played in float32
    order, clear = Order(), torch.clear_autocast_cache
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: (order.events.append("clear"), clear()))
    with torch.autocast("cpu", torch.bfloat16):  # inside of a region only the update itself clears
        step(iterations=2, inspect=[order])
    wanted = ["rollout beside 0 gradients", "clear", "step"]
    assert order.events == [*wanted, *wanted, "clear"]  # at the end of the region


def test_the_gradient_is_that_of_the_paper_written_out():
    """-mean over trajectories of mean over sampled tokens of A * grad log pi, on fresh data."""
    batch = recorded()[1]
    network = tiny_policy().network
    logp_BT = score_tokens(network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT).logp_BT
    loss = torch.zeros(())
    for b in range(batch.num_rows):
        siblings = batch.return_B[batch.group_B == batch.group_B[b]]
        advantage = (batch.return_B[b] - siblings.mean()) / (siblings.std() + 1e-6)
        loss = loss - advantage * logp_BT[b][batch.is_action_BT[b]].mean() / batch.num_rows
    loss.backward()
    _, change = step()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(-change[name], parameter.grad, atol=2e-6, rtol=1e-3)
    assert max(float(c.abs().max()) for c in change.values()) > 1e-3


@pytest.mark.parametrize("budget", [1, 300, 100_000])
def test_micro_batches_do_not_change_the_gradient(budget):
    close(step(tokens_per_microbatch=budget)[1], step(tokens_per_microbatch=900)[1])


@pytest.mark.slow
def test_row_order_and_padding_do_not_change_the_gradient():
    batch = recorded()[1]
    shuffled = batch.select(torch.randperm(batch.num_rows, generator=torch.Generator().manual_seed(1)))
    close(step(shuffled)[1], step()[1])
    wider = {}
    for name in batch.__dataclass_fields__:
        tensor = getattr(batch, name)
        if name.endswith("_BT"):
            fill = {"turn_BT": -1, "segment_BT": -1, "policy_version_BT": -1}.get(name, 0)
            tensor = torch.nn.functional.pad(tensor, (0, 9), value=fill)
        wider[name] = tensor
    close(step(TrajectoryBatch(**wider))[1], step()[1])


def test_only_action_tokens_carry_gradient():
    """Zero advantage everywhere: no gradient, whatever the observations are."""
    batch = recorded()[1]
    flat = replace(batch, return_B=torch.ones_like(batch.return_B))
    assert all(float(change.abs().max()) == 0 for change in step(flat)[1].values())


def test_metrics_of_fresh_data():
    module, _ = step()
    row = module.row
    assert row["train/logp_gap_max"] < 1e-4
    assert row["train/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert row["train/approx_kl"] == pytest.approx(0, abs=1e-5)
    assert row["train/clip_share_low"] == row["train/clip_share_high"] == 0
    assert row["train/kept_group_share"] == 1 and row["train/grad_norm"] > 0 and module.version == 1
    entropies = [h for e in recorded()[0] for t in e.turns for h in t.reply_entropies]
    assert row["train/entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)


def test_later_epochs_see_ratios_and_clip():
    optim = OptimSettings(optimizer=torch.optim.Adam, lr=0.01)
    module, _ = step(epochs=4, minibatches=3, optim=optim)
    assert module.version == 12
    assert module.row["train/ratio_max"] > 1.05
    assert module.row["train/clip_share_low"] + module.row["train/clip_share_high"] > 0


def test_log_probs_from_elsewhere_are_noticed_and_recomputed():
    batch = recorded()[1]
    off = replace(batch, sampler_logp_BT=torch.where(batch.is_action_BT, batch.sampler_logp_BT - 0.5, 0.0))
    module, change = step(off)
    assert module.row["train/logp_gap"] == pytest.approx(0.5, abs=1e-3)
    close(change, step()[1])  # as if the sampler had recorded the right ones
    tolerated, biased = step(off, max_logp_gap=1.0)
    assert tolerated.row["train/ratio_max"] == pytest.approx(1.6487, abs=1e-3)
    assert any((biased[n] - change[n]).abs().max() > 1e-4 for n in change)


def test_kl_in_loss_pulls_towards_the_frozen_start():
    with_kl = algorithm(kl=kl.KLInLoss(estimator=kl.k3, coef=0.1))
    module, _ = step(alg=with_kl, iterations=3, optim=OptimSettings(optimizer=torch.optim.Adam, lr=0.01))
    assert module.row["train/ref_kl"] > 0
    assert not any(name.startswith("_reference") for name in module.state_dict())
    for fresh, frozen in zip(
        tiny_policy().network.parameters(), module.updater.networks.reference.parameters(), strict=True
    ):
        assert torch.equal(fresh, frozen) and not frozen.requires_grad


def test_gradients_that_are_not_finite_stop_the_run_and_leave_the_weights():
    batch = recorded()[1]
    broken = replace(batch, return_B=torch.full_like(batch.return_B, float("inf")))
    alg = Algorithm(
        name="t", advantage=partial(_raw_return), ratio=partial(ratios.token), clip=partial(clipping.none),
        aggregate=partial(aggregation.token_mean),
    )  # fmt: skip
    policy = tiny_policy()
    with pytest.raises(
        NotFinite, match=r"^the gradient of optimizer step 1 is not finite \(norm (nan|inf)\)"
    ) as stop:
        step(broken, alg=alg, policy=policy)
    assert stop.value.version == 1
    for now, fresh in zip(policy.network.parameters(), tiny_policy().network.parameters(), strict=True):
        assert torch.equal(now, fresh)


def test_weights_that_are_not_finite_stop_the_run_before_they_are_saved():
    saved = []

    class Save(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            saved.append(trainer.current_epoch)

    too_much = OptimSettings(
        optimizer=partial(torch.optim.SGD, weight_decay=1e30), lr=1e30
    )  # 1e60 of each weight
    with pytest.raises(NotFinite, match="^the weights after 1 optimizer steps are not finite") as stop:
        step(optim=too_much, inspect=[Save()])
    assert stop.value.version == 2 and not saved


def _raw_return(*, return_B, is_action_BT):
    from lit_agentrl.rl.credit.advantages import Advantage, broadcast_to_actions

    return Advantage(broadcast_to_actions(return_B, is_action_BT))


def test_gradient_clipping_scales_to_the_norm():
    _, change = step(grad_clip=0.01)
    norm = torch.sqrt(sum((c**2).sum() for c in change.values()))
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.slow
def test_warm_up_starts_above_zero_and_reaches_the_peak():
    lrs = []

    class Watch(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            lrs.append(trainer.optimizers[0].param_groups[0]["lr"])

    step(
        iterations=5,
        inspect=[Watch()],
        optim=OptimSettings(optimizer=torch.optim.SGD, lr=0.3, warmup_iterations=3),
    )
    assert lrs == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3])


def test_two_micro_batch_ranks_sum_to_one(monkeypatch):
    """The denominator is counted over the minibatch: halves of it, each over the global count, add up."""
    whole = step()[1]
    batch = recorded()[1]
    halves = []
    count = float(batch.num_rows)
    monkeypatch.setattr(
        "lit_agentrl.update.step.sum_over_ranks",
        lambda v: torch.tensor(count) if v.dim() == 0 else v,
    )
    for rows in (torch.arange(0, 4), torch.arange(4, 12)):  # groups stay whole
        halves.append(step(batch.select(rows))[1])
    close({n: halves[0][n] + halves[1][n] for n in whole}, whole)
