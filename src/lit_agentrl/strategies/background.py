"""Write files in a thread while training goes on, from copies in host memory.

Lightning's ``AsyncCheckpointIO`` is not used: it copies tensors on their own device, queues any number of writes, and
raises the error of a write only when the next one is asked for.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

_SNAPSHOTS = WeakTensorKeyDictionary()  # tensors that nothing changes any more


class Writer:
    """A thread that writes in order, with at most one pending write for each target.

    After a failed write no other is performed, because a later file may describe the missing one.

    Attributes:
        seconds: target -> CPU seconds of its last write, which training on a CPU may have lost.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[str, Future[None]] = {}
        self._error: BaseException | None = None

    def perform(self, target: str, write: Callable[[], None]) -> None:
        """Wait for pending writes, then write in the calling thread.

        Raises:
            BaseException: a pending write failed, or this one does.
        """
        self.join()
        self._write(target, write)

    def start(self, target: str, write: Callable[[], None]) -> None:
        """Start a write, after those that were started before.

        Raises:
            BaseException: an earlier write failed.
        """
        self.join(target)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._pending[target] = self._pool.submit(self._write_unless_failed, target, write)

    def is_pending(self, target: str) -> bool:
        """Return whether a write of the target has not ended."""
        return target in self._pending and not self._pending[target].done()

    def check(self) -> None:
        """Raise the error of a write that has failed, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def join(self, target: str | None = None) -> None:
        """Wait for a target's write, or for all.

        Raises:
            BaseException: a write failed.
        """
        wait([future for name, future in self._pending.items() if target in (None, name)])
        self._pending = {name: future for name, future in self._pending.items() if not future.done()}
        self.check()

    def close(self) -> None:
        """Wait for all writes, and end the thread.

        Raises:
            BaseException: a write failed.
        """
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.join()

    def _write_unless_failed(self, target: str, write: Callable[[], None]) -> None:
        if self._error is not None:
            return
        try:
            self._write(target, write)
        except BaseException as error:  # the training thread raises it
            self._error = error

    def _write(self, target: str, write: Callable[[], None]) -> None:
        started = time.thread_time()
        write()
        self.seconds[target] = time.thread_time() - started


def mark_snapshot(tensor: Tensor) -> None:
    """Mark a tensor in host memory that nothing changes; it is not copied."""
    _SNAPSHOTS[tensor] = True


def copy_to_host(value: Any) -> Any:
    """Return a deep copy of plain data whose tensors lie in host memory, detached.

    Tensors that are marked as snapshots are not copied.  Copies from devices overlap and are waited for together; those
    from CUDA use pinned memory.  Tensors that share their data still share it in the copy.
    """
    return copy.deepcopy(value, _copy_tensors(_find_tensors(value)))


def copy_network_to_host(network: nn.Module) -> nn.Module:
    """Return a copy of the network with its weights in host memory, without gradients."""
    memo = _copy_tensors((*network.parameters(), *network.buffers()))
    for parameter in network.parameters():
        memo[id(parameter)] = nn.Parameter(memo[id(parameter)], requires_grad=False)
    return copy.deepcopy(network, memo)


def _find_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _find_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_tensors(item)


def _copy_tensors(tensors: Iterator[Tensor] | tuple[Tensor, ...]) -> dict[int, Any]:
    """Return the host copy of each tensor by its ``id``, as ``copy.deepcopy`` takes it."""
    copies: dict[int, Any] = {}
    by_data: dict[Any, Tensor] = {}
    devices: set[torch.device] = set()
    for tensor in tensors:
        key = _identify_data(tensor)
        if key not in by_data:
            detached = tensor.detach()
            by_data[key] = detached if tensor in _SNAPSHOTS else _start_copy(detached)
            devices.add(tensor.device)
        copies[id(tensor)] = by_data[key]
    for device in devices - {torch.device("cpu")}:
        torch.accelerator.synchronize(device)
    return copies


def _identify_data(tensor: Tensor) -> Any:
    """Return a key that equal views of the same data share."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return id(tensor)
    storage = id(tensor.untyped_storage())  # one object for each storage as long as it lives
    return storage, tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride()


def _start_copy(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu" or tensor.layout != torch.strided:
        return tensor.to("cpu", copy=True)
    try:
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda")
    except RuntimeError:  # the system limits pinned memory; another copy is slower
        host = torch.empty_like(tensor, device="cpu")
    return host.copy_(tensor, non_blocking=True)
