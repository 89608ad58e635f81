"""Record the totals over a run's iterations, and write ``summary.json``."""

from __future__ import annotations

import json
import math
import platform
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_agentrl import __version__
from lit_agentrl.batch import StepBatch
from lit_agentrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import get_iteration_metrics
from lit_agentrl.config.errors import get_first_line
from lit_agentrl.envs.levels import Levels
from lit_agentrl.episode import Outcome
from lit_agentrl.files import read_complete_lines
from lit_agentrl.report import outcomes as outcomes_file
from lit_agentrl.report import summary as reports
from lit_agentrl.report.held_out import HeldOutRows
from lit_agentrl.report.statistics import compute_wilson_interval
from lit_agentrl.runs.run_folder import FolderInUse, lock_folder

_PHASES = ("rollout", "update", "validate")


class Totals(Callback):
    """A callback that sums counts and seconds over the iterations.

    The sums are saved in checkpoints, so that each iteration counts once in a resumed run.

    Attributes:
        used: counts of the engine's work, including evaluations.
        template: hash of the chat template; empty for a model without one.
    """

    def __init__(self) -> None:
        self.counts = {"iterations": 0, "episodes": 0, "action_tokens": 0, "prefilled_tokens": 0}
        self.seconds = dict.fromkeys(_PHASES, 0.0)
        self.threads = torch.get_num_threads()
        self.used: Counter[str] = Counter()
        self.template = ""
        self._ignores_checkpoints = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *indices: int
    ) -> None:
        self.used.update(batch.used)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *indices: int
    ) -> None:
        self.used.update(batch.used)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: StepBatch, *indices: int
    ) -> None:
        self.used.update(batch.used)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = get_iteration_metrics(pl_module)
        self.counts["iterations"] = trainer.current_epoch + 1
        # a run on data plays nothing, and counts what it learnt instead
        section = "rollout" if "rollout/episodes" in metrics else "data"
        for name in ("action_tokens", "prefilled_tokens"):
            self.counts[name] += int(metrics.get(f"{section}/{name}", 0))
        played = metrics.get(f"{section}/episodes", 0) + metrics.get("rollout/failed", 0)
        self.counts["episodes"] += int(played)
        for phase in _PHASES:
            self.seconds[phase] += metrics.get(f"time/{phase}", 0.0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": dict(self.counts), "seconds": dict(self.seconds), "threads": self.threads,
            "used": dict(self.used), "template": self.template,
        }  # fmt: skip

    def ignore_checkpoints(self) -> None:
        """Ignore the totals in checkpoints that are loaded from now on."""
        self._ignores_checkpoints = True

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the sums, but not the number of threads."""
        if self._ignores_checkpoints:
            return
        self.used = Counter(state_dict.get("used", {}))  # absent in earlier versions
        self.counts = dict(state_dict["counts"])
        self.seconds = dict(state_dict["seconds"])


PACKAGES = (
    "torch",
    "lightning",
    "transformers",
    "tokenizers",
    "hydra-core",
    "gymnasium",
    "numpy",
)
# sections that do not affect learning
NOT_COMPARED = (
    "callbacks",
    "logger",
    "run_dir",
    "resume",
    "traceback",
)
HELD_OUT = "val/data_"  # beginning of the metrics of held-out data
Stage = Literal["start", "best", "last"]
Status = Literal["completed", "stopped", "collapsed", "failed"]


class Measured(Protocol):
    """Something that is evaluated, such as games or held-out pairs."""

    def get_levels(self, split: str) -> dict[str, Levels]:
        """Return the chance and oracle levels on a split, by name."""


class RunRecord:
    """The record of a run's scores, written as ``summary.json`` and ``outcomes.json``.

    Args:
        folder: the run folder.
        games: what the run evaluates, with chance and oracle levels.
        totals: the counting callback.
        command: the command that started the run.
        seed: the seed of the run.
        planned: the planned number of iterations.
        at_start: warnings printed at the start.
        warnings: lists that collect warnings during the run; read when the summary is written.
        best: the callback that saves the best checkpoint, if there is one.
        last: the callback that saves the last checkpoint, if there is one.
        is_writing: whether this process writes the files; of several, only the first does.
        held_out_rows: the held-out rows that judge the run, if there are any.
    """

    def __init__(
        self, folder: Path, games: Measured, totals: Totals, *, command: str, seed: int, planned: int,
        at_start: Sequence[str] = (), warnings: Sequence[Sequence[str]] = (), best: BestCheckpoint | None = None,
        last: LastCheckpoint | None = None, is_writing: bool = True, held_out_rows: HeldOutRows | None = None,
    ) -> None:  # fmt: skip
        self._is_writing = is_writing
        self._path = folder / "summary.json"
        self._totals = totals
        self._at_start, self._warnings = at_start, warnings
        self._best_checkpoint, self._last_checkpoint = best, last
        self._constants: dict[str, Any] = {
            "command": command,
            "seed": seed,
            "versions": {
                "lit_agentrl": __version__,
                "python": platform.python_version(),
                **{package: metadata.version(package) for package in PACKAGES},
            },
            "git_revision": find_git_revision(),
            "planned_iterations": planned,
        }
        self._games: dict[tuple[str, str], reports.Game] = {}
        self._held_out: dict[str, dict[str, float]] = {}
        self._held_out_rows = held_out_rows
        self._solved_tasks: dict[outcomes_file.Key, outcomes_file.Solved] = {}
        for split in ("val", "test"):
            for name, level in games.get_levels(split).items():
                n = level.episodes
                self._games[name, split] = {
                    "name": name, "split": split, "start": None, "best": None, "last": None,
                    "chance": _estimate_level(level.chance_success, n),
                    "oracle": _estimate_level(level.oracle_success, n),
                }  # fmt: skip
                if n and None in (level.chance_success, level.oracle_success):
                    self._games[name, split]["levels_episodes"] = n

    def restore(self) -> None:
        """Restore the start scores that an earlier launch of this run measured.

        Raises:
            ValueError: ``summary.json`` exists but is unreadable.
        """
        if not self._path.exists():
            return
        summary = reports.read(self._path)
        self._held_out |= {stage: row for stage, row in summary["held_out"].items() if stage == "start"}
        for game in summary["games"]:
            if (game["name"], game["split"]) in self._games:
                self._games[game["name"], game["split"]]["start"] = game["start"]
        with suppress(OSError, ValueError, KeyError, TypeError):  # absent in earlier versions, or damaged
            solved_tasks = outcomes_file.parse(
                (self._path.parent / outcomes_file.FILE).read_text(encoding="utf-8")
            )
            self._solved_tasks |= {key: solved for key, solved in solved_tasks.items() if key[2] == "start"}

    def add(self, split: str, stage: Stage, iteration: int, outcomes: Sequence[Outcome]) -> None:
        """Record the scores of a validation or test, without failed episodes."""
        for (name, game_split), game in self._games.items():
            game_outcomes = [e for e in outcomes if e.task_name == name]
            finished = [e for e in game_outcomes if not e.failed]
            if game_split == split and finished:
                self._solved_tasks[name, split, stage] = outcomes_file.list_solved(game_outcomes)
                game[stage] = reports.score(
                    [e.success for e in finished],
                    [e.total_reward for e in finished],
                    [e.group for e in finished],
                    iteration,
                )

    def add_held_out(self, stage: Stage, iteration: int, metrics: Mapping[str, float]) -> None:
        """Record what a validation measured on held-out data, which may be nothing.

        Args:
            stage: which weights were measured.
            iteration: completed iterations of the weights.
            metrics: metrics of the validation; those of held-out data begin with ``val/data_``.
        """
        measured = {name: float(value) for name, value in metrics.items() if name.startswith(HELD_OUT)}
        finite = {name: value for name, value in measured.items() if math.isfinite(value)}
        if finite:
            row = {name.removeprefix(HELD_OUT): value for name, value in finite.items()}
            self._held_out[stage] = {"iteration": float(iteration)} | row

    def copy(self, source: Stage, target: Stage) -> None:
        """Copy the scores of one stage to another that has the same weights."""
        if source in self._held_out:
            self._held_out[target] = self._held_out[source]
        for (name, split), game in self._games.items():
            game[target] = game[source]
            if (name, split, source) in self._solved_tasks:
                self._solved_tasks[name, split, target] = self._solved_tasks[name, split, source]

    def finish(self, status: Status, *, error: str | None = None) -> reports.Summary:
        """Write the current summary, and return it."""
        fields = {
            "version": reports.VERSION,
            "status": status,
            "error": error,
            "warnings": [*self._at_start, *chain.from_iterable(self._warnings)],
            **self._constants,
            "games": list(self._games.values()),
            "held_out": dict(self._held_out),
            **({"held_out_rows": self._held_out_rows} if self._held_out_rows else {}),
            "monitored": _describe_best(self._best_checkpoint),
            "saves": None if self._last_checkpoint is None else self._last_checkpoint.describe(),
            **self._totals.counts,
            "seconds": dict(self._totals.seconds),
            "engine": dict(self._totals.used),
            "peak_memory_bytes": get_peak_memory_bytes(),
            "threads": self._totals.threads,
        }
        summary = cast(reports.Summary, fields)  # write() checks every field
        if self._is_writing:
            outcomes_file.write(self._path.parent / outcomes_file.FILE, self._solved_tasks)
            reports.write(self._path, summary)
        return summary


def _describe_best(best: BestCheckpoint | None) -> reports.Monitored | None:
    if best is None or best.best_iteration is None or not math.isfinite(best.best_score or 0.0):
        return None
    assert best.best_score is not None
    mode = cast(Literal["max", "min"], best.mode)
    return {"name": best.monitor, "mode": mode, "value": best.best_score, "iteration": best.best_iteration}


@contextmanager
def record_ending(folder: Path, *, is_writing: bool) -> Iterator[None]:
    """Record how the processes that train end, since they may die without writing a summary.

    The summary is left alone if they have not changed it since an earlier launch, or if another process now owns the
    folder.
    """
    path = folder / "summary.json"
    before = path.read_bytes() if path.exists() else None

    def write_status(status: Status, error: str) -> None:
        if not is_writing:
            return
        with suppress(FolderInUse), lock_folder(folder):
            if path.exists() and path.read_bytes() != before:
                reports.write(path, {**reports.read(path), "status": status, "error": error})

    try:
        yield
    except KeyboardInterrupt:
        write_status("stopped", "interrupted")
        raise
    except Exception as error:
        write_status("failed", get_first_line(error))
        raise


def require_not_lost(folder: Path, every: int) -> None:
    """Refuse to resume a run whose checkpoints are lost, since its logs would be emptied.

    A run that was stopped before its first checkpoint has lost none, and starts over.

    Args:
        folder: the folder of a run that has no ``last.ckpt``.
        every: iterations between its checkpoints; 0 if it saves none.

    Raises:
        ValueError: the checkpoints are lost; the message names the folder.
    """
    done = [0]
    for line in read_complete_lines(folder / "metrics.csv")[0]:
        iteration = line.partition(",")[0]
        done.append(int(iteration) if iteration.isdigit() else 0)
    for split in ("train", "val"):
        for line in read_complete_lines(folder / "transcripts" / f"{split}.jsonl")[0][-1:]:
            with suppress(ValueError, KeyError, TypeError):  # a damaged line
                done.append(int(json.loads(line)["iteration"]))
    with suppress(OSError, ValueError):
        summary = reports.read(folder / "summary.json")
        every = 0 if summary["status"] == "completed" else every  # a completed run has saved its last weights
        done.append(summary["iterations"])
    if max(done) > every:
        raise ValueError(
            f"{folder} has no checkpoints/last.ckpt to continue from, though it has logged {max(done)} iterations; put "
            "the checkpoint back, or start another run"
        )


def flatten_hyperparameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the options that distinguish runs: each part's name or function, and its constants.

    >>> flatten_hyperparameters({"algo": {"clip": {"_target_": "a.b.symmetric", "epsilon": 0.2}}, "run_dir": "x"})
    {'algo.clip': 'symmetric', 'algo.clip.epsilon': 0.2}
    """
    flat: dict[str, Any] = {}

    def visit(path: str, value: Any) -> None:
        if isinstance(value, Mapping):
            if path and "_target_" in value:
                flat[path] = value.get("name") or str(value["_target_"]).rpartition(".")[2]
            for key, item in value.items():
                is_shown = path and "_target_" in value and key == "name"
                if not str(key).startswith("_") and not is_shown:
                    visit(f"{path}.{key}" if path else str(key), item)
        elif value is not None:
            flat[path] = value

    visit("", {key: value for key, value in config.items() if key not in NOT_COMPARED})
    return flat


def _estimate_level(share: float | None, n: int) -> reports.Score | None:
    if share is None:
        return None
    interval = reports.to_estimate(compute_wilson_interval(round(share * n), n))
    return {"iteration": None, "success": interval, "return": None}


def get_peak_memory_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def find_git_revision() -> str | None:
    """Return the git commit of the source tree that this package runs from, or None."""
    this_file, printed = Path(__file__), ""
    # ask whether git tracks this file: an installed package may lie inside of an unrelated repository
    for arguments in (["ls-files", "--error-unmatch", this_file.name], ["rev-parse", "HEAD"]):
        try:
            printed = subprocess.run(
                ["git", *arguments],
                cwd=this_file.parent,
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return None
    return printed.strip() or None
