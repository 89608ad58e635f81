"""Training with adapters: what moves, what the reference and the critic cost, and what checkpoints hold."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from lit_agentrl.models.adapters import check_base
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.lora import disable_adapters
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.rl.credit import value_loss
from lit_agentrl.rl.credit.critic_advantages import gae_token
from lit_agentrl.rl.policy import kl
from lit_agentrl.update.critic import separate, shared
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.conftest import tiny_policy
from tests.models.test_lora import adapted, moved
from tests.update.conftest import algorithm, recorded, step

LOSS_K3 = kl.KLInLoss(coef=0.1, reference_dtype=None, estimator=partial(kl.k3))
ADAM = OptimSettings(optimizer=torch.optim.AdamW, lr=1e-2)
CRITIC = {
    "loss": partial(value_loss.squared), "optim": OptimSettings(optimizer=torch.optim.AdamW, lr=2e-2),
    "grad_clip": 1e9,
}  # fmt: skip
GAE = partial(gae_token, gae_lambda=1.0, whiten=False)


def bytes_of(module: PolicyModule) -> int:
    """Of all tensors that the module and its reference hold, each storage once."""
    tensors = [
        *module.parameters(),
        *module.buffers(),
        *(p for r in module.updater.networks.frozen for p in r.parameters()),
    ]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def optimised(module: PolicyModule) -> set[int]:
    return {
        id(p) for optimizer in module.trainer.optimizers for g in optimizer.param_groups for p in g["params"]
    }


@pytest.mark.slow
def test_adapters_alone_move_and_the_optimizer_holds_nothing_else():
    module, change = step(policy=adapted(), optim=ADAM, iterations=2)
    for name, difference in change.items():
        assert (float(difference.abs().max()) > 0) == ("lora_" in name), name
    assert optimised(module) == {id(p) for n, p in module.network.named_parameters() if "lora_" in n}


@pytest.mark.slow
def test_the_reference_is_the_base_and_costs_nothing():
    mix = algorithm(kl=LOSS_K3)
    module, _ = step(alg=mix, policy=adapted(), optim=ADAM, iterations=3)
    plain, _ = step(policy=adapted(), optim=ADAM)
    assert bytes_of(module) == bytes_of(plain)
    assert module.updater.networks.reference is module.network
    batch = recorded()[1]
    rows = {"tokens_BT": batch.tokens_BT, "is_action_BT": batch.is_action_BT}
    with torch.no_grad():
        frozen_BT = score_tokens(tiny_policy().network, **rows).logp_BT
        with disable_adapters(module.network):
            base_BT = score_tokens(module.network, **rows).logp_BT
        now_BT = score_tokens(module.network, **rows).logp_BT
    torch.testing.assert_close(base_BT, frozen_BT, rtol=0, atol=1e-6)
    assert float((now_BT - frozen_BT).abs().max()) > 1e-3
    assert module.row["train/ref_kl"] > 0


@pytest.mark.slow
def test_a_step_under_kl_is_that_with_a_frozen_copy_of_the_base():
    """The same adapters, the same data; the reference once the base, once a copy of it."""
    mix, ends = algorithm(kl=LOSS_K3), []
    for replace in (False, True):
        policy = moved()
        original = PolicyModule.__init__

        def with_copy(self, *args, _original=original, _replace=replace, **kwargs):
            _original(self, *args, **kwargs)
            if _replace:
                self.updater.networks.reference = copy.deepcopy(tiny_policy().network).requires_grad_(False)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PolicyModule, "__init__", with_copy)
            module, change = step(alg=mix, policy=policy)
        ends.append((change, module.row["train/ref_kl"]))
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-6) and ends[0][1] > 1e-3
    for name, difference in ends[0][0].items():
        torch.testing.assert_close(difference, ends[1][0][name], rtol=1e-5, atol=1e-6)


def test_another_precision_of_the_reference_is_refused():
    term = kl.KLInLoss(coef=0.1, reference_dtype="bfloat16", estimator=partial(kl.k3))
    with pytest.raises(ValueError, match=r"algo\.kl\.reference_dtype=bfloat16 .* leave it null"):
        step(alg=algorithm(kl=term), policy=adapted())


@pytest.mark.slow
@pytest.mark.sweep
def test_a_separate_critic_has_adapters_of_its_own_on_the_same_base():
    policy, mix = adapted(), algorithm(advantage=GAE)
    slow = OptimSettings(optimizer=torch.optim.SGD, lr=1e-9)
    first, _ = step(alg=mix, policy=adapted(), optim=slow, critic=partial(separate, **CRITIC))
    module, change = step(
        alg=mix, policy=policy, optim=slow, critic=partial(separate, **CRITIC), iterations=40
    )
    assert max(float(c.abs().max()) for c in change.values()) < 1e-6
    assert module.row["critic/loss"] < 0.5 * first.row["critic/loss"]
    own = dict(module.critic.trunk.named_parameters())
    for name, parameter in policy.network.base_model.named_parameters():
        assert (own[name] is parameter) == ("lora_" not in name), name
    assert optimised(module) == {id(p) for p in module.parameters() if p.requires_grad}


@pytest.mark.slow
def test_a_shared_critic_trains_adapters_and_head():
    critic = partial(shared, coef=0.5, **CRITIC)
    module, change = step(
        alg=algorithm(advantage=GAE), policy=adapted(), optim=ADAM, critic=critic, iterations=3
    )
    assert {name for name, c in change.items() if float(c.abs().max()) > 0} == {
        n for n in change if "lora_" in n
    }
    assert float(module.critic.head.weight.abs().max()) > 0


def saved(module: PolicyModule) -> dict:
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    return checkpoint


def build(policy, **options) -> PolicyModule:
    return PolicyModule(
        policy, **{"objective": algorithm(), "update": UpdateSettings(), "optim": ADAM, **options}
    )


@pytest.mark.parametrize("kind", [None, partial(separate, **CRITIC), partial(shared, coef=0.5, **CRITIC)])
def test_checkpoints_hold_what_is_trained_and_load_on_the_same_base(kind):
    options = {} if kind is None else {"critic": kind, "objective": algorithm(advantage=GAE)}
    module, fresh = build(moved(), **options), build(adapted(), **options)
    checkpoint = saved(module)
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert set(checkpoint["state_dict"]) == trained and all(
        "lora_" in n or "critic.head" in n for n in trained
    )
    fresh.on_load_checkpoint(checkpoint)
    fresh.load_state_dict(checkpoint["state_dict"])  # strictly: nothing is missing
    for name, tensor in module.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name


def test_a_checkpoint_is_refused_on_another_base_or_without_its_adapters():
    checkpoint = saved(build(adapted()))
    other = tiny_policy(seed=1)
    other.adapters = adapted().adapters | {"fingerprint": "0" * 64}
    with pytest.raises(
        ValueError, match=r"adapters of tiny-llama with weights .*: give the base that they were"
    ):
        build(other).on_load_checkpoint(copy.copy(checkpoint))
    with pytest.raises(ValueError, match=r"holds only adapters; load it with model/lora=default"):
        build(tiny_policy()).on_load_checkpoint(copy.copy(checkpoint))
    with pytest.raises(ValueError, match=r"holds whole weights; load it with model/lora=none"):
        build(adapted()).on_load_checkpoint(saved(build(tiny_policy())))
    with pytest.raises(ValueError, match=r"model\.lora: this checkpoint's r is 16, here it is 8"):
        build(adapted(r=8)).on_load_checkpoint(copy.copy(checkpoint))


def test_the_name_of_the_base_does_not_matter_its_weights_do():
    mine = {"base": "a", "fingerprint": "f", "r": 4}
    check_base(mine, {**mine, "base": "b"})
    with pytest.raises(ValueError, match="model.lora: this checkpoint's r is 4, here it is 8"):
        check_base(mine, {**mine, "base": "b", "r": 8})
    check_base(None, None)
