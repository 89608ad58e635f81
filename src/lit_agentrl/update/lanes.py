"""Parallel micro-batches on a CPU, in threads that synchronise once per step."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
Modules = tuple[Any, ...]


class Lanes:
    """Threads (lanes) that compute micro-batches in parallel, with one torch thread each.

    Micro-batches are dealt by their sizes alone.  Gradients are summed in the order of each lane, and then lane by
    lane.  So the sum depends on ``count``, but not on which lane ends first or on the number of cores.  All lanes but
    the first have copies of the modules that share the original weights, because modules hold the state of a pass,
    such as hooks.

    Args:
        modules: the trained modules; None is allowed.
        count: number of lanes, >= 2.
    """

    def __init__(self, modules: Sequence[nn.Module | None], count: int) -> None:
        self._own = tuple(modules)
        self.modules_of: list[Modules] = [self._own, *(_copy_modules(self._own) for _ in range(count - 1))]

    def iterate_modules(self) -> Iterator[nn.Module]:
        """Iterate over all layers of the copies."""
        for copies in self.modules_of[1:]:
            for module in copies:
                if module is not None:
                    yield from module.modules()

    @property
    def has_hooks(self) -> bool:
        """True if an original or one of its weights has hooks, which copies lack."""
        networks = [network for network in self._own if network is not None]
        modules = [module for network in networks for module in network.modules()]
        weights = [weight for network in networks for weight in network.parameters()]
        return any(
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            for module in modules
        ) or any(weight._backward_hooks or weight._post_accumulate_grad_hooks for weight in weights)

    def run(
        self, work: Callable[[int, int], Tensors], sizes: Sequence[int], *, in_turn: bool = False
    ) -> list[Tensors]:
        """Run ``work(lane, i)`` for each micro-batch i and add up the gradients.

        The gradients end in the original modules.

        Args:
            work: computes a micro-batch with the modules of a lane, including its backward pass.
            sizes: sizes of the micro-batches, in any unit of work.
            in_turn: whether to run the lanes one after the other in this thread, all with the original modules; the
                results are bit-equal.

        Raises:
            BaseException: the exception of the first lane that fails, or an interrupt of this thread, after every
                lane has ended its current micro-batch.
        """
        self._share_weights()
        numbers_of_lane = deal(sizes, len(self.modules_of))
        autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        is_over = threading.Event()

        def run_lane(lane: int, modules: int) -> dict[int, Tensors]:
            torch.set_num_threads(1)  # applies to this thread, and to threads that first use torch meanwhile
            try:
                with torch.autocast("cpu", autocast[1], enabled=autocast[0]):
                    return {i: work(modules, i) for i in numbers_of_lane[lane] if not is_over.is_set()}
            except BaseException:
                is_over.set()
                raise

        threads = torch.get_num_threads()
        try:
            if in_turn:
                results = []
                for lane in range(len(numbers_of_lane)):
                    with self._collect_gradients(lane):
                        results.append(run_lane(lane, 0))
            else:
                results = _run_at_once(run_lane, len(numbers_of_lane), is_over)
        finally:
            torch.set_num_threads(threads)
        self._add_gradients()
        return [
            metrics
            for _, metrics in sorted(
                (item for result in results for item in result.items()), key=itemgetter(0)
            )
        ]

    @contextmanager
    def _collect_gradients(self, lane: int) -> Iterator[None]:
        """Let the originals collect the gradients of a lane, then move these to its copies."""
        pairs = list(_pair_weights(self._own, self.modules_of[lane])) if lane else []
        before = [own.grad for own, _ in pairs]
        for own, _ in pairs:
            own.grad = None
        yield
        for (own, other), grad in zip(pairs, before, strict=True):
            own.grad, other.grad = grad, own.grad

    def _share_weights(self) -> None:
        """Share the current weights with the copies, since Lightning and checkpoints replace weights."""
        for copies in self.modules_of[1:]:
            for own, other in (*_pair_weights(self._own, copies), *_pair_buffers(self._own, copies)):
                other.data = own.data
                other.requires_grad_(own.requires_grad)
                other.grad = None

    @torch.no_grad()
    def _add_gradients(self) -> None:
        for copies in self.modules_of[1:]:
            for own, other in _pair_weights(self._own, copies):
                if own.grad is None:
                    own.grad = other.grad
                elif other.grad is not None:
                    own.grad.add_(other.grad)
                other.grad = None


def deal(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Deal micro-batches to lanes: the largest first, each to the least loaded lane.

    The numbers of the micro-batches of each lane are ascending.

    >>> deal([5, 1, 4, 3], 2)
    [[0, 1], [2, 3]]
    """
    lanes: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        lane = loads.index(min(loads))
        lanes[lane].append(index)
        loads[lane] += sizes[index]
    return [sorted(lane) for lane in lanes]


def _run_at_once(
    run_lane: Callable[[int, int], dict[int, Tensors]], count: int, is_over: threading.Event
) -> list[dict[int, Tensors]]:
    """Run each lane in its own thread, and wait until all threads have ended."""
    with ThreadPoolExecutor(count, thread_name_prefix="lane") as pool:  # waits for all threads at the end
        try:
            pending = [pool.submit(run_lane, lane, lane) for lane in range(count)]
            wait(pending)
        except BaseException:  # Ctrl-C
            is_over.set()
            raise
    return [future.result() for future in pending]


def _copy_modules(modules: Modules) -> Modules:
    """Copy modules so that they share weights and buffers, but not gradients."""
    memo: dict[int, Any] = {}
    for module in modules:
        for weight in module.parameters() if module is not None else ():
            memo[id(weight)] = nn.Parameter(weight.data, requires_grad=weight.requires_grad)
        for buffer in module.buffers() if module is not None else ():
            memo[id(buffer)] = buffer.detach()
    return copy.deepcopy(modules, memo)


def _pair_weights(own: Modules, other: Modules) -> Iterator[tuple[Tensor, Tensor]]:
    for one, two in zip(own, other, strict=True):
        if one is not None:
            yield from zip(one.parameters(), two.parameters(), strict=True)


def _pair_buffers(own: Modules, other: Modules) -> Iterator[tuple[Tensor, Tensor]]:
    for one, two in zip(own, other, strict=True):
        if one is not None:
            yield from zip(one.buffers(), two.buffers(), strict=True)
