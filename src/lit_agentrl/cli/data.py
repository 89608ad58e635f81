"""Show rows of a data set as a model reads them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from lit_agentrl.checks import name_errors, require_whole
from lit_agentrl.cli._running import build_parser, run_command
from lit_agentrl.config.errors import UserError
from lit_agentrl.data.row_folder import find_paths

if TYPE_CHECKING:
    from lit_agentrl.offline.showing import ShownData

_WIDTH = 80
EXAMPLES = """
Prints how many groups, rows and tokens there are, which columns are used and which are not, and the first rows as the
chat template writes them.  Text that is learnt is coloured in a terminal, and in [[ ]] elsewhere.  All options of a
run can be given.

  {0} show rows.jsonl                                       as the embedded policy reads them
  {0} show pairs.jsonl model=hf model.name=FOLDER --rows 1
  {0} show rows.jsonl data=unpaired dialect=tool_call prompt.force_think=true
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl data``."""
    with run_command(argv) as arguments:
        parser = build_parser("data", __doc__, EXAMPLES)
        parser.add_argument("action", metavar="show", help="the only action")
        parser.add_argument("path", metavar="FILE", help="a file of rows, or a folder of recorded episodes")
        parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of a run")
        parser.add_argument(
            "--rows", type=int, default=2, help="how many groups to show, with all their rows; default: 2"
        )
        args = parser.parse_intermixed_args(arguments)
        if args.action != "show":
            raise UserError(f"data has no action {args.action}; write data show FILE")
        require_whole("--rows", args.rows, 1)
        with name_errors("data"):
            find_paths([args.path])  # before torch is loaded, which takes seconds
        from lit_agentrl.offline.showing import show

        print_data(show(args.path, args.overrides, args.rows))


def print_data(shown: ShownData) -> None:
    """Print the lines about a data set, then its rows."""
    from lit_agentrl.callbacks.markup import clean

    is_terminal = sys.stdout.isatty()
    console = Console(
        force_terminal=None if is_terminal else False,
        highlight=False,
        width=min(Console().width, _WIDTH) if is_terminal else None,
        soft_wrap=not is_terminal,
    )
    for line in shown.lines:
        console.print(Text(clean(line)))
    for row in shown.rows:
        text = Text()
        for part, is_learnt in row.parts:
            marked = clean(part) if is_terminal or not is_learnt else f"[[{clean(part)}]]"
            text.append(marked, "bold green" if is_learnt else "dim")
        console.print()
        console.print(Text(f"--- {row.title}", "bold"))
        console.print(text)
