"""Names of the runs of a sweep: their folders, and so their lines in TensorBoard, say what differs."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence

from hydra.core.override_parser.types import Override

_SUBDIR = "hydra.sweep.subdir"
_PLAIN = re.compile(r"[\w.+-]{1,40}")  # values that are shown; others hold what a folder cannot be called
_MOST = 120  # characters


def run_names(overrides: Sequence[Override], groups: Container[str]) -> list[str]:
    """The override by which the folders of a sweep are called ``0_algo=grpo,seed=1`` and so on.

    The number of the run stays in front: it keeps their order, and a search may try a value twice.

    Args:
        overrides: of the sweep.
        groups: which of their keys are groups of configs.

    Returns:
        Nothing where the user has named the folders, or where nothing that differs can be shown.
    """
    if any(override.key_or_group == _SUBDIR for override in overrides):
        return []
    shown, length = [], 0
    for override in overrides:
        if not override.is_sweep_override() or not all(_PLAIN.fullmatch(text) for text in _values(override)):
            continue
        key = override.key_or_group
        length += len(key) + max((len(text) for text in _values(override)), default=20) + 2
        if length <= _MOST:
            place = f"hydra.runtime.choices.{key}" if key in groups else key
            shown.append(f"{key.replace('/', '.')}=${{{place}}}")
    return [f"{_SUBDIR}='${{hydra.job.num}}_{','.join(shown)}'"] if shown else []


def _values(override: Override) -> Iterator[str]:
    """What the option may be, as typed; nothing of an interval, which holds numbers."""
    if override.is_discrete_sweep():
        for text in override.sweep_string_iterator():
            yield text.strip("'\"")
