"""Show the results of a run, and tell whether it is finished."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from lit_agentrl import screen
from lit_agentrl.config.overrides import get_program
from lit_agentrl.config.saved import format_trust_option
from lit_agentrl.files import has_checkpoint
from lit_agentrl.report import summary as reports
from lit_agentrl.runs import ranks


def print_summary(folder: Path, summary: reports.Summary) -> None:
    """Print the closing tables of a run and the place of its results."""
    console = Console()
    for table in reports.build_closing_tables(summary):
        console.print(table)
    if summary["engine"]:
        console.print(f"engine totals: {reports.format_usage(summary['engine'])}", soft_wrap=True)
    console.print(f"results in {folder}", soft_wrap=True)
    console.print(f"view them with: tensorboard --logdir {folder}", soft_wrap=True)
    if trust := format_trust_option(folder):
        evaluate = get_program("train").replace("train", "evaluate")
        line = f"its config names your own code or another machine; evaluate it with: {evaluate} run={folder}{trust}"
        console.print(line, soft_wrap=True)


def print_if_finished(cfg: DictConfig) -> bool:
    """Print the results of a resumed run that has nothing left to train.

    Returns:
        Whether nothing is left to train, and so nothing to measure or to write.
    """
    folder = Path(cfg.run_dir)
    is_alone = ranks.count_launched() in (None, (1, 1))  # other processes would wait for the first
    if not is_alone or not has_checkpoint(folder / "checkpoints" / "last.ckpt"):
        return False
    try:
        summary = reports.read(folder / "summary.json")
    except (OSError, ValueError):  # the run reports this error when it restores its scores
        return False
    done = summary["iterations"]
    if summary["status"] != "completed" or done != cfg.trainer.max_epochs:
        return False
    screen.note(
        f"nothing is left: {done} of {done} iterations are done; a higher trainer.max_epochs continues the run"
    )
    print_summary(folder, summary)
    return True


def note_if_unfinished(folder: Path) -> None:
    """Print a line about a run that ended early, with its best weights so far.

    The counts come from the last checkpoint, since the summary of a killed run is that of its start.
    """
    last = folder / "checkpoints" / "last.ckpt"
    try:
        summary = reports.read(folder / "summary.json")
    except (OSError, ValueError):  # a folder without scores can still be evaluated
        return
    if summary["status"] == "completed" or not has_checkpoint(last):
        return
    from lit_agentrl.strategies.checkpoint_io import load_progress  # imports torch

    states = load_progress(last)["callbacks"]
    done = next(state["counts"]["iterations"] for state in states.values() if "counts" in state)
    best = "none of its weights has been judged yet"
    for key, state in states.items():
        if state.get("best_iteration") is not None:
            # a key is such as BestCheckpoint[val/success,max]
            monitor = key.partition("[")[2].partition(",")[0]
            best = (
                f"its best weights so far (checkpoint=best) are those of iteration {state['best_iteration']}, "
                f"{monitor} {state['best_score']:.4g}"
            )
    reason = summary["error"] or summary["status"]
    screen.note(f"the run has {done} of {summary['planned_iterations']} iterations ({reason}); {best}")
