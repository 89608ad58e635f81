"""What every subcommand shares: errors told in one line, the exit code, and options that Hydra does not read."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from omegaconf import DictConfig

from lit_agentrl import __version__
from lit_agentrl.config.errors import UserError, explain, report, was_interrupted
from lit_agentrl.config.overrides import program, split_arguments
from lit_agentrl.config.run_options import options_of
from lit_agentrl.paths import find_config
from lit_agentrl.runs import ranks, threads
from lit_agentrl.runs.jobs import Interrupted
from lit_agentrl.runs.variables import check_environment


def run_command(
    command: Callable[[list[str]], int], argv: Sequence[str] | None, *, is_awaited: bool = False
) -> None:
    """Call ``command`` and exit as a program does.

    Args:
        command: takes the arguments; returns how much of what it did has failed.
        argv: its arguments; None for those of the program.
        is_awaited: whether other processes of a run wait for this one under this command.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:
        print(f"lit_agentrl {__version__}")
        return
    threads.spin_briefly()
    threads.LOAD.begin()
    try:
        check_environment()
        num_failed = command(arguments)
    except (KeyboardInterrupt, SystemExit) as error:
        if not was_interrupted(error):
            raise
        if ranks.is_telling():
            print(error if isinstance(error, Interrupted) else "interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        tell(error, "traceback=true" in (text.lower() for text in arguments))
        sys.exit(1)
    finally:
        ranks.release(is_awaited=is_awaited)
    if num_failed:
        sys.exit(1)


def tell(error: Exception, with_traceback: bool, prefix: str = "") -> None:
    """Print one line about an error, unless another process of the run does."""
    if with_traceback:
        traceback.print_exception(error)
    cause = prefix + explain(error)
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from lit_agentrl.strategies.launching import tell_launcher

        if tell_launcher(cause):
            return
    if not getattr(error, "is_told", False):
        report(cause)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows its options")


def parser_of(name: str, description: str | None, examples: str) -> argparse.ArgumentParser:
    """The parser of a subcommand whose options are no config; its errors are `UserError`.

    Args:
        name: of the subcommand.
        description: what it does.
        examples: end its help; ``{0}`` stands for how it is called.
    """
    called = program(name)
    return _Parser(
        prog=called, description=description, epilog=examples.format(called),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip


def read_options(name: str, argv: Sequence[str], *, hint: str) -> DictConfig | None:
    """The options of a subcommand that has ``conf/NAME.yaml``; None where that was printed as help.

    Raises:
        UserError: a flag, or an unknown or missing option; ``hint`` ends the line about a flag.
    """
    ranks.require_one_process(f"{name} plays on one device")
    flags, overrides = split_arguments(argv)
    if "--help" in flags or "-h" in flags:
        text = find_config(f"{name}.yaml").read_text(encoding="utf-8")
        print(text.replace(f"python {name}.py", program(name)))
        return None
    if flags:
        raise UserError(f"{name} takes no {flags[0]}; {hint}")
    return options_of(name, overrides)
