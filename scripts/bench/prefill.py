"""Cost of reading messages: forwards, operators, copies to the device, padding and masks.

    python -m scripts.bench.prefill [--prompts 16] [--members 8] [--turns 3] [--seed 0]

Each wave is one read of all rows up to their last tokens: the first messages, then a message after each reply. The
message of turn 0 has ``--opening`` tokens for all prompts and 50 to 200 of each prompt; later ones have 10 to 80, and
replies 16.  *padded* and *packed* are values of ``engine.prefill``, the latter also with ``engine.play_copy``.

*Operators* launch work; a dispatch mode counts them on ``meta`` tensors, views left out, and the kernel for segments is
one. Those *a layer* are the difference of networks of two layers and one.  *Queries* are those that attention computes
for a token that is read, *mask* the elements of masks for one and a query head.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import LlamaConfig, LlamaForCausalLM

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native import prefill
from lit_agentrl.engines.native.attention import NAME, MaskedLayout
from lit_agentrl.engines.native.inference import Inference
from lit_agentrl.engines.native.play_copy import PlayCopy
from lit_agentrl.engines.native.prefill import pack_pieces
from lit_agentrl.engines.native.prefixes import Copy, find_common_prefixes
from lit_agentrl.engines.native.ragged import Packed, pack_unread
from lit_agentrl.engines.native.rows import Rows
from scripts.bench.common import format_table, make_parser, parse, write_json
from scripts.bench.decode_step import CountOperators, CountWaits

DEVICE = torch.device("meta")
CONTEXT, REPLY = 4096, 16
VOCABULARY = 1000
SIDES = ("padded", "packed", "packed, copy")


class Wave(NamedTuple):
    """Slots with unread tokens, and how many tokens of each are read."""

    rows: Rows
    slots_A: np.ndarray[Any, np.dtype[np.int64]]
    copies: list[Copy]
    end_S: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def num_tokens(self) -> int:
        return int((self.end_S - self.rows.cached_S)[self.slots_A].sum())

    def pack(self, side: str) -> list[Packed]:
        if side == "padded":
            return [pack_unread(self.rows, self.slots_A, self.copies, DEVICE, end_S=self.end_S)]
        return list(pack_pieces(self.rows, self.slots_A, self.copies, DEVICE, end_S=self.end_S))


def make_waves(options: argparse.Namespace) -> list[Wave]:
    """Make the wave of each turn."""
    draw = np.random.default_rng(options.seed)
    number = options.prompts * options.members
    params = SamplingParams(max_reply_tokens=REPLY, max_context_tokens=CONTEXT)
    opening = draw.integers(VOCABULARY, size=options.opening).tolist()
    first = [
        opening + draw.integers(VOCABULARY, size=draw.integers(50, 201)).tolist()
        for _ in range(options.prompts)
    ]
    waves = []
    for turn in range(options.turns):
        rows = Rows(number, CONTEXT)
        if turn:
            before = waves[-1].rows
            for name, array in vars(before).items():
                if isinstance(array, np.ndarray):
                    getattr(rows, name)[:] = array
            rows.slot_of = dict(before.slot_of)
            rows.cached_S[:] = before.total_S + REPLY - 1
            rows.total_S[:] = before.total_S + REPLY
        for row in range(number):
            later = draw.integers(VOCABULARY, size=draw.integers(10, 81)).tolist() if turn else []
            slot = rows.slot_of[row] if turn else rows.open(row)
            message = later if turn else first[row % options.prompts]
            assert rows.start(slot, TurnRequest(row, message, row, params))
        end_S = rows.total_S - 1
        copies = []
        if not turn:
            starting = {slot: rows.tokens_SL[slot, : end_S[slot]] for slot in range(number)}
            copies = find_common_prefixes(starting, {}, unread=0)
            for each in copies:
                rows.cached_S[list(each.targets)] = each.length
        waves.append(Wave(rows, np.flatnonzero(rows.cached_S < end_S), copies, end_S))
    return waves


def count(wave: Wave, side: str, layers: int) -> tuple[Counter[str], int]:
    """Count operators of a wave and its copies to the device."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    with FakeTensorMode(), ExitStack() as stack:
        with torch.device(DEVICE):
            network = LlamaForCausalLM(config).eval()
        inference = Inference(network, NAME)
        read = PlayCopy(network, torch.bfloat16).read if side == "packed, copy" else inference.read
        cache = inference.make_cache(wave.rows.num_slots, CONTEXT)
        stack.enter_context(
            patch.object(prefill, "attend_segments", lambda query, *_: torch.empty_like(query))
        )
        stack.enter_context(inference())
        for _ in range(2):  # the first makes the slots
            with CountOperators() as operators, CountWaits() as waits:
                for packed in wave.pack(side):
                    read(cache, packed)
    uploads = waits.found["to"] if side == "padded" else len(wave.pack(side))
    return operators.found, uploads


def measure(wave: Wave, side: str) -> dict[str, Any]:
    """Return the counts of a wave on one side."""
    (one, uploads), (two, _) = (count(wave, side, layers) for layers in (1, 2))
    packed = wave.pack(side)
    tokens = sum(each.token_1N.shape[1] for each in packed)
    queries, mask = tokens, 0
    for each in packed:
        if isinstance(each.layout, MaskedLayout):
            queries = each.layout.num_rows + sum(chunk.index_PM.numel() for chunk in each.layout.chunks)
            mask = each.layout.last_sees_R.sees.numel() + sum(c.sees_PML.numel() for c in each.layout.chunks)
    layer = two - one
    return {
        "tokens": tokens, "forwards": len(packed), "operators a layer": layer.total(),
        "others": one.total() - layer.total(), "copies to the device": uploads, "queries a token": queries / tokens,
        "mask elements a token": mask / tokens, "layer": dict(layer),
    }  # fmt: skip


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=1)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--opening", type=int, default=120, help="tokens that all prompts begin with")
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser)
    found = {
        f"turn {turn}, {side}": measure(wave, side)
        for turn, wave in enumerate(make_waves(options))
        for side in SIDES
    }
    names = [name for name in next(iter(found.values())) if name != "layer"]
    print(
        format_table(
            ["wave", *names], [[wave, *(f"{each[n]:.4g}" for n in names)] for wave, each in found.items()]
        )
    )
    write_json(options.out, found, options)


if __name__ == "__main__":
    main()
