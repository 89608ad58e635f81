"""List the config groups, and register the two config roots with Hydra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from lit_agentrl.certificates.lines import read_lines
from lit_agentrl.paths import CONFIG_DIR, EXPERIMENTAL_DIR, find_config, list_configs, name_config

PROVIDERS = ("main", "experimental")  # Hydra's names for this package's config roots; others are the user's
FOLDERS = ("experiment",)  # groups whose options lie in subfolders, such as experiment=paper/dapo


class ExperimentalConfigs(SearchPathPlugin):
    """A Hydra plugin that adds ``conf/experimental`` to the search path of ``conf``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if any(str(item.path).removeprefix("file://") == str(CONFIG_DIR) for item in search_path.get_path()):
            search_path.append("experimental", f"file://{EXPERIMENTAL_DIR}")


def register_roots() -> None:
    """Register ``conf/experimental`` with Hydra; call it before the first composition."""
    Plugins.instance().register(ExperimentalConfigs)


def list_group_options(group: str, search_overrides: Sequence[str]) -> list[str]:
    """List the option names of a group, given the overrides of the search path."""
    names = _list_entries(group, ObjectType.CONFIG, search_overrides)
    inner = _list_entries(group, ObjectType.GROUP, search_overrides) if group in FOLDERS else []
    nested = [
        f"{folder}/{option}"
        for folder in inner
        for option in list_group_options(f"{group}/{folder}", search_overrides)
    ]
    return [*(name for name in names if not name.startswith("_")), *nested]


def list_groups(search_overrides: Sequence[str]) -> list[str]:
    """List all groups, nested ones included, given the overrides of the search path."""
    return list(_list_groups_once(tuple(search_overrides)))


@cache  # slow without it: Hydra copies its list of plugins for each folder that it reads
def _list_groups_once(search_overrides: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_find_groups("", search_overrides))


def _find_groups(parent: str, search_overrides: Sequence[str]) -> Iterator[str]:
    for child in _list_entries(parent, ObjectType.GROUP, search_overrides):
        if not parent and child == EXPERIMENTAL_DIR.name:  # a separate config root, not a group
            continue
        group = f"{parent}/{child}" if parent else child
        yield group
        yield from _find_groups(group, search_overrides)


def describe_options(folders: Sequence[str | Path] = ()) -> tuple[str, str]:
    """Return the option lists of all core groups and of all experimental ones, as text.

    Each of the two texts has one line a group.

    Args:
        folders: the user's config folders, whose options are listed with the core ones.
    """
    shipped = [(name_config(file), file.is_relative_to(EXPERIMENTAL_DIR)) for file in list_configs()]
    user_options = [
        (file.relative_to(root).as_posix(), False) for root in folders for file in Path(root).rglob("*.yaml")
    ]
    listed: dict[bool, dict[str, set[str]]] = {False: {}, True: {}}
    for name, is_experimental in [*shipped, *user_options]:
        group, _, option = name.removesuffix(".yaml").rpartition("/")
        if group and not group.startswith("hydra") and not option.startswith("_"):
            listed[is_experimental].setdefault(group, set()).add(option)
    core, experimental = (
        "\n".join(f"{group}: {', '.join(sorted(options))}" for group, options in sorted(groups.items()))
        for groups in (listed[False], listed[True])
    )
    return core, experimental


def describe_algorithm(name: str, folders: Sequence[str | Path] = ()) -> str:
    """Return the comments of an algorithm's file and its certificate.

    The text is empty where there is no such file.

    Args:
        name: as in ``algo=NAME``.
        folders: the user's config folders, which are read first.
    """
    files = [Path(folder) / "algo" / f"{name}.yaml" for folder in folders]
    file = next((each for each in files if each.is_file()), find_config(f"algo/{name}.yaml"))
    if not file.is_file():
        return ""
    comments = takewhile(lambda line: line.startswith("# "), file.read_text(encoding="utf-8").splitlines())
    # lines that begin with | are the table of the comment
    lines = [line.removeprefix("# ") for line in comments if not line.startswith("# |")]
    certificate = read_lines().get(name) if file not in files else None
    command = f"`lit-agentrl certify algo={name}`"
    lines.append(f"Certificate: {certificate} ({command})." if certificate else f"Certificate: {command}.")
    return f"algo={name}\n  " + "\n  ".join(lines)


def _list_entries(group: str, kind: ObjectType, search_overrides: Sequence[str]) -> list[str]:
    return (
        GlobalHydra.instance()
        .config_loader()
        .get_group_options(group, kind, overrides=list(search_overrides))
    )
