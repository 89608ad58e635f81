"""What strategies of several processes share: launching, a bounded wait for each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment

from lit_agentrl.strategies.launching import Launcher


class Cooperative:
    """Mixed into a Lightning strategy of several processes, before it in the order of bases.

    Args:
        timeout_s: how long a process waits for another before the run is stopped, in seconds.

    Raises:
        ValueError: ``timeout_s`` is not positive.
    """

    cluster_environment: ClusterEnvironment | None
    num_processes: int
    num_nodes: int

    def __init__(self, *, timeout_s: float = 1800.0, **options: Any) -> None:
        if not timeout_s > 0:
            raise ValueError(f"strategy.timeout_s={timeout_s} must be > 0 seconds")
        super().__init__(timeout=timedelta(seconds=timeout_s), **options)
        self.timeout_s = timeout_s
        self._launcher: Launcher | None = None

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)

    def finish(self) -> None:
        """After the last use of a trainer: wait for the processes that it started, and close what joins them.

        Raises:
            RankFailed: one of them ended with an error, or has not ended within ``timeout_s``.
        """
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._launcher is not None:
            self._launcher.join(self.timeout_s)
