"""Counter-based random draws, keyed by purpose and address and never by earlier draws."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def make_key(seed: int, purpose: str, *address: int) -> int:
    """Hash (seed, purpose, address...) into a 63-bit key, equal on all machines and processes.

    >>> make_key(0, "sample", 1, 2) == make_key(0, "sample", 1, 2) != make_key(0, "sample", 2, 1)
    True
    """
    text = f"{seed}|{purpose}|" + ",".join(map(str, address))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def draw_uniforms(keys: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Draw uniform numbers in [0, 1), one for each (key, position).

    SplitMix64 of Steele et al. (OOPSLA 2014) in counter form: position ``n`` is the generator's n-th output.
    """
    with np.errstate(over="ignore"):
        z = keys + (positions + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
        z = z ^ (z >> np.uint64(31))
    draws: npt.NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return draws


def draw_uniform(seed: int, purpose: str, *address: int) -> float:
    """Draw one uniform number in [0, 1) for an address.

    >>> draw_uniform(0, "trained", 3, 1) == draw_uniform(0, "trained", 3, 1) < 1
    True
    """
    return float(
        draw_uniforms(np.array([make_key(seed, purpose, *address)], np.uint64), np.zeros(1, np.uint64))[0]
    )
