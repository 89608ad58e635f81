"""Sweeps: all runs are checked before the first one begins, a launcher plays them, and a table closes them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from rich.console import Console

from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import as_names
from lit_agentrl.report import sweep as records
from lit_agentrl.runs import jobs, process, ranks, run_folder
from lit_agentrl.runs.checking import check, is_printing, own_folders
from lit_agentrl.runs.sweeps import continuing, sweepers
from lit_agentrl.runs.sweeps.cells import PRINTED, Cell

_LOOK_S = 0.5  # how often the runs of other processes are looked at
_PATIENCE_S = 15.0  # for processes to end when the sweep is interrupted
_ENDED = ("completed", "collapsed", "failed")


def launch(flags: Sequence[str], overrides: Sequence[str], *, on_failure: jobs.OnFailure) -> None:
    """Do what ``train -m`` with these arguments asks for: the runs of a sweep, or to print.

    Args:
        flags: such as ``-m`` and ``--config-dir``, with their values.
        overrides: options, as Hydra reads them.
        on_failure: told of each run that fails, with whether a traceback is asked for and where it failed, before the
            next one has its turn, or soon where it is played by another process.

    Raises:
        UserError: an unknown group, option or key, naming the nearest valid ones.
        ValueError: a value that makes no sense.
        Interrupted: a run was told to end; the sweep has ended with it.
    """
    before, trusted, overrides = continuing.asked(overrides)
    jobs.refuse_trust(overrides)
    command, overrides = jobs.format_command([*flags, *overrides]), as_names(overrides)
    ranks.require_one_process("a sweep (-m) starts the processes of each run itself")
    if jobs.is_help(flags):
        _print_by_hydra(flags, overrides)
        return
    plan = sweepers.planned(overrides, own_folders(flags)[1])
    if before is not None:
        continuing.require_same(before, plan, [_told(job) for job in plan.jobs])
    checked = check(flags, overrides, plan=plan, is_new=before is None)
    if is_printing(flags):
        _print_by_hydra(flags, overrides)
        return
    logging.getLogger("hydra_plugins.hydra_optuna_sweeper").setLevel(
        logging.ERROR
    )  # failed runs are told here
    place = checked[0].place if before is None else ("hydra.sweep.dir", before)
    count = len(plan.jobs) if plan.is_whole else None
    # failures of other processes are told by _telling
    cell = Cell(
        place[1].absolute(), command, checked, None if plan.is_apart else on_failure, count,
        goes_on=before is not None, trusted=trusted,
    )  # fmt: skip
    try:
        with (
            _none_left() if plan.is_apart else nullcontext(),
            run_folder.claim_new(*place) if before is None else run_folder.lock_folder(before),
            process.share_cores(plan.side_by_side),
            _telling(cell, plan, on_failure),
        ):
            given = plan.overrides if before is None else continuing.without_config(plan.overrides)
            with jobs.set_command_line(flags, run_folder.pin_folder(given, *place)):
                jobs.make_hydra_app(cell)()
    except KeyboardInterrupt as error:
        raise _where_to_continue(error, cell.sweep) from error
    except ValueError:
        if not _has_no_value(cell.sweep):  # of which Optuna finds no best one
            raise
    finally:
        _close(cell, plan)


def _print_by_hydra(flags: Sequence[str], overrides: Sequence[str]) -> None:
    """Have Hydra print what the flags ask for."""
    with jobs.set_command_line(flags, overrides):
        jobs.make_hydra_app(lambda cfg: None)()


@contextmanager
def _telling(cell: Cell, plan: sweepers.Plan, on_failure: jobs.OnFailure) -> Iterator[None]:
    """Say meanwhile which runs of other processes begin and end."""
    if not plan.is_apart:
        yield
        return
    is_over = threading.Event()

    def look() -> None:
        seen = 0
        while True:
            was_over = is_over.wait(_LOOK_S)
            entries = records.read(cell.sweep)
            for entry in entries[seen:]:
                _tell(entry, plan.swept, on_failure)
            seen = len(entries)
            if was_over:
                return

    teller = threading.Thread(target=look, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()


def _tell(entry: records.Entry, swept: frozenset[str], on_failure: jobs.OnFailure) -> None:
    folder, value = entry["folder"], entry["monitored"]
    if entry["status"] == "failed":
        on_failure(UserError(entry["error"] or ""), False, f"{folder}: ")
        return
    differs = " ".join(text for text in entry["overrides"] if text.partition("=")[0] in swept)
    what = " ".join([entry["status"], differs]).rstrip()
    if value is not None:
        what += f" | {value['name']} {value['value']:.4g} at iteration {value['iteration']}"
    elif entry["status"] == "begun":
        what += f" | prints to {Path(folder) / PRINTED}"
    Console().print(f"run {entry['run']} {what}", soft_wrap=True, highlight=False, markup=False)


def _close(cell: Cell, plan: sweepers.Plan) -> None:
    """The table of all runs, where they are, and how those go on that have not ended."""
    sweep = cell.sweep
    entries = records.latest(records.read(sweep))
    if not entries:
        return
    planned = dict(enumerate(_told(job) for job in plan.jobs)) if plan.is_whole else None
    console = Console()
    console.print(records.table(entries, planned))
    console.print(f"results in {sweep}", soft_wrap=True)
    console.print(f"look at them with: tensorboard --logdir {sweep}", soft_wrap=True)
    ended = sum(entry["status"] in _ENDED for entry in entries)
    if planned is not None and ended < len(planned):
        told = f"{len(planned) - ended} of {len(planned)} runs are left; go on with: {cell.command} resume={sweep}"
        console.print(told, soft_wrap=True, highlight=False, markup=False)


def _told(job: Sequence[str]) -> list[str]:
    """Overrides of a run without those of Hydra."""
    return [text for text in job if not text.lstrip("+").startswith(("hydra.", "hydra/"))]


def _has_no_value(sweep: Path) -> bool:
    entries = records.latest(records.read(sweep))
    return bool(entries) and all(entry["monitored"] is None for entry in entries)


def _where_to_continue(error: KeyboardInterrupt, sweep: Path) -> KeyboardInterrupt:
    """Names a run that was cut off, where it is not named already."""
    cut_off = [
        e["folder"] for e in records.latest(records.read(sweep)) if e["status"] in ("begun", "interrupted")
    ]
    return error if isinstance(error, jobs.Interrupted) or not cut_off else jobs.Interrupted(cut_off[0])


@contextmanager
def _none_left() -> Iterator[None]:
    """Around a sweep that starts processes: if it does not come to its end, they come to theirs."""
    import psutil

    def below() -> list[psutil.Process]:
        return [process for process in psutil.Process().children(recursive=True) if not tidies_up(process)]

    def tidies_up(process: psutil.Process) -> bool:
        """Whether it is Python's own, and ends after this process."""
        try:
            return any("resource_tracker" in word for word in process.cmdline())
        except psutil.Error:
            return True

    before = {process.pid for process in below()}
    try:
        yield
    except BaseException:  # nobody owns the sweep any more, which its runs notice
        started = [process for process in below() if process.pid not in before]
        for process in psutil.wait_procs(started, timeout=_PATIENCE_S)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        raise
