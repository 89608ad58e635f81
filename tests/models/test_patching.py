"""Replaced forwards: how they stack, and that nothing of them stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lit_agentrl.models.patching import Forward, is_patched, patch_forwards


def adding(number: int, seen: list[int]) -> Callable[[nn.Module, Forward], Forward]:
    def replace(_: nn.Module, forward: Forward) -> Forward:
        def replaced(*args: Any) -> Any:
            seen.append(number)
            return forward(*args) + number

        return replaced

    return replace


def test_what_is_entered_last_is_called_first_and_leaving_puts_back_what_was_there() -> None:
    first, second, x = nn.Identity(), nn.Identity(), torch.zeros(1)
    seen: list[int] = []
    librarys = vars(second)["forward"] = lambda x: 100 + x
    modules = [first, second, first]  # each once
    with patch_forwards(modules, adding(1, seen)), patch_forwards(modules, adding(20, seen)):
        with patch_forwards(iter(modules), adding(20, seen)):  # again within itself
            assert (float(first(x)), float(second(x))) == (41, 141) and seen == [20, 20, 1] * 2
        assert float(first(x)) == 21
    assert not is_patched(first) and vars(second)["forward"] is librarys


def test_an_exception_leaves_nothing_behind() -> None:
    modules = [nn.Identity(), nn.Linear(2, 2)]

    def fails(module: nn.Module, forward: Forward) -> Forward:
        if isinstance(module, nn.Linear):
            raise TypeError
        return forward

    with pytest.raises(TypeError), patch_forwards(modules, fails):
        pass
    with pytest.raises(ZeroDivisionError), patch_forwards(modules, adding(1, [])):
        raise ZeroDivisionError
    assert not any(map(is_patched, modules))
