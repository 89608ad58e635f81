"""Forwards of modules, replaced for a time: the one place that does it, and that says how replacements stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]


def is_patched(module: nn.Module) -> bool:
    """Whether something stands in the way of the forward of its class: a patch, or what a library put there."""
    return "forward" in vars(module)


@contextmanager
def patched(modules: Iterable[nn.Module], replace: Callable[[nn.Module, Forward], Forward]) -> Iterator[None]:
    """Inside, each module's forward is ``replace(module, forward)``, of the forward that it has on entering.

    So patches stack, also of one kind: what is entered last is called first, and decides whether it calls what was
    there before.  Leaving puts back what was there, after an exception as well.  A module that comes twice is patched
    once.
    """
    before: list[tuple[nn.Module, Forward | None]] = []
    try:
        for module in dict.fromkeys(modules):
            forward = replace(module, module.forward)
            before.append((module, vars(module).get("forward")))
            vars(module)["forward"] = forward  # not as an attribute: a forward that is a module is no child
        yield
    finally:
        for module, own in before:
            if own is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = own
