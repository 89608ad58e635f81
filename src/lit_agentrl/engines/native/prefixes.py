"""Which episodes that start together can take the first tokens of others instead of reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_SHARED = 8  # tokens; below it the copy costs more than reading

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Copy:
    """The first ``length`` tokens of ``targets`` are those of ``source``."""

    source: int
    targets: tuple[int, ...]
    length: int


def common_prefixes(starting: Mapping[int, Tokens], live: Mapping[int, Tokens]) -> list[Copy]:
    """The longest prefixes that starting episodes share with each other or with live ones, by slot.

    Neighbours in lexicographic order share most, so each episode is compared with the one before it and with
    the next live one.  A copied part ends before the last token of the episode that takes it, which must be
    read for its logits.  The copies are in an order in which every source is complete before it is read;
    where several episodes hold the prefix, the source is one that reads it itself or is live.
    """
    tokens = {**live, **starting}
    # big-endian bytes sort as the numbers do
    order = sorted(tokens, key=lambda slot: (tokens[slot].astype(">i8").tobytes(), slot in starting, slot))
    next_live: dict[int, int] = {}
    for slot, after in zip(order[-2::-1], order[:0:-1], strict=True):
        if after in live or after in next_live:
            next_live[slot] = after if after in live else next_live[after]
    taken = dict.fromkeys(order, 0)  # tokens that a slot takes over
    level = dict.fromkeys(order, 0)
    source_of: dict[int, int] = {}
    groups: dict[tuple[int, int, int], list[int]] = {}
    for before, slot in zip([None, *order], order, strict=False):
        if slot in live:
            continue
        around = [other for other in (next_live.get(slot), before) if other is not None]
        lengths = [min(_common(tokens[other], tokens[slot]), len(tokens[slot]) - 1) for other in around]
        length = max(lengths, default=0)
        if length >= MIN_SHARED:
            source = around[lengths.index(length)]
            while taken[source] >= length:  # it only has a copy itself
                source = source_of[source]
            taken[slot], source_of[slot], level[slot] = length, source, level[source] + 1
            groups.setdefault((level[slot], source, length), []).append(slot)
    return [Copy(key[1], tuple(sorted(groups[key])), key[2]) for key in sorted(groups)]


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
