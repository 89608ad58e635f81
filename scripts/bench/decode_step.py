"""Cost of the native engine's decode step, and its share of the memory limit.

    python -m scripts.bench.decode_step [--windows 0 8] [--model 0.5b-random] [--dtype bfloat16] [--rows 128]

``--windows`` are values of ``engine.window``: the number of decode steps between two looks at the tokens, 0 for a look
after each step.  Values above 0 are measured with and without ``engine.play_copy``.  All rows have read a random
message, and each draws at least 20 tokens in a measurement.  The limit is the time in which the device reads the
weights and the stored keys and values, as many as there are on average, at the measured rate of a copy; the share is
that time over ours.

*Operators* launch work; a dispatch mode counts them on any device, views left out.  Those *a layer* are the difference
of networks of two layers and one.  *Waits* are calls that hand values to the host, *uploads* copies to the device.
*Kernels*, *copies* and the *driver's waits* are counted by the profiler, on a GPU alone.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native import attention, play_copy
from lit_agentrl.engines.native.engine import NativeEngine
from scripts.bench import trl_games
from scripts.bench.common import Summary, format_table, make_parser, parse, write_json
from scripts.bench.roofline import DEVICE, Model, measure_copy_rate

STEPS = 20
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
TOP = 15  # operators shown


class CountOperators(TorchDispatchMode):
    """A mode that counts operators that launch work, so no views.

    Compound operators are counted by their parts, except attention and norms, which are one kernel on GPUs.  The result
    of attention lies in memory as that kernel leaves it.
    """

    fused = (torch.ops.aten.scaled_dot_product_attention, torch.ops.aten.rms_norm)
    free = (torch.ops.aten.detach, torch.ops.aten._unsafe_view)  # launch nothing

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "aten" and func.overloadpacket not in self.fused:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        if func.overloadpacket is torch.ops.aten.scaled_dot_product_attention:
            result = result.transpose(1, 2).contiguous().transpose(1, 2)
        if func.namespace != "prim" and not func.is_view and func.overloadpacket not in self.free:
            self.found[str(func.overloadpacket)] += 1
        return result


class CountWaits(TorchFunctionMode):
    """A mode that counts calls that hand values to the host.

    Copies to a device are counted as ``to``.
    """

    names = frozenset({"cpu", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero"})

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        is_upload = name == "to" and any(isinstance(each, torch.device) for each in args)
        self.found[name] += name in self.names or is_upload
        return func(*args, **(kwargs or {}))


class Side(NamedTuple):
    """A way to decode: ``engine.window`` and ``engine.play_copy``."""

    window: int
    copies: bool

    @property
    def size(self) -> int:
        return max(self.window, 1)

    @property
    def name(self) -> str:
        return f"{self.window} copy" if self.copies else str(self.window)


class Decoder:
    """An engine whose rows have read their messages.

    A call draws at least ``STEPS`` tokens for each row.

    Raises:
        ValueError: the context leaves no room for a message.
    """

    def __init__(
        self, network: PreTrainedModel, side: Side, *, rows: int, context: int, calls: int, mixed: bool
    ) -> None:
        size = side.size
        steps = -(-STEPS // size) * size * calls + 2 * size
        length = context - steps
        if length < 1:
            raise ValueError(f"--context={context} must be > {steps} for these --repeats and --windows")
        self.engine = NativeEngine(
            network.to(DEVICE), stop=trl_games.NeverStop(None), end_of_turn_ids=(), num_slots=rows,
            max_context_tokens=context, window=side.window, play_copy=side.copies,
            forward_context=partial(torch.autocast, DEVICE, torch.bfloat16) if mixed else nullcontext,
        )  # fmt: skip
        self.engine.load(None, 0)
        draw = torch.Generator().manual_seed(0)
        messages = torch.randint(10, network.config.vocab_size, (rows, length), generator=draw)
        params = SamplingParams(max_reply_tokens=steps, max_context_tokens=context)
        for row, tokens in enumerate(messages.tolist()):
            self.engine.submit(TurnRequest(row, tokens, row, params))
        self.engine.poll(steps=1)

    def __call__(self) -> float:
        """Return the milliseconds of a step."""
        synchronize()
        started, before = time.perf_counter(), self.engine.num_steps
        self.engine.poll(steps=STEPS)
        synchronize()
        return 1e3 * (time.perf_counter() - started) / (self.engine.num_steps - before)

    @property
    def stored(self) -> float:
        """Mean number of tokens of a row."""
        return float(self.engine._rows.total_S.mean())

    def count(self) -> tuple[Counter[str], Counter[str]]:
        """Count operators and waits of the smallest number of steps, without a captured graph."""
        if self.engine.window is not None:
            self.engine.window.capture = False
        with CountOperators() as operators, CountWaits() as waits:
            self.engine.poll(steps=1)
        return operators.found, waits.found


def count_layer(config: Any, side: Side, mixed: bool, dtype: torch.dtype) -> Counter[str]:
    """Count operators of one layer in one step, at small sizes of the same architecture.

    Attention is that of GPUs, also on a CPU.
    """
    found = []
    for layers in (1, 2):
        small = copy.deepcopy(config)
        small.num_hidden_layers, small.vocab_size = layers, 512
        if types := getattr(config, "layer_types", None):
            small.layer_types = types[:layers]
        network = AutoModelForCausalLM.from_config(small).to(dtype).eval()
        decoder = Decoder(network, side, rows=4, context=2 * STEPS + 6 * side.size, calls=1, mixed=mixed)
        with patch.object(attention, "attend_by_products", attention.attend):
            found.append(decoder.count()[0])
    return Counter(
        {name: (n - found[0][name]) / side.size for name, n in found[1].items() if n > found[0][name]}
    )


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def profile_steps(decoder: Decoder) -> tuple[dict[str, float], str]:
    """Return counts a step and the table of the operators that take the most time."""
    before = decoder.engine.num_steps
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
    with profile(activities=activities) as trace:
        decoder()
    steps = decoder.engine.num_steps - before
    found: dict[str, float] = {}
    if DEVICE == "cuda":
        on_device = [each for each in trace.events() if each.device_type == torch.autograd.DeviceType.CUDA]
        copies = sum(each.name.startswith(("Memcpy", "Memset")) for each in on_device)
        waits = sum(each.name in WAITS for each in trace.events())
        busy = sum(each.time_range.elapsed_us() for each in on_device) / 1e3
        found = {
            "kernels": (len(on_device) - copies) / steps, "copies": copies / steps, "driver_waits": waits / steps,
            "device_ms": busy / steps,
        }  # fmt: skip
    order = "self_device_time_total" if DEVICE == "cuda" else "self_cpu_time_total"
    return found, trace.key_averages().table(sort_by=order, row_limit=TOP, max_name_column_width=60)


def measure(options: argparse.Namespace, network: PreTrainedModel, side: Side, rate: float) -> dict[str, Any]:
    """Measure a decode step of one side, given the bytes a second of a copy."""
    mixed, size = options.dtype == "mixed", side.size
    decoder = Decoder(
        network, side, rows=options.rows, context=options.context, calls=options.repeats + 2, mixed=mixed
    )
    decoder()
    before = decoder.stored
    milliseconds = Summary.of(decoder() for _ in range(options.repeats))
    itemsize = 4 if options.dtype == "float32" else 2
    work = Model(network, itemsize).decode(options.rows, (before + decoder.stored) / 2)
    limit_ms = 1e3 * work.bytes / rate
    counts, text = profile_steps(decoder)
    print(f"{side.name}\n{text}")
    operators, waits = decoder.count()
    layer = count_layer(network.config, side, mixed, network.dtype)
    return {
        "window": side.window, "copy": side.copies, "ms": milliseconds, "limit_ms": limit_ms,
        "share": limit_ms / milliseconds.median,
        "tokens_per_s": 1e3 * options.rows / milliseconds.median, "operators": operators.total() / size,
        "operators_a_layer": layer.total(), "waits": (waits.total() - waits["to"]) / size,
        "uploads": waits["to"] / size, **counts, "layer": layer, "by_operator": operators.most_common(),
        "profile": text.splitlines(),
    }  # fmt: skip


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=3)
    parser.add_argument("--model", default="nano", choices=["nano", *trl_games.SHAPES])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "mixed"],
                        help="of the weights; mixed: float32, computed in bfloat16")  # fmt: skip
    parser.add_argument("--rows", type=int, default=128, help="episodes decoded together")
    parser.add_argument("--context", type=int, default=512, help="tokens of a slot")
    parser.add_argument("--windows", type=int, nargs="+", default=[0, 8], help="values of engine.window")
    options = parse(parser)
    network = trl_games.policy(
        options.model, "float32" if options.dtype == "mixed" else options.dtype
    ).network
    rate = measure_copy_rate()
    measured = [Side(w, c) for w in options.windows for c in ((False, True) if w else (False,))]
    if reason := play_copy.find_copy_obstacle(network):
        print(f"no copy: {reason}")
        measured = [side for side in measured if not side.copies]
    found = {side.name: measure(options, network, side, rate) for side in measured}
    sides = list(found.values())
    shown = [
        name
        for name, value in sides[0].items()
        if isinstance(value, int | float | Summary) and name not in ("window", "copy")
    ]
    rows = [[name, *(f"{s[name].median if name == 'ms' else s[name]:.4g}" for s in sides)] for name in shown]
    print(format_table(["a decode step, engine.window=", *found], rows))
    names = sorted({name for each in sides for name in each["layer"]})
    rows = [[name, *(f"{each['layer'][name]:g}" for each in sides)] for name in names]
    print(format_table(["operators a layer, engine.window=", *found], rows))
    layers = network.config.num_hidden_layers
    write_json(options.out, {"layers": layers, "windows": found}, options)


if __name__ == "__main__":
    main()
