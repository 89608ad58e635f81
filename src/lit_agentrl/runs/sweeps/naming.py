"""Name the run folders of a sweep, and so their TensorBoard lines, by their options."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence

from hydra.core.override_parser.types import Override

_SUBDIR = "hydra.sweep.subdir"
_SEED = "seed"
_PLAIN = re.compile(r"[\w.+-]{1,40}")  # values that may be part of a folder's name
_MAX_LENGTH = 120  # characters of a name


def name_folders(overrides: Sequence[Override], groups: Container[str]) -> list[str]:
    """Return the override that names the folders of a sweep, such as ``algo=grpo,seed=1_0``.

    The options that differ between runs come first and the seed after them, since TensorBoard cuts long names at their
    end.  The number of the run is last: it makes names unique if a search tries a value twice.

    Args:
        overrides: the overrides of the sweep.
        groups: the names of the config groups.

    Returns:
        The override as a list; empty if the user has named the folders, or if no option fits into a name.
    """
    if any(override.key_or_group == _SUBDIR for override in overrides):
        return []
    parts, length = [], 0
    for override in sorted(overrides, key=lambda override: override.key_or_group == _SEED):
        if not override.is_sweep_override() or not all(
            _PLAIN.fullmatch(text) for text in _list_values(override)
        ):
            continue
        key = override.key_or_group
        length += len(key) + max((len(text) for text in _list_values(override)), default=20) + 2
        if length <= _MAX_LENGTH:
            key_path = f"hydra.runtime.choices.{key}" if key in groups else key
            parts.append(f"{key.replace('/', '.')}=${{{key_path}}}")
    return [f"{_SUBDIR}='{','.join(parts)}_${{hydra.job.num}}'"] if parts else []


def keep_earlier_names(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with the folder names of earlier versions, which begin with the number."""
    ending = "_${hydra.job.num}'"
    start = f"{_SUBDIR}='"
    return [
        f"{start}${{hydra.job.num}}_{text.removeprefix(start).removesuffix(ending)}'"
        if text.startswith(start) and text.endswith(ending)
        else text
        for text in overrides
    ]


def _list_values(override: Override) -> Iterator[str]:
    """Yield the values of a discrete sweep as typed; none for an interval."""
    if override.is_discrete_sweep():
        for text in override.sweep_string_iterator():
            yield text.strip("'\"")
