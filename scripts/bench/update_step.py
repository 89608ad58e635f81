"""Cost of an update of tree-like rows that are padded, packed, or share beginnings.

    python -m scripts.bench.update_step [--model tiny-random] [--dtype float32] [--rows turns] [--turns 8] [--members 8]

The rows are one group of random tokens.  With ``--rows turns`` each turn of each episode is a row with all turns before
it.  With ``--rows leaves`` each episode is a row, and all but the first continue another episode from a random turn.
All rows have the same opening.  A side is one whole update without Lightning: minibatch, micro-batches, backward,
clipping, AdamW.
*before* are padded micro-batches of 2,048 tokens with logits in pieces of 1,024; the others have ``--tokens`` of both.

*Operators* are those of forward and backward pass that launch work, so no views, per layer and micro-batch (the
difference of a network of 4 layers and one of 2), and *others* the rest of a micro-batch.  On a CPU the kernel for
segments is an operator without content while they are counted; seconds are those of the CPU's own path.  *Waits* are
operators of a micro-batch whose result the host needs before it can go on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from hydra import compose
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.models import packing, segment_attention
from lit_agentrl.models.policy import Policy
from lit_agentrl.update.progress import Loop
from lit_agentrl.update.settings import UpdateSettings
from lit_agentrl.update.updater import Updater
from scripts.bench import trl_games
from scripts.bench.common import (
    Measured,
    alternate,
    compute_ratio,
    format_table,
    make_parser,
    parse,
    summarise,
    write_json,
)
from scripts.bench.decode_step import CountOperators

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OPENING, MESSAGE, REPLY = 120, 40, 40  # tokens of the first message, of a later one, and of a reply
aten = torch.ops.aten
_WAITS = {
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim,
    aten.unique_consecutive, aten.bincount, aten.equal, aten.repeat_interleave,
}  # fmt: skip
_INDEXED = {aten.index, aten.index_put, aten.index_put_}  # wait if an index is a mask


class CountWaits(TorchDispatchMode):
    """A mode that counts operators whose result the host needs before it can go on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        is_mask = packet in _INDEXED and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        if packet in _WAITS or is_mask:
            self.found.append(str(packet))
        return func(*args, **(kwargs or {}))


# ---------------------------------------------------------------------- rows
def make_rows(kind: str, turns: int, members: int, vocabulary: int) -> TrajectoryBatch:
    """Make the rows of one group; returns alternate between 0 and 1."""
    draw = torch.Generator().manual_seed(0)
    message = [OPENING, *[MESSAGE] * (turns - 1)]

    def make_turn(number: int) -> list[int]:
        return torch.randint(10, vocabulary, (message[number] + REPLY,), generator=draw).tolist()

    opening = make_turn(0)[:OPENING]
    episodes: list[list[list[int]]] = []
    for member in range(members):
        first = int(torch.randint(turns, (), generator=draw)) if kind == "leaves" and member else 0
        taken = episodes[int(torch.randint(member, (), generator=draw))][:first] if first else []
        episode = [*taken, *(make_turn(number) for number in range(first, turns))]
        episode[0] = opening + episode[0][OPENING:]
        episodes.append(episode)
    is_reply = [token >= length for length in message for token in range(length + REPLY)]
    cuts = range(1, turns + 1) if kind == "turns" else [turns]
    rows = [(member, cut, sum(episode[:cut], [])) for member, episode in enumerate(episodes) for cut in cuts]
    width = max(len(tokens) for _, _, tokens in rows)
    toy = TrajectoryBatch.make_toy().to_dict()
    columns = {
        name: column[0].new_zeros((len(rows), width) if name.endswith("_BT") else (len(rows),))
        for name, column in toy.items()
        if name.endswith(("_BT", "_B"))
    }
    for row, (member, cut, tokens) in enumerate(rows):
        end, own = len(tokens), len(tokens) - message[cut - 1] - REPLY if kind == "turns" else 0
        columns["tokens_BT"][row, :end] = torch.tensor(tokens)
        columns["is_real_BT"][row, :end] = True
        columns["is_action_BT"][row, own:end] = torch.tensor(is_reply[own:end])
        columns["is_turn_end_BT"][row, end - 1] = True
        columns["return_B"][row] = columns["reward_BT"][row, end - 1] = member % 2
        columns["trajectory_B"][row] = columns["member_B"][row] = member
    columns["node_BT"] = torch.arange(len(rows) * width).reshape(len(rows), width)
    return TrajectoryBatch(**columns, state_key_BK=torch.zeros((len(rows), 1), dtype=torch.int64))


# ---------------------------------------------------------------------- sides
class Update:
    """One update of a policy on the rows."""

    def __init__(self, policy: Policy, batch: TrajectoryBatch, dtype: str, **settings: Any) -> None:
        with initialize_hydra():
            objective = build_algorithm(compose("train", overrides=["algo=grpo"]))[0]
        self.updater = Updater(objective, UpdateSettings(max_logp_gap=1e9, **settings), policy)
        weights = list(policy.network.parameters())
        self.loop = Loop(
            device=DEVICE, optimizers=[torch.optim.AdamW(weights, lr=1e-12)], schedules=[],
            backward=lambda loss: loss.backward(),
        )  # fmt: skip
        self.context: Callable[[], AbstractContextManager[Any]] = (
            (lambda: torch.autocast(DEVICE.type, torch.bfloat16)) if dtype == "mixed" else nullcontext
        )
        self.tensors = batch.to(DEVICE).to_dict()
        with self.context():
            self.tensors["sampler_logp_BT"] = self.updater.networks.compute_logp(self.tensors)
        self.row: dict[str, float] = {}

    def __call__(self, repeat: int = 0) -> Measured:
        synchronize()
        started = time.perf_counter()
        with self.context():
            self.row = self.updater.update(dict(self.tensors), self.loop, iteration=0)
        synchronize()
        return {"seconds": time.perf_counter() - started}

    def count(self) -> tuple[int, int, int]:
        """Return operators and waits of all micro-batches but the first, and their number."""
        stepper, operators, waits = self.updater._stepper, CountOperators(), CountWaits()
        compute_loss, parts = stepper._compute_loss, 0

        def compute(*args: Any) -> Any:
            nonlocal parts
            parts += 1
            with operators if parts > 1 else nullcontext(), waits if parts > 1 else nullcontext():
                return compute_loss(*args)

        def run_backward(loss: Tensor) -> None:
            with operators if parts > 1 else nullcontext(), waits if parts > 1 else nullcontext():
                loss.backward()

        loop = replace(self.loop, backward=run_backward)
        with mock.patch.object(stepper, "_compute_loss", compute), self.context():
            self.updater.update(dict(self.tensors), loop, iteration=0)
        return sum(operators.found.values()), len(waits.found), parts - 1


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


@torch.library.custom_op("lit_agentrl_bench::segments", mutates_args=())
def attend_nothing(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Replace the kernel while operators are counted on a CPU."""
    return torch.zeros_like(query)


@torch.library.custom_op("lit_agentrl_bench::segments_backward", mutates_args=())
def attend_nothing_backward(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    return [torch.zeros_like(each) for each in (query, key, value)]


attend_nothing.register_autograd(
    lambda ctx, _: tuple(attend_nothing_backward(*ctx.saved_tensors)),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@contextmanager
def replace_kernel() -> Iterator[None]:
    """Read packed rows as on a GPU, with empty results, where there is no kernel."""
    if DEVICE.type == "cuda":
        yield
        return

    def attend(query: Any, key: Any, value: Any, *_: Any, enable_gqa: bool = False, **__: Any) -> Any:
        return attend_nothing(query, key, value)

    with (
        mock.patch.object(segment_attention, "varlen_attn", attend),
        mock.patch.object(packing, "find_kernel_obstacle", lambda *_: ""),
    ):
        yield


def count(form: bool | str, options: argparse.Namespace) -> dict[str, float]:
    """Count operators of a layer, other operators and waits, of a micro-batch."""
    found = []
    for layers in (2, 4):
        policy = trl_games.policy("tiny-random", "float32" if options.dtype == "mixed" else options.dtype)
        config = policy.network.config
        config.update({"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers})
        policy.network = type(policy.network)(config).to(DEVICE, policy.network.dtype).eval()
        batch = make_rows(options.rows, 4, 8, 2000)
        sizes = {"tokens_per_microbatch": 700, "logits_chunk": None}
        update = Update(policy, batch, options.dtype, packing=form, **sizes)
        with replace_kernel():
            operators, waits, parts = update.count()
        found.append((operators / parts, waits / parts))
    (two, waits), (four, _) = found
    layer = (four - two) / 2
    return {"operators": layer, "others": two - 2 * layer, "waits": waits}


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=3)
    parser.add_argument("--model", default="tiny-random", choices=list(trl_games.SHAPES))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "mixed"],
                        help="of the weights; mixed: float32, computed in bfloat16")  # fmt: skip
    parser.add_argument("--rows", default="turns", choices=["turns", "leaves"])
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--members", type=int, default=8, help="episodes of the group")
    parser.add_argument(
        "--tokens", type=int, default=16384 if DEVICE.type == "cuda" else 2048, help="of a micro-batch"
    )
    options = parse(parser)
    policy = trl_games.policy(options.model, "float32" if options.dtype == "mixed" else options.dtype)
    policy.network.to(DEVICE)
    batch = make_rows(options.rows, options.turns, options.members, 2000)
    same = {"tokens_per_microbatch": options.tokens, "logits_chunk": options.tokens}
    sides = {
        "before": {"packing": False, "tokens_per_microbatch": 2048, "logits_chunk": 1024},
        "padded": {"packing": False, **same}, "packed": {"packing": True, **same},
        "shared": {"packing": "shared", **same},
    }  # fmt: skip
    updates = {name: Update(policy, batch, options.dtype, **settings) for name, settings in sides.items()}
    rounds = alternate(updates, repeats=options.repeats)
    seconds = {name: summarise(rounds, name, "seconds") for name in sides}
    ratios = {name: compute_ratio(rounds, "seconds", of=name, to="shared") for name in ("before", "padded")}
    counts = {name: count(sides[name]["packing"], options) for name in ("padded", "packed", "shared")}
    rows = [
        [name, found.show(3), f"{updates[name].row['train/shared_token_share']:.2f}",
         f"{updates[name].row['train/padding_share']:.2f}",
         *(f"{counts.get(name, {}).get(what, float('nan')):.0f}" for what in ("operators", "others", "waits"))]
        for name, found in seconds.items()
    ]  # fmt: skip
    print(f"{batch.num_rows} rows, {int(batch.is_real_BT.sum())} tokens, on {DEVICE.type} in {options.dtype}")
    print(
        format_table(["side", "seconds", "shared", "padding", "operators a layer", "others", "waits"], rows)
    )
    for name, ratio in ratios.items():
        print(f"speed of shared rows over {name} ones: {ratio.show()}")
    losses = {name: update.row["train/grad_norm"] for name, update in updates.items()}
    print("gradient norms:", ", ".join(f"{name} {value:.6g}" for name, value in losses.items()))
    result = {"rounds": rounds, "seconds": seconds, "ratio": ratios, "counts": counts, "grad_norm": losses}
    write_json(options.out, result, options)


if __name__ == "__main__":
    main()
