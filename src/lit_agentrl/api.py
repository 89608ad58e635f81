"""The Python API: compose a run, train it, look at what it left, evaluate its policy and watch it play.

    from lit_agentrl.api import compose

    job = compose(env="bandit", experiment="quick", optim={"lr": 1e-3})
    result = job.train()
    print(result.metrics, result.evaluate(env="sokoban", episodes=16), result.play(env="sokoban"))

Options are those of the command line: ``algo="grpo"`` is ``algo=grpo``; ``rollout={"prompts": 4}`` and
``**{"rollout.prompts": 4}`` are ``rollout.prompts=4``; a text that is given by itself, such as
``"algo/clip=clip_higher"``, is taken as it is.

An option that makes no sense is a `UserError`, before anything is played; what fails later is a `RunError`.  Nothing
here ends the program; an interrupt is a ``KeyboardInterrupt``, after which `Result.resume` goes on.

A run that names code of your own is read again with ``trust_run=True`` only, in `Result.policy`, `Result.evaluate`,
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

from lit_agentrl.config.errors import WHERE, RunError, UserError, explain, was_interrupted
from lit_agentrl.config.overrides import written
from lit_agentrl.config.run_options import opened, options_of
from lit_agentrl.report import summary as reports
from lit_agentrl.report.table import Metrics, as_text
from lit_agentrl.runs import jobs, process, ranks
from lit_agentrl.runs.checking import check

if TYPE_CHECKING:
    from lit_agentrl.evaluate.playing import Playthrough
    from lit_agentrl.evaluate.scores import Scores
    from lit_agentrl.models.policy import Policy

__all__ = ["Job", "Result", "RunError", "UserError", "compose", "train"]


def compose(
    *overrides: str, config_dir: str | Path | None = None, folder: str | Path | None = None, **options: Any
) -> Job:
    """A run that is checked, and not begun.

    Args:
        overrides: options as they are written on a command line.
        config_dir: a folder of configs of your own, as ``--config-dir``.
        folder: the run folder, new; by default ``outputs/DATE/TIME`` below the current one.
        options: by name; dictionaries set options below it.

    Raises:
        UserError: an option that does not exist or makes no sense, in one line that says what would.
    """
    with _own_errors():
        words = [*overrides, *written(options)]
        if folder is not None:
            words += written({"hydra.run.dir": folder})
        flags = [] if config_dir is None else ["--config-dir", str(config_dir)]
        (checked,) = check(flags, words)
    return Job(tuple(words), tuple(flags), checked.config)


def train(
    *overrides: str, config_dir: str | Path | None = None, folder: str | Path | None = None, **options: Any
) -> Result:
    """`compose` and `Job.train` in one."""
    return compose(*overrides, config_dir=config_dir, folder=folder, **options).train()


@dataclass(frozen=True, repr=False)
class Job:
    """A run that can be trained; printed, it is its whole config.

    Attributes:
        overrides: what was asked for, as on a command line.
        flags: as on a command line.
        config: all options, interpolations unresolved.
    """

    overrides: tuple[str, ...]
    flags: tuple[str, ...]
    config: DictConfig

    def train(self) -> Result:
        """Train it in a folder of its own, with the display of the command ``train``.

        Raises:
            UserError: an option that makes no sense.
            RunError: the run failed; its folder says with what.
            KeyboardInterrupt: the run was interrupted; its ``folder`` can be resumed.
        """
        failures: list[Exception] = []
        with _own_errors():
            ranks.require_one_process("the Python API starts the processes of a run itself")
            (folder,) = jobs.launch(
                self.flags, self.overrides, on_failure=lambda error, *_: failures.append(error)
            )
            if failures:
                raise failures[0]
        return Result(folder)

    def __repr__(self) -> str:
        return OmegaConf.to_yaml(self.config).rstrip()


class Result:
    """What a run left in its folder; printed, it is the table that closes the run.

    Args:
        folder: of a run, trained here or by a command, now or long ago.

    Raises:
        UserError: it is not the folder of a run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / ".hydra" / "config.yaml").is_file():
            raise UserError(f"folder={folder} is not the folder of a run: it has no .hydra/config.yaml")

    @property
    def summary(self) -> reports.Summary:
        """Status, versions, scores at start, best and last with intervals, chance, oracle, totals.

        Raises:
            UserError: there is none that can be read.
        """
        with _own_errors():
            return reports.read(self.folder / "summary.json")

    @property
    def metrics(self) -> Metrics:
        """All metrics of all iterations."""
        with _own_errors():
            return Metrics.read(self.folder / "metrics.csv")

    @property
    def paths(self) -> dict[str, Path]:
        """What lies in the folder, by name: ``metrics.csv``, ``checkpoints/last.ckpt``, ``hf`` and others."""
        found = [
            *self.folder.glob("*"),
            *self.folder.glob("checkpoints/*"),
            *self.folder.glob("evaluations/*"),
        ]
        return {str(path.relative_to(self.folder)): path for path in sorted(found) if path.name != ".hydra"}

    def policy(self, checkpoint: str = "last", **options: Any) -> Policy:
        """Network and tokenizer, on the CPU.

        Args:
            checkpoint: last, best, or start (the policy before training).
            options: further ones of ``play --help``.

        Raises:
            UserError: no such checkpoint.
        """
        with _own_errors():
            cfg, folder, saved, load_task = self._opened("play", {"checkpoint": checkpoint, **options})
            from lit_agentrl.evaluate.playing import load_policy

            return load_policy(cfg, saved, load_task, folder=folder)

    def evaluate(self, **options: Any) -> Scores:
        """Measure the policy, as the command ``evaluate`` does; also written below ``evaluations/``.

        Args:
            options: of ``evaluate --help``, such as ``env``, ``checkpoint``, ``split``, ``episodes``,
                ``temperature``.

        Raises:
            UserError: an option that makes no sense.
        """
        with _own_errors():
            cfg, folder, saved, load_task = self._opened("evaluate", options)
            from lit_agentrl.evaluate.evaluation import evaluate

            return evaluate(cfg, saved, load_task, folder=folder)

    def play(self, **options: Any) -> Playthrough:
        """Play one episode, as `evaluate` plays that instance.

        Args:
            options: of ``play --help``, such as ``env``, ``instance``, ``checkpoint``, ``temperature``.

        Raises:
            UserError: an option that makes no sense.
        """
        if "episodes" in options:
            raise UserError("episodes is no option here: one episode is played; call play for each instance")
        with _own_errors():
            cfg, folder, saved, load_task = self._opened("play", options)
            from lit_agentrl.evaluate.playing import play

            return play(cfg, saved, load_task, folder=folder)[0]

    def resume(self, *overrides: str, **options: Any) -> Result:
        """Continue the run in its folder, exactly; ``trainer={"max_epochs": 100}`` makes it longer.

        Raises:
            UserError: an option that may not change.
            RunError: the run failed.
        """
        with _own_errors():
            ranks.require_one_process("the Python API starts the processes of a run itself")
            jobs.resume([f"resume={self.folder}"], [], [*overrides, *written(options)])
        return self

    def _opened(self, command: str, options: dict[str, Any]) -> tuple[Any, ...]:
        cfg = options_of(command, written({"run": self.folder, **options}))
        return (cfg, *opened(cfg))

    def __rich__(self) -> Any:
        return reports.closing_table(self.summary)

    def __repr__(self) -> str:
        return as_text(self)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Every error is one of ours, in one line, and its cause the one that was raised."""
    process.shorten_spin()  # where torch is not imported yet
    with jobs.clear_hydra(), _own_interrupts():
        try:
            yield
        except (UserError, RunError) as error:
            if (told := _in_python(str(error))) == str(error):
                raise
            raise type(error)(told) from error
        except SystemExit as error:
            if was_interrupted(error):
                raise KeyboardInterrupt from error
            raise RunError(f"something ended the program with code {error.code}") from error
        except Exception as error:
            kind = UserError if isinstance(error, ValueError) else RunError
            raise kind(_in_python(explain(error).removesuffix(f" ({WHERE})"))) from error


def _in_python(message: str) -> str:
    """With options as they are written here, where they have another name on a command line."""
    return message.replace("hydra.run.dir=", "folder=")


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Lightning stops listening to interrupts once there was one, and a notebook goes on."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
