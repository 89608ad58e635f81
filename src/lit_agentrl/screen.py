"""Progress lines of commands, printed on standard output before each slow step.

Errors and warnings of libraries go to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")


def is_first() -> bool:
    """Return whether this is the first process of the run, which composes, prints and writes."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def announce(activity: str) -> None:
    """Print in the first process of a run which step starts now; dim on terminals."""
    note(f"{activity} …", style="dim")


def note(line: str, style: str = "") -> None:
    """Print a line in the first process of a run; terminals wrap it between words."""
    if is_first():
        # rich alone is not enough: environment variables can make it assume a terminal
        is_terminal = sys.stdout.isatty()
        console = Console(force_terminal=None if is_terminal else False, highlight=False)
        console.print(Text(line, style), soft_wrap=not is_terminal)


def describe_episodes(games: Sequence[str], count: int) -> str:
    """Describe how many episodes of which games are played.

    >>> describe_episodes(["bandit"], 8), describe_episodes(["bandit", "sokoban"], 8)
    ('8 episodes of bandit', '8 episodes each of bandit, sokoban')
    """
    if len(games) > 3:
        return f"{count} episodes each of {len(games)} games"
    return f"{count} episode{'s' * (count != 1)}{' each' * (len(games) > 1)} of {', '.join(games)}"
