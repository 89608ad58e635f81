"""Routers of every family: found, frozen, told what to choose; balance against transformers' own."""

from __future__ import annotations

import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from lit_agentrl.models.logprobs import recompute_layers, score_tokens
from lit_agentrl.models.lora import LoRA, find_adapter_layers, merge_adapters
from lit_agentrl.models.packing import Packing, enable_packing
from lit_agentrl.models.policy import Policy, load_pretrained
from lit_agentrl.models.routers import Routing, find_routers, freeze_routers
from lit_agentrl.models.routing import Layout, Pass, Routers
from tests.conftest import nano_tokenizer
from tests.models.moe import FAMILIES, moe
from tests.update.bare import gpt2

LENGTHS = [7, 4, 6]
families = pytest.mark.parametrize("family", FAMILIES)


def rows(same: int = 0):
    draw = torch.Generator().manual_seed(1)
    is_real_BT = torch.arange(9)[None] < torch.tensor(LENGTHS)[:, None]
    tokens_BT = torch.randint(3, 60, is_real_BT.shape, generator=draw) * is_real_BT
    tokens_BT[1, :same] = tokens_BT[0, :same]
    is_action_BT = is_real_BT & (torch.arange(9) > 1)
    return {"tokens_BT": tokens_BT, "is_action_BT": is_action_BT}, is_real_BT


@families
def test_told_its_own_choice_a_router_does_as_always_and_told_another_it_obeys(family):
    network = moe(family)
    routers = Routers(network, "routing_replay=old")
    given, is_real_BT = rows()
    with torch.no_grad():
        plain = score_tokens(network, **given).logp_BT
        with routers.trace(given["tokens_BT"]) as seen:
            assert torch.equal(score_tokens(network, **given).logp_BT, plain)
        own_BK = seen.collect_experts()
        with routers.trace(given["tokens_BT"], experts_BK=own_BK) as again:
            assert torch.equal(score_tokens(network, **given).logp_BT, plain)
        assert torch.equal(again.collect_experts(), own_BK) and sum(int(pair[0]) for pair in again.flips) == 0
        for router in routers.modules:
            router.weight.mul_(-1)  # now it would choose others
        with routers.trace(given["tokens_BT"], experts_BK=own_BK) as told:
            held = score_tokens(network, **given).logp_BT
        assert torch.equal(told.collect_experts(), own_BK) and all(int(pair[0]) > 0 for pair in told.flips)
        assert not torch.allclose(score_tokens(network, **given).logp_BT, held)


@families
def test_packed_rows_are_seen_and_told_as_padded_ones(family):
    network = moe(family)
    routers = Routers(network, "router_loss=0.1")
    assert not enable_packing(network)
    given, is_real_BT = rows(same=3)
    found = []
    for packing in (None, Packing.from_lengths(LENGTHS), Packing(LENGTHS, [0, 3, 0])):
        with routers.trace(given["tokens_BT"], packing) as seen, torch.no_grad():
            score_tokens(network, **given, packing=packing)
        is_read_BT = is_real_BT & torch.cat([is_real_BT[:, 1:], torch.zeros(3, 1, dtype=torch.bool)], 1)
        experts = seen.collect_experts().unflatten(1, (9, -1))[is_read_BT]
        with routers.trace(given["tokens_BT"], packing, seen.collect_experts()) as told, torch.no_grad():
            score_tokens(network, **given, packing=packing)
        assert sum(int(pair[0]) for pair in told.flips) == 0
        found.append((experts, seen.compute_balance(is_real_BT)))
    for experts, balance in found[1:]:
        assert torch.equal(experts, found[0][0])
        torch.testing.assert_close(balance, found[0][1], rtol=1e-4, atol=0)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_balance_of_a_row_is_that_of_transformers_layer_by_layer(family):
    network = moe(family)
    given, is_real_BT = rows()
    with Routers(network, "router_loss=1").trace(given["tokens_BT"]) as seen:
        score_tokens(network, **given)
        balance_B = seen.compute_balance(is_real_BT)
    for row, length in enumerate(LENGTHS):
        logits = network(
            given["tokens_BT"][row : row + 1, : length - 1], output_router_logits=True
        ).router_logits
        theirs = [load_balancing_loss_func((layer,), 4, 2) for layer in logits]
        torch.testing.assert_close(balance_B[row], torch.stack(theirs).mean())
    balance_B.sum().backward()
    assert all(router.weight.grad.norm() > 0 for router in find_routers(network))


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("layers", [1, 2])
def test_balance_of_a_batch_without_padding_is_that_of_transformers(family, layers):
    """Of a network of one layer its own loss; of more layers, which it pools, the mean of its loss of each."""
    network = moe(family, num_hidden_layers=layers)
    routers = Routers(network, "router_loss=1")
    tokens_BT = torch.randint(3, 60, (4, 9), generator=torch.Generator().manual_seed(1))
    is_action_BT = torch.arange(9).expand(4, -1) > 1
    is_counted_BT = torch.arange(9).expand(4, -1) < 8
    output = network(tokens_BT[:, :-1], output_router_logits=True)
    theirs = [load_balancing_loss_func((layer,), 4, 2) for layer in output.router_logits]
    if layers == 1:
        torch.testing.assert_close(output.aux_loss, theirs[0])
    with torch.no_grad(), routers.trace(tokens_BT) as seen:
        score_tokens(network, tokens_BT=tokens_BT, is_action_BT=is_action_BT)
    load_LE = routers.count_choices(seen.collect_experts(), is_counted_BT) / 32
    ours = []
    for part in (slice(0, 1), slice(1, 4)):  # two micro-batches sum up to the whole
        with routers.trace(tokens_BT[part]) as seen:
            score_tokens(network, tokens_BT=tokens_BT[part], is_action_BT=is_action_BT[part])
        ours.append(seen.compute_batch_balance(is_counted_BT[part], load_LE) / 32)
    torch.testing.assert_close(sum(ours), torch.stack(theirs).mean())
    of_ours = torch.autograd.grad(sum(ours), [router.weight for router in routers.modules])
    of_theirs = torch.autograd.grad(torch.stack(theirs).mean(), [router.weight for router in routers.modules])
    assert all(grad.norm() > 0 for grad in of_theirs)
    torch.testing.assert_close(of_ours, of_theirs, rtol=1e-4, atol=1e-6)


def test_balance_of_a_batch_worked():
    """Two rows that choose one expert each: 1.6 as a batch, 2.8 as rows."""
    is_real_BT, seen = torch.ones(2, 3, dtype=torch.bool), Pass(1, 1, Layout((2, 3), None))
    seen.logits = [torch.tensor([[7.0, 1, 1, 1], [7, 1, 1, 1], [1, 7, 1, 1], [1, 7, 1, 1]]).log()]
    seen.indices = [torch.tensor([[0], [0], [1], [1]])]
    is_counted_BT = torch.arange(3).expand(2, -1) < 2
    load_LE = torch.tensor([[0.5, 0.5, 0, 0]])
    assert float(seen.compute_batch_balance(is_counted_BT, load_LE)) / 4 == pytest.approx(1.6)
    assert seen.compute_balance(is_real_BT).tolist() == pytest.approx([2.8, 2.8])


def test_layers_that_run_again_are_told_again():
    network = moe()
    routers, (given, is_real_BT) = Routers(network, "routing_replay=old"), rows()
    with torch.no_grad(), routers.trace(given["tokens_BT"]) as seen:
        score_tokens(network, **given)
    for router in routers.modules:
        router.weight.data.mul_(-1)
    grads = []
    for is_on in (False, True):
        network.zero_grad()
        with routers.trace(given["tokens_BT"], experts_BK=seen.collect_experts()) as told:
            if is_on:
                with recompute_layers(network):
                    scores = score_tokens(network, **given)
            else:
                scores = score_tokens(network, **given)
            (scores.logp_BT.sum() + told.compute_balance(is_real_BT).sum()).backward()
        grads.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


@families
def test_frozen_routers_have_no_gradient(family):
    network = moe(family)
    freeze_routers(network)
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    assert len(frozen) == len(find_routers(network)) and all(".gate." in name for name in frozen)


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_adapters_leave_routers_and_experts_alone(family):
    network = moe(family)
    LoRA(r=2).attach(network, "moe")
    adapted = [name for name, _ in find_adapter_layers(network)]
    assert adapted and not any(name.endswith(".gate") or ".experts" in name for name in adapted)
    plain = merge_adapters(network)
    assert type(plain) is type(network) and len(find_routers(plain)) == len(find_routers(network))
    with pytest.raises(
        ValueError, match="would adapt .*experts.* is not a linear layer and cannot be merged; choose layers"
    ):
        LoRA(r=2).attach(moe("deepseek_v3"), "moe")  # peft adapts its experts whatever is named
    LoRA(r=2, target_modules=["o_proj"]).attach(moe("deepseek_v3"), "moe")


def test_options_of_routers_from_a_folder(tmp_path, tiny_model_folder):
    Policy(network=moe(vocab_size=len(nano_tokenizer())), tokenizer=nano_tokenizer(), name="moe").save(
        tmp_path
    )
    policy = load_pretrained(
        str(tmp_path), router_loss=0.1, router_loss_over="batch", freeze_router=True, routing_replay="old"
    )
    assert policy.routing == Routing(loss=0.1, loss_over="batch", frozen=True, replay="old")
    assert not any(router.weight.requires_grad for router in find_routers(policy.network))
    with pytest.raises(
        ValueError, match="^freeze_router=true needs a mixture of experts, and LlamaForCausalLM has no"
    ):
        load_pretrained(str(tiny_model_folder), freeze_router=True)


def test_refusals():
    with pytest.raises(
        ValueError, match=r"router_loss=0\.1 needs a mixture of experts, and GPT2LMHeadModel has no"
    ):
        Routers(gpt2(), "router_loss=0.1")
    for options, message in (
        ({"loss": -1}, "router_loss=-1 must be"),
        ({"frozen": "no"}, "freeze_router=no must be true or false"),
        ({"loss_over": "world"}, "router_loss_over=world must be one of row, batch"),
        ({"loss_over": "batch"}, "router_loss_over=batch has no effect with router_loss=0; set router_loss"),
        ({"replay": "new"}, "routing_replay=new must be one of none, old"),
    ):
        with pytest.raises(ValueError, match=message):
            Routing(**options)
