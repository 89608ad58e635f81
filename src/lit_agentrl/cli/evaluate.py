"""Measure the policy of a run, or any model, on any game."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from lit_agentrl.cli._running import read_options, run_command, split_config_folders
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.config.run_options import open_run, split_model_options, split_models
from lit_agentrl.config.saved import find_run_folder, require_run_folder
from lit_agentrl.runs import ranks

if TYPE_CHECKING:
    from lit_agentrl.evaluate.scores import Scores


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``evaluate.py`` or ``lit-agentrl evaluate``."""
    with run_command(argv) as arguments:
        folders, flags, overrides = split_config_folders(arguments)
        model_options = None if flags else split_model_options(overrides)
        if model_options is not None:
            ranks.require_one_process("evaluate plays on one device")
            from lit_agentrl.evaluate.options import check_options, compose_model_config

            models = split_models(model_options[1])
            check_options(model_options[0])
            for model_overrides in models:
                # before torch is loaded, which takes seconds
                compose_model_config(model_options[0], model_overrides, folders)
            from lit_agentrl.evaluate.model_evaluation import evaluate_models

            with initialize_hydra():
                print_scores(evaluate_models(model_options[0], models, folders))
            return
        cfg = read_options(
            "evaluate", arguments, hint="env and temperature take lists, such as env=[sokoban,bandit]"
        )
        if cfg is None:
            return
        require_run_folder(find_run_folder(Path(str(cfg.run))), "run")
        from lit_agentrl.evaluate.options import check_options
        from lit_agentrl.evaluate.results_file import read_compared

        check_options(cfg)  # before torch is loaded, which takes seconds
        read_compared(cfg)
        folder, saved, load_task = open_run(cfg)
        from lit_agentrl.evaluate.evaluation import evaluate

        with initialize_hydra():
            print_scores(evaluate(cfg, saved, load_task, folder=folder))


def print_scores(scores: Scores) -> None:
    """Print the table of scores and the paths of its files."""
    console = Console()
    console.print(scores)
    for path in scores.paths:
        console.print(f"written to {path}", soft_wrap=True)
