"""The key/value store takes host memory only for the slots that are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lit_agentrl.engines.native.cache import make_zeros

STATM = Path("/proc/self/statm")


def count_resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="needs Linux's /proc")
def test_slots_that_nobody_writes_take_no_memory():
    before = count_resident_bytes()
    buffer = make_zeros((128, 3, 1024, 64), torch.float32)  # 100 MB
    buffer[:4] = 1.0
    taken = count_resident_bytes() - before
    assert taken < 0.2 * buffer.numel() * buffer.element_size(), taken
    assert buffer[:4].min() == 1 and not buffer[4:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 1, 3, 5), (9, 2, 64, 7)])
def test_they_are_aligned_zeros_as_those_of_pytorch(shape, dtype):
    buffer = make_zeros(shape, dtype)
    assert torch.equal(buffer, torch.zeros(shape, dtype=dtype)) and buffer.dtype is dtype
    assert buffer.data_ptr() % 64 == 0 == torch.zeros(shape, dtype=dtype).data_ptr() % 64
    with torch.inference_mode():
        make_zeros(shape, dtype).flatten().index_copy_(0, torch.tensor([1]), torch.ones(1, dtype=dtype))
