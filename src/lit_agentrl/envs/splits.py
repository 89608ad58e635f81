"""Splits of the instances, decided by the hash of their content, never by their seed."""

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
    """Return a 63-bit hash of a text, never 0.

    It is equal in every process, unlike Python's own ``hash``, which is salted.

    Args:
        content: the text to hash.
        purpose: at most 16 bytes; hashes for different purposes are independent.
    """
    digest = hashlib.blake2b(content.encode(), digest_size=8, person=purpose.encode()).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def split_of(content: str) -> str:
    """Return the split that an instance with this content belongs to.

    Of all instances 80 % are in ``train``, 10 % in ``val`` and 10 % in ``test``.
    """
    return _SPLIT_OF_DIGIT[stable_hash(content, purpose="split") % 10]


def keyed_rng(seed: int, attempt: int, purpose: int) -> np.random.Generator:
    """Return the generator addressed by these three numbers.

    Generators with different numbers are independent: drawing from one never moves another.
    """
    return np.random.default_rng([seed, attempt, purpose])


def draw_for_split(
    propose: Callable[[int], Iterable[Candidate]], content: Callable[[Candidate], str], *, split: str
) -> Candidate:
    """Return the first proposed candidate whose content belongs to ``split``.

    Args:
        propose: returns the candidates of one attempt (0, 1, …), possibly none; keyed by the caller's seed.
        content: returns the text that identifies a candidate.
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
