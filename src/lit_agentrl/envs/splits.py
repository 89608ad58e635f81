"""Which split an instance belongs to: decided by the hash of its content, never by its seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

SPLITS = ("train", "val", "test")
# The last digit of the content's hash: 80 % train, 10 % val, 10 % test.
_SPLIT_OF_DIGIT = ("train",) * 8 + ("val", "test")
MAX_ATTEMPTS = 2000

Candidate = TypeVar("Candidate")


def stable_hash(content: str, *, purpose: str = "") -> int:
    """63-bit hash of a text, equal in every process (Python's own ``hash`` is salted); never 0.

    Args:
        content: what is hashed.
        purpose: at most 16 bytes; hashes for different purposes are independent.
    """
    digest = hashlib.blake2b(content.encode(), digest_size=8, person=purpose.encode()).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def split_of(content: str) -> str:
    """The one split (``train`` 80 %, ``val`` 10 %, ``test`` 10 %) an instance with this content is in."""
    return _SPLIT_OF_DIGIT[stable_hash(content, purpose="split") % 10]


def keyed_rng(seed: int, attempt: int, purpose: int) -> np.random.Generator:
    """The generator addressed by these three numbers; drawing from one never moves another."""
    return np.random.default_rng([seed, attempt, purpose])


def draw_for_split(
    propose: Callable[[int], Iterable[Candidate]], content: Callable[[Candidate], str], *, split: str
) -> Candidate:
    """The first proposed candidate whose content belongs to ``split``.

    Args:
        propose: candidates of one attempt (0, 1, …), possibly none; keyed by the caller's seed.
        content: the text that identifies a candidate.
        split: ``train``, ``val`` or ``test``.

    Raises:
        ValueError: no candidate of ``MAX_ATTEMPTS`` attempts belongs to the split.
    """
    for attempt in range(MAX_ATTEMPTS):
        for candidate in propose(attempt):
            if split_of(content(candidate)) == split:
                return candidate
    raise ValueError(
        f"no instance for split={split!r} in {MAX_ATTEMPTS} attempts; "
        "loosen the game's options (larger size, wider range of solution lengths)"
    )
