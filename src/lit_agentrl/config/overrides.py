"""Parse a command line: flags, overrides, sweeps."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import OverrideParseException
from omegaconf import DictConfig

from lit_agentrl.config.errors import UserError, get_first_line, refuse_first, refuse_unknown
from lit_agentrl.paths import find_config

# the supported flags of Hydra -> whether a value follows; the value of --info is optional
FLAGS = {
    "--help": False, "-h": False, "--hydra-help": False, "--version": False, "--resolve": False,
    "--multirun": False, "-m": False, "--shell-completion": False, "-sc": False,
    "--config-dir": True, "-cd": True, "--cfg": True, "-c": True, "--package": True, "-p": True,
    "--info": True, "-i": True,
}  # fmt: skip
MULTIRUN = ("-m", "--multirun")
VARIANT = "variant"  # key of the game options that evaluate.py overrides
_SWEEP_KEYS = ("hydra.sweep.", "hydra.sweeper", "hydra/sweeper", "hydra.launcher", "hydra/launcher")
_PLAIN = re.compile(r"[A-Za-z_/~][\w/.~-]*")  # a string that needs no quotes
# a run folder whose name Hydra cannot parse without quotes, such as a sweep's 0_algo=grpo,seed=1
_FOLDER = re.compile(r"^run=(?!['\"])([^']*=[^']*)")
# tables that are empty by default: users may add entries without the + that Hydra requires
_TABLE = re.compile(
    r"(?:env|engine|optim|critic|reward)\.(?:\w+\.)*(?:options|settings|body|schedule_args)(?=\.|=\{|$)"
)
_NAME = re.compile(r"\w{1,60}")
_GROUPS = ("algo", "env", "model", "reward", "data", "experiment")  # users tend to leave out these names
# words that match _PLAIN, but that YAML does not read as strings
_YAML_KEYWORDS = (
    "null",
    "true",
    "false",
    "nan",
    "inf",
)


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments, in any order, into flags (each followed by its value) and overrides.

    Raises:
        UserError: an unknown flag, or one without its value.
    """
    flags: list[str] = []
    overrides: list[str] = []
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        name, has_value, _ = argument.partition("=")
        if not name.startswith("-"):
            overrides.append(argument)
            continue
        if name not in FLAGS:
            valid = "--help, -m, --config-dir FOLDER, --cfg job"
            remedy = f"options are written key=value, without dashes; valid flags: {valid}"
            refuse_unknown(f"unknown flag {name}", name, FLAGS, remedy)
        flags.append(argument)
        if name in ("--cfg", "-c"):
            value = argument.partition("=")[2] if has_value else rest[0] if rest else ""
            if value not in ("job", "hydra", "all"):
                raise UserError(f"{name} {value} prints nothing; valid: --cfg job, --cfg hydra, --cfg all")
        if not FLAGS[name] or has_value:
            continue
        if rest and "=" not in rest[0] and not rest[0].startswith("-"):
            flags.append(rest.pop(0))
        elif name not in ("--info", "-i"):
            raise UserError(f"{name} needs a value")
    return flags, overrides


def rewrite_for_hydra(overrides: Sequence[str]) -> list[str]:
    """Rewrite overrides for Hydra's parser.

    Option names that look like numbers are quoted, and new entries of tables get ``++``.

    >>> rewrite_for_hydra(["debug=nan", "debug=none,nan", "optim.lr=nan", "optim.schedule_args.power=2"])
    ["debug='nan'", "debug=none,'nan'", 'optim.lr=nan', '++optim.schedule_args.power=2']
    """
    rewritten = []
    for text in overrides:
        if str(text).startswith("debug="):
            text = re.sub(r"(?<=[=,])nan(?=,|$)", "'nan'", text)
        rewritten.append(f"++{text}" if _TABLE.match(str(text)) else text)
    return rewritten


def get_table(key: str) -> str | None:
    """Return the table of an entry such as ``optim.schedule_args.power``, or None for other keys.

    >>> get_table("optim.schedule_args.power"), get_table("optim.lr")
    ('optim.schedule_args', None)
    """
    match = _TABLE.match(key)
    return match[0] if match else None


def get_flag_values(flags: Sequence[str], *names: str) -> list[str]:
    """Return the values of a flag, written as ``--flag value`` or ``--flag=value``."""
    spaced = [value for flag, value in zip(flags, flags[1:], strict=False) if flag in names]
    joined = [flag.partition("=")[2] for flag in flags if "=" in flag and flag.partition("=")[0] in names]
    return spaced + joined


def parse(overrides: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    """Parse overrides with Hydra's parser.

    Args:
        overrides: the overrides as typed.
        loader: lists the options of each group, for ``glob``.

    Raises:
        UserError: an override is not of the form ``key=value``.
    """
    if strange := [text for text in overrides if not isinstance(text, str)]:  # from a notebook
        raise UserError(
            f"{strange[0]!r} is not an override; write a text such as 'env=sokoban', or env=\"sokoban\""
        )
    parser = OverridesParser.create(loader)
    parsed: list[Override] = []
    for text in overrides:
        refuse_first(_find_missing_value(text))
        try:
            parsed += parser.parse_overrides([_FOLDER.sub(r"run='\1'", text)])
        except OverrideParseException as error:
            if re.search(r"\s", text.partition("=")[0]):
                raise UserError(
                    f"{text} is more than one option; write each separately, such as algo=grpo env=sokoban"
                ) from error
            raise UserError(f"{text} cannot be read{_explain_syntax(text, error)}") from error
    return parsed


def _explain_syntax(text: str, error: OverrideParseException) -> str:
    """Return what Hydra's parser does not accept in an override, and what to write instead."""
    key, _, value = text.partition("=")
    if special := next((c for c in key if not c.isascii() or not c.isprintable()), ""):
        return f": {special!r} is in no name of an option; write the name with the letters of --help"
    if special := next((c for c in value if not c.isascii() or not c.isprintable()), ""):
        return f": {special!r} needs quotes; write '{key}=\"{value}\"', or digits and letters of ASCII"
    if re.search(r",\s*(,|$)", value):
        return ": no value stands before or after a comma; leave the comma out"
    if value.endswith("()"):
        return f": {value} has no values; write some, such as {key}=1,2,3"
    # the alternatives that the parser lists are names of its grammar
    reason = re.sub(r"^Error parsing override.*", "", str(error)).strip() or get_first_line(error)
    reason = re.sub(r" expecting .*|^\w*Exception: .*", "", reason.splitlines()[0])
    return (
        f"{f' ({reason})' if reason else ''}; close every bracket and quote special characters, such as "
        "'key=\"a, b\"'"
    )


def _find_missing_value(text: str) -> Iterator[str]:
    """Yield a line about an override without a value, unless it removes a key."""
    if text.startswith("~"):
        return
    if "=" not in text:
        groups = [
            group
            for group in _GROUPS
            if _NAME.fullmatch(text) and find_config(f"{group}/{text}.yaml").is_file()
        ]
        example = f"{groups[0]}={text}" if groups else "env=sokoban"
        example = f"run={text} or resume={text}" if Path(text).is_dir() else example
        yield f"{text} is not an override; write key=value, such as {example}"
    if text.endswith("="):
        yield f"{text} has no value; write a value, or null for none"


def check_overrides(overrides: Sequence[str], *, is_multirun: bool) -> None:
    """Refuse overrides that would silently do something else than they say.

    Raises:
        UserError: a key given twice, a sweep without ``-m``, or a key of Hydra that only a sweep, or only a single
            run, reads.
    """
    refuse_first(_find_problems(overrides, is_multirun=is_multirun))


def _find_problems(overrides: Sequence[str], *, is_multirun: bool) -> Iterator[str]:
    seen: dict[str, str] = {}
    for text, override in zip(overrides, parse(overrides), strict=True):
        key = f"{override.key_or_group}@{override.package or ''}"
        if key in seen:
            yield f"{override.key_or_group} is given twice, as {seen[key]} and {text}; keep one"
        seen[key] = text
        if problem := _find_hydra_problem(override.key_or_group, text, is_multirun=is_multirun):
            yield problem
        if override.is_sweep_override() and not is_multirun:
            values = text.partition("=")[2]
            listed = "" if "(" in values else f", or write {override.key_or_group}=[{values}] for one list"
            yield f"{text} is a sweep; add -m to run each of its values{listed}"


def take_variant(parsed: Sequence[Override], cfg: DictConfig) -> list[Override]:
    """Move options of a game, such as ``env.game.size=7``, into ``cfg.variant`` as typed; return the others."""
    variant = [
        override
        for override in parsed
        if override.key_or_group.startswith("env.") and not override.is_delete()
    ]
    if variant:
        cfg[VARIANT] = [override.input_line for override in variant]
    return [override for override in parsed if override not in variant]


def _find_hydra_problem(key: str, text: str, *, is_multirun: bool) -> str:
    """Return why an option of Hydra cannot be set like this; empty if it can."""
    if key == "hydra.run.dir" and is_multirun:
        return f"{text} has no effect with -m: the runs of a sweep are in hydra.sweep.dir; set hydra.sweep.dir=FOLDER"
    if key.startswith(_SWEEP_KEYS) and not is_multirun:
        return f"{text} has no effect without -m: a single run has hydra.run.dir=FOLDER, and no launcher"
    if key == "hydra.output_subdir":
        folder = Path(text.partition("=")[2].strip("'\""))
        if folder.is_absolute() or ".." in folder.parts:
            return f"{text} would write outside of the run folder; give a name, such as {key}=.hydra"
    if key == "hydra.mode":
        return f"{text}: a sweep is chosen with -m; add -m, or leave hydra.mode out"
    if key == "hydra.searchpath":
        return f"{text}: name a folder of configs with --config-dir FOLDER"
    return ""


def get_program(name: str) -> str:
    """Return how the user called this command: ``python NAME.py`` or ``lit-agentrl NAME``."""
    return f"python {name}.py" if Path(sys.argv[0]).name == f"{name}.py" else f"lit-agentrl {name}"


def format_overrides(options: Mapping[str, Any]) -> list[str]:
    """Return options as command-line overrides; nested dictionaries become dotted keys.

    Raises:
        UserError: a value of a type that an override cannot express.

    >>> format_overrides({"algo": "grpo", "rollout": {"prompts": 4}, "val.envs": None, "algo.name": "a, b"})
    ['algo=grpo', 'rollout.prompts=4', 'val.envs=null', "algo.name='a, b'"]
    """
    overrides: list[str] = []
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            overrides += format_overrides({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            overrides.append(f"{name}={_format_value(name, value)}")
    return overrides


def _format_value(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, Path | str):
        text = str(value)
        is_plain = _PLAIN.fullmatch(text) and text.lower() not in _YAML_KEYWORDS
        return text if is_plain else QuotedString(text, Quote.single).with_quotes()
    if isinstance(value, list | tuple):
        return f"[{','.join(_format_value(name, item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_format_value(name, item)}' for key, item in value.items())}}}"
    raise UserError(
        f"{name} cannot be a {type(value).__name__}; write numbers, texts, true, false, none, lists or dictionaries"
    )
