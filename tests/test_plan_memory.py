"""The memory calculator: its terms by hand, and its peak against what PyTorch allocates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from lit_agentrl.engines.native.attention import NAME
from lit_agentrl.engines.native.decode import decode
from lit_agentrl.engines.native.inference import Inference
from lit_agentrl.models.lora import LoRA
from lit_agentrl.models.memory_plan import MemoryPlan, fit_microbatch
from lit_agentrl.models.policy import Policy
from lit_agentrl.models.segment_attention import BatchLayout
from lit_agentrl.report.memory import StorageCounter
from lit_agentrl.rl.credit.value_loss import squared
from lit_agentrl.update.critic import separate
from lit_agentrl.update.settings import OptimSettings
from tests.conftest import load_script

NARROW = "--shape 3,64,4,2,160,300 --tokens 512 --slots 4 --context 128"
LARGER = "--shape 12,512,8,4,1376,8192 --tokens 1024 --slots 8 --context 512"  # 43 million


def terms(command: str) -> dict[str, float]:
    return load_script("plan_memory").main(command.split())


def test_terms_by_hand():
    found = terms(f"{NARROW} --reference --critic shared")
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 160 + 2 * 64
    parameters = 3 * layer + 2 * 300 * 64 + 64
    assert found["weights"] == found["gradients"] == found["reference"] == 4 * parameters
    assert found["optimizer"] == 8 * parameters
    assert (
        found["kv cache"] == (4 + 1) * 128 * 2 * 3 * 32 * 4
    )  # slots and the one of idle rows, context, keys and values, layers, width, bytes
    assert found["step"] == found["weights"]
    assert found["critic"] == 16 * 65
    assert found["logits"] == 4 * 4 * 256 * 300  # half of the tokens are scored
    halved = terms(f"{NARROW} --precision bfloat16 --reference")
    assert [halved[n] * 2 for n in ("weights", "optimizer", "kv cache", "reference")] == [
        found[n] for n in ("weights", "optimizer", "kv cache", "reference")
    ]


def test_ranks():
    fsdp = "--strategy fsdp --ranks 4"
    one, ddp, cut = (
        terms(f"{NARROW} {s}") for s in ("", "--strategy ddp --ranks 4", f"{fsdp} --accumulate-sharded")
    )
    assert ddp["gradients"] == 2 * one["gradients"] and ddp["optimizer"] == one["optimizer"]
    for name in ("weights", "gradients", "optimizer"):
        assert cut[name] == one[name] / 4
    assert cut["gathered"] == one["weights"] and one["gathered"] == 0
    assert terms(f"{NARROW} {fsdp}")["gradients"] == cut["gradients"] + one["gradients"]
    assert terms(f"{NARROW} {fsdp} --reference")["reference"] == one["weights"] / 4
    assert terms(f"{NARROW} {fsdp} --reference --offload-frozen")["reference"] == 0


def test_further_stores_graphs_and_gathers_under_autocast():
    one = terms(NARROW)
    assert one["graphs"] == 0 and terms(f"{NARROW} --stores 3")["kv cache"] == 3 * one["kv cache"]
    captured = terms(f"{NARROW} --graphs")
    assert captured["graphs"] == 4 * 20 * 300  # five times the logits of 4 slots
    assert captured["peak"] == one["peak"] + captured["graphs"]
    fsdp = f"{NARROW} --strategy fsdp --ranks 4 --precision mixed"
    computed, cast = terms(fsdp), terms(f"{fsdp} --autocast")
    # float32 weights are gathered, and autocast keeps their casts, in the update and while playing
    assert cast["gathered"] == 2 * computed["gathered"] == one["weights"]
    assert (computed["16-bit copies"], cast["16-bit copies"]) == (0, one["weights"] / 2)
    assert cast["peak of rollout"] - computed["peak of rollout"] == one["weights"]


def test_adapters_are_counted_as_they_are_attached():
    plan = load_script("plan_memory")
    args = plan.parse(f"{NARROW} --lora 3".split())
    network = LlamaForCausalLM(plan.read_config(args))
    LoRA(r=3).attach(network, "random")
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    found = terms(f"{NARROW} --lora 3 --reference")
    assert found["gradients"] == 4 * trained and found["optimizer"] == 8 * trained
    assert found["reference"] == 0
    assert found["weights"] == 4 * sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    "options",
    [
        "", "--checkpointing", "--lora 8 --critic separate", "--precision mixed",
        "--checkpointing --tokens 64 --context 64",  # the optimizer's step takes more than the passes
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                "--tied --logits-chunk 64 --action-share 1", "--lora 8 --reference", "--lora 8 --targets q_proj,v_proj",
                "--critic separate --reference", "--precision bfloat16",
            )
        ),
    ],
)  # fmt: skip
def test_the_estimate_is_within_15_percent_of_what_is_allocated(options):
    found = terms(f"{NARROW} {options} --measure")
    assert found["peak of update"] == pytest.approx(found["measured"], rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "",
        "--lora 16 --reference",
        "--precision mixed",
        "--precision mixed --checkpointing --tokens 256 --context 256",
    ],
)
def test_43_million_parameters(options):
    found = terms(f"{LARGER} {options} --measure")
    assert found["peak of update"] == pytest.approx(found["measured"], rel=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("truncates", [False, True])
def test_slots_and_a_decode_step_take_what_is_planned(truncates: bool, dtype: torch.dtype) -> None:
    """Measured on tensors without data, as on a GPU: half precision is stored as such."""
    script, precision = load_script("plan_memory"), "float32" if dtype == torch.float32 else "bfloat16"
    config = script.read_config(script.parse(["--shape", "2,64,4,2,160,32000"]))
    plan = MemoryPlan(config=config, slots=64, context=128, precision=precision, truncates=truncates)
    with torch.device("meta"):
        network = LlamaForCausalLM(config).to(dtype)
    reader = Inference(network, NAME)
    cache = reader.make_cache(64, 128)
    rows = torch.zeros(8, 64, dtype=torch.int64, device="meta")
    run = partial(
        decode, partial(reader.read, cache), rows, steps=2, num_slots=64, length=128, truncates=truncates
    )
    with reader():
        run()
        stores = [buffer for pair in cache._buffers for buffer in pair]
        assert sum(buffer.nbytes for buffer in stores) == plan.count_kv_cache()
        with StorageCounter([*network.parameters(), *stores]) as counter:
            before = counter.alive
            run()
    assert plan.count_step() == pytest.approx(counter.peak - before, rel=0.1)


def test_a_row_that_is_longer_than_a_micro_batch_is_one() -> None:
    long, short = (terms(f"{NARROW[: NARROW.index(' --tokens')]} {o}") for o in (
        "--tokens 64 --context 512", "--tokens 512 --context 512",
    ))  # fmt: skip
    assert long["activations"] == short["activations"] and long["logits"] == short["logits"]


@pytest.mark.parametrize("times", [1, 4])
def test_attention_of_shared_rows_saves_whole_rows(times: int) -> None:
    script = load_script("plan_memory")
    plan = MemoryPlan(config=script.read_config(script.parse(["--shape", "1,64,4,2,160,300"])), tokens=512)
    common = 0 if times == 1 else 120  # tokens of rows of 128
    rows = [np.arange(common, 128) + (128 - common) * row for row in range(4 * times)]
    places = [np.concatenate([np.arange(common), own]) for own in rows]
    query, key, value = (torch.rand(1, heads, 512, 16, requires_grad=True) for heads in (4, 2, 2))
    saved: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.is_floating_point():
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        output = BatchLayout.of(places, 512, query.device).attend(query * 1, key * 1, value * 1, None)
    assert output.requires_grad
    further = 512 * (plan.copy_with(attended=times).count_layer() - plan.count_layer())
    assert sum(saved.values()) == pytest.approx(512 * 4 * 4 * 64 + further, rel=0.1)
    half = plan.copy_with(precision="mixed")  # queries and output are not repeated for the kernel
    assert half.copy_with(attended=times).count_layer() - half.count_layer() == (times - 1) * 2 * 2 * 64


@pytest.mark.parametrize("lora", [None, 4])
def test_slow_weights_of_a_critic_are_counted(lora: int | None) -> None:
    script = load_script("plan_memory")
    config = script.read_config(script.parse(["--shape", "2,64,4,2,160,300"]))
    plan = MemoryPlan(config=config, lora=lora, critic="separate")
    network = LlamaForCausalLM(config)
    adapters = None if lora is None else plan.adapters.attach(network, "random")
    policy = Policy(network=network, tokenizer=None, name="random", adapters=adapters)
    optim = OptimSettings(optimizer=torch.optim.AdamW, lr=1e-5)
    critic = separate(policy, loss=squared, optim=optim, target_rate=0.1)
    assert critic.slow is not None
    slow = sum(weight.nbytes for weight in critic.slow.buffers())
    assert plan.copy_with(slow_critic=True).count_critic() - plan.count_critic() == slow > 0


def test_other_players_and_vllm_on_the_same_card() -> None:
    script = load_script("plan_memory")
    plan = MemoryPlan(
        config=script.read_config(script.parse(NARROW.split())), slots=4, context=128, tokens=512
    )
    alone, played = plan.count_terms(), plan.copy_with(players=2).count_terms()
    each = alone["weights"] + alone["kv cache"] + alone["rollout"] + 2**30  # and a CUDA context
    assert played["players"] == 2 * each == played["peak"] - alone["peak"]
    asleep = plan.copy_with(slots=0, vllm=0.0)
    context = 128 * 2 * 3 * 32 * 4
    assert asleep.count_vllm() == alone["weights"] + context
    sleeping, awake = asleep.count_terms(), asleep.copy_with(vllm_sleeps=False).count_terms()
    assert awake["peak of rollout"] == sleeping["peak of rollout"]
    assert awake["peak of update"] - sleeping["peak of update"] == asleep.count_vllm()
    assert asleep.copy_with(vllm=1e9).count_vllm() == alone["weights"] + 1e9


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "give --model FOLDER_OR_HUB_ID or --shape"),
        ("--shape 3,64", "--shape 3,64 must be six whole numbers"),
        ("--model /no/such", "--model /no/such: "),
        (f"{NARROW} --ranks 2", "--ranks 2 with --strategy single; use ddp or fsdp"),
        (f"{NARROW} --strategy fsdp --ranks 2 --measure", "--measure runs --strategy single"),
        (f"{NARROW} --precision mixed --autocast", "--autocast needs --strategy fsdp and --precision mixed"),
        (f"{NARROW} --offload-frozen", "--offload-frozen needs --strategy fsdp"),
        (f"{NARROW} --lora 4 --targets w", "target_modules=w is not a linear layer"),
    ],
)
def test_mistakes_are_told(command, message):
    with pytest.raises(ValueError, match=message):
        terms(command)


def test_a_micro_batch_takes_the_memory_that_is_left():
    script = load_script("plan_memory")
    shape = "--shape 24,896,14,2,4864,151936 --precision mixed --context 1024"  # 0.5 billion
    args = script.parse(shape.split())
    plan = MemoryPlan(config=script.read_config(args), precision="mixed", slots=128)
    found = []
    for gib in (4, 24, 40, 80, 141, 10_000):
        fitted = fit_microbatch(plan, gib * 2**30)
        found.append((fitted.tokens, fitted.logits_chunk))
        assert gib == 4 or fitted.count_terms()["peak"] <= gib * 2**30
        bigger = replace(fitted, tokens=2 * fitted.tokens)
        assert (
            gib == 10_000 or replace(bigger, logits_chunk=fitted.tokens).count_terms()["peak"] > gib * 2**30
        )
    assert found == sorted(found) and found[0] == (2048, 1024) and found[-1] == (65536, 65536)
    assert dict(found)[16384] >= 8192  # half of the tokens, the usual share of actions: computed once
