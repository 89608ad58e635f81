"""The base of multi-process strategies: start, distribution of rows, joint shutdown."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies.parallel import ParallelStrategy
from torch.distributed.distributed_c10d import _set_pg_timeout

from lit_agentrl.distributed import StrategyHooks, leave_group
from lit_agentrl.strategies.balance import assign_longest_first
from lit_agentrl.strategies.faults import GRACE_S, FaultWatch, explain, is_secondary
from lit_agentrl.strategies.launching import START_TIMEOUT_S, RankFailed, count_threads_per_process
from lit_agentrl.strategies.options import check_timeout


class Multiprocess(ParallelStrategy):
    """Mixin for multi-process Lightning strategies; list it before the strategy among the bases.

    Args:
        timeout_s: seconds that a process waits for another before the run is stopped.

    Raises:
        ValueError: ``timeout_s`` is not positive.
    """

    num_nodes: int

    def __init__(self, *, timeout_s: float = 1800.0, **options: Any) -> None:
        check_timeout(timeout_s=timeout_s)
        options["timeout"] = timedelta(seconds=max(timeout_s, START_TIMEOUT_S))
        super().__init__(**options)
        self.timeout_s = timeout_s
        self._watch: FaultWatch | None = None
        self._barrier_group: dist.ProcessGroup | None = None  # gloo, whose barrier names the absent rank

    # ------------------------------------------------------------------ start
    def _get_process_group_backend(self) -> str:
        """Return a backend that uses gloo for CPU tensors, whatever device tensors use."""
        backend: str = super()._get_process_group_backend()  # type: ignore[misc]
        return f"cpu:gloo,{self.root_device.type}:{backend}" if backend in ("nccl", "xccl") else backend

    def setup_environment(self) -> None:
        """Join the process group, then start to watch the other processes.

        Raises:
            ValueError: torchrun or srun started a different number of processes.
        """
        count, nodes = len(self.parallel_devices or ()), self.num_nodes
        # Lightning checks both for DDP only, when another launcher starts the processes
        assert self.cluster_environment is not None
        self.cluster_environment.validate_settings(num_devices=count, num_nodes=nodes)
        if self._watch is None and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(count_threads_per_process(count))
        super().setup_environment()
        if self._watch is not None or not dist.is_initialized():
            return
        limit = timedelta(seconds=self.timeout_s)
        self._watch = FaultWatch(self.global_rank, min(GRACE_S, self.timeout_s))
        dist.monitored_barrier(dist.new_group(backend="gloo"), timedelta(seconds=START_TIMEOUT_S))
        # The group's timeout is longer, so that rank 0 names the absent rank before the other ranks give up.
        self._barrier_group = dist.new_group(backend="gloo", timeout=limit + timedelta(seconds=GRACE_S))
        _set_pg_timeout(limit)

    # ------------------------------------------------------------------ while the run goes on
    @property
    def hooks(self) -> StrategyHooks:
        """The hooks that modules, callbacks and entry points call."""
        return StrategyHooks(
            deal=assign_longest_first, block_backward_sync=self.block_backward_sync, barrier=self.barrier,
            finish=self.finish, resolve_failure=self.resolve_failure, close=self.close,
        )  # fmt: skip

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks; the error names a rank that does not arrive in time."""
        if self._barrier_group is not None:
            dist.monitored_barrier(self._barrier_group, timedelta(seconds=self.timeout_s))

    # ------------------------------------------------------------------ end
    def on_exception(self, exception: BaseException) -> None:
        """Report the failure to the other processes before anything is torn down here."""
        super().on_exception(exception)
        if self._watch is not None and isinstance(exception, Exception):
            cause = explain(exception, self.timeout_s)
            if is_secondary(exception):  # the rank at fault may report a little later
                self._watch.wait_for_fault(wait_s=3.0)
            self._watch.report(cause)

    def resolve_failure(self, error: Exception) -> Exception:
        """Return the error that stopped the run, to be raised in place of ``error``."""
        if self._watch is None:  # there is no process group yet
            return error
        self.on_exception(error)
        fault = self._watch.report("")
        self.close()
        return (
            error
            if fault.rank == self.global_rank and not is_secondary(error)
            else RankFailed(fault.cause, is_reported=fault.rank != self.global_rank)
        )

    def finish(self) -> None:
        """Wait for the others, then leave the group, after the last use of a trainer."""
        self.barrier("end")
        self.close()

    def close(self) -> None:
        """Leave the process group without waiting for the others."""
        if self._watch is not None:
            self._watch.close()
        self._watch = self._barrier_group = None
        leave_group()
