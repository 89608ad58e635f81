"""Estimate a run's memory on each rank, term by term; --measure also measures it.

python scripts/plan_memory.py --model Qwen/Qwen2.5-0.5B-Instruct --precision bfloat16 --slots 64 --context 4096
python scripts/plan_memory.py --shape 8,512,8,4,1376,8192 --tokens 1024 --measure
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

from lit_agentrl.models import memory_plan
from lit_agentrl.models.logprobs import recompute_layers, score_tokens
from lit_agentrl.models.lora import ALL_LINEAR, disable_adapters
from lit_agentrl.models.memory_plan import MemoryPlan
from lit_agentrl.models.policy import NANO_FOLDER, Policy
from lit_agentrl.models.pretrained import hold_back_logs, make_load_options
from lit_agentrl.report.memory import measure_peak
from lit_agentrl.rl.credit.value_loss import squared
from lit_agentrl.update.critic import separate, shared
from lit_agentrl.update.settings import OptimSettings

MIB = 2**20


# ---------------------------------------------------------------------- measurement
def measure(plan: MemoryPlan, device: torch.device) -> float:
    """Measure the peak tensor bytes of two optimizer steps of two micro-batches each.

    The steps are those that the trainer takes.  On CUDA the allocator counts the bytes, elsewhere `StorageCounter`.

    Raises:
        ValueError: the plan cannot run on one device.
    """
    if plan.strategy != "single":
        raise ValueError(f"--strategy {plan.strategy} cannot be measured; --measure runs --strategy single")
    torch.manual_seed(0)
    network: Any = AutoModelForCausalLM.from_config(plan.config)
    network = network.to(device, torch.bfloat16 if plan.precision == "bfloat16" else torch.float32).eval()
    adapters = None if plan.lora is None else plan.adapters.attach(network, "random")
    policy = Policy(network=network, tokenizer=None, name="random", adapters=adapters)
    critic = None
    if plan.critic != "none":
        options = {"loss": squared, "optim": OptimSettings(optimizer=torch.optim.AdamW, lr=1e-5)}
        make_critic = separate if plan.critic == "separate" else functools.partial(shared, coef=0.1)
        critic = make_critic(policy, **options).to(device)
    trained = [p for m in (network, critic) if m is not None for p in m.parameters() if p.requires_grad]
    reference = None
    if plan.reference:
        reference = network if adapters else copy.deepcopy(network).requires_grad_(False)
    cache = torch.zeros(int(plan.count_kv_cache()), dtype=torch.uint8, device=device)
    play_copy = torch.zeros(int(plan.count_play_copy()), dtype=torch.uint8, device=device)
    rows = max(1, plan.tokens // plan.context)
    tokens_BT = torch.randint(plan.config.vocab_size, (rows, plan.read_tokens // rows + 1), device=device)
    is_action_BT = torch.rand(tokens_BT.shape, device=device) < plan.action_share
    is_action_BT[:, 0] = False
    inputs = {"tokens_BT": tokens_BT, "is_action_BT": is_action_BT}

    def train() -> None:
        optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=True)  # as by default on a GPU
        for _ in range(2):
            with torch.autocast(device.type, torch.bfloat16, enabled=plan.precision == "mixed"):
                if reference is not None:
                    with torch.no_grad(), disable_adapters(reference):
                        score_tokens(reference, **inputs)
                for _ in range(2):
                    train_on_microbatch()
            optimizer.step()
            optimizer.zero_grad()

    def train_on_microbatch() -> None:
        is_shared = critic is not None and critic.is_shared
        with recompute_layers(network) if plan.checkpointing else nullcontext():
            scores = score_tokens(
                network, **inputs, with_entropy=True, with_hidden=is_shared, entropy_grad=False,
                logits_chunk=plan.logits_chunk,
            )  # fmt: skip
            loss = -scores.logp_BT.mean()
            if critic is not None:
                loss = loss + critic(network, **inputs, hidden_AD=scores.hidden_AD).square().mean()
            loss.backward()

    earlier_tensors = [p for m in (network, critic, reference) if m is not None for p in m.parameters()]
    return measure_peak(train, [*earlier_tensors, cache, play_copy, *inputs.values()], device)


# ---------------------------------------------------------------------- command line
def read_config(args: argparse.Namespace) -> PreTrainedConfig:
    if (args.model is None) == (args.shape is None):
        raise ValueError("give --model FOLDER_OR_HUB_ID or --shape LAYERS,WIDTH,HEADS,KV_HEADS,INNER,VOCAB")
    if args.model is not None:
        name = str(NANO_FOLDER) if args.model == "nano" else args.model
        try:
            with hold_back_logs():
                return AutoConfig.from_pretrained(name, **make_load_options(name))
        except (OSError, ValueError) as error:
            raise ValueError(f"--model {args.model}: {str(error).strip().splitlines()[0]}") from error
    try:
        layers, width, heads, kv, inner, vocabulary = map(int, args.shape.split(","))
    except ValueError:
        raise ValueError(f"--shape {args.shape} must be six whole numbers, separated by commas") from None
    return LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv,
        intermediate_size=inner, vocab_size=vocabulary, max_position_embeddings=2**17,
        tie_word_embeddings=args.tied,
    )  # fmt: skip


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{memory_plan.__doc__}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", help="nano, a folder or a hub id: its config.json is read, no weights")
    add("--shape", help="layers,width,heads,kv_heads,inner,vocabulary of a network like Llama")
    add(
        "--tied",
        action="store_true",
        help="with --shape: the output layer shares the weights of the embedding",
    )
    add("--strategy", choices=["single", "ddp", "fsdp"], default="single")
    add("--ranks", type=int, default=1, help="trainer.devices x trainer.num_nodes")
    add("--precision", choices=["float32", "bfloat16", "mixed"], default="float32",
        help="bfloat16: model.dtype=bfloat16; mixed: trainer.precision=bf16-mixed")  # fmt: skip
    add("--lora", type=int, metavar="R", help="model.lora.r")
    add("--targets", default=ALL_LINEAR, help="model.lora.target_modules, separated by commas")
    add("--slots", type=int, default=128, help="engine.num_slots")
    add("--context", type=int, default=1024, help="rollout.max_context_tokens")
    add("--tokens", type=int, default=2048, help="update.tokens_per_microbatch")
    add("--logits-chunk", type=int, default=1024, help="update.logits_chunk; 0: none")
    add("--action-share", type=float, default=0.5, help="share of the tokens that the policy sampled")
    add("--checkpointing", action="store_true", help="update.checkpoint_activations")
    add("--critic", choices=["none", "shared", "separate"], default="none")
    add("--reference", action="store_true", help="the algorithm has a KL term to a reference")
    add("--accumulate-sharded", action="store_true", help="strategy.accumulate_sharded, of fsdp")
    add("--offload-frozen", action="store_true", help="strategy.offload_frozen, of fsdp")
    add(
        "--autocast",
        action="store_true",
        help="fsdp: trainer.precision=bf16-mixed, not strategy.compute_dtype",
    )
    add(
        "--stores",
        type=int,
        default=1,
        help="stores of keys and values: 2 with two levels of a policy, 3 with critic.beta",
    )
    add("--graphs", action="store_true", help="the native engine captures its windows as CUDA graphs")
    add("--measure", action="store_true", help="also measure two steps of a random network of this shape")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Print the table of terms, and return the terms in bytes."""
    args = parse(argv)
    options = {name: getattr(args, name) for name in MemoryPlan.__dataclass_fields__ if hasattr(args, name)}
    targets, chunk = tuple(args.targets.split(",")), args.logits_chunk or None
    plan = MemoryPlan(config=read_config(args), **{**options, "targets": targets, "logits_chunk": chunk})
    terms = plan.count_terms()
    trained = plan.parameters if plan.lora is None else plan.adapter_parameters
    print(
        f"{plan.parameters:,} parameters of the network, {trained:,} trained parameters; memory of each rank:"
    )
    for name, size in terms.items():
        print(f"{name:16s} {size / MIB:12,.1f} MiB")
    if args.measure:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        terms["measured"] = measure(plan, device)
        ratio = terms["peak of update"] / terms["measured"]
        print(
            f"{'measured':16s} {terms['measured'] / MIB:12,.1f} MiB on {device.type}: estimate / measured = {ratio:.3f}"
        )
    return terms


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"error: {error}")
