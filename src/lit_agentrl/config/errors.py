"""Errors for users, whose one-line messages name cause and remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from hydra.errors import ConfigCompositionException, InstantiationException
from omegaconf import DictConfig, ListConfig
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException
from rich.console import Console
from rich.text import Text
from yaml import MarkedYAMLError

from lit_agentrl.checks import add_key, escape_unprintable, format_value

WHERE = "add traceback=true to see where"
# errors whose messages are written for users; listed by name, so that reporting a typo does not import torch
_FOR_USERS = ("CheckpointError", "MisconfigurationException", "PlayingError", "RankFailed")


class UserError(ValueError):
    """An invalid command, with a one-line message that says what to write instead.

    Args:
        message: the line to print.
        is_reported: whether another process prints the message.
    """

    def __init__(self, message: str, *, is_reported: bool = False) -> None:
        super().__init__(escape_unprintable(message))
        self.is_reported = is_reported


class RunError(RuntimeError):
    """A failure after work has started, in one line; ``__cause__`` is the original error."""


def explain(error: BaseException) -> str:
    """Return one line about any error: its cause, and its remedy if one is known."""
    if isinstance(error, InstantiationException):
        return _explain_instantiation(error)
    if isinstance(error, MissingMandatoryValue):
        key = error.full_key or "an option"
        return f"{key} has no value; set {key}=…"
    if isinstance(error, InterpolationKeyError):
        return (
            f"{_format_key(error)}{get_first_line(error)}; a reference ${{a.b}} must name a key of the config"
        )
    if isinstance(error, OmegaConfBaseException):
        if unset := re.search(r"Environment variable '(\w+)' not found", str(error)):
            return (
                f"{_format_key(error)}the environment variable {unset[1]} is not set; set it, or give a default: "
                f"${{oc.env:{unset[1]},VALUE}}"
            )
        return f"{_format_key(error)}{get_first_line(error)}"
    if isinstance(error, MarkedYAMLError):
        return _explain_yaml(error)
    if isinstance(error, ConfigCompositionException):
        cause = error.__cause__
        return get_first_line(error) + (
            f": {get_first_line(cause)}" if isinstance(cause, OmegaConfBaseException) else ""
        )
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    kind = type(error).__name__
    if isinstance(error, ValueError | OSError | ImportError) or kind in _FOR_USERS:
        return get_first_line(error)
    return f"{kind}: {get_first_line(error)} ({WHERE})"


def _explain_instantiation(error: InstantiationException) -> str:
    match = re.search(r"^full_key: (\S+)", str(error), re.MULTILINE)
    key = match.group(1) if match else ""
    cause = error.__cause__
    if cause is None:
        return f"{key}: {get_first_line(error)}" if key else get_first_line(error)
    if isinstance(cause, ImportError):
        reason = re.search(r'ModuleNotFoundError\("(.+?)"\)', str(cause))
        text = reason.group(1) if reason else get_first_line(cause)
        return f"{key}._target_ cannot be imported: {explain_import(text)}"
    if isinstance(cause, TypeError) and (
        missing := re.search(r"missing .* argument[s]?: '(\w+)'", str(cause))
    ):
        if missing.group(1).endswith(("_BT", "_B", "_BK")):  # tensors are passed in calls
            return f"{key} has no _partial_; write _partial_: true into its YAML"
        return f"{key}.{missing.group(1)} has no value; set {key}.{missing.group(1)}=…"
    return add_key(key, explain(cause)) if key else explain(cause)


def explain_import(text: str) -> str:
    """Return the message of a failed import, or the name that a module lacks."""
    match = re.search(r"No module named '(.+)\.(\w+)'; '(.+)' is not a package", text)
    return f"{match[1]} has no {match[2]}" if match and match[1] == match[3] else text


def _explain_yaml(error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{mark.name}, line {mark.line + 1}: " if mark is not None else ""
    return f"{where}{error.problem or error.context}; fix the YAML there"


def _format_key(error: OmegaConfBaseException) -> str:
    key = error.full_key or ""
    return f"{key}: " if key and key not in get_first_line(error) else ""


def explain_wrong_type(text: str, key: str, now: object, error: Exception) -> str:
    """Return the message about an override whose value has the wrong type.

    Args:
        text: the override as typed.
        key: its key.
        now: the current value of the key.
        error: the error that setting the value raised.
    """
    if isinstance(now, DictConfig):
        return f"{text}: {key} takes entries; write {key}={{NAME: VALUE}}"
    if isinstance(now, ListConfig):
        return f"{text}: {key} takes a list; write {key}=[…]"
    reason = re.sub(r"^Error merging override.*?: ", "", explain(error))
    return f"{text}: {reason}; its default is {format_value(now)}"


def was_interrupted(error: BaseException) -> bool:
    """Return whether an error is a KeyboardInterrupt, or the exit that Lightning turns one into."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)


def get_first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's message, or the name of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def find_nearest(name: str, valid: Iterable[str], cutoff: float = 0.6) -> list[str]:
    """Return up to three valid names similar to a misspelt one, best first, ignoring case."""
    by_lower_case = {option.lower(): option for option in sorted(valid, reverse=True)}
    return [
        by_lower_case[match] for match in get_close_matches(name.lower(), by_lower_case, n=3, cutoff=cutoff)
    ]


def refuse_unknown(text: str, name: str, valid: Iterable[str], otherwise: str = "") -> NoReturn:
    """Refuse an invalid name, and suggest similar names or list the valid ones.

    Args:
        text: the beginning of the message, such as ``unknown option a.b``.
        name: the name that is not valid.
        valid: the valid names, in the order of the list.
        otherwise: what to print instead of the list if no name is similar.

    Raises:
        UserError: always.
    """
    names = list(valid)
    hint = suggest(find_nearest(name, names)) or otherwise or f"valid: {', '.join(names)}"
    raise UserError(f"{text}; {hint}")


def refuse_first(problems: Iterable[str]) -> None:
    """Refuse a command for its first problem, if it has any.

    Later problems are not even computed, since their checks may rely on earlier ones.

    Raises:
        UserError: with this problem as its message.
    """
    if (problem := next(iter(problems), None)) is not None:
        raise UserError(problem)


def suggest(near: Sequence[str]) -> str:
    """Return a "did you mean" question about these names; empty if there are none."""
    return f"did you mean {' or '.join(near)}?" if near else ""


def report(message: str) -> None:
    """Print ``error: message`` to standard error as one line.

    On a terminal it is coloured and wrapped between words.
    """
    # text from a config or a library may contain control characters, which a terminal would execute
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(message.split()))
    text = Text.assemble(("error: ", "bold red"), plain)
    console = Console(stderr=True, highlight=False)
    console.print(text, soft_wrap=not sys.stderr.isatty())


def explain_unreadable(search_overrides: Sequence[str]) -> str:
    """Return a message about the first config file that is not UTF-8; may be empty.

    Args:
        search_overrides: overrides of Hydra's search path, which name the user's config folders.
    """
    folders = [Path(path) for text in search_overrides for path in re.findall(r"file://([^']+)", text)]
    for file in (file for folder in folders for file in sorted(folder.rglob("*.yaml"))):
        data = file.read_bytes()
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return f"{file}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
    return ""
