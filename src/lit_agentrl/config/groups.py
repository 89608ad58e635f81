"""Which groups there are, and the options of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType

FOLDERS = ("experiment",)  # groups with options in folders, such as experiment=paper/dapo


def options_of(group: str, search: Sequence[str]) -> list[str]:
    """List the names that a group may have, under the overrides that say where configs lie."""
    names = _entries(group, ObjectType.CONFIG, search)
    inner = _entries(group, ObjectType.GROUP, search) if group in FOLDERS else []
    nested = [f"{folder}/{option}" for folder in inner for option in options_of(f"{group}/{folder}", search)]
    return [*(name for name in names if not name.startswith("_")), *nested]


def all_groups(search: Sequence[str]) -> list[str]:
    """List the groups and their inner ones, under the overrides that say where configs lie."""
    return list(_all_groups(tuple(search)))


@cache  # Hydra copies its list of plugins for each folder that is read
def _all_groups(search: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_groups_in("", search))


def _groups_in(parent: str, search: Sequence[str]) -> Iterator[str]:
    for child in _entries(parent, ObjectType.GROUP, search):
        group = f"{parent}/{child}" if parent else child
        yield group
        yield from _groups_in(group, search)


def _entries(group: str, kind: ObjectType, search: Sequence[str]) -> list[str]:
    return GlobalHydra.instance().config_loader().get_group_options(group, kind, overrides=list(search))
