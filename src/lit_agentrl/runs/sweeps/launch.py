"""Run a sweep: check all runs, launch them, and print a table of the results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rich.console import Console

from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import rewrite_for_hydra
from lit_agentrl.report import sweep as records
from lit_agentrl.runs import jobs, process, ranks, run_folder
from lit_agentrl.runs.checking import check_jobs, is_printing, read_config_folders
from lit_agentrl.runs.sweeps import resumption, sweepers
from lit_agentrl.runs.sweeps.runner import PRINTED, SweepRunner

_LOOK_S = 0.5  # polling interval for runs in other processes
_PATIENCE_S = 15.0  # time for processes to end when the sweep is interrupted
_ENDED = ("completed", "collapsed", "failed")


def launch(flags: Sequence[str], overrides: Sequence[str], *, on_failure: jobs.OnFailure) -> None:
    """Run the sweep that the arguments of ``train -m`` describe, or print information.

    Args:
        flags: flags such as ``-m`` and ``--config-dir``, with their values.
        overrides: the options, in Hydra's syntax.
        on_failure: called for each run that fails, with the error, whether a traceback is wanted, and the place of the
            failure; before the next run starts, or soon after a failure in another process.

    Raises:
        UserError: an unknown group, option or key; the message names the nearest valid ones.
        ValueError: an invalid value.
        Interrupted: a run was interrupted, and the sweep has ended with it.
    """
    resumed, trusted, overrides = resumption.split_resume_options(overrides)
    jobs.refuse_trust(overrides)
    command, overrides = jobs.format_command([*flags, *overrides]), rewrite_for_hydra(overrides)
    if is_printing(flags):
        raise UserError(
            "-m has no effect where the config is printed; leave it out, and give one value of each option"
        )
    ranks.require_one_process("a sweep (-m) starts the processes of each run itself")
    if jobs.is_help(flags):
        _print_by_hydra(flags, overrides)
        return
    plan = sweepers.plan_sweep(overrides, read_config_folders(flags)[1])
    if resumed is not None:
        plan = resumption.keep_folders(resumed, plan)
        resumption.require_same(resumed, plan, [_drop_hydra_overrides(job) for job in plan.jobs])
    checked = check_jobs(flags, overrides, plan=plan, is_new=resumed is None)
    # `on_failure` reports failed runs, so Optuna's sweeper need not
    logging.getLogger("hydra_plugins.hydra_optuna_sweeper").setLevel(logging.ERROR)
    folder = checked[0].new_folder if resumed is None else ("hydra.sweep.dir", resumed)
    count = len(plan.jobs) if plan.is_complete else None
    # `_report_other_processes` calls `on_failure` for runs in other processes
    runner = SweepRunner(
        folder[1].absolute(), command, checked, None if plan.uses_processes else on_failure, count,
        is_resumed=resumed is not None, trusted=trusted,
    )  # fmt: skip
    try:
        with (
            _end_processes() if plan.uses_processes else nullcontext(),
            run_folder.claim_new(*folder) if resumed is None else run_folder.lock_folder(resumed),
            process.share_cores(plan.num_parallel),
            _report_other_processes(runner, plan, on_failure),
        ):
            arguments = plan.overrides if resumed is None else resumption.disable_config(plan.overrides)
            with jobs.set_command_line(flags, run_folder.pin_folder(arguments, *folder)):
                jobs.make_hydra_app(runner)()
    except KeyboardInterrupt as error:
        raise _make_interrupt(error, runner.sweep) from error
    except ValueError:
        if not _has_no_value(runner.sweep):  # else Optuna failed to find the best run, since none has a value
            raise
    finally:
        _print_results(runner, plan)


def _print_by_hydra(flags: Sequence[str], overrides: Sequence[str]) -> None:
    """Make Hydra print what the flags ask for."""
    with jobs.set_command_line(flags, overrides):
        jobs.make_hydra_app(lambda cfg: None)()


@contextmanager
def _report_other_processes(
    runner: SweepRunner, plan: sweepers.Plan, on_failure: jobs.OnFailure
) -> Iterator[None]:
    """Report inside the context which runs start and end in other processes."""
    if not plan.uses_processes:
        yield
        return
    is_over = threading.Event()

    def report_entries() -> None:
        num_reported = 0
        while True:
            was_over = is_over.wait(_LOOK_S)
            entries = records.read(runner.sweep)
            for entry in entries[num_reported:]:
                _report_entry(entry, plan.swept, on_failure)
            num_reported = len(entries)
            if was_over:
                return

    reporter = threading.Thread(target=report_entries, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        is_over.set()
        reporter.join()


def _report_entry(entry: records.Entry, swept: frozenset[str], on_failure: jobs.OnFailure) -> None:
    folder, value = entry["folder"], entry["monitored"]
    if entry["status"] == "failed":
        on_failure(UserError(entry["error"] or ""), False, f"{folder}: ")
        return
    differs = " ".join(text for text in entry["overrides"] if text.partition("=")[0] in swept)
    description = " ".join([entry["status"], differs]).rstrip()
    if value is not None:
        description += f" | {value['name']} {value['value']:.4g} at iteration {value['iteration']}"
    elif entry["status"] == "begun":
        description += f" | prints to {Path(folder) / PRINTED}"
    Console().print(f"run {entry['run']} {description}", soft_wrap=True, highlight=False, markup=False)


def _print_results(runner: SweepRunner, plan: sweepers.Plan) -> None:
    """Print the table of all runs, their folder, and the command that resumes the sweep."""
    sweep = runner.sweep
    entries = records.list_latest(records.read(sweep))
    if not entries:
        return
    planned = dict(enumerate(_drop_hydra_overrides(job) for job in plan.jobs)) if plan.is_complete else None
    console = Console()
    console.print(records.build_table(entries, planned))
    console.print(f"results in {sweep}", soft_wrap=True)
    console.print(f"view them with: tensorboard --logdir {sweep}", soft_wrap=True)
    console.print(f"compare them with: lit-agentrl report {sweep}", soft_wrap=True)
    ended = sum(entry["status"] in _ENDED for entry in entries)
    if planned is not None and ended < len(planned):
        remedy = f"continue with: {runner.command} resume={sweep}"
        message = f"{len(planned) - ended} of {len(planned)} runs are left; {remedy}"
        console.print(message, soft_wrap=True, highlight=False, markup=False)


def _drop_hydra_overrides(job: Sequence[str]) -> list[str]:
    """Return the overrides of a run without those of Hydra."""
    return [text for text in job if not text.lstrip("+").startswith(("hydra.", "hydra/"))]


def _has_no_value(sweep: Path) -> bool:
    entries = records.list_latest(records.read(sweep))
    return bool(entries) and all(entry["monitored"] is None for entry in entries)


def _make_interrupt(error: KeyboardInterrupt, sweep: Path) -> KeyboardInterrupt:
    """Return an interrupt that names an interrupted run of the sweep, if there is one."""
    cut_off = [
        e["folder"]
        for e in records.list_latest(records.read(sweep))
        if e["status"] in ("begun", "interrupted")
    ]
    return error if isinstance(error, jobs.Interrupted) or not cut_off else jobs.Interrupted(cut_off[0])


@contextmanager
def _end_processes() -> Iterator[None]:
    """End the processes that a sweep started inside the context, unless it succeeds."""
    import psutil

    def list_children() -> list[psutil.Process]:
        return [
            child for child in psutil.Process().children(recursive=True) if not is_resource_tracker(child)
        ]

    def is_resource_tracker(child: psutil.Process) -> bool:
        """Return whether a child is Python's resource tracker, which must end after this process."""
        try:
            return any("resource_tracker" in word for word in child.cmdline())
        except psutil.Error:
            return True

    before = {child.pid for child in list_children()}
    try:
        yield
    except BaseException:  # the folder of the sweep is unlocked by now; its runs notice that, and end
        started = [child for child in list_children() if child.pid not in before]
        for child in psutil.wait_procs(started, timeout=_PATIENCE_S)[1]:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        raise
