"""Data parallelism: the whole policy in every process, gradients averaged once per step."""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy

from lit_agentrl.strategies.multiprocess import Multiprocess


class DDP(Multiprocess, DDPStrategy):
    """Lightning's DDP with one process per device; see `Multiprocess` for what it adds.

    Args:
        timeout_s: see `Multiprocess`.
    """

    def __init__(self, *, timeout_s: float = 1800.0) -> None:
        super().__init__(timeout_s=timeout_s)
