"""Watch the policy of a run play, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command
from lit_agentrl.config.run_options import opened


def main(argv: Sequence[str] | None = None) -> None:
    """``lit-agentrl play``."""
    run_command(_play, argv)


def _play(argv: list[str]) -> int:
    cfg = read_options("play", argv, hint="write options, such as env=sokoban instance=3")
    if cfg is None:
        return 0
    folder, saved, load_task = opened(cfg)
    from lit_agentrl.evaluate.playing import play

    console = Console()
    for number, played in enumerate(play(cfg, saved, load_task, folder=folder)):
        if number:
            console.print()
        console.print(played)
    return 0
