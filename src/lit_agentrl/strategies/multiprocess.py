"""What strategies of several processes share: meeting, dealing of rows, stopping together."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.strategies.parallel import ParallelStrategy
from torch.distributed.distributed_c10d import _set_pg_timeout

from lit_agentrl.checks import require_number
from lit_agentrl.distributed import StrategyHooks, leave_group
from lit_agentrl.strategies.balance import longest_first
from lit_agentrl.strategies.faults import GRACE_S, FaultWatch, explain, is_secondary
from lit_agentrl.strategies.launching import MEET_S, RankFailed, threads_of_each


class Multiprocess(ParallelStrategy):
    """Mixed into a Lightning strategy of several processes, before it in the order of bases.

    Args:
        timeout_s: how long a process waits for another before the run is stopped, in seconds.

    Raises:
        ValueError: ``timeout_s`` is not positive.
    """

    num_nodes: int

    def __init__(self, *, timeout_s: float = 1800.0, **options: Any) -> None:
        require_number("timeout_s", timeout_s, "> 0 seconds", lambda seconds: seconds > 0)
        options["timeout"] = timedelta(seconds=max(timeout_s, MEET_S))
        super().__init__(**options)
        self.timeout_s = timeout_s
        self._watch: FaultWatch | None = None
        self._meeting: dist.ProcessGroup | None = None  # of gloo, whose barrier knows who is absent

    # ------------------------------------------------------------------ beginning
    def _get_process_group_backend(self) -> str:
        """Numbers on the host travel by gloo also where tensors on devices do not."""
        own: str = super()._get_process_group_backend()  # type: ignore[misc]
        return f"cpu:gloo,{self.root_device.type}:{own}" if own in ("nccl", "xccl") else own

    def setup_environment(self) -> None:
        """Join the processes, then watch over them.

        Raises:
            ValueError: torchrun or srun started another number of them.
        """
        count, nodes = len(self.parallel_devices or ()), self.num_nodes
        # both as Lightning does for DDP alone, where others start the processes
        assert self.cluster_environment is not None
        self.cluster_environment.validate_settings(num_devices=count, num_nodes=nodes)
        if self._watch is None and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(threads_of_each(count))
        super().setup_environment()
        if self._watch is not None or not dist.is_initialized():
            return
        limit = timedelta(seconds=self.timeout_s)
        self._watch = FaultWatch(self.global_rank, min(GRACE_S, self.timeout_s))
        dist.monitored_barrier(dist.new_group(backend="gloo"), timedelta(seconds=MEET_S))
        # all but the first wait for the first's answer as long as the group does: it names the absent before
        self._meeting = dist.new_group(backend="gloo", timeout=limit + timedelta(seconds=GRACE_S))
        _set_pg_timeout(limit)

    # ------------------------------------------------------------------ on the way
    @property
    def hooks(self) -> StrategyHooks:
        """What the rest of a run goes through."""
        return StrategyHooks(
            deal=longest_first, block_backward_sync=self.block_backward_sync, barrier=self.barrier,
            finish=self.finish, failed=self.failed, close=self.close,
        )  # fmt: skip

    def barrier(self, name: str | None = None) -> None:
        """Wait until all are here; one that does not come in time is named."""
        if self._meeting is not None:
            dist.monitored_barrier(self._meeting, timedelta(seconds=self.timeout_s))

    # ------------------------------------------------------------------ end
    def on_exception(self, exception: BaseException) -> None:
        """Tell the other processes, before anything here is taken down."""
        super().on_exception(exception)
        if self._watch is not None and isinstance(exception, Exception):
            cause = explain(exception, self.timeout_s)
            if is_secondary(exception):  # whose fault it is may not be known at once
                self._watch.first(wait_s=3.0)
            self._watch.report(cause)

    def failed(self, error: Exception) -> Exception:
        """What stopped the run, to be raised in place of ``error``."""
        if self._watch is None:  # they have not met
            return error
        self.on_exception(error)
        fault = self._watch.report("")
        self.close()
        return (
            error
            if fault.by == self.global_rank and not is_secondary(error)
            else RankFailed(fault.cause, is_told=fault.by != self.global_rank)
        )

    def finish(self) -> None:
        """After the last use of a trainer: wait for the others, and leave them."""
        self.barrier("end")
        self.close()

    def close(self) -> None:
        """Leave the others, who are not waited for."""
        if self._watch is not None:
            self._watch.close()
        self._watch = self._meeting = None
        leave_group()
