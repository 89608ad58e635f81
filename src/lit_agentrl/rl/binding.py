"""Reading from signatures which tensors a part of an algorithm needs, and calling it with exactly those.

Parameters that end in ``_BT``, ``_B`` or ``_BK`` are tensors of one closed vocabulary; all others are
constants, set by YAML.  Signatures are read through ``functools.partial``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_SUFFIXES = ("_BT", "_B", "_BK")


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    # A module's __call__ takes anything; what it needs is written at forward.
    return inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)


def _name(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__qualname__", type(fn).__name__)


def tensor_names(fn: Callable[..., Any]) -> dict[str, bool]:
    """The tensors ``fn`` takes, each with whether it must be given.

    >>> from functools import partial
    >>> def f(*, return_B, value_BT=None, eps): ...
    >>> tensor_names(partial(f, eps=0.1))
    {'return_B': True, 'value_BT': False}
    """
    return {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in _signature(fn).parameters.items()
        if name.endswith(_SUFFIXES)
    }


def constants(fn: Callable[..., Any]) -> dict[str, Any]:
    """The constants ``fn`` takes with their values; ``inspect.Parameter.empty`` for one that is not set."""
    return {
        name: parameter.default
        for name, parameter in _signature(fn).parameters.items()
        if not name.endswith(_SUFFIXES)
    }


def bind(fn: Callable[..., Any], tensors: Mapping[str, Tensor]) -> Any:
    """Calls ``fn`` with exactly the tensors its signature names.

    Raises:
        ValueError: naming the part and the tensor, if a required one is missing.
    """
    arguments = {}
    for name, is_required in tensor_names(fn).items():
        if name in tensors:
            arguments[name] = tensors[name]
        elif is_required:
            raise ValueError(f"{_name(fn)} needs {name}, which this run does not provide")
    return fn(**arguments)


def try_out(option: str, fn: Callable[..., Any], result: type) -> None:
    """Calls ``fn`` once on a toy batch, so that a wrong constant fails at start-up, not after a rollout.

    Args:
        option: the public key of the part, such as ``algo.clip`` or ``filter``; used in messages.
        fn: the part, its constants set.
        result: the type it must return.

    Raises:
        ValueError: from ``fn`` itself, or if it asks for an unknown tensor, lacks or does not accept a
            constant, or returns another type.
    """
    toy = toy_tensors()
    try:
        given = constants(fn)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option}: {_name(fn)} does not take these constants ({error})") from error
    if missing := [name for name, value in given.items() if value is inspect.Parameter.empty]:
        raise ValueError(f"{option}.{missing[0]} is not set; {_name(fn)} needs a value")
    if unknown := sorted(tensor_names(fn).keys() - toy.keys()):
        raise ValueError(f"{option}: {_name(fn)} asks for {unknown[0]}; tensors are {', '.join(sorted(toy))}")
    try:
        with torch.no_grad():
            returned = bind(fn, toy)
    except TypeError as error:
        stated = ", ".join(f"{name}={value!r}" for name, value in given.items()) or "its inputs"
        raise ValueError(f"{option}: {_name(fn)} does not accept {stated}: {error}") from error
    if not isinstance(returned, result):
        got, expected = type(returned).__name__, result.__name__
        raise ValueError(f"{option}: {_name(fn)} returned {got}, expected {expected}")


def toy_tensors() -> dict[str, Tensor]:
    """A small valid value for each name of the vocabulary: 4 trajectories in 2 groups, 1 turn of 2 tokens."""
    is_action_BT = torch.tensor([[False, True, True]]).repeat(4, 1)
    is_end_BT = torch.tensor([[False, False, True]]).repeat(4, 1)
    row_B = torch.arange(4)
    logp_names = ("sampler_logp_BT", "logp_BT", "old_logp_BT", "ref_logp_BT")
    float_names = (*logp_names, "value_BT", "old_value_BT", "return_BT", "entropy_BT", "sampler_entropy_BT")
    return {
        "tokens_BT": torch.ones(4, 3, dtype=torch.int64),
        "is_real_BT": torch.ones(4, 3, dtype=torch.bool),
        "is_action_BT": is_action_BT,
        "turn_BT": torch.zeros(4, 3, dtype=torch.int32),
        "is_turn_end_BT": is_end_BT,
        "segment_BT": torch.full((4, 3), 3, dtype=torch.int8),
        "policy_version_BT": torch.zeros(4, 3, dtype=torch.int32),
        "reward_BT": is_end_BT * (row_B % 2).float()[:, None],
        "node_BT": torch.arange(12).reshape(4, 3),
        "group_B": row_B // 2,
        "member_B": row_B % 2,
        "trajectory_B": row_B,
        "tree_B": row_B,
        "task_B": torch.zeros(4, dtype=torch.int64),
        "first_turn_B": torch.zeros(4, dtype=torch.int32),
        "return_B": (row_B % 2).float(),
        "baseline_B": torch.full((4,), 0.5),
        "success_B": row_B % 2 == 1,
        "end_B": torch.zeros(4, dtype=torch.int8),
        "state_key_BK": row_B[:, None],
        "advantage_BT": is_action_BT * (row_B % 2 * 2.0 - 1)[:, None],
        "ratio_BT": torch.ones(4, 3),
        "is_value_target_BT": is_action_BT,
        **{name: torch.full((4, 3), 0.5 if "entropy" in name else -1.0) for name in float_names},
    }
