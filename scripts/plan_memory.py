"""Estimate of a run's memory on each rank, term by term; --measure also measures it.

python scripts/plan_memory.py --model Qwen/Qwen2.5-0.5B-Instruct --precision bfloat16 --slots 64 --context 4096
python scripts/plan_memory.py --shape 8,512,8,4,1376,8192 --tokens 1024 --measure

P parameters, of which P_t are trained (all, or those of the adapters), b bytes each; L layers, d width, q and k widths
of all query and of all key heads, I inner width, V vocabulary, T tokens of a micro-batch, A of them whose logits exist
at a time, N ranks among which strategy=fsdp shards weights, gradients and optimizer states (N = 1 otherwise).

weights       b P / N; adapters and --precision mixed are in float32
gradients     b P_t / N; and b P_t more with several ranks: ddp's buckets, or gradients that fsdp has not averaged yet
optimizer     2 b P_t / N: AdamW's two moments
reference     b P / N for a KL term, if not off-loaded; nothing with LoRA, where it is the base without adapters
critic        separate: weights, gradients and optimizer of its own trunk, or of its adapters with LoRA
kv cache      slots x context x 2 L k b, retained between rollouts; not counted: a CPU
              stores half precision as float32
gathered      fsdp: in training two whole blocks and the embeddings, in a rollout all whole weights
activations   T L times the bytes that a token saves in a layer (`Plan.layer_bytes`), with checkpointing T L d b, plus
              the embedding and the last norm; twice with a separate critic
recomputed    with checkpointing, the activations of one layer
logits        four tensors (A, V) in float32
rollout       one layer's keys and values as attention reads them, and the logits of a step

peak = weights + optimizer + reference + critic + kv cache + max(update, rollout), where update is
gradients + gathered + activations + the larger of recomputed and logits.  Not counted: the CUDA
context and libraries (about 0.5 GiB), fragmentation, and on a CPU the interpreter and the libraries.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

from lit_agentrl.models.logprobs import recompute_layers, score_tokens
from lit_agentrl.models.lora import ALL_LINEAR, LoRA, disable_adapters
from lit_agentrl.models.policy import NANO_FOLDER, Policy
from lit_agentrl.models.pretrained import hold_back_logs, make_load_options
from lit_agentrl.report.memory import measure_peak
from lit_agentrl.rl.credit.value_loss import squared
from lit_agentrl.update.critic import separate, shared
from lit_agentrl.update.settings import OptimSettings

MIB = 2**20
COPIES = 4  # float32 tensors (A, V) that exist when the backward of a chunk begins


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The properties of a run that determine its memory; results are bytes of one rank."""

    config: PreTrainedConfig
    strategy: str = "single"
    ranks: int = 1
    precision: str = "float32"
    lora: int | None = None
    targets: tuple[str, ...] = (ALL_LINEAR,)
    slots: int = 128
    context: int = 1024
    tokens: int = 2048
    logits_chunk: int | None = 1024
    action_share: float = 1.0
    checkpointing: bool = False
    critic: str = "none"
    reference: bool = False
    accumulate_sharded: bool = False
    offload_frozen: bool = False

    def __post_init__(self) -> None:
        for name in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"):
            if getattr(self.config, name, None) is None:
                raise ValueError(
                    f"--model: {self.config.model_type} has no {name}; only decoders like Llama are planned"
                )
        if self.ranks < 1 or (self.ranks > 1 and self.strategy == "single"):
            raise ValueError(f"--ranks {self.ranks} with --strategy {self.strategy}; use ddp or fsdp")
        for name in ("accumulate_sharded", "offload_frozen"):
            if getattr(self, name) and self.strategy != "fsdp":
                raise ValueError(f"--{name.replace('_', '-')} needs --strategy fsdp")

    # ------------------------------------------------------------------ counts
    @functools.cached_property
    def network(self) -> nn.Module:
        """The network on the meta device, with shapes but without memory."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config)

    @functools.cached_property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.network.parameters())

    @functools.cached_property
    def trunk_parameters(self) -> int:
        return sum(p.numel() for p in self.network.base_model.parameters())

    @functools.cached_property
    def adapted(self) -> dict[str, nn.Linear]:
        """The layers with an adapter."""
        if self.lora is None:
            return {}
        names = set(self.adapters.find_layers(self.network))
        return {n: m for n, m in self.network.named_modules() if n in names}

    @property
    def adapters(self) -> LoRA:
        return LoRA(r=self.lora or 1, target_modules=list(self.targets))

    @property
    def adapter_parameters(self) -> int:
        return sum((self.lora or 0) * (m.in_features + m.out_features) for m in self.adapted.values())

    @property
    def shares(self) -> int:
        return self.ranks if self.strategy == "fsdp" else 1

    @property
    def stored(self) -> int:
        """The bytes of a stored parameter."""
        return 2 if self.precision == "bfloat16" else 4

    @property
    def computed(self) -> int:
        """The bytes of an activation."""
        return 4 if self.precision == "float32" else 2

    # ------------------------------------------------------------------ terms
    def trained(self, parameters: int) -> tuple[float, float, float]:
        """Return the bytes of weights, gradients and optimizer of a trained network."""
        if self.lora is None:
            weights = learning = self.stored * parameters
        else:
            learning = 4 * self.adapter_parameters
            weights = self.stored * parameters + learning
        gradients = learning / self.shares
        if self.ranks > 1 and not self.accumulate_sharded:  # ddp: in buckets too; fsdp: whole until averaged
            gradients += learning
        return weights / self.shares, gradients, 2 * learning / self.shares

    def layer_bytes(self) -> float:
        """Return the bytes that one token saves for the backward pass in one layer.

        A norm saves its input in float32 and its normed input, attention queries, keys, values (these two repeated
        for every query head) and output, the inner layers gate, its activation and up.  A linear layer saves its
        input if its weight is trained or has an adapter.  A frozen norm does not save its normed input.
        """
        c, b = self.config, self.computed
        d, q, inner = c.hidden_size, c.num_attention_heads * head_dim(c), c.intermediate_size
        total = 2 * 4 * d + b * (4 * q + 3 * inner)
        inputs = {
            ("q_proj", "k_proj", "v_proj"): d,
            ("o_proj",): q,
            ("gate_proj", "up_proj"): d,
            ("down_proj",): inner,
        }
        if self.lora is None:
            return float(total + b * (2 * d + sum(inputs.values())))
        names = {name.rpartition(".")[2] for name in self.adapted}
        total += 4 * self.lora * len(self.adapted) / c.num_hidden_layers  # A x
        if b == 4:
            return float(total + b * sum(size for layers, size in inputs.items() if names & set(layers)))
        # each adapter reads its own float32 copy
        return float(total + 4 * sum(m.in_features for m in self.adapted.values()) / c.num_hidden_layers)

    def activations(self) -> float:
        """Return the activation bytes of a micro-batch in layers, embedding and last norm."""
        c = self.config
        kept = c.hidden_size * self.computed if self.checkpointing else self.layer_bytes()
        ends = (4 * 2 if self.lora is not None else 4 * 3) * c.hidden_size
        total = self.tokens * (
            c.num_hidden_layers * kept + ends + self.computed * c.hidden_size * self.action_share
        )
        return 2 * total if self.critic == "separate" else total

    def logits(self) -> float:
        scored = int(self.tokens * self.action_share)
        alive = scored if self.logits_chunk is None else min(scored, self.logits_chunk)
        return 4.0 * COPIES * alive * self.config.vocab_size

    def recomputed(self) -> float:
        """Return the bytes of one layer that checkpointing recomputes in the backward pass."""
        return self.tokens * self.layer_bytes() if self.checkpointing else 0.0

    def kv_cache(self) -> float:
        return float(self.slots * self.context * 2 * self.config.num_hidden_layers * self.kv_bytes())

    def kv_bytes(self) -> int:
        c = self.config
        return int(kv_heads(c) * head_dim(c) * self.computed)

    def gathered(self) -> tuple[float, float]:
        """Return the bytes of gathered whole weights, in training and in a rollout."""
        if self.shares == 1:
            return 0.0, 0.0
        embeddings = (
            self.parameters - self.trunk_parameters + self.config.vocab_size * self.config.hidden_size
        )
        block = (self.parameters - embeddings) / self.config.num_hidden_layers
        return self.computed * (2 * block + embeddings), float(self.computed * self.parameters)

    def rollout(self) -> float:
        c = self.config
        repeated = self.kv_bytes() * 2 * c.num_attention_heads // kv_heads(c)
        return float(self.slots * (self.context * repeated + 3 * 4 * c.vocab_size))

    def terms(self) -> dict[str, float]:
        """Return all terms in bytes, with the peak last."""
        weights, gradients, optimizer = self.trained(self.parameters)
        is_copied = self.reference and self.lora is None and not self.offload_frozen
        reference = self.stored * self.parameters / self.shares if is_copied else 0.0
        critic = self.critic_bytes()
        training, playing = self.gathered()
        casts = 2.0 * self.parameters if self.precision == "mixed" else 0.0
        update = gradients + training + casts + self.activations() + max(self.logits(), self.recomputed())
        rollout = playing + casts + self.rollout()
        held = weights + optimizer + reference + critic + self.kv_cache()
        return {
            "weights": weights, "gradients": gradients, "optimizer": optimizer, "reference": reference,
            "critic": critic, "kv cache": self.kv_cache(), "gathered": max(training, playing),
            "16-bit copies": casts, "activations": self.activations(), "recomputed": self.recomputed(),
            "logits": self.logits(),
            "rollout": self.rollout(), "peak of update": held + update, "peak of rollout": held + rollout,
            "peak": held + max(update, rollout),
        }  # fmt: skip

    def critic_bytes(self) -> float:
        head = 16.0 * (self.config.hidden_size + 1)
        if self.critic != "separate":
            return head if self.critic == "shared" else 0.0
        weights, gradients, optimizer = self.trained(self.trunk_parameters)
        if self.lora is not None:  # the base is shared with the policy
            weights = 4 * self.adapter_parameters / self.shares
        return head + weights + gradients + optimizer


def kv_heads(config: PreTrainedConfig) -> int:
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def head_dim(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


# ---------------------------------------------------------------------- measurement
def measure(plan: Plan, device: torch.device) -> float:
    """Measure the peak tensor bytes of two optimizer steps of two micro-batches each.

    The steps are like those of the trainer.  On CUDA the allocator counts, elsewhere the storages of tensors are
    counted (`StorageCounter`).

    Raises:
        ValueError: the plan cannot run on one device.
    """
    if plan.strategy != "single" or plan.precision == "mixed":
        raise ValueError("--measure runs --strategy single in --precision float32 or bfloat16")
    torch.manual_seed(0)
    network: Any = AutoModelForCausalLM.from_config(plan.config)
    network = network.to(device, torch.bfloat16 if plan.precision == "bfloat16" else torch.float32).eval()
    adapters = None if plan.lora is None else plan.adapters.attach(network, "random")
    policy = Policy(network=network, tokenizer=None, name="random", adapters=adapters)
    critic = None
    if plan.critic != "none":
        options = {"loss": squared, "optim": OptimSettings(optimizer=torch.optim.AdamW, lr=1e-5)}
        make = separate if plan.critic == "separate" else functools.partial(shared, coef=0.1)
        critic = make(policy, **options).to(device)
    learning = [p for m in (network, critic) if m is not None for p in m.parameters() if p.requires_grad]
    reference = None
    if plan.reference:
        reference = network if adapters else copy.deepcopy(network).requires_grad_(False)
    cache = torch.zeros(int(plan.kv_cache()), dtype=torch.uint8, device=device)
    rows = max(1, plan.tokens // plan.context)
    tokens_BT = torch.randint(plan.config.vocab_size, (rows, plan.tokens // rows + 1), device=device)
    is_action_BT = torch.rand(tokens_BT.shape, device=device) < plan.action_share
    is_action_BT[:, 0] = False
    given = {"tokens_BT": tokens_BT, "is_action_BT": is_action_BT}

    def work() -> None:
        optimizer = torch.optim.AdamW(learning, lr=1e-5)
        for _ in range(2):
            if reference is not None:
                with torch.no_grad(), disable_adapters(reference):
                    score_tokens(reference, **given)
            for _ in range(2):
                step()
            optimizer.step()
            optimizer.zero_grad()

    def step() -> None:
        is_shared = critic is not None and critic.is_shared
        with recompute_layers(network) if plan.checkpointing else nullcontext():
            scores = score_tokens(
                network, **given, with_entropy=True, with_hidden=is_shared, entropy_grad=False,
                logits_chunk=plan.logits_chunk,
            )  # fmt: skip
            loss = -scores.logp_BT.mean()
            if critic is not None:
                loss = loss + critic(network, **given, hidden_AD=scores.hidden_AD).square().mean()
            loss.backward()

    held = [p for m in (network, critic, reference) if m is not None for p in m.parameters()]
    return measure_peak(work, [*held, cache, *given.values()], device)


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
        raise ValueError(f"--shape {args.shape} must be six whole numbers with commas between") from None
    return LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv,
        intermediate_size=inner, vocab_size=vocabulary, max_position_embeddings=2**17,
        tie_word_embeddings=args.tied,
    )  # fmt: skip


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", help="nano, a folder or a hub id: its config.json is read, no weights")
    add("--shape", help="layers,width,heads,kv_heads,inner,vocabulary of a network like Llama")
    add("--tied", action="store_true", help="with --shape: the head is the embedding")
    add("--strategy", choices=["single", "ddp", "fsdp"], default="single")
    add("--ranks", type=int, default=1, help="trainer.devices x trainer.num_nodes")
    add("--precision", choices=["float32", "bfloat16", "mixed"], default="float32",
        help="bfloat16: model.dtype=bfloat16; mixed: trainer.precision=bf16-mixed")  # fmt: skip
    add("--lora", type=int, metavar="R", help="model.lora.r")
    add("--targets", default=ALL_LINEAR, help="model.lora.target_modules, with commas between")
    add("--slots", type=int, default=128, help="engine.num_slots")
    add("--context", type=int, default=1024, help="rollout.max_context_tokens")
    add("--tokens", type=int, default=2048, help="update.tokens_per_microbatch")
    add("--logits-chunk", type=int, default=1024, help="update.logits_chunk; 0: none")
    add("--action-share", type=float, default=0.5, help="share of the tokens that the policy sampled")
    add("--checkpointing", action="store_true", help="update.checkpoint_activations")
    add("--critic", choices=["none", "shared", "separate"], default="none")
    add("--reference", action="store_true", help="the mix has a KL to a reference")
    add("--accumulate-sharded", action="store_true", help="strategy.accumulate_sharded, of fsdp")
    add("--offload-frozen", action="store_true", help="strategy.offload_frozen, of fsdp")
    add("--measure", action="store_true", help="also run two steps of a random network of this shape")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Print the table, and return the terms."""
    args = parse(argv)
    given = {name: getattr(args, name) for name in Plan.__dataclass_fields__ if hasattr(args, name)}
    targets, chunk = tuple(args.targets.split(",")), args.logits_chunk or None
    plan = Plan(config=read_config(args), **{**given, "targets": targets, "logits_chunk": chunk})
    terms = plan.terms()
    trained = plan.parameters if plan.lora is None else plan.adapter_parameters
    print(f"{plan.parameters:,} parameters, {trained:,} of them or beside them trained; bytes of each rank")
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
