"""Call the parts of an algorithm with exactly the tensors that their signatures name.

A parameter whose name ends in a shape suffix is a tensor of one closed vocabulary: ``_BT`` (rows, tokens), ``_B``
(rows), ``_BK``, ``_P`` (pairs) or ``_S`` (trajectories).  All others are constants, which YAML sets.  Signatures are
read through ``functools.partial``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lit_agentrl.checks import format_value, name_errors

_SUFFIXES = ("_BT", "_B", "_BK", "_P", "_S")
# tensor names of parts seen before, because reading a signature takes longer than a small batch
_KNOWN: WeakKeyDictionary[Callable[..., Any], dict[str, bool]] = WeakKeyDictionary()


def _get_signature(fn: Callable[..., Any]) -> inspect.Signature:
    # The __call__ of a module takes any arguments; only `forward` names its tensors.
    return inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)


def bare(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside nested ``functools.partial`` objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _get_name(fn: Callable[..., Any]) -> str:
    fn = bare(fn)
    return getattr(fn, "__qualname__", type(fn).__name__)


def tensor_names(fn: Callable[..., Any]) -> dict[str, bool]:
    """Return the tensors that ``fn`` takes; True for each one without a default.

    >>> from functools import partial
    >>> def f(*, return_B, value_BT=None, eps): ...
    >>> tensor_names(partial(f, eps=0.1))
    {'return_B': True, 'value_BT': False}
    """
    try:
        known = _KNOWN.get(fn)
    except TypeError:  # the part cannot be hashed or weakly referenced
        known = None
    if known is None:
        known = {
            name: parameter.default is inspect.Parameter.empty
            for name, parameter in _get_signature(fn).parameters.items()
            if name.endswith(_SUFFIXES)
        }
        with suppress(TypeError):
            _KNOWN[fn] = known
    return dict(known)


def constants(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the constants that ``fn`` takes and their values.

    The value is ``inspect.Parameter.empty`` for a constant that is not set.
    """
    return {
        name: parameter.default
        for name, parameter in _get_signature(fn).parameters.items()
        if not name.endswith(_SUFFIXES)
    }


def bind(fn: Callable[..., Any], tensors: Mapping[str, Tensor]) -> Any:
    """Call ``fn`` with exactly the tensors that its signature names.

    Raises:
        ValueError: a required tensor is missing; the message names the part and the tensor.
    """
    arguments = {}
    for name, is_required in tensor_names(fn).items():
        if name in tensors:
            arguments[name] = tensors[name]
        elif is_required:
            raise ValueError(f"{_get_name(fn)} needs {name}, which this run does not provide")
    return fn(**arguments)


def try_out(
    option: str, fn: Callable[..., Any], result: type, rows: Mapping[str, Tensor], shape: str | None = None
) -> None:
    """Call ``fn`` on a toy batch, so that wrong constants fail at start-up.

    Args:
        option: config option of the part, such as ``clip``; error messages begin with it.
        fn: the part, with its constants bound.
        result: the type that it must return.
        rows: the columns of a batch.  Together with those of :func:`with_computed` they are all tensors that a part
            may ask for.
        shape: shape suffix of a returned tensor: ``BT``, ``B``, or empty for a scalar; None accepts any shape.

    Raises:
        ValueError: ``fn`` raises it, asks for an unknown tensor, lacks or does not accept a constant, or returns
            another type, another shape or numbers that are not finite.
    """
    toy = with_computed(rows)
    try:
        values = constants(fn)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{option}: {_get_name(fn)} does not take these constants ({error})") from error
    if missing := [name for name, value in values.items() if value is inspect.Parameter.empty]:
        raise ValueError(f"{option}.{missing[0]} is not set; {_get_name(fn)} needs a value")
    if unknown := sorted(tensor_names(fn).keys() - toy.keys()):
        raise ValueError(
            f"{option}: {_get_name(fn)} asks for {unknown[0]}; tensors are {', '.join(sorted(toy))}"
        )
    try:
        with torch.no_grad(), name_errors(option):
            returned = bind(fn, toy)
    except TypeError as error:
        stated = ", ".join(f"{name}={format_value(value)}" for name, value in values.items()) or "its inputs"
        raise ValueError(f"{option}: {_get_name(fn)} does not accept {stated}: {error}") from error
    if not isinstance(returned, result):
        got, expected = type(returned).__name__, result.__name__
        raise ValueError(f"{option}: {_get_name(fn)} returned {got}, expected {expected}")
    returned_tensors = (
        vars(returned)
        if dataclasses.is_dataclass(returned)
        else {"result" if shape is None else f"result_{shape}": returned}
    )
    for name, tensor in returned_tensors.items():
        if isinstance(tensor, Tensor):
            _check_returned(f"{option}: {_get_name(fn)}", name, tensor, toy["is_action_BT"])


def _check_returned(function_name: str, name: str, tensor: Tensor, is_action_BT: Tensor) -> None:
    """Refuse shapes that would broadcast silently, and numbers that are not finite."""
    shapes = {"BT": is_action_BT.shape, "B": is_action_BT.shape[:1], "": torch.Size()}
    axes = name.rpartition("_")[2]
    if axes in shapes and tensor.shape != shapes[axes]:
        shown, expected = tuple(tensor.shape), tuple(shapes[axes])
        raise ValueError(
            f"{function_name} returned {name} of shape {shown}, expected {expected} on the toy batch"
        )
    if name.startswith("is_") and tensor.dtype != torch.bool:
        raise ValueError(f"{function_name} returned {name} of {tensor.dtype}, expected torch.bool")
    used = tensor[is_action_BT] if axes == "BT" and tensor.is_floating_point() else tensor
    if used.is_floating_point() and not bool(torch.isfinite(used).all()):
        raise ValueError(f"{function_name} returned {name} that is not finite")


def with_computed(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the toy rows with valid values of all tensors that an update computes."""
    is_action_BT, return_B = rows["is_action_BT"], rows["return_B"]
    like_BT = torch.ones(is_action_BT.shape)
    logps = {name: -like_BT for name in ("logp_BT", "old_logp_BT", "ref_logp_BT")}
    values = {name: -like_BT for name in ("value_BT", "target_value_BT", "old_value_BT", "return_BT")}
    values |= {"q_BT": -like_BT, "spread_BT": like_BT}
    values |= {f"{when}implicit_q_BT": -like_BT for when in ("", "old_", "target_")}
    values |= {
        f"{when}cost_{of}_BT": like_BT for when, of in (("", "value"), ("old_", "value"), ("", "return"))
    }
    return {
        **rows,
        **logps,
        **values,
        "entropy_BT": 0.5 * like_BT,
        "ref_kl_BT": 0.5 * like_BT,
        "rank_BT": like_BT,
        "ref_quantile_B": 0.5 * torch.ones_like(return_B),
        "ref_count_B": 2 * torch.ones_like(return_B),
        "ratio_BT": like_BT,
        "advantage_BT": is_action_BT * (2 * return_B - 1)[:, None],
        "is_value_target_BT": is_action_BT,
    }
