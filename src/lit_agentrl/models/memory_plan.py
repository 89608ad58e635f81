"""Estimate of the memory of a run on each rank, term by term.

P is the number of parameters, and P_t the number of trained ones: all, or those of the adapters.  Each has b bytes.
L is the number of layers, d the width, q and k the widths of all query heads and of all key heads, I the inner width,
V the vocabulary.  T is the number of tokens of a micro-batch; the logits of A of them exist at a time.
N is the number of ranks that share weights, gradients and optimizer states under strategy=fsdp, and 1 otherwise.

weights       b P / N; adapters and --precision mixed are in float32
gradients     b P_t / N; and b P_t more with several ranks: ddp's buckets, or gradients that fsdp has not averaged yet
optimizer     2 b P_t / N: AdamW's two moments
step          b P_t / N: the roots of AdamW's second moment, of all weights at once on a GPU
reference     b P / N for a KL term, b being its own, if not off-loaded; nothing with LoRA, where it is the base without
              adapters
critic        separate: weights, gradients and optimizer of its own trunk, or of its adapters with LoRA; the trained
              weights once more with critic.target_rate below 1
kv cache      stores x (slots + 1) x context x 2 L k b, retained between rollouts; one slot takes the writes of idle
              rows; further stores are those of a second level, of an opponent, and of the policy and the critic of
              critic.beta; not counted: a CPU stores half precision as float32
play copy     2 P with --precision mixed, or bfloat16 without adapters, unless sharded: the weights that generate
graphs        of windows: the memory of one step, apart from other memory; not counted: the graphs themselves
vllm          its weights and its cache, at least one context; during updates only if it stays awake
players       weights, kv cache, play copy, graphs, rollout and CUDA context of each further process on the same card
16-bit copies 2 P in an update with --precision mixed: the casts of weights that autocast keeps; with fsdp only under
              --autocast, then in a rollout too
gathered      fsdp: in training two whole blocks and the embeddings, in a rollout all whole weights, each as stored
              under --autocast, else as computed
activations   T L times the bytes that a token saves in a layer (`MemoryPlan.count_layer`), with checkpointing T L d b,
              plus the embedding and the last norm; twice with a separate critic; update.packing=shared: attention
              saves what it reads of whole rows, up to 4 times the tokens
recomputed    with checkpointing, the activations of one layer
logits        four tensors (A, V) in float32
rollout       one layer's keys and values as attention reads them, the logits of a step and five tensors of float32
              of their size, or 39 bytes a logit where top_p or top_k sorts them; ddp's buckets

peak = weights + optimizer + reference + critic + kv cache + play copy + graphs + players + max(update, rollout), where
update is gradients + the larger of step and gathered + 16-bit copies + activations + the larger of recomputed and
logits.  Not counted: the CUDA context and libraries (about 0.5 GiB), fragmentation, and on a CPU the interpreter and
the libraries.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lit_agentrl.models.lora import ALL_LINEAR, LoRA

LEAST_TOKENS, FULL_TOKENS, MOST_TOKENS = 2048, 8192, 65536  # of a micro-batch, see `fit_microbatch`
LEAST_CHUNK = 1024
COPIES = 4  # float32 tensors (A, V) that exist when the backward of a chunk begins
DRAWN, SORTED = 20, 37  # bytes for each logit of a step while its token is drawn, and with top_p or top_k
CONTEXT = 2**30  # bytes of the CUDA context and the libraries of a process


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
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
    attended: int = 1  # most tokens that attention reads for each token of a micro-batch
    critic: str = "none"
    slow_critic: bool = False  # whether a separate critic has slow weights
    reference: bool = False
    reference_bytes: int | None = None  # of a parameter of the reference; None: as the policy's
    accumulate_sharded: bool = False
    offload_frozen: bool = False
    stores: int = 1
    graphs: bool = False
    autocast: bool = False
    play_copy: bool | None = None  # None: by precision, see `count_play_copy`
    truncates: bool = False  # whether top_p or top_k sorts the logits of a step
    vllm: float | None = None  # bytes of the cache of a vLLM in this process
    vllm_sleeps: bool = True
    players: int = 0

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
        if self.autocast and (self.strategy != "fsdp" or self.precision != "mixed"):
            raise ValueError("--autocast needs --strategy fsdp and --precision mixed")

    # ------------------------------------------------------------------ counts
    @functools.cached_property
    def network(self) -> PreTrainedModel:
        """The network on the meta device, with shapes but without memory."""
        with torch.device("meta"):
            network: PreTrainedModel = AutoModelForCausalLM.from_config(self.config)  # type: ignore[no-untyped-call]
        return network

    def copy_with(self, **changes: Any) -> MemoryPlan:
        """Copy the plan with other fields and the same network."""
        plan = replace(self, **changes)
        vars(plan)["network"] = self.network
        return plan

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
    def sharing_ranks(self) -> int:
        """The number of ranks among which weights are divided."""
        return self.ranks if self.strategy == "fsdp" else 1

    @property
    def stored(self) -> int:
        """The bytes of a stored parameter."""
        return 2 if self.precision == "bfloat16" else 4

    @property
    def computed(self) -> int:
        """The bytes of an activation."""
        return 4 if self.precision == "float32" else 2

    @property
    def read_tokens(self) -> int:
        """The most tokens of a micro-batch: a longer row is one of its own."""
        return max(self.tokens, self.context)

    # ------------------------------------------------------------------ terms
    def count_trained(self, parameters: int) -> tuple[float, float, float]:
        """Return the bytes of weights, gradients and optimizer of a trained network."""
        if self.lora is None:
            weights = learning = self.stored * parameters
        else:
            learning = 4 * self.adapter_parameters
            weights = self.stored * parameters + learning
        gradients = learning / self.sharing_ranks
        if self.ranks > 1 and not self.accumulate_sharded:  # ddp: in buckets too; fsdp: whole until averaged
            gradients += learning
        return weights / self.sharing_ranks, gradients, 2 * learning / self.sharing_ranks

    def count_layer(self) -> float:
        """Return the bytes that one token saves for the backward pass in one layer.

        A norm saves its input in float32 and its normed input.  Attention saves queries, keys, values and output, with
        keys and values repeated for every query head.  Where rows share tokens, keys and values are those of whole
        rows, and in float32, without the kernel, queries and output too.  The MLP saves gate, activated gate and up.
        A linear layer saves its input if its weight is trained or has an adapter.  A frozen norm does not save its
        normed input.
        """
        c, b = self.config, self.computed
        d, q, inner = c.hidden_size, c.num_attention_heads * get_head_dim(c), c.intermediate_size
        further = (self.attended - 1) * (4 if b == 4 else 2) * q
        total = 2 * 4 * d + b * (4 * q + further + 3 * inner)
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

    def count_activations(self) -> float:
        """Return the activation bytes of a micro-batch in layers, embedding and last norm."""
        c = self.config
        kept = c.hidden_size * self.computed if self.checkpointing else self.count_layer()
        ends = (4 * 2 if self.lora is not None else 4 * 3) * c.hidden_size
        total = self.read_tokens * (
            c.num_hidden_layers * kept + ends + self.computed * c.hidden_size * self.action_share
        )
        return float(2 * total if self.critic == "separate" else total)

    def count_logits(self) -> float:
        num_scored = int(self.read_tokens * self.action_share)
        num_at_once = num_scored if self.logits_chunk is None else min(num_scored, self.logits_chunk)
        return float(4 * COPIES * num_at_once * self.config.vocab_size)

    def count_recomputed(self) -> float:
        """Return the bytes of one layer that checkpointing recomputes in the backward pass."""
        return self.read_tokens * self.count_layer() if self.checkpointing else 0.0

    def count_kv_cache(self) -> float:
        layers = self.config.num_hidden_layers
        slots = self.slots + 1 if self.slots else 0
        return float(self.stores * slots * self.context * 2 * layers * self.count_kv_bytes())

    def count_kv_bytes(self) -> int:
        c = self.config
        return int(get_kv_heads(c) * get_head_dim(c) * self.computed)

    def count_play_copy(self) -> float:
        """Return the bytes of weights that the native engine copies on a GPU."""
        is_usual = self.precision == "mixed" or (self.precision == "bfloat16" and self.lora is None)
        is_copied = is_usual if self.play_copy is None else self.play_copy
        return 2.0 * self.parameters if is_copied and self.strategy != "fsdp" else 0.0

    def count_gathered(self) -> tuple[float, float]:
        """Return the bytes of gathered whole weights, in training and in a rollout."""
        if self.sharing_ranks == 1:
            return 0.0, 0.0
        embeddings = (
            self.parameters - self.trunk_parameters + self.config.vocab_size * self.config.hidden_size
        )
        block = (self.parameters - embeddings) / self.config.num_hidden_layers
        size = self.stored if self.autocast else self.computed
        return size * (2 * block + embeddings), float(size * self.parameters)

    def count_casts(self) -> tuple[float, float]:
        """Return the bytes of casts that autocast keeps, in training and in a rollout."""
        is_cast = self.precision == "mixed" and (self.strategy != "fsdp" or self.autocast)
        casts = 2.0 * self.parameters if is_cast else 0.0
        return casts, casts if self.autocast else 0.0  # a play copy needs none

    def count_graphs(self) -> float:
        """Return the bytes that captured windows hold for one step, which all of them share."""
        return self.count_step() if self.graphs else 0.0

    def count_step(self) -> float:
        """Return the bytes of the logits of a step and what is drawn from them."""
        each = SORTED if self.truncates else DRAWN
        each += self.computed if self.computed < 4 else 0  # logits of float32 are not copied
        return float(self.slots * each * self.config.vocab_size)

    def count_rollout(self) -> float:
        c = self.config
        repeated = self.count_kv_bytes() * 2 * c.num_attention_heads // get_kv_heads(c)
        return float(self.slots * self.context * repeated) + self.count_step()

    def count_vllm(self) -> float:
        """Return the bytes of a vLLM in this process while it is awake."""
        if self.vllm is None:
            return 0.0
        context = self.context * 2 * self.config.num_hidden_layers * self.count_kv_bytes()
        return float(self.computed * self.parameters + max(self.vllm, context))

    def count_players(self) -> float:
        """Return the bytes of the other processes that play on this card."""
        held = self.stored * self.parameters + self.count_kv_cache() + self.count_play_copy()
        return float(self.players * (held + self.count_graphs() + self.count_rollout() + CONTEXT))

    def count_terms(self) -> dict[str, float]:
        """Return all terms in bytes, with the peak last."""
        weights, gradients, optimizer = self.count_trained(self.parameters)
        is_copied = self.reference and self.lora is None and not self.offload_frozen
        stored = self.reference_bytes or self.stored
        reference = stored * self.parameters / self.sharing_ranks if is_copied else 0.0
        critic = self.count_critic()
        training, playing = self.count_gathered()
        casts, playing_casts = self.count_casts()
        copy, graphs, players = self.count_play_copy(), self.count_graphs(), self.count_players()
        vllm, step = self.count_vllm(), optimizer / 2
        buckets = gradients / 2 if self.strategy == "ddp" and self.ranks > 1 else 0.0
        passes = (
            training + casts + self.count_activations() + max(self.count_logits(), self.count_recomputed())
        )
        update = gradients + max(step, passes) + (0.0 if self.vllm_sleeps else vllm)
        rollout = playing + playing_casts + self.count_rollout() + buckets + vllm
        held = weights + optimizer + reference + critic + self.count_kv_cache() + copy + graphs + players
        return {
            "weights": weights, "gradients": gradients, "optimizer": optimizer, "step": step,
            "reference": reference, "critic": critic, "kv cache": self.count_kv_cache(),
            "gathered": max(training, playing), "play copy": copy, "graphs": graphs, "vllm": vllm,
            "players": players, "16-bit copies": casts, "activations": self.count_activations(),
            "recomputed": self.count_recomputed(), "logits": self.count_logits(),
            "rollout": self.count_rollout(), "peak of update": held + update, "peak of rollout": held + rollout,
            "peak": held + max(update, rollout),
        }  # fmt: skip

    def count_critic(self) -> float:
        head = 16.0 * (self.config.hidden_size + 1)
        if self.critic != "separate":
            return head if self.critic == "shared" else 0.0
        weights, gradients, optimizer = self.count_trained(self.trunk_parameters)
        if self.lora is not None:  # the base is shared with the policy
            weights = 4 * self.adapter_parameters / self.sharing_ranks
        slow = optimizer / 2 + 4 * (self.config.hidden_size + 1) if self.slow_critic else 0.0
        return float(head + weights + gradients + optimizer + slow)


def fit_microbatch(plan: MemoryPlan, limit: float) -> MemoryPlan:
    """Return the plan with the largest micro-batch and chunk of logits that fit.

    Micro-batches are powers of 2 up to `MOST_TOKENS`.  One of at least `FULL_TOKENS` is taken only if the logits of
    half of its tokens, the usual share of actions, fit at once: computing logits in chunks, and so twice, costs a GPU
    more time than more tokens save.  If nothing fits, micro-batch and chunk are the smallest.

    Args:
        plan: the plan, whose ``tokens`` and ``logits_chunk`` are replaced.
        limit: bytes that the peak may take.
    """

    def is_fitting(tokens: int, chunk: int) -> bool:
        tried = plan.copy_with(tokens=tokens, logits_chunk=chunk)
        return tried.count_terms()["peak"] <= limit

    def list_powers(most: int, least: int) -> list[int]:
        return [2**k for k in reversed(range(least.bit_length() - 1, most.bit_length()))]

    large = ((tokens, tokens // 2) for tokens in list_powers(MOST_TOKENS, FULL_TOKENS))
    small = ((tokens, LEAST_CHUNK) for tokens in list_powers(FULL_TOKENS, LEAST_TOKENS))
    sizes = (LEAST_TOKENS, LEAST_CHUNK)
    tokens, least = next((pair for pair in (*large, *small) if is_fitting(*pair)), sizes)
    chunk = next((each for each in list_powers(tokens, least) if is_fitting(tokens, each)), least)
    return plan.copy_with(tokens=tokens, logits_chunk=chunk)


def get_kv_heads(config: PreTrainedConfig) -> int:
    """Return the number of key heads."""
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def get_head_dim(config: PreTrainedConfig) -> int:
    """Return the width of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
