"""``lit-agentrl`` and ``python -m lit_agentrl``: find the subcommand and call it.

A subcommand is a file of ``lit_agentrl/cli/`` with a function ``main(argv)``; nothing else names it.
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


def subcommands() -> dict[str, Path]:
    """The file of each, by the name it is called by."""
    files = (file for folder in cli.__path__ for file in Path(folder).glob("[!_]*.py"))
    return {file.stem.replace("_", "-"): file for file in sorted(files)}


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl ARGUMENTS``; a misspelt subcommand is one line, and ends with status 1."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or [HELP[0]]
    if name in HELP:
        print(usage())
    elif name == "--version":
        print(f"lit_agentrl {__version__}")
    elif name in subcommands():
        if os.getcwd() not in sys.path:  # a game of one's own, in the folder one works in
            sys.path.append(os.getcwd())
        importlib.import_module(f"{cli.__name__}.{name.replace('-', '_')}").main(arguments)
    else:
        from lit_agentrl.config.errors import did_you_mean, nearest, report

        hint = did_you_mean(nearest(name, subcommands())) or f"valid: {', '.join(subcommands())}"
        report(f"unknown subcommand {name}; {hint}")
        sys.exit(1)


def usage() -> str:
    """Every subcommand with its first line, which is read, not imported: none needs the others' libraries."""
    width = max(len(name) for name in subcommands())
    lines = [
        f"  {name:<{width}}  {(ast.get_docstring(ast.parse(file.read_text(encoding='utf-8'))) or '').split(chr(10))[0]}"
        for name, file in subcommands().items()
    ]
    return "\n".join([
        "usage: lit-agentrl SUBCOMMAND [key=value …]", "", *lines, "",
        "lit-agentrl SUBCOMMAND --help lists its options; lit-agentrl --version",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
