"""Addressed randomness."""

from __future__ import annotations

import numpy as np

from lit_agentrl.seeds import draw_uniforms, make_key


def test_keys_depend_on_every_part_of_the_address():
    keys = {
        make_key(s, p, *a) for s in range(3) for p in ("a", "b") for a in [(1, 2), (2, 1), (12,), (1, 2, 0)]
    }
    assert len(keys) == 24 and all(0 <= k < 2**63 for k in keys)
    assert make_key(0, "token", 1) == 7575767236481391487  # the same on every machine, for ever


def test_uniforms_are_uniform_and_independent_over_keys_and_positions():
    keys = np.repeat(np.arange(400, dtype=np.uint64), 50)
    positions = np.tile(np.arange(50, dtype=np.uint64), 400)
    u = draw_uniforms(keys, positions)
    assert u.min() >= 0 and u.max() < 1 and len(np.unique(u)) == len(u)
    histogram = np.histogram(u, bins=20, range=(0, 1))[0]
    assert ((histogram - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    grid = u.reshape(400, 50)
    assert abs(np.corrcoef(grid[:, 0], grid[:, 1])[0, 1]) < 0.2
    assert abs(np.corrcoef(grid[:-1, 0], grid[1:, 0])[0, 1]) < 0.2


def test_a_draw_is_the_same_alone_or_in_company():
    keys, positions = np.array([3, 9], dtype=np.uint64), np.array([4, 0], dtype=np.uint64)
    assert draw_uniforms(keys, positions)[1] == draw_uniforms(keys[1:], positions[1:])[0]
    assert draw_uniforms(keys, positions)[0] == 0.21643910878148487
