"""Share error lines, exit codes and option parsing between the subcommands."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from omegaconf import DictConfig

from lit_agentrl import __version__
from lit_agentrl.config.errors import UserError, explain, report, was_interrupted
from lit_agentrl.config.overrides import get_flag_values, get_program, split_arguments
from lit_agentrl.config.run_options import compose_options
from lit_agentrl.paths import find_config
from lit_agentrl.runs import process, ranks
from lit_agentrl.runs.jobs import Interrupted
from lit_agentrl.runs.process import check_environment

_FOLDER_FLAGS = ("--config-dir", "-cd")


@contextmanager
def run_command(argv: Sequence[str] | None, *, is_awaited: bool = False) -> Iterator[list[str]]:
    """Give a subcommand its arguments; report errors in one line and set the exit code.

    The code is 1 after an error, 130 after an interrupt, and 0 otherwise.

    Args:
        argv: the arguments; None for those of the program.
        is_awaited: whether other processes of a run wait for this one under this command.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        print(f"lit_agentrl {__version__}")
        sys.exit(0)
    process.shorten_spin()
    process.LOAD.start()
    warnings.formatwarning = format_warning
    try:
        check_environment()
        yield arguments
    except (KeyboardInterrupt, SystemExit) as error:
        if not was_interrupted(error):
            raise
        if ranks.is_reporting():
            print(error if isinstance(error, Interrupted) else "interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and not {"--help", "-h"}.isdisjoint(arguments):
            # the reader of the help has enough, as `head` has; nothing is left for Python to flush at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        report_error(error, "traceback=true" in (text.lower() for text in arguments))
        sys.exit(1)
    finally:
        ranks.release(is_awaited=is_awaited)


def format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning without the line of source that it came from.

    Only warnings for programmers, such as deprecations, keep their file and line.
    """
    if issubclass(category, UserWarning):
        return f"warning: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def report_error(error: Exception, with_traceback: bool, prefix: str = "") -> None:
    """Print one line about an error, unless another process of the run prints it."""
    if with_traceback:
        traceback.print_exception(error)
    cause = prefix + explain(error)
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from lit_agentrl.strategies.launching import tell_launcher

        if tell_launcher(cause):
            return
    if not getattr(error, "is_reported", False):
        report(cause)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        subject, _, names = message.partition(" are required: ")
        # argparse also lists the KEY=VALUE arguments, which may be left out
        if subject == "the following arguments":
            message = f"{' '.join(name for name in names.split(', ') if '=' not in name)} must be given"
        raise UserError(f"{message}; {self.prog} --help shows its options")


def build_parser(name: str, description: str | None, examples: str) -> argparse.ArgumentParser:
    """Build the parser of a subcommand without a config; its errors are `UserError`.

    Args:
        name: name of the subcommand.
        description: what it does.
        examples: text at the end of its help; ``{0}`` stands for the command.
    """
    command = get_program(name)
    return _Parser(
        prog=command, description=description, epilog=examples.format(command),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def read_pairs(name: str, words: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Return the options ``KEY=VALUE`` of a subcommand without a config.

    Raises:
        UserError: another word, or an option without a value or given twice.
    """
    pairs: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in keys or not value:
            valid = " ".join(f"{key}=…" for key in keys)
            raise UserError(f"{name} takes no {word}; write {get_program(name)} … {valid}")
        if key in pairs:
            raise UserError(f"{key} is given twice, as {key}={pairs[key]} and {word}; keep one")
        pairs[key] = value
    return pairs


def split_config_folders(argv: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Split arguments into config folders of the user, other flags, and overrides."""
    flags, overrides = split_arguments(argv)
    folders, other_flags, remaining = get_flag_values(flags, *_FOLDER_FLAGS), list[str](), list(flags)
    while remaining:
        flag = remaining.pop(0)
        if flag in _FOLDER_FLAGS:
            remaining.pop(0)
        elif flag.partition("=")[0] not in _FOLDER_FLAGS:
            other_flags.append(flag)
    return folders, other_flags, overrides


def read_options(name: str, argv: Sequence[str], *, hint: str) -> DictConfig | None:
    """Read the options of ``conf/NAME.yaml``; print the file and return None for ``--help``.

    Raises:
        UserError: a flag, or an unknown or missing option; the line about a flag ends with ``hint``.
    """
    ranks.require_one_process(f"{name} plays on one device")
    flags, overrides = split_arguments(argv)
    if "--help" in flags or "-h" in flags:
        text = find_config(f"{name}.yaml").read_text(encoding="utf-8")
        print(text.replace(f"python {name}.py", get_program(name)))
        return None
    if flags and flags[0].partition("=")[0] in _FOLDER_FLAGS:
        raise UserError(f"{name} takes {flags[0]} with model= alone; a run names its config folders itself")
    if flags:
        raise UserError(f"{name} takes no {flags[0]}; {hint}")
    return compose_options(name, overrides)
