"""Temporary replacement of module forwards; all patches of forwards go through this file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]


def is_patched(module: nn.Module) -> bool:
    """Return whether the module has its own forward, from a patch or a library."""
    return "forward" in vars(module)


@contextmanager
def patch_forwards(
    modules: Iterable[nn.Module], replace: Callable[[nn.Module, Forward], Forward]
) -> Iterator[None]:
    """Replace each module's forward by ``replace(module, forward)`` inside the context.

    ``forward`` is the forward at entry, so patches stack: the last one entered is called first and decides whether it
    calls the previous one.  Leaving restores the previous forward, also after an exception.  A module that occurs
    twice is patched once.
    """
    before: list[tuple[nn.Module, Forward | None]] = []
    try:
        for module in dict.fromkeys(modules):
            forward = replace(module, module.forward)
            before.append((module, vars(module).get("forward")))
            # not setattr: a forward that is a module must not become a child
            vars(module)["forward"] = forward
        yield
    finally:
        for module, own in before:
            if own is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = own
