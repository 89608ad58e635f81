"""Watch the policy of a run play, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command
from lit_agentrl.config.run_options import open_run
from lit_agentrl.config.saved import find_run_folder, require_run_folder


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl play``."""
    with run_command(argv) as arguments:
        cfg = read_options("play", arguments, hint="write options, such as env=sokoban instance=3")
        if cfg is None:
            return
        require_run_folder(find_run_folder(Path(str(cfg.run))), "run")
        from lit_agentrl.evaluate.options import check_play_options

        check_play_options(cfg)  # before torch is loaded, which takes seconds
        folder, saved, load_task = open_run(cfg)
        from lit_agentrl.evaluate.playthroughs import play

        console = Console()
        for index, played in enumerate(play(cfg, saved, load_task, folder=folder)):
            if index:
                console.print()
            console.print(played)
