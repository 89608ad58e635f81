"""Cost of one decode step of the native engine: milliseconds, kernels, waits, share of the memory limit.

    python -m scripts.bench.decode_step [--model 0.5b-random] [--dtype bfloat16] [--rows 128] [--context 512]

All rows have read a random message, and each draws 20 tokens in a measurement.  The limit is the time in which the
device reads the weights and the stored keys and values once, at the measured rate of a copy; the share is that time
over ours.  *Operators* are counted by a dispatch mode on any device, views left out; *kernels*, *copies* and *waits*
by the profiler, on a GPU alone.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.models.policy import Policy
from scripts.bench import trl_games
from scripts.bench.common import Spread, parse, parser_for, table, write_json
from scripts.bench.roofline import DEVICE, Model, copy_rate

STEPS = 20
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
TOP = 15  # operators shown


class CountOperators(TorchDispatchMode):
    """A mode that counts operators that compute, so no views."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket is not torch.ops.aten.detach:
            self.found[str(func.overloadpacket)] += 1
        return result


class Decoder:
    """An engine whose rows have read their messages; a call draws ``STEPS`` tokens of each.

    Raises:
        ValueError: the context leaves no room for a message.
    """

    def __init__(self, policy: Policy, options: argparse.Namespace) -> None:
        steps = STEPS * (options.repeats + 3) + 1
        length = options.context - steps
        if length < 1:
            raise ValueError(f"--context={options.context} must be > {steps} for --repeats={options.repeats}")
        mixed = partial(torch.autocast, DEVICE, torch.bfloat16)
        self.engine = NativeEngine(
            policy.network.to(DEVICE), stop=trl_games.NeverStop(None), end_of_turn_ids=(),
            num_slots=options.rows, max_context_tokens=options.context,
            forward_context=mixed if options.dtype == "mixed" else nullcontext,
        )  # fmt: skip
        self.engine.load(None, 0)
        draw = torch.Generator().manual_seed(0)
        high = policy.network.config.vocab_size
        messages = torch.randint(10, high, (options.rows, length), generator=draw)
        params = SamplingParams(max_reply_tokens=steps + 1, max_context_tokens=options.context)
        for row, tokens in enumerate(messages.tolist()):
            self.engine.submit(TurnRequest(row, tokens, row, params))
        self.engine.poll(steps=1)
        self()

    def __call__(self) -> float:
        """Return the milliseconds of a step."""
        synchronize()
        started = time.perf_counter()
        self.engine.poll(steps=STEPS)
        synchronize()
        return 1e3 * (time.perf_counter() - started) / STEPS


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def profile_steps(work: Callable[[], Any]) -> tuple[dict[str, float], str]:
    """Return counts a step and the table of the operators that take the most time."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
    with profile(activities=activities) as trace:
        work()
    found: dict[str, float] = {}
    if DEVICE == "cuda":
        on_device = [each for each in trace.events() if each.device_type == torch.autograd.DeviceType.CUDA]
        copies = sum(each.name.startswith(("Memcpy", "Memset")) for each in on_device)
        waits = sum(each.name in WAITS for each in trace.events())
        busy = sum(each.time_range.elapsed_us() for each in on_device) / 1e3
        found = {
            "kernels": (len(on_device) - copies) / STEPS, "copies": copies / STEPS, "waits": waits / STEPS,
            "device_ms": busy / STEPS,
        }  # fmt: skip
    order = "self_device_time_total" if DEVICE == "cuda" else "self_cpu_time_total"
    return found, trace.key_averages().table(sort_by=order, row_limit=TOP, max_name_column_width=60)


def main() -> None:
    parser = parser_for(__file__, __doc__, repeats=3)
    parser.add_argument("--model", default="nano", choices=["nano", *trl_games.SHAPES])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "mixed"],
                        help="of the weights; mixed: float32, computed in bfloat16")  # fmt: skip
    parser.add_argument("--rows", type=int, default=128, help="episodes decoded together")
    parser.add_argument("--context", type=int, default=512, help="tokens of a slot")
    options = parse(parser)
    policy = trl_games.policy(options.model, "float32" if options.dtype == "mixed" else options.dtype)
    decoder = Decoder(policy, options)
    milliseconds = Spread.of(decoder() for _ in range(options.repeats))
    with CountOperators() as counted:
        decoder.engine.poll(steps=1)
    counts, text = profile_steps(decoder)
    print(text)
    itemsize = 4 if options.dtype == "float32" else 2
    work = Model(policy.network, itemsize).decode(options.rows, options.context - STEPS * 2)
    limit = 1e3 * work.bytes / copy_rate()
    operators = sum(counted.found.values())
    result = {
        "ms": milliseconds, "limit_ms": limit, "share": limit / milliseconds.median,
        "tokens_per_s": 1e3 * options.rows / milliseconds.median, "operators": operators,
        "layers": policy.network.config.num_hidden_layers, **counts, "by_operator": counted.found.most_common(),
        "profile": text.splitlines(),
    }  # fmt: skip
    shown = ["ms", "limit_ms", "share", "tokens_per_s", "operators", *counts]
    values = [milliseconds.median if name == "ms" else result[name] for name in shown]
    print(table(["a decode step", ""], [[n, f"{v:.4g}"] for n, v in zip(shown, values, strict=True)]))
    write_json(options.out, result, options)


if __name__ == "__main__":
    main()
