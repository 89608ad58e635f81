"""What a command says while it works: a line for each thing that takes time, on standard output.

Errors and what a library warns of go to standard error; results and what leads to them stay together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")


def is_first() -> bool:
    """Say whether this process speaks for the run: it composes, prints and writes."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def doing(what: str) -> None:
    """Say what begins now, in the first process of a run: dim on a terminal, a plain line elsewhere."""
    note(f"{what} …", style="dim")


def note(line: str, style: str = "") -> None:
    """Print a line in the first process of a run; a terminal breaks it between words."""
    if is_first():
        # isatty is asked as well: environment variables make rich believe in terminals that are none
        is_terminal = sys.stdout.isatty()
        console = Console(force_terminal=None if is_terminal else False, highlight=False)
        console.print(Text(line, style), soft_wrap=not is_terminal)


def episodes_of(games: Sequence[str], count: int) -> str:
    """How many episodes are played of which games.

    >>> episodes_of(["bandit"], 8), episodes_of(["bandit", "sokoban"], 8)
    ('8 episodes of bandit', '8 episodes each of bandit, sokoban')
    """
    if len(games) > 3:
        return f"{count} episodes each of {len(games)} games"
    return f"{count} episode{'s' * (count != 1)}{' each' * (len(games) > 1)} of {', '.join(games)}"
