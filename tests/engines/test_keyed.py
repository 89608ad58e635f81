"""What our part in vLLM draws, row by row, and how it follows the rows; without vLLM (``make test-vllm`` has it)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.sampling import draw_tokens
from lit_agentrl.engines.served.keyed import DRAWS, NUMBER, Draws, KeyedDraws
from lit_agentrl.seeds import draw_uniforms

KINDS = (
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.5, top_p=0.8, top_k=9),
    SamplingParams(temperature=0.0),
)


class Direction(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@pytest.fixture(autouse=True)
def replies() -> Iterator[list[Draws]]:
    DRAWS.update({i: Draws(2**62 + i, kind) for i, kind in enumerate(KINDS)})
    yield [DRAWS[i] for i in range(len(KINDS))]
    DRAWS.clear()


def change(removed: Any = (), added: Any = (), moved: Any = ()) -> Any:
    """What vLLM says of its rows; ``added``: (row, number, tokens so far)."""
    rows = [
        (row, SimpleNamespace(extra_args=None if n is None else {NUMBER: n}), None, tokens)
        for row, n, tokens in added
    ]
    return SimpleNamespace(removed=removed, added=rows, moved=moved)


def keyed(*added: Any) -> KeyedDraws:
    processor = KeyedDraws(None, torch.device("cpu"), False)
    processor.update_state(change(added=added))
    return processor


def test_each_row_draws_what_the_native_engine_draws_and_has_no_other_choice(replies: list[Draws]) -> None:
    written: list[list[int]] = [[], [1, 2], [3], []]
    processor = keyed(
        (4, 0, written[0]), (1, 1, written[1]), (0, 2, written[2]), (3, 3, written[3]), (2, None, [])
    )
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(0)) * 3
    given = logits.clone()
    assert processor.apply(logits) is logits and not processor.is_argmax_invariant()
    assert torch.equal(logits[2], given[2])  # a request that is not ours
    for row, i in ((4, 0), (1, 1), (0, 2), (3, 3)):
        kind, position = KINDS[i], len(written[i])
        uniform = draw_uniforms(np.array([2**62 + i], dtype=np.uint64), np.array([position], dtype=np.uint64))
        expected = draw_tokens(
            given[row : row + 1], uniform_A=torch.from_numpy(uniform), temperature=kind.temperature,
            top_p=kind.top_p, top_k=kind.top_k,
        )  # fmt: skip
        token = int(expected.token_A)
        assert logits[row].isfinite().nonzero().flatten().tolist() == [token] == replies[i].tokens[-1:]
        assert replies[i].logps[-1] == float(expected.logp_A)  # over all tokens, at the temperature
        assert replies[i].entropies[-1] == float(expected.entropy_A)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.5, 0), (1.0, 2)])
def test_a_draw_records_the_whole_distribution_at_its_temperature_also_where_it_is_cut(
    top_p: float, top_k: int
) -> None:
    """p = 16/30, 9/30, 4/30, 1/30 at temperature 1 has roots of the parts 4, 3, 2, 1 of 10 at temperature 2."""
    logits = torch.tensor([[16.0, 9.0, 4.0, 1.0]]).log()
    uniform = torch.zeros(1, dtype=torch.float64)
    draw = draw_tokens(logits, uniform_A=uniform, temperature=2.0, top_p=top_p, top_k=top_k)
    entropy = -sum(p * math.log(p) for p in (0.4, 0.3, 0.2, 0.1))
    assert int(draw.token_A) == 0 and float(draw.logp_A) == pytest.approx(math.log(0.4), abs=1e-6)
    assert float(draw.entropy_A) == pytest.approx(entropy, abs=1e-6)


def test_a_draw_where_the_prompt_was_half_read_is_replaced(replies: list[Draws]) -> None:
    written: list[int] = []
    processor = keyed((0, 0, written))
    drawn = []
    for seed in range(3):
        logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(seed)) * 3
        processor.apply(logits)
        drawn.append(int(logits.argmax()))
        if seed:  # the first was of a prompt that is read in two parts
            written.append(drawn[-1])
    assert replies[0].tokens == drawn[1:] and len(replies[0].logps) == len(replies[0].entropies) == 2


def test_rows_that_go_come_and_move_keep_their_draws(replies: list[Draws]) -> None:
    processor = keyed((0, 0, []), (1, 1, []), (2, 2, []))

    def rows() -> list[int]:
        for draws in replies:
            draws.tokens.clear()
        logits = torch.zeros(4, 50)
        processor.apply(logits)
        at = {int(row.argmax()): i for i, row in enumerate(logits) if not row.isfinite().all()}
        return [at.get(draws.tokens[0], -1) if draws.tokens else -1 for draws in replies]

    assert rows()[:3] == [0, 1, 2]
    processor.update_state(None)
    processor.update_state(change(moved=[(0, 2, Direction.SWAP)]))
    assert rows()[:3] == [2, 1, 0]
    processor.update_state(change(removed=[1], moved=[(2, 1, Direction.UNIDIRECTIONAL)]))
    assert rows() == [1, -1, 0, -1]
    processor.update_state(change(removed=[0], added=[(0, 3, []), (1, None, [])]))
    assert rows() == [-1, -1, -1, 0]
    processor.update_state(change(removed=[0]))
    logits = torch.zeros(2, 5)
    assert torch.equal(processor.apply(logits), torch.zeros(2, 5))
