"""Micro-batches side by side on a CPU: threads that meet once a step instead of at every operation."""

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
    """Computes micro-batches in ``count`` lanes, each with one thread of torch.

    Micro-batches are dealt by their sizes alone.  Gradients of a lane are added up in its order, and then lane by lane.
    So the sum depends on ``count``.  It does not depend on which lane ends first, or on the number of cores.  The
    modules of all lanes but the first are copies, on the very weights of the originals: modules hold what concerns one
    pass, such as hooks.

    Args:
        modules: those that are trained, None among them.
        count: of lanes, >= 2.
    """

    def __init__(self, modules: Sequence[nn.Module | None], count: int) -> None:
        self._own = tuple(modules)
        self.each: list[Modules] = [self._own, *(_twin(self._own) for _ in range(count - 1))]

    def modules(self) -> Iterator[nn.Module]:
        """All layers of the copies."""
        for twin in self.each[1:]:
            for module in twin:
                if module is not None:
                    yield from module.modules()

    @property
    def is_listened_to(self) -> bool:
        """Whether an original, or a weight of it, has hooks, which no copy has."""
        own = [each for each in self._own if each is not None]
        modules = [module for each in own for module in each.modules()]
        weights = [weight for each in own for weight in each.parameters()]
        return any(
            each._forward_hooks or each._forward_pre_hooks or each._backward_hooks or each._backward_pre_hooks
            for each in modules
        ) or any(each._backward_hooks or each._post_accumulate_grad_hooks for each in weights)

    def run(
        self, work: Callable[[int, int], Tensors], sizes: Sequence[int], *, in_turn: bool = False
    ) -> list[Tensors]:
        """What comes of ``work(lane, i)`` for each micro-batch i; gradients are added to those of the originals.

        Args:
            work: computes a micro-batch with the modules of a lane, its backward included.
            sizes: of the micro-batches, in any unit of work.
            in_turn: lanes follow each other in this thread, all with the originals, and with the same bits.

        Raises:
            BaseException: what ``work`` raises, of the first lane that does, or what interrupts this thread.  By then
                every lane has ended, after the micro-batch that it was at.
        """
        self._follow()
        dealt = deal(sizes, len(self.each))
        cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        is_over = threading.Event()

        def lane(at: int, modules: int) -> dict[int, Tensors]:
            torch.set_num_threads(1)  # of this thread, and of those that first use torch meanwhile
            try:
                with torch.autocast("cpu", cast[1], enabled=cast[0]):
                    return {i: work(modules, i) for i in dealt[at] if not is_over.is_set()}
            except BaseException:
                is_over.set()
                raise

        threads = torch.get_num_threads()
        try:
            if in_turn:
                found = []
                for at in range(len(dealt)):
                    with self._gradients_of(at):
                        found.append(lane(at, 0))
            else:
                found = _at_once(lane, len(dealt), is_over)
        finally:
            torch.set_num_threads(threads)
        self._add_up()
        return [
            metrics for _, metrics in sorted((i for each in found for i in each.items()), key=itemgetter(0))
        ]

    @contextmanager
    def _gradients_of(self, lane: int) -> Iterator[None]:
        """Within, the originals collect the gradients of this lane."""
        pairs = list(_weights(self._own, self.each[lane])) if lane else []
        before = [own.grad for own, _ in pairs]
        for own, _ in pairs:
            own.grad = None
        yield
        for (own, other), grad in zip(pairs, before, strict=True):
            own.grad, other.grad = grad, own.grad

    def _follow(self) -> None:
        """Have the copies compute with what the originals hold now: Lightning and checkpoints exchange it."""
        for twin in self.each[1:]:
            for own, other in (*_weights(self._own, twin), *_buffers(self._own, twin)):
                other.data = own.data
                other.requires_grad_(own.requires_grad)
                other.grad = None

    @torch.no_grad()
    def _add_up(self) -> None:
        for twin in self.each[1:]:
            for own, other in _weights(self._own, twin):
                if own.grad is None:
                    own.grad = other.grad
                elif other.grad is not None:
                    own.grad.add_(other.grad)
                other.grad = None


def deal(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The numbers of each lane, ascending: the largest first, each to the lane that has least.

    >>> deal([5, 1, 4, 3], 2)
    [[0, 1], [2, 3]]
    """
    lanes: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        lane = loads.index(min(loads))
        lanes[lane].append(number)
        loads[lane] += sizes[number]
    return [sorted(lane) for lane in lanes]


def _at_once(
    lane: Callable[[int, int], dict[int, Tensors]], count: int, is_over: threading.Event
) -> list[dict[int, Tensors]]:
    """Each lane in a thread of its own; none runs any more when this returns or raises."""
    with ThreadPoolExecutor(count, thread_name_prefix="lane") as pool:  # which waits for all on leaving
        try:
            pending = [pool.submit(lane, at, at) for at in range(count)]
            wait(pending)
        except BaseException:  # Ctrl-C
            is_over.set()
            raise
    return [each.result() for each in pending]


def _twin(modules: Modules) -> Modules:
    """Copies of modules whose weights and buffers are the same memory; each weight has a gradient of its own."""
    memo: dict[int, Any] = {}
    for module in modules:
        for weight in module.parameters() if module is not None else ():
            memo[id(weight)] = nn.Parameter(weight.data, requires_grad=weight.requires_grad)
        for buffer in module.buffers() if module is not None else ():
            memo[id(buffer)] = buffer.detach()
    return copy.deepcopy(modules, memo)


def _weights(own: Modules, other: Modules) -> Iterator[tuple[Tensor, Tensor]]:
    for one, two in zip(own, other, strict=True):
        if one is not None:
            yield from zip(one.parameters(), two.parameters(), strict=True)


def _buffers(own: Modules, other: Modules) -> Iterator[tuple[Tensor, Tensor]]:
    for one, two in zip(own, other, strict=True):
        if one is not None:
            yield from zip(one.buffers(), two.buffers(), strict=True)
