"""Record episodes of a run's policy, or of any model, to train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command, split_config_folders
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.config.run_options import open_run, split_model_options
from lit_agentrl.config.saved import find_run_folder, require_run_folder
from lit_agentrl.runs import ranks


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl collect``."""
    with run_command(argv) as arguments:
        folders, flags, overrides = split_config_folders(arguments)
        # --help, and flags that do not exist, are answered by read_options below
        model_options = None if flags else split_model_options(overrides, "collect")
        if model_options is not None:
            ranks.require_one_process("collect plays on one device")
            from lit_agentrl.offline.collect_options import check_options

            check_options(model_options[0])  # before torch is loaded, which takes seconds
            from lit_agentrl.offline.collecting import collect_model

            with initialize_hydra():
                print_lines(collect_model(*model_options, folders).lines)
            return
        cfg = read_options("collect", arguments, hint="write options, such as env=sokoban out=FOLDER")
        if cfg is None:
            return
        require_run_folder(find_run_folder(Path(str(cfg.run))), "run")
        from lit_agentrl.offline.collect_options import check_options

        check_options(cfg)
        folder, saved, load_task = open_run(cfg)
        from lit_agentrl.offline.collecting import collect_run

        with initialize_hydra():
            print_lines(collect_run(cfg, saved, load_task, folder=folder).lines)


def print_lines(lines: Sequence[str]) -> None:
    """Print what was recorded and where it lies."""
    for line in lines:
        Console(highlight=False).print(line, soft_wrap=True)
