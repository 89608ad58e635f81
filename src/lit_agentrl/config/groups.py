"""Which groups there are, and the options of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hydra._internal.config_repository import IConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType

from lit_agentrl.config.constants import Loader

FOLDERS = ("experiment",)  # groups with options in folders, such as experiment=paper/dapo


def _repository(search: Sequence[str]) -> IConfigRepository:
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, Loader)
    return loader.repository_with(search)


def options_of(group: str, search: Sequence[str]) -> list[str]:
    """The names that a group may have, under the overrides that say where configs lie."""
    return _options_in(_repository(search), group)


def _options_in(found: IConfigRepository, group: str) -> list[str]:
    names = found.get_group_options(group, ObjectType.CONFIG)
    inner = found.get_group_options(group, ObjectType.GROUP) if group in FOLDERS else []
    nested = [f"{folder}/{option}" for folder in inner for option in _options_in(found, f"{group}/{folder}")]
    return [*(name for name in names if not name.startswith("_")), *nested]


def all_groups(search: Sequence[str]) -> list[str]:
    """The groups and their inner ones, under the overrides that say where configs lie."""
    return list(_groups_in(_repository(search), ""))


def _groups_in(found: IConfigRepository, parent: str) -> Iterator[str]:
    for child in found.get_group_options(parent, ObjectType.GROUP):
        group = f"{parent}/{child}" if parent else child
        yield group
        yield from _groups_in(found, group)
