"""Name the run folders of a sweep, and so their TensorBoard lines, by what differs."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence

from hydra.core.override_parser.types import Override

_SUBDIR = "hydra.sweep.subdir"
_PLAIN = re.compile(r"[\w.+-]{1,40}")  # values that may be part of a folder's name
_MOST = 120  # maximum length of a name in characters


def name_folders(overrides: Sequence[Override], groups: Container[str]) -> list[str]:
    """Return the override that names the folders of a sweep, such as ``0_algo=grpo,seed=1``.

    The number of the run comes first: it keeps the order, and makes names unique if a search tries a value twice.

    Args:
        overrides: the overrides of the sweep.
        groups: the names of the config groups.

    Returns:
        The override as a list; empty if the user has named the folders, or if no difference can be shown.
    """
    if any(override.key_or_group == _SUBDIR for override in overrides):
        return []
    shown, length = [], 0
    for override in overrides:
        if not override.is_sweep_override() or not all(
            _PLAIN.fullmatch(text) for text in _list_values(override)
        ):
            continue
        key = override.key_or_group
        length += len(key) + max((len(text) for text in _list_values(override)), default=20) + 2
        if length <= _MOST:
            key_path = f"hydra.runtime.choices.{key}" if key in groups else key
            shown.append(f"{key.replace('/', '.')}=${{{key_path}}}")
    return [f"{_SUBDIR}='${{hydra.job.num}}_{','.join(shown)}'"] if shown else []


def _list_values(override: Override) -> Iterator[str]:
    """Yield the values of a discrete sweep as typed; none for an interval."""
    if override.is_discrete_sweep():
        for text in override.sweep_string_iterator():
            yield text.strip("'\"")
