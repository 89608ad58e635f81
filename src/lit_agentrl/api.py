"""The Python API: compose, train, evaluate and play runs.

    from lit_agentrl.api import compose

    job = compose(env="bandit", experiment="quick", optim={"lr": 1e-3})
    result = job.train()
    print(result.metrics, result.evaluate(env="sokoban", episodes=16), result.play(env="sokoban"))

Options are those of the command line: ``algo="grpo"`` is ``algo=grpo``; ``rollout={"prompts": 4}`` and
``**{"rollout.prompts": 4}`` are ``rollout.prompts=4``; positional texts, such as ``"algo/clip=clip_higher"``, are
passed on unchanged.

An invalid option raises `UserError` before anything is played; later failures raise `RunError`.  Nothing here ends the
program; an interrupt raises ``KeyboardInterrupt``, after which `Result.resume` continues the run.

A run that refers to code of your own is loaded only with ``trust_run=True``, in `Result.policy`, `Result.evaluate`,
`Result.play` and `Result.resume`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Group

from lit_agentrl.config.errors import WHERE, RunError, UserError, explain, was_interrupted
from lit_agentrl.config.overrides import format_overrides
from lit_agentrl.config.run_options import compose_options, open_run
from lit_agentrl.report import summary as reports
from lit_agentrl.report.table import Metrics, Printed
from lit_agentrl.runs import jobs, process, ranks
from lit_agentrl.runs.checking import check_jobs

if TYPE_CHECKING:
    from lit_agentrl.evaluate.playthroughs import Playthrough
    from lit_agentrl.evaluate.scores import Scores
    from lit_agentrl.models.policy import Policy

__all__ = ["Job", "Result", "RunError", "UserError", "compose", "train"]


def compose(
    *overrides: str, config_dir: str | Path | None = None, folder: str | Path | None = None, **options: Any
) -> Job:
    """Compose and check a run without starting it.

    Args:
        overrides: options as on a command line.
        config_dir: a folder of your own configs, as ``--config-dir``.
        folder: the new run folder; by default ``outputs/DATE/TIME`` in the current folder.
        options: options by name; dictionaries set nested options.

    Raises:
        UserError: an option does not exist or is invalid; the message has one line and names the remedy.
    """
    with _convert_errors():
        words = [*overrides, *format_overrides(options)]
        if folder is not None:
            words += format_overrides({"hydra.run.dir": folder})
        flags = [] if config_dir is None else ["--config-dir", str(config_dir)]
        (checked,) = check_jobs(flags, words)
    return Job(tuple(words), tuple(flags), checked.config)


def train(
    *overrides: str, config_dir: str | Path | None = None, folder: str | Path | None = None, **options: Any
) -> Result:
    """Compose and train a run in one call."""
    return compose(*overrides, config_dir=config_dir, folder=folder, **options).train()


@dataclass(frozen=True, repr=False)
class Job:
    """A run that can be trained; its text is the whole config.

    Attributes:
        overrides: options as on a command line.
        flags: flags as on a command line.
        config: all options, interpolations unresolved.
    """

    overrides: tuple[str, ...]
    flags: tuple[str, ...]
    config: DictConfig

    def train(self) -> Result:
        """Train the run in its own folder, with the display of the command ``train``.

        Raises:
            UserError: an option is invalid.
            RunError: the run failed; its folder holds the reason.
            KeyboardInterrupt: the run was interrupted; its ``folder`` can be resumed.
        """
        failures: list[Exception] = []
        with _convert_errors():
            ranks.require_one_process("the Python API starts the processes of a run itself")
            (folder,) = jobs.launch(
                self.flags, self.overrides, on_failure=lambda error, *_: failures.append(error)
            )
            if failures:
                raise failures[0]
        return Result(folder)

    def __repr__(self) -> str:
        return OmegaConf.to_yaml(self.config).rstrip()


class Result(Printed):
    """The results in a run folder; its text is the closing table of the run.

    Args:
        folder: folder of a run, trained by this API or by a command.

    Raises:
        UserError: the folder is not that of a run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / ".hydra" / "config.yaml").is_file():
            raise UserError(f"folder={folder} is not the folder of a run: it has no .hydra/config.yaml")

    @property
    def summary(self) -> reports.Summary:
        """Status, versions, scores at start, best and last with intervals, chance, oracle, totals.

        Raises:
            UserError: there is no readable summary.
        """
        with _convert_errors():
            return reports.read(self.folder / "summary.json")

    @property
    def metrics(self) -> Metrics:
        """All metrics of all iterations."""
        with _convert_errors():
            return Metrics.read(self.folder / "metrics.csv")

    @property
    def paths(self) -> dict[str, Path]:
        """Files and folders of the run by name, such as ``metrics.csv`` and ``checkpoints/last.ckpt``."""
        entries = [
            *self.folder.glob("*"),
            *self.folder.glob("checkpoints/*"),
            *self.folder.glob("evaluations/*"),
        ]
        return {str(path.relative_to(self.folder)): path for path in sorted(entries) if path.name != ".hydra"}

    def policy(self, checkpoint: str = "last", **options: Any) -> Policy:
        """Load network and tokenizer on the CPU.

        Args:
            checkpoint: last, best, or start (the policy before training).
            options: further options of ``play --help``.

        Raises:
            UserError: the checkpoint does not exist.
        """
        with _convert_errors():
            cfg, folder, saved, load_task = self._open_run("play", {"checkpoint": checkpoint, **options})
            from lit_agentrl.evaluate.playthroughs import load_policy

            return load_policy(cfg, saved, load_task, folder=folder)

    def evaluate(self, **options: Any) -> Scores:
        """Evaluate the policy as the command ``evaluate`` does, and write the scores to ``evaluations/``.

        Args:
            options: options of ``evaluate --help``, such as ``env``, ``checkpoint``, ``split``, ``episodes``,
                ``temperature``.

        Raises:
            UserError: an option is invalid.
        """
        with _convert_errors():
            cfg, folder, saved, load_task = self._open_run("evaluate", options)
            from lit_agentrl.evaluate.evaluation import evaluate

            return evaluate(cfg, saved, load_task, folder=folder)

    def play(self, **options: Any) -> Playthrough:
        """Play one episode, exactly as `evaluate` plays that task.

        Args:
            options: options of ``play --help``, such as ``env``, ``instance``, ``checkpoint``, ``temperature``.

        Raises:
            UserError: an option is invalid.
        """
        if "episodes" in options:
            raise UserError(
                "episodes is not an option of play, which plays one episode; call it once per instance"
            )
        with _convert_errors():
            cfg, folder, saved, load_task = self._open_run("play", options)
            from lit_agentrl.evaluate.playthroughs import play

            return play(cfg, saved, load_task, folder=folder)[0]

    def resume(self, *overrides: str, **options: Any) -> Result:
        """Resume the run exactly, in its folder; ``trainer={"max_epochs": 100}`` extends it.

        Raises:
            UserError: an option may not change.
            RunError: the run failed.
        """
        with _convert_errors():
            ranks.require_one_process("the Python API starts the processes of a run itself")
            jobs.resume([f"resume={self.folder}"], [], [*overrides, *format_overrides(options)])
        return self

    def _open_run(self, command: str, options: dict[str, Any]) -> tuple[Any, ...]:
        cfg = compose_options(command, format_overrides({"run": self.folder, **options}))
        return (cfg, *open_run(cfg))

    def __rich__(self) -> Any:
        return Group(*reports.build_closing_tables(self.summary))


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert each error into a UserError or RunError of one line, with its cause."""
    process.shorten_spin()  # has an effect only if torch is not imported yet
    with jobs.clear_hydra(), _restore_interrupts():
        try:
            yield
        except (UserError, RunError) as error:
            if (message := _rename_options(str(error))) == str(error):
                raise
            raise type(error)(message) from error
        except SystemExit as error:
            if was_interrupted(error):
                raise KeyboardInterrupt from error
            raise RunError(f"the run called sys.exit with code {error.code}") from error
        except Exception as error:
            kind = UserError if isinstance(error, ValueError) else RunError
            raise kind(_rename_options(explain(error).removesuffix(f" ({WHERE})"))) from error


def _rename_options(message: str) -> str:
    """Replace options of the command line by those of this API where their names differ."""
    return message.replace("hydra.run.dir=", "folder=")


@contextmanager
def _restore_interrupts() -> Iterator[None]:
    """Restore the interrupt handler: Lightning removes it on an interrupt, and notebooks continue."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
