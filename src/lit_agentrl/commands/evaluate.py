"""Measure the policy of a run on any game, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from lit_agentrl.commands._running import read_options, run_command
from lit_agentrl.entry.composition import hydra_ready
from lit_agentrl.entry.options import opened


def main(argv: Sequence[str] | None = None) -> None:
    """``evaluate.py`` and ``lit-agentrl evaluate``."""
    run_command(_evaluate, argv)


def _evaluate(argv: list[str]) -> int:
    cfg = read_options("evaluate", argv, hint="env and temperature take lists, such as env=[sokoban,bandit]")
    if cfg is None:
        return 0
    folder, saved, load_task = opened(cfg)
    from lit_agentrl.entry.evaluation import evaluate

    with hydra_ready():
        scores = evaluate(cfg, saved, load_task, folder=folder)
    console = Console()
    console.print(scores)
    if scores.path is not None:
        console.print(f"written to {scores.path}", soft_wrap=True)
    return 0
