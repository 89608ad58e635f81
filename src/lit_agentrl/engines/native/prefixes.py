"""Find new episodes that can copy their first tokens from other episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_SHARED = 8  # tokens; a shorter copy costs more than reading

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Copy:
    """A copy of the first ``length`` tokens from slot ``source`` to slots ``targets``."""

    source: int
    targets: tuple[int, ...]
    length: int


def find_common_prefixes(
    starting: Mapping[int, Tokens], live: Mapping[int, Tokens], *, unread: int = 1
) -> list[Copy]:
    """Find the longest prefixes that starting episodes share with each other or with live ones.

    Neighbours in lexicographic order share most, so each episode is compared with the one before it and with
    the next live one.  The last ``unread`` tokens of an episode are not copied: usually one, which must be read for its
    logits. The copies are ordered so that every source is complete before it is copied.  If several episodes hold the
    prefix, the source is live or reads the prefix itself.

    Args:
        starting: Tokens of starting episodes by slot.
        live: Tokens of live episodes by slot.
        unread: Number of last tokens that are not copied.
    """
    tokens = {**live, **starting}
    # big-endian bytes sort like the numbers
    order = sorted(tokens, key=lambda slot: (tokens[slot].astype(">i8").tobytes(), slot in starting, slot))
    next_live: dict[int, int] = {}
    for slot, after in zip(order[-2::-1], order[:0:-1], strict=True):
        if after in live or after in next_live:
            next_live[slot] = after if after in live else next_live[after]
    copied = dict.fromkeys(order, 0)  # number of tokens that a slot copies
    depth = dict.fromkeys(order, 0)  # number of copies that must precede those from the slot
    source_of: dict[int, int] = {}
    groups: dict[tuple[int, int, int], list[int]] = {}
    for before, slot in zip([None, *order], order, strict=False):
        if slot in live:
            continue
        neighbours = [other for other in (next_live.get(slot), before) if other is not None]
        lengths = [
            min(_count_common(tokens[other], tokens[slot]), len(tokens[slot]) - unread)
            for other in neighbours
        ]
        length = max(lengths, default=0)
        if length >= MIN_SHARED:
            source = neighbours[lengths.index(length)]
            while copied[source] >= length:  # this source holds only a copy itself
                source = source_of[source]
            copied[slot], source_of[slot], depth[slot] = length, source, depth[source] + 1
            groups.setdefault((depth[slot], source, length), []).append(slot)
    return [Copy(key[1], tuple(sorted(groups[key])), key[2]) for key in sorted(groups)]


def _count_common(a: Tokens, b: Tokens) -> int:
    """Return the length of the longest common prefix."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
