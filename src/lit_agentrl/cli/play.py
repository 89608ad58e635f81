"""Watch the policy of a run, or any model, play turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command, split_config_folders
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.config.run_options import open_run, split_model_options
from lit_agentrl.config.saved import find_run_folder, require_run_folder
from lit_agentrl.runs import ranks

if TYPE_CHECKING:
    from lit_agentrl.evaluate.playthroughs import Playthrough


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl play``."""
    with run_command(argv) as arguments:
        folders, flags, overrides = split_config_folders(arguments)
        model_options = None if flags else split_model_options(overrides, "play")
        if model_options is not None:
            ranks.require_one_process("play plays on one device")
            from lit_agentrl.evaluate.options import check_play_options, compose_model_config

            check_play_options(model_options[0])
            compose_model_config(*model_options, folders)  # before torch is loaded, which takes seconds
            from lit_agentrl.evaluate.playthroughs import play_model

            with initialize_hydra():
                print_playthroughs(play_model(*model_options, folders))
            return
        cfg = read_options("play", arguments, hint="write options, such as env=sokoban instance=3")
        if cfg is None:
            return
        require_run_folder(find_run_folder(Path(str(cfg.run))), "run")
        from lit_agentrl.evaluate.options import check_play_options

        check_play_options(cfg)  # before torch is loaded, which takes seconds
        folder, saved, load_task = open_run(cfg)
        from lit_agentrl.evaluate.playthroughs import play

        print_playthroughs(play(cfg, saved, load_task, folder=folder))


def print_playthroughs(playthroughs: Sequence[Playthrough]) -> None:
    """Print episodes, one below the other."""
    console = Console()
    for index, played in enumerate(playthroughs):
        if index:
            console.print()
        console.print(played)
    if any(played.decode is None for played in playthroughs):
        console.print("messages=true shows all that the policy reads", style="dim")
