"""Counting the memory of tensors."""

from __future__ import annotations

import torch

from lit_agentrl.report.memory import measure_peak


def test_the_counter_counts_until_tensors_are_freed():
    held = torch.zeros(100)

    def work() -> None:
        for _ in range(3):
            a = torch.ones(1000)
            b = a[:10]  # a view holds the same memory
            del a, b
        (held + 1).sum()

    assert measure_peak(work, [held], torch.device("cpu")) == 400 + 4000
