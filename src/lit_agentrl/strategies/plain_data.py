"""Contents that a checkpoint may hold: tensors and plain data, which load without running code."""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

PLAIN = "tensors, numbers, texts, lists and dicts"
_NOT_SAVED = (pickle.PicklingError, AttributeError, TypeError)  # pickle cannot save an object

_ALWAYS_PLAIN = {torch.Tensor, torch.nn.Parameter, str, int, float, bool, type(None)}


class NotPlain(ValueError):
    """Error that names an object in a checkpoint that is not plain data."""


def save_plain(value: Any, path: str | Path) -> None:
    """Write ``value`` to disk, and check that ``torch.load`` with ``weights_only`` accepts it.

    The file is read back without its tensor data, which is cheap whatever its size.

    Raises:
        NotPlain: ``value`` holds more than tensors and plain data; the written file stays.
        OSError, RuntimeError: raised by ``torch.save``.
    """
    try:
        with open(path, "wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        torch.load(path, map_location="meta", mmap=True, weights_only=True)
    except (pickle.UnpicklingError, *_NOT_SAVED) as error:
        refused = next(_find_refused(value, ()), None)
        if refused is None:
            raise
        key_path, item = refused
        kind = f"{type(item).__module__}.{type(item).__qualname__}"
        raise NotPlain(
            f"{'.'.join(map(str, key_path))} is a {kind}, but a checkpoint holds only {PLAIN}; return only these "
            "from the state_dict of this part"
        ) from error


def _find_refused(value: Any, key_path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the place and the value of each object that is not plain data."""
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            yield from _find_refused(key, (*key_path, "key"))
            yield from _find_refused(item, (*key_path, key))
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _find_refused(item, (*key_path, index))
    elif type(value) not in _ALWAYS_PLAIN and not _is_loadable(value):
        yield key_path, value


def _is_loadable(value: Any) -> bool:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except (pickle.UnpicklingError, *_NOT_SAVED):
        return False
    return True
