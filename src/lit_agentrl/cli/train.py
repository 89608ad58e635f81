"""Train an agent, run a sweep, or continue a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lit_agentrl.cli._running import report_error, run_command
from lit_agentrl.config.overrides import MULTIRUN, split_arguments
from lit_agentrl.runs import jobs, ranks
from lit_agentrl.runs.sweeps import launch as sweeps


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``train.py`` or ``lit-agentrl train``; exit with 1 if a run failed."""
    failures: list[Exception] = []

    def report_failure(error: Exception, with_traceback: bool, prefix: str = "") -> None:
        """Report the error of a run, and note it for the exit code."""
        failures.append(error)
        report_error(error, with_traceback, prefix)

    with run_command(argv, is_awaited=True) as arguments:
        if ranks.is_receiving():
            job = ranks.read_handed_job() or ranks.receive()
            if job is None:
                sys.exit(1)  # the first process has reported why
            jobs.join(job, on_failure=report_failure)
        else:
            flags, overrides = split_arguments(arguments)
            resumed = [text for text in overrides if text.startswith("resume=") and text != "resume=null"]
            if any(flag in MULTIRUN for flag in flags):
                sweeps.launch(flags, overrides, on_failure=report_failure)
            elif resumed:
                jobs.resume(resumed, flags, [text for text in overrides if text not in resumed])
            else:
                jobs.launch(flags, overrides, on_failure=report_failure)
        if failures:
            sys.exit(1)
