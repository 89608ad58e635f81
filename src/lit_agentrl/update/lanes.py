"""Micro-batches side by side on a CPU: threads that meet once a step instead of at every operation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]
Twins = tuple[Any, ...]


class Lanes:
    """Computes micro-batches in ``count`` lanes, each with one thread of torch.

    Micro-batches are dealt by their sizes alone.  Gradients of a lane are added up in its order, and then lane by lane:
    the sum depends on ``count``, and neither on which lane is first nor on the number of cores.  The modules of all
    lanes but the first are copies, on the very weights of the originals: modules hold what concerns one pass, such as
    hooks.

    Args:
        modules: those that are trained, None among them.
        count: of lanes, >= 2.
    """

    def __init__(self, modules: Sequence[nn.Module | None], count: int) -> None:
        self._own = tuple(modules)
        self.twins: list[Twins] = [self._own, *(_twin(self._own) for _ in range(count - 1))]
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="lane")

    def modules(self) -> Iterator[nn.Module]:
        """All layers of the copies."""
        for twin in self.twins[1:]:
            for each in twin:
                if each is not None:
                    yield from each.modules()

    def run(
        self, work: Callable[[int, int], Tensors], sizes: Sequence[int], *, in_turn: bool = False
    ) -> list[Tensors]:
        """What comes of ``work(lane, i)`` for each micro-batch i; gradients are added to those of the originals.

        Args:
            work: computes a micro-batch with the modules of a lane, its backward included.
            sizes: of the micro-batches, in any unit of work.
            in_turn: lanes follow each other in this thread, with the same bits.

        Raises:
            Exception: what ``work`` raises, of the first lane that does; all have ended by then.
        """
        self._follow()
        dealt = deal(sizes, len(self.twins))
        cast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

        def lane(at: int) -> dict[int, Tensors]:
            torch.set_num_threads(1)  # a number of each thread
            with torch.autocast("cpu", cast[1], enabled=cast[0]):
                return {i: work(at, i) for i in dealt[at]}

        threads = torch.get_num_threads()
        try:
            if in_turn:
                found = [lane(at) for at in range(len(dealt))]
            else:
                pending = [self._pool.submit(lane, at) for at in range(len(dealt))]
                found = [each.result() for each in _ended(pending)]
        finally:
            torch.set_num_threads(threads)
        self._add_up()
        return [
            metrics
            for _, metrics in sorted((item for each in found for item in each.items()), key=itemgetter(0))
        ]

    def _follow(self) -> None:
        """Have the copies compute with what the originals hold now: Lightning and checkpoints exchange it."""
        for twin in self.twins[1:]:
            for own, other in _pairs(self._own, twin):
                other.data = own.data
                other.grad = None

    @torch.no_grad()
    def _add_up(self) -> None:
        for twin in self.twins[1:]:
            for own, other in _pairs(self._own, twin):
                if other is own or other.grad is None:
                    continue
                if own.grad is None:
                    own.grad = other.grad
                else:
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


def _twin(modules: Twins) -> Twins:
    """Copies of modules whose weights are the same memory; only those that are trained have a gradient of their own."""
    memo: dict[int, Any] = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()) if module is not None else ():
            is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            memo[id(tensor)] = nn.Parameter(tensor.data) if is_trained else tensor
    return copy.deepcopy(modules, memo)


def _pairs(own: Twins, other: Twins) -> Iterator[tuple[Tensor, Tensor]]:
    for one, two in zip(own, other, strict=True):
        if one is not None:
            yield from zip(one.parameters(), two.parameters(), strict=True)


def _ended(pending: Sequence[Any]) -> Sequence[Any]:
    """When none of them runs any more: the first error is raised after all have let go of the weights."""
    for each in pending:
        each.exception()
    return pending
