"""Compose configs, and refuse every part of a command that would be ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.checks import format_value
from lit_agentrl.config.errors import UserError, explain_unreadable, refuse_first, refuse_unknown
from lit_agentrl.config.groups import PROVIDERS, list_group_options, register_roots
from lit_agentrl.config.overrides import get_table, parse, rewrite_for_hydra
from lit_agentrl.config.suggestions import explain_composition
from lit_agentrl.paths import CONFIG_DIR, list_configs, name_config
from lit_agentrl.renamed import get_current_name

# sections whose keys are arguments of the class that _target_ names: keys may be added and removed
OPEN_SECTIONS = (
    "trainer",
    "callbacks",
    "logger",
    "reward",
    "optim.schedule_args",
    "optim.optimizer",
    "model",
    "env",
    "hydra",
)
LIST_GROUPS = ("logger", "callbacks", "reward")  # groups that can combine several options
CLOSED_SECTIONS = ("val", "test")  # no signature refuses their unknown keys, so they are checked here


def check_folders(folders: Sequence[str | Path]) -> None:
    """Refuse config folders that Hydra would silently ignore in part.

    Raises:
        UserError: --config-dir is given more than once, since Hydra reads only the last; or a file differs from the
            shipped one of the same name, since Hydra finds the shipped one first.
    """
    refuse_first(_find_hidden_files(folders))


def _find_hidden_files(folders: Sequence[str | Path]) -> Iterator[str]:
    """Yield a line about each folder or file that Hydra would ignore."""
    if len(folders) > 1:
        yield f"--config-dir is given twice, as {folders[0]} and {folders[1]}; merge them into one folder"
    for folder in map(Path, folders):
        for shipped in list_configs():
            name = name_config(shipped)
            if (folder / name).is_file() and (folder / name).read_bytes() != shipped.read_bytes():
                yield (
                    f"--config-dir {folder}: {name} is also the name of a shipped file, which takes "
                    "precedence; rename yours"
                )


@contextmanager
def initialize_hydra() -> Iterator[None]:
    """Initialise Hydra for composing, unless a run that Hydra started has done so."""
    if GlobalHydra.instance().is_initialized():
        yield
    else:
        register_roots()
        with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
            yield


def format_search_path(folders: Sequence[str | Path]) -> list[str]:
    """Return, as a list, the override that makes ``compose`` search the user's config folders too.

    Raises:
        UserError: one of the paths is not a folder.
    """
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(f"--config-dir {folder} is not a folder")
    paths = ",".join(f"'file://{Path(folder).resolve()}'" for folder in folders)
    return [f"hydra.searchpath=[{paths}]"] if folders else []


def list_user_folders(sources: Iterable[Any]) -> list[str]:
    """Return the user's config folders among the sources that Hydra records."""
    return [source.path for source in sources if source.schema == "file" and source.provider not in PROVIDERS]


def make_task_loader(folders: Sequence[str | Path] = ()) -> Callable[[str], DictConfig]:
    """Return a function that loads a game's config by name, from ``conf/env`` or these folders."""
    return lambda name: load_option("env", name, folders)


def import_target(cfg: DictConfig) -> Callable[..., Any]:
    """Import the function that the ``_target_`` of a config names."""
    function: Callable[..., Any] = get_method(cfg["_target_"])
    return function


def load_option(group: str, name: str, folders: Sequence[str | Path] = ()) -> DictConfig:
    """Load the config of one option of a group, from ``conf`` or these folders.

    Raises:
        UserError: the group has no option of that name.
    """
    search_overrides = format_search_path(folders)
    with initialize_hydra():
        names = list_group_options(group, search_overrides)
        if name not in names:
            description = "game named " if group == "env" else f"option {group}="
            raise UserError(f"there is no {description}{name}; valid: {', '.join(names)}")
        # Hydra searches for a primary config only in the shipped folder, so the option is added to an empty one
        try:
            composed = compose(config_name=None, overrides=[f"+{group}={name}", *search_overrides])
        except UnicodeError as error:
            raise UserError(explain_unreadable(search_overrides) or str(error)) from error
        option: DictConfig = composed[group]
        use_current_names(option)
        return option


def compose_job(name: str, job: Sequence[str], search_overrides: Sequence[str] = ()) -> DictConfig:
    """Compose the config of one job, including the ``hydra`` node.

    Raises:
        UserError: an unknown group, option or key; the message names the nearest valid ones.
    """
    job = rewrite_for_hydra(job)
    with initialize_hydra():
        _check_keys(parse(job), search_overrides)
        _check_added(name, job, search_overrides)
        try:
            cfg = compose(config_name=name, overrides=[*job, *search_overrides], return_hydra_config=True)
        except Exception as error:
            raise explain_composition(error, name, job, search_overrides) from error
        check_sections(cfg, name)
    use_current_names(cfg)
    return cfg


def use_current_names(cfg: DictConfig) -> None:
    """Replace each former ``_target_`` name in a config by the current one, in place.

    A user's own file may still have a former name.
    """
    for path, name in _find_targets(OmegaConf.to_container(cfg, resolve=False), ()):
        if (current := get_current_name(name)) != name:
            node: Any = cfg
            for key in path:
                node = node[key]
            node["_target_"] = current


def _find_targets(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        if key == "_target_" and isinstance(child, str):
            yield path, child
        elif isinstance(child, dict | list):
            yield from _find_targets(child, (*path, key))


def check_sections(cfg: DictConfig, name: str) -> None:
    """Refuse keys of a composed config that nothing reads, from overrides or from files.

    Raises:
        UserError: an unknown or missing key, or a section that is set to a value.
    """
    for section, options in _list_sections(name).items():
        value = cfg.get(section, {})  # a missing one is reported below
        if not isinstance(value, dict | DictConfig):
            raise UserError(
                f"{section}={format_value(value)}: {section} is a section; set one of its options: {', '.join(options)}"
            )
    if OmegaConf.select(cfg, "algo.constants") is not None:
        raise UserError(
            "algo.constants was removed; write an option file, such as conf/algo/clip/mine.yaml, that starts "
            "from a shipped option, and choose it in the defaults of the algorithm"
        )
    for section, known_keys in _list_known_keys(name).items():
        keys = {str(key) for key in (OmegaConf.select(cfg, section) if section else cfg)}
        prefix = f"{section}." if section else ""
        if unknown := sorted(keys - known_keys - {"hydra"}):
            refuse_unknown(f"unknown option {prefix}{unknown[0]}", unknown[0], sorted(known_keys))
        if missing := sorted(known_keys - keys):
            raise UserError(f"{prefix}{missing[0]} is missing, and every run needs it")


@cache
def _compose_base(name: str) -> DictConfig:
    """Compose the config of a command without overrides, including the ``hydra`` node."""
    with initialize_hydra():
        return compose(config_name=name, return_hydra_config=True)


def _list_known_keys(name: str) -> dict[str, frozenset[str]]:
    """Return the valid keys of the whole config (under "") and of each closed section."""
    base = _compose_base(name)
    sections = ("", *CLOSED_SECTIONS)
    keys = {s: {str(key) for key in (OmegaConf.select(base, s) if s else base)} for s in sections}
    return {section: frozenset(names - {"hydra"}) for section, names in keys.items()}


def _list_sections(name: str) -> dict[str, list[str]]:
    """Return the sections of the config that are not groups, each with its options."""
    base = _compose_base(name)
    chosen = {"hydra", *(str(group).partition("/")[0] for group in base.hydra.runtime.choices)}
    plain = OmegaConf.to_container(base, resolve=False)
    assert isinstance(plain, dict)
    return {
        str(key): [f"{key!s}.{option}" for option in node if not option.startswith("_")]
        for key, node in plain.items()
        if isinstance(node, dict) and str(key) not in chosen
    }


def _check_keys(parsed: Sequence[Override], search_overrides: Sequence[str]) -> None:
    """Refuse overrides that Hydra accepts but that would not do what they say."""
    refuse_first(filter(None, (_find_problem(override, search_overrides) for override in parsed)))


def _find_problem(override: Override, search_overrides: Sequence[str]) -> str:
    """Return why an override would not do what it says; empty if it would."""
    key, text = override.key_or_group, override.input_line or ""
    if key == "run_dir":
        return f"{text}: choose the run folder with hydra.run.dir=FOLDER"
    value = override.value()
    axis = key.replace(".", "/")
    axis_options = list_group_options(axis, search_overrides) if key.startswith("algo.") else []
    if axis_options and not isinstance(value, dict | list):
        return f"{text}: write {axis}=NAME; valid: {', '.join(axis_options)}"
    if key in CLOSED_SECTIONS and not isinstance(value, dict) and not override.is_delete():
        return f"{text}: {key} is a section; set one of its options, such as {key}.episodes=…"
    listed = [str(name) for name in value] if key in LIST_GROUPS and isinstance(value, list) else []
    if len(set(listed)) < len(listed) or ("none" in listed and len(listed) > 1):
        mistake = "none together with others" if "none" in listed else "an option twice"
        return f"{text}: {key} names {mistake}; keep one"
    if value == [] and key in LIST_GROUPS:
        valid = ", ".join(list_group_options(key, search_overrides))
        example = "reward=none, " if key == "reward" else ""
        return (
            f"{text}: {key} names no option; write {example}{key}=NAME or {key}=[NAME,NAME]; valid: {valid}"
        )
    is_list = isinstance(value, list) and key not in LIST_GROUPS
    options = list_group_options(key, search_overrides)
    if (is_list or value is None) and not override.is_delete() and options:
        return (
            f"{text}: {key} takes a name, not {'a list' if is_list else 'null'}; valid: {', '.join(options)}"
        )
    if override.is_delete() and options and key not in LIST_GROUPS:
        return f"{text}: {key} cannot be left out; valid: {', '.join(options)}"
    if override.is_delete() and not _is_open(key):
        return (
            f"{text}: {key} cannot be removed; keys can be removed only below {', '.join(OPEN_SECTIONS[:-1])}; "
            f"an existing one is changed by {key}=…"
        )
    return ""


def _is_open(key: str) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in OPEN_SECTIONS)


def _check_added(name: str, job: Sequence[str], search_overrides: Sequence[str]) -> None:
    """Refuse ``+key=value`` outside of open sections: the key exists already, or is misspelt."""
    for text, override in zip(job, parse(job), strict=True):
        if not (override.is_add() or override.is_force_add()):
            continue
        if table := get_table(override.key_or_group):
            _require_table(table, name, job, search_overrides)
            continue
        if _is_open(override.key_or_group.replace("/", ".")):  # also a group below, such as env/user
            continue
        # the override without + composes only if the key exists; otherwise the error names similar keys
        plain = [other.lstrip("+") if other == text else other for other in job]
        try:
            compose(config_name=name, overrides=[*plain, *search_overrides], return_hydra_config=True)
        except Exception as error:
            raise explain_composition(error, name, plain, search_overrides) from error
        raise UserError(
            f"{text}: {override.key_or_group} exists already; write {text.lstrip('+')} without the +"
        )


def _require_table(table: str, name: str, job: Sequence[str], search_overrides: Sequence[str]) -> None:
    """Refuse an entry such as ``+optim.schedule_args.power`` if the chosen option has no such table."""
    others = [
        text
        for text, override in zip(job, parse(job), strict=True)
        if get_table(override.key_or_group) is None
    ]
    try:
        base = compose(config_name=name, overrides=[*others, *search_overrides], return_hydra_config=True)
        entries = OmegaConf.select(base, table)
    except Exception as error:
        raise explain_composition(error, name, others, search_overrides) from error
    if entries is None:  # Hydra would add the table without an error
        raise explain_composition(KeyError(table), name, job, search_overrides)
