"""Fixtures of other rooms that tests of experimental methods use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.callbacks.conftest import toy_module
from tests.rl.conftest import batch

__all__ = ["batch", "toy_module"]


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Compute in double precision: expected values are compared to 1e-6."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
