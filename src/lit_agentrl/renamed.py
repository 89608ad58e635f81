"""Translation of names of earlier versions into current ones by the table ``renamed.yaml``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def read_table() -> dict[str, str]:
    """Read the table of old and current dotted names of modules, classes and functions."""
    table: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return table


def get_current_name(name: str) -> str:
    """Translate a dotted name of an earlier version into the current one; keep other names.

    >>> get_current_name("lit_agentrl.rl.advantages.group_mean")
    'lit_agentrl.rl.credit.advantages.group_mean'
    """
    old = _find_longest_prefix(name, read_table())
    current = _find_longest_prefix(name, read_table().values())
    if len(current) >= len(old):  # a package may have taken the name of an old module
        return name
    return read_table()[old] + name.removeprefix(old)


def get_first_name(name: str) -> str:
    """Translate a current dotted name into its first one, for keys that must never change.

    >>> get_first_name("lit_agentrl.envs.games.sokoban.Sokoban")
    'lit_agentrl.envs.sokoban.Sokoban'
    """
    new = _find_longest_prefix(name, read_table().values())
    old = next((old for old, current in read_table().items() if current == new), "")
    return old + name.removeprefix(new) if new else name


def rename_targets(node: Any) -> Any:
    """Return a config of plain containers in which every ``_target_`` has its current name."""
    if isinstance(node, list):
        return [rename_targets(child) for child in node]
    if not isinstance(node, dict):
        return node
    return {
        key: get_current_name(child)
        if key == "_target_" and isinstance(child, str)
        else rename_targets(child)
        for key, child in node.items()
    }


def _find_longest_prefix(name: str, known: Iterable[str]) -> str:
    """Find the longest known dotted name that this one begins with, or nothing."""
    return max(
        (prefix for prefix in known if name == prefix or name.startswith(f"{prefix}.")), key=len, default=""
    )
