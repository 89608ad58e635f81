"""Decode and update rates relative to this machine's matrix-product and memory-copy limits.

    python -m scripts.bench.roofline [--rows 128] [--context 256] [--width 0] [--precision 32-true] [--repeats 5]

*Limits* are measured: the products of every linear layer of the network alone, with as many rows as a decode step
or a micro-batch; large square products for comparison; a copy of 256 MiB (bytes read and written).

*Ours* are decode steps of the native engine (a long reply minus a reply of one token, to exclude prefill) and one
training step of GRPO on the same episodes.  P weights of linear layers, H of them in the head; B rows, C tokens of
context, L layers with h heads (k for keys and values) of width d; T tokens in rows, A of them actions:

    decode  FLOPs a step = 2 B P + 4 B C L h d      bytes = (P + 2 B C L k d) x bytes a number
    update  FLOPs = 3 x (2 T (P - H) + 2 A H + 2 L h d x sum of squared row lengths)
            bytes = 7 x 4 P, of AdamW's pass over weights, gradients and both moments

The floor is the longer of FLOPs over the matmul limit and bytes over the copy limit; the share is the floor over
our seconds, within repetitions.  It omits norms, activations and sampling, so 1 cannot be reached.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import load_nano
from scripts.bench.common import (
    Measured,
    Round,
    Summary,
    alternate,
    format_table,
    make_parser,
    parse,
    summarise,
    write_json,
)
from scripts.bench.synthetic import Player, Shape, Trained, make_random_policy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COPY_BYTES = 256 * 2**20
SQUARE = 1024
NEW = 64  # number of tokens of the long reply


@dataclass(frozen=True)
class Work:
    """The minimum work of one step."""

    flops: float
    bytes: float

    def compute_floor(self, limits: Measured, products: str) -> float:
        """Return the minimum seconds under these limits."""
        return max(self.flops / limits[products], self.bytes / limits["copy"])


class Model:
    """The sizes of a decoder, for counting."""

    def __init__(self, network: Any, itemsize: int) -> None:
        config = network.config.get_text_config()
        self.linears = [
            (m.in_features, m.out_features) for m in network.modules() if isinstance(m, nn.Linear)
        ]
        self.weights = sum(k * n for k, n in self.linears)
        self.head = config.hidden_size * config.vocab_size
        self.layers, self.itemsize = config.num_hidden_layers, itemsize
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads

    def decode(self, rows: int, context: float) -> Work:
        attended = rows * context * self.layers * self.head_dim
        return Work(
            2.0 * rows * self.weights + 4.0 * attended * self.heads,
            (self.weights + 2.0 * attended * self.kv_heads) * self.itemsize,
        )

    def update(self, lengths: list[int], actions: int) -> Work:
        linear = 2.0 * sum(lengths) * (self.weights - self.head) + 2.0 * actions * self.head
        # causal attention needs half of the 4 T^2 of a full square
        attention = 2.0 * self.layers * self.heads * self.head_dim * sum(n * n for n in lengths)
        return Work(3.0 * (linear + attention), 7.0 * 4.0 * self.weights)


def time_call(work: Callable[[], Any], at_least: float = 0.2) -> float:
    """Measure the mean seconds of a call, over calls of ``at_least`` seconds in total."""
    work()
    calls, started = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        if (taken := time.perf_counter() - started) >= at_least:
            return taken / calls


def measure_products(linears: list[tuple[int, int]], rows: int, dtype: torch.dtype) -> float:
    """Measure FLOP/s of these linear layers, one after the other, on ``rows`` tokens."""
    pairs = [
        (torch.randn(rows, k, dtype=dtype, device=DEVICE), torch.randn(n, k, dtype=dtype, device=DEVICE))
        for k, n in linears
    ]

    @torch.no_grad()
    def work() -> None:
        for x, weight in pairs:
            nn.functional.linear(x, weight)

    return 2.0 * rows * sum(k * n for k, n in linears) / time_call(work)


def measure_copy_rate() -> float:
    """Measure the bytes read and written per second."""
    source = torch.ones(COPY_BYTES // 4, device=DEVICE)
    target = torch.empty_like(source)
    return 2.0 * COPY_BYTES / time_call(lambda: target.copy_(source))


def measure_limits(model: Model, rows: int, microbatch: int, number: int) -> Measured:
    found = {"copy": measure_copy_rate()}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        found[f"square {name}"] = measure_products([(SQUARE, SQUARE)], SQUARE, dtype)
        found[f"decode {name}"] = measure_products(model.linears, rows, dtype)
        found[f"update {name}"] = measure_products(model.linears, microbatch, dtype)
    return found


def measure_decode(short: Player, long: Player, rows: int, number: int) -> tuple[Measured, list[Episode]]:
    """Measure a decode step as a reply of ``NEW`` tokens minus one of one token."""
    first = short.play(groups=rows, members=1, seed=number + 9)[1]
    episodes, whole = long.play(groups=rows, members=1, seed=number + 9)
    return {"seconds": (whole - first) / (NEW - 1), "rollout": whole}, episodes


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--rows", type=int, default=128, help="episodes decoded together")
    parser.add_argument("--context", type=int, default=256, help="tokens of a row at the end of its reply")
    parser.add_argument("--width", type=int, default=0, help="of a random network; 0: the embedded policy")
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed"])
    options = parse(parser)
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    result = measure(options)
    write_json(options.out, result, options)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    policy = make_random_policy(options.width, context=1024) if options.width else load_nano()
    # with bf16-mixed, weights are read as float32, and the cache holds the layers' output in bfloat16
    is_mixed = options.precision == "bf16-mixed"
    model, dtype = Model(policy.network, 2 if is_mixed else 4), "bfloat16" if is_mixed else "float32"
    given = {"slots": options.rows, "precision": options.precision, "device": DEVICE}
    long = Player(policy, Shape(1, NEW, options.context), **given)
    short = Player(policy, Shape(1, 1, options.context - NEW + 1), **given)
    trained = Trained(policy, precision=options.precision)
    microbatch = trained.module.updater.settings.tokens_per_microbatch
    played: list[list[Episode]] = []

    def decode_side(number: int) -> Measured:
        found, episodes = measure_decode(short, long, options.rows, number)
        played.append(episodes)
        return found

    def update_side(number: int) -> Measured:
        episodes = played[-1] if played else measure_decode(short, long, options.rows, number)[1]
        return {"seconds": trained(episodes)}

    sides = {
        "limits": lambda n: measure_limits(model, options.rows, microbatch, n), "decode": decode_side,
        "update": update_side,
    }  # fmt: skip
    rounds = alternate(sides, repeats=options.repeats)
    work = {
        "decode": model.decode(options.rows, options.context - NEW / 2),
        "update": model.update([options.context] * options.rows, NEW * options.rows),
    }
    tokens = {"decode": options.rows, "update": options.rows * options.context}
    return report(rounds, work, tokens, dtype)


def report(rounds: list[Round], work: dict[str, Work], tokens: dict[str, int], dtype: str) -> dict[str, Any]:
    names = list(rounds[0]["limits"])
    print(format_table(["limit", "GB/s or GFLOP/s (least–greatest)"], [
        [name, Summary.of(r["limits"][name] / 1e9 for r in rounds).show(1)] for name in names
    ]))  # fmt: skip
    rows, shares = [], {}
    for side, each in work.items():
        product = f"{side} {dtype}"
        seconds = summarise(rounds, side, "seconds")
        shares[side] = Summary.of(
            each.compute_floor(r["limits"], product) / r[side]["seconds"] for r in rounds
        )
        by_flops = Summary.of(each.flops / r["limits"][product] for r in rounds).median
        by_bytes = Summary.of(each.bytes / r["limits"]["copy"] for r in rounds).median
        rows.append([
            side, f"{1e3 * seconds.median:.2f}", f"{tokens[side] / seconds.median:.0f}", f"{each.flops / 1e9:.3g}",
            f"{each.bytes / 1e6:.3g}", f"{1e3 * by_flops:.2f}", f"{1e3 * by_bytes:.2f}", shares[side].show(),
        ])  # fmt: skip
    header = [
        "ours",
        "ms a step",
        "tokens/s",
        "GFLOP",
        "MB",
        "ms by FLOPs",
        "ms by bytes",
        "share of the limit",
    ]
    print(format_table(header, rows))
    return {
        "rounds": rounds,
        "work": {n: vars(w) for n, w in work.items()},
        "tokens": tokens,
        "share": shares,
    }


if __name__ == "__main__":
    main()
