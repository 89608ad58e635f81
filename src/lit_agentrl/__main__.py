"""Entry point of ``lit-agentrl`` and ``python -m lit_agentrl``.

A subcommand is a file of ``lit_agentrl/cli/`` with a function ``main(argv)``; there is no other registry.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lit_agentrl import __version__, cli

HELP = ("--help", "-h")


def find_subcommands() -> dict[str, Path]:
    """Return the file of each subcommand by its name."""
    files = (file for folder in cli.__path__ for file in Path(folder).glob("[!_]*.py"))
    return {file.stem.replace("_", "-"): file for file in sorted(files)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl ARGUMENTS``; exit with status 1 if the subcommand does not exist."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or [HELP[0]]
    if name in HELP:
        print(format_usage())
    elif name == "--version":
        print(f"lit_agentrl {__version__}")
    elif name in find_subcommands():
        if os.getcwd() not in sys.path:  # so that users can import games from their working folder
            sys.path.append(os.getcwd())
        importlib.import_module(f"{cli.__name__}.{name.replace('-', '_')}").main(arguments)
    else:
        from lit_agentrl.config.errors import find_nearest, report, suggest

        hint = (
            f"options belong to one, such as train {name}"
            if "=" in name
            else suggest(find_nearest(name, [*find_subcommands(), *HELP, "--version"]))
            or f"valid: {', '.join(find_subcommands())}"
        )
        report(f"unknown subcommand {name}; {hint}")
        sys.exit(1)


def format_usage() -> str:
    """List the subcommands with the first line of their docstrings.

    The files are parsed and not imported, because each subcommand has libraries of its own.
    """
    width = max(len(name) for name in find_subcommands())
    lines = [
        f"  {name:<{width}}  {(ast.get_docstring(ast.parse(file.read_text(encoding='utf-8'))) or '').split(chr(10))[0]}"
        for name, file in find_subcommands().items()
    ]
    return "\n".join([
        "usage: lit-agentrl SUBCOMMAND [key=value …]", "", *lines, "",
        "lit-agentrl SUBCOMMAND --help lists its options; lit-agentrl --version prints the version",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
