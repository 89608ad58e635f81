"""Train an agent, run a sweep, or continue a run."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.cli._running import run_command, tell
from lit_agentrl.config.overrides import MULTIRUN, split_arguments
from lit_agentrl.runs import jobs, ranks
from lit_agentrl.runs.sweeps import launch as sweeps


def main(argv: Sequence[str] | None = None) -> None:
    """``train.py`` and ``lit-agentrl train``."""
    run_command(_train, argv, is_awaited=True)


def _train(argv: list[str]) -> int:
    """Returns the number of runs that failed."""
    if (given := ranks.handed()) is not None or not ranks.is_first():
        return _join(given or ranks.receive())
    flags, overrides = split_arguments(argv)
    resumed = [text for text in overrides if text.startswith("resume=") and text != "resume=null"]
    is_sweep = any(flag in MULTIRUN for flag in flags)
    if resumed and not is_sweep:
        jobs.resume(resumed, flags, [text for text in overrides if text not in resumed])
        return 0
    failed: list[Exception] = []

    def told(error: Exception, with_traceback: bool, prefix: str = "") -> None:
        failed.append(error)
        tell(error, with_traceback, prefix)

    if is_sweep:
        sweeps.launch(flags, overrides, on_failure=told)
    else:
        jobs.launch(flags, overrides, on_failure=lambda error, cfg: told(error, cfg.traceback))
    return len(failed)


def _join(job: ranks.Job | None) -> int:
    """Take part in the run that the first process has composed."""
    if job is None:  # it has said why
        return 1
    cfg, number = job.cfg, ranks.number()
    try:
        jobs.take_part(cfg, job)
    except Exception as error:
        tell(error, cfg.traceback, f"rank {number}: " if number and not hasattr(error, "is_told") else "")
        return 1
    return 0
