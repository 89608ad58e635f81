"""Progress lines of commands, printed on standard output before each slow step.

Errors and warnings of libraries go to standard error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

_PERIOD_S = 30.0  # between two lines of progress where the output is not a terminal
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")


@dataclass
class Playing:
    """Counter of the episodes that are being played in this process, for displays only.

    Attributes:
        total: number of episodes that are being played; 0: none.
        done: number of these episodes that have ended.
        tokens: number of tokens sampled for them.
        began: time at which they began, in seconds of the monotonic clock.
        prints: whether lines are printed, because the output is not a terminal.
    """

    total: int = 0
    done: int = 0
    tokens: int = 0
    began: float = 0.0
    prints: bool = False
    _printed_at: float = 0.0

    def begin(self, total: int) -> None:
        """Start to count ``total`` episodes from zero."""
        self.total, self.done, self.tokens = total, 0, 0
        self.began = self._printed_at = time.monotonic()

    def count(self) -> None:
        """Count an episode that has ended; if ``prints``, print a line every `_PERIOD_S`."""
        self.done += 1
        if self.prints and self.done < self.total and time.monotonic() - self._printed_at >= _PERIOD_S:
            self._printed_at = time.monotonic()
            note(self.describe())

    def end(self) -> None:
        """Stop counting."""
        self.total = 0

    def describe(self) -> str:
        """Describe the episodes that have ended; empty if none are played."""
        if not self.total:
            return ""
        rate = self.tokens / max(time.monotonic() - self.began, 1e-3)
        return f"{self.done} of {self.total} episodes, {rate:.0f} tokens/s"

    def __rich__(self) -> Text:
        return Text(self.describe(), "dim")


PLAYING = Playing()


@contextmanager
def show_playing() -> Iterator[None]:
    """Show, in the first process of a run, how many episodes have ended.

    A terminal shows one line, which vanishes at the end.  Any other output gets a line every 30 seconds.
    """
    console = Console()
    if not (is_first() and sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal):
        PLAYING.prints = is_first()
        try:
            yield
        finally:
            PLAYING.prints = False
        return
    with Live(PLAYING, console=console, refresh_per_second=4, transient=True):
        yield


def is_first() -> bool:
    """Return whether this is the first process of the run, which composes, prints and writes."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def announce(activity: str) -> None:
    """Print, in the first process of a run, which step starts; terminals show it dimmed."""
    note(f"{activity} …", style="dim")


def note(line: str, style: str = "") -> None:
    """Print a line, in the first process of a run; terminals wrap it between words."""
    if is_first():
        # rich alone is not enough: environment variables can make it assume a terminal
        is_terminal = sys.stdout.isatty()
        console = Console(force_terminal=None if is_terminal else False, highlight=False)
        console.print(Text(line, style), soft_wrap=not is_terminal)


def describe_episodes(games: Sequence[str], count: int | str) -> str:
    """Describe how many episodes of which games are played.

    ``all`` stands for every task.

    >>> describe_episodes(["bandit"], 8), describe_episodes(["bandit", "sokoban"], 8)
    ('8 episodes of bandit', '8 episodes each of bandit, sokoban')
    """
    if count == "all":
        return f"every task of {', '.join(games)}"
    if len(games) > 3:
        return f"{count} episodes each of {len(games)} games"
    return f"{count} episode{'s' * (count != 1)}{' each' * (len(games) > 1)} of {', '.join(games)}"
