"""What the tests here share: double precision, the two oracles, and a tally of what was compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracle.batches import NUM_BATCHES
from tests.oracle.oracles import load
from tests.oracle.page import pairs


@pytest.fixture
def verl() -> Any:
    """``verl.trainer.ppo.core_algos``."""
    return load("verl.trainer.ppo.core_algos")


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@dataclass
class Tally:
    """Largest difference and (test, seed) of the batches seen, for each pair of functions."""

    seen: dict[tuple[str, str], set[tuple[str, int]]] = field(default_factory=dict)
    worst: dict[tuple[str, str], float] = field(default_factory=dict)
    tensors: int = 0

    def agree(
        self, ours: Tensor, theirs: Tensor, *, seed: int, pair: tuple[str, str], tolerance: float, test: str
    ) -> None:
        """Checks ``|ours - theirs| <= tolerance max(1, |theirs|)`` for each entry and counts the batch."""
        assert ours.shape == theirs.shape, f"{pair}, seed {seed}: shapes {ours.shape} and {theirs.shape}"
        distance = (ours - theirs).abs() / theirs.abs().clamp(min=1)
        largest = float(distance.max()) if distance.numel() else 0.0
        assert largest <= tolerance, f"{pair}, seed {seed}: off by {largest}"  # a NaN fails too
        self.seen.setdefault(pair, set()).add((test, seed))
        self.worst[pair] = max(self.worst.get(pair, 0.0), largest)
        self.tensors += 1


TALLY = Tally()


@pytest.fixture
def agree(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """`Tally.agree`; afterwards each pair of functions was compared on enough batches and is on the page."""
    test = request.node.nodeid
    yield partial(TALLY.agree, test=test)
    for pair, seen in TALLY.seen.items():
        count = sum(name == test for name, _ in seen)
        assert count in (0, NUM_BATCHES), f"{pair}: {count} batches only"
        assert pair in pairs(), f"{pair} has no row in docs/findings/parity.md"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was compared, and the largest difference of each pair."""
    if not TALLY.seen:
        return
    terminalreporter.section("compared")
    for (ours, theirs), seen in sorted(TALLY.seen.items()):
        worst = TALLY.worst[ours, theirs]
        terminalreporter.write_line(f"{ours} | {theirs} | {len(seen)} batches | largest {worst:.0e}")
    batches = sum(map(len, TALLY.seen.values()))
    terminalreporter.write_line(f"{len(TALLY.seen)} pairs, {batches} batches, {TALLY.tensors} tensors")
