"""Draws on the device: equal to those of the host, row by row and whatever the rows beside it want."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_agentrl import seeds
from lit_agentrl.engines.native import sampling
from lit_agentrl.engines.native.drawing import Settings, draw_tokens, draw_uniforms

WORDS = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40)), min_size=1, max_size=50)
KINDS = [
    (1.0, 1.0, 0),
    (0.7, 1.0, 0),
    (0.0, 1.0, 0),
    (1.3, 0.6, 0),
    (1.0, 1.0, 5),
    (0.9, 0.8, 9),
    (0.0, 0.5, 3),
]


@given(WORDS)
def test_uniform_draws_equal_those_of_the_host_to_the_bit(pairs):
    keys, counts = (np.array(part, dtype=np.uint64) for part in zip(*pairs, strict=True))
    found = draw_uniforms(torch.from_numpy(keys.view(np.int64)), torch.from_numpy(counts.view(np.int64)))
    assert found.dtype == torch.float64
    assert np.array_equal(found.numpy(), seeds.draw_uniforms(keys, counts))


@pytest.mark.parametrize("vocabulary", [50, 256, 1000])
def test_each_row_draws_what_it_draws_among_its_like(vocabulary):
    rows, random = 40 * len(KINDS), torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(rows, vocabulary, generator=random) * 4
    logits[:, 3] = -float("inf")
    uniform = torch.rand(rows, generator=random, dtype=torch.float64)
    kinds = [KINDS[row % len(KINDS)] for row in range(rows)]
    temperature, top_p, top_k = (torch.tensor(part) for part in zip(*kinds, strict=True))
    settings = Settings(temperature.double(), top_p.double(), top_k)
    found = draw_tokens(logits, uniform, settings, truncates=True)
    for number, (temperature, top_p, top_k) in enumerate(KINDS):
        own = slice(number, None, len(KINDS))
        expected = sampling.draw_tokens(
            logits[own], uniform_A=uniform[own], temperature=temperature, top_p=top_p, top_k=top_k
        )
        assert torch.equal(found.token_A[own], expected.token_A)
        torch.testing.assert_close(found.logp_A[own], expected.logp_A, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(found.entropy_A[own], expected.entropy_A, atol=1e-5, rtol=1e-5)
        if top_p == 1 and not top_k:  # nothing to sort
            short = Settings(*(part[own] for part in settings))
            alone = draw_tokens(logits[own], uniform[own], short, truncates=False)
            assert torch.equal(alone.token_A, expected.token_A)


def test_a_token_without_probability_is_never_drawn():
    """Also by the largest uniform number, and where blocks end."""
    logits = torch.full((4, 600), -float("inf"))
    for row, token in enumerate((0, 255, 256, 599)):
        logits[row, token] = 0.0
    ones = torch.full((4,), 1 - 2.0**-53, dtype=torch.float64)
    settings = Settings(
        torch.ones(4).double(), torch.full((4,), 0.9).double(), torch.zeros(4, dtype=torch.long)
    )
    for uniform in (ones, ones * 0):
        for truncates in (False, True):
            draw = draw_tokens(logits, uniform, settings, truncates=truncates)
            assert draw.token_A.tolist() == [0, 255, 256, 599]
            assert draw.logp_A.tolist() == [0.0] * 4 and draw.entropy_A.tolist() == [0.0] * 4
