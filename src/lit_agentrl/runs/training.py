"""Train the run of a config, from its options to its summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import DictConfig

from lit_agentrl import screen
from lit_agentrl.build.assembly import Run, build, to_plain_dict
from lit_agentrl.build.critics import describe_reweighting
from lit_agentrl.build.overlap import add_correction, add_worker
from lit_agentrl.build.parts import Parts
from lit_agentrl.build.strategy import count_processes
from lit_agentrl.callbacks.checkpoints import BestCheckpoint, FinalExport, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import Concludes, get_iteration_metrics, rewind
from lit_agentrl.checks import NotFinite
from lit_agentrl.config.composition import make_task_loader
from lit_agentrl.data.usage import READ_AS
from lit_agentrl.files import has_checkpoint
from lit_agentrl.monitor.callback import CollapseMonitor
from lit_agentrl.report import summary as reports
from lit_agentrl.runs import process, ranks, record, run_folder
from lit_agentrl.runs.card import add_card
from lit_agentrl.runs.finished import print_summary
from lit_agentrl.runs.record import Totals
from lit_agentrl.runs.recovery import name_good_checkpoint
from lit_agentrl.runs.warnings import collect_warnings
from lit_agentrl.strategies.checkpoint_io import load_progress
from lit_agentrl.strategies.hooks import get_hooks
from lit_agentrl.strategies.launching import is_on_cuda
from lit_agentrl.text.token_bytes import hash_template

_T = TypeVar("_T")
DIRECTIONS = {"max": "higher", "min": "lower"}
KILLED = "killed before the end"  # error in the summary until the run ends, in case the process is killed
_LARGE = 0.3  # a large share of held-out prompts
_FEW = 10  # held-out groups below which a line warns that they hardly tell weights apart


def train(cfg: DictConfig, job: ranks.Job, *, parts: Parts | None = None) -> reports.Summary | None:
    """Train or resume a run in its folder, here or in processes that it starts.

    Args:
        cfg: the composed config, resolved.
        job: what all processes of the run share: the command, the config folders, and whether the run is resumed.
        parts: the parts of this config, if they are built already.

    Returns:
        The summary of the run; None if other processes have trained it.

    Raises:
        ValueError: an option is invalid, or the run's checkpoints are lost; raised before anything is played.
        FolderInUse: another process writes to the folder, or has started a run in it.
        NotFinite: weights, logits or gradients are NaN or infinite; the message names the last good checkpoint.
        CheckpointError: there is no intact checkpoint, or one cannot be written.
        RankFailed: one of the processes of the run failed.
    """
    if not ranks.is_training_process(cfg):
        start_processes(cfg)
        return None
    with own_run_folder(cfg, is_resume=job.is_resume):
        threads_note = fit_threads()
        run, correction_note = build_run(cfg, job, parts)
        checkpoint = find_checkpoint(run) if job.is_resume else None
        warnings = collect_warnings(run, None if checkpoint else threads_note)
        tracker = open_record(run, job, [*run.warnings, *warnings])
        restore_progress(run, tracker, checkpoint, is_resume=job.is_resume)
        print_notes(cfg, correction_note, warnings)
        with record_failure(run, tracker):
            measure_start(run, tracker, checkpoint)
            log_hyperparameters(run)
            run.trainer.fit(run.module, run.stream, ckpt_path=checkpoint, weights_only=True)
            status = determine_status(run)
            measure_end(run, tracker)
            summary = tracker.finish(status)
        if ranks.is_first():
            add_card(run.folder)
        print_results(run, summary)
    return summary


def start_processes(cfg: DictConfig) -> None:
    """Start the processes of the run on this machine, and wait for their end."""
    processes, _ = count_processes(cfg)
    is_cuda = is_on_cuda(str(cfg.trainer.get("accelerator", "auto")))
    screen.announce(f"starting {processes} processes, {'each on a GPU' if is_cuda else 'all on the CPU'}")
    run_folder.unlock_folder(cfg.run_dir)  # the first of the started processes locks it
    with record.record_ending(Path(cfg.run_dir), is_writing=ranks.is_first()):
        ranks.start(cfg)


@contextmanager
def own_run_folder(cfg: DictConfig, *, is_resume: bool) -> Iterator[None]:
    """Lock the run folder for the whole run; only the first process locks it.

    Raises:
        FolderInUse: another process writes to the folder, or has started a run in it.
        UserError: a callback or logger would write outside of the folder.
    """
    with run_folder.lock_folder(cfg.run_dir) if ranks.is_first() else nullcontext():
        if ranks.is_first() and not is_resume:
            run_folder.require_not_started(Path(cfg.run_dir))
        run_folder.require_within(cfg)
        yield


def fit_threads() -> str | None:
    """Leave busy cores to other programs; return a warning if torch gets fewer threads."""
    is_alone = ranks.count_launched() in (None, (1, 1))
    return process.LOAD.fit_threads() if is_alone else None


def build_run(cfg: DictConfig, job: ranks.Job, parts: Parts | None) -> tuple[Run, str]:
    """Complete the config and build the run; return a note on what ``rollout.overlap`` added."""
    totals = Totals()
    add_worker(cfg)  # even if the parts are built already: the record names the worker
    note = add_correction(cfg)
    screen.announce("building the policy and testing the games")
    added = [totals, FinalExport(Path(cfg.run_dir) / "hf")]
    run = build(cfg, make_task_loader(job.folders), parts=parts, extra_callbacks=added)
    totals.template = hash_template(run.module.policy.tokenizer)
    if run.recorded:
        screen.note(run.recorded.description)
    if run.held_out:
        screen.note(run.held_out.note)
    if line := describe_judge(run):
        screen.note(line)
    return run, note


def describe_judge(run: Run) -> str:
    """Return a line that says how a run without a world is validated; else empty."""
    best = find_callback(run, BestCheckpoint)
    if run.games.val or run.held_out or not run.stream.has_val:
        return ""
    better = "" if best is None else f"; best and hf/ go by {best.monitor}, {DIRECTIONS[best.mode]} is better"
    judges = run.stream.describe_held_out()
    is_few = run.recorded is not None and len(run.recorded.held_out.get("val", ())) < _FEW
    remedy = (
        "give more data"
        if (run.cfg.data.held_out or 0) >= _LARGE
        else f"raise data.held_out, such as {_LARGE}"
    )
    few = f"; so few hardly tell weights apart: {remedy}" if is_few else ""
    return f"judged by {judges}, as no env is named{better}{few}; env=WORLD plays a world instead"


def find_checkpoint(run: Run) -> str | None:
    """Return the path of ``last.ckpt``; None for a run stopped before its first checkpoint."""
    last = run.folder / "checkpoints" / "last.ckpt"
    return str(last) if has_checkpoint(last) else None


def open_record(run: Run, job: ranks.Job, warnings: Sequence[str]) -> record.RunRecord:
    """Open the record that collects the scores of the run and writes its summary."""
    monitor, totals = find_callback(run, CollapseMonitor), find_callback(run, Totals)
    assert totals is not None, "build_run adds it"
    fingerprint = run.recorded.hash_held_out("val") if run.recorded else ""
    return record.RunRecord(
        run.folder,
        run.held_out or run.games,
        totals,
        command=job.command,
        seed=run.cfg.seed,
        planned=run.trainer.max_epochs or 0,
        at_start=[line for line in warnings if not line.startswith(READ_AS)],
        warnings=[run.rollouts.warnings, *([monitor.warnings] if monitor else [])],
        best=find_callback(run, BestCheckpoint),
        last=find_callback(run, LastCheckpoint),
        is_writing=ranks.is_first(),
        held_out_rows={"groups": len(run.recorded.held_out["val"]), "fingerprint": fingerprint}
        if run.recorded and fingerprint
        else None,
    )


def restore_progress(run: Run, tracker: record.RunRecord, checkpoint: str | None, *, is_resume: bool) -> None:
    """Restore totals and scores from the checkpoint, and cut the logs back to it.

    Raises:
        ValueError: ``trainer.max_epochs`` is less than the iterations done, or the checkpoints are lost, or the
            checkpoint holds no optimizer.
        CheckpointError: the checkpoint cannot be read.
    """
    done = -1
    if checkpoint is not None:
        done = restore_totals(run, Path(checkpoint))
        tracker.restore()
    elif is_resume:
        saves = find_callback(run, LastCheckpoint)
        record.require_not_lost(run.folder, saves.first if saves else 0)
    rewind(run.trainer, done)


def restore_totals(run: Run, checkpoint: Path) -> int:
    """Restore totals and threads from the checkpoint, and return the iterations done.

    Call it before anything is written to the folder.
    """
    totals, planned = find_callback(run, Totals), run.trainer.max_epochs or 0
    assert totals is not None, "build_run adds it"
    saved = load_progress(checkpoint)
    if "state_dict" in saved and "optimizer_states" not in saved:
        raise ValueError(
            f"{checkpoint} holds weights alone, as best.ckpt does, and cannot be continued; put last.ckpt back, or "
            f"start another run from its weights: model=hf model.name={run.folder / 'hf'}"
        )
    state = saved["callbacks"][totals.state_key]
    done: int = state["counts"]["iterations"]
    if planned < done:
        raise ValueError(
            f"trainer.max_epochs={planned} is less than the {done} iterations that this run has done; "
            f"give at least {done}"
        )
    first_template = state.get("template", totals.template)  # absent in earlier versions
    if first_template != totals.template:
        option = "chat_template" if run.cfg.model.get("chat_template") else "name"
        raise ValueError(
            f"model.{option}={run.cfg.model.get(option)}: the text of the chat template has changed since the run "
            f"began (hash {first_template[:12]}, now {totals.template[:12]}), so that it would learn from other "
            "prompts; put the old text back, or start another run"
        )
    totals.load_state_dict(state)
    note = process.restore_threads(state.get("threads", totals.threads))  # absent in earlier versions
    totals.threads = torch.get_num_threads()
    if note and ranks.is_first():
        print(note)
    return done


def print_notes(cfg: DictConfig, correction_note: str, warnings: Sequence[str]) -> None:
    """Print what the run adds to its options, and the warnings."""
    for line in (
        *filter(None, [correction_note, describe_reweighting(cfg)]),
        *(line if line.startswith(READ_AS) else f"warning: {line}" for line in warnings),
    ):
        screen.note(line)


@contextmanager
def record_failure(run: Run, tracker: record.RunRecord) -> Iterator[None]:
    """Write an interrupt or error into the summary, and always close the strategy.

    Raises:
        KeyboardInterrupt: the run was interrupted, even if Lightning turned the interrupt into an exit.
        Exception: the cause of an error, as determined by the strategy.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        tracker.finish("stopped", error="interrupted")
        raise KeyboardInterrupt from error
    except Exception as error:
        cause = get_hooks(run.trainer.strategy).resolve_failure(error)
        if isinstance(error, NotFinite):
            name_good_checkpoint(cause, error, run.folder, is_writing=ranks.is_first())
        tracker.finish("failed", error=(str(cause) or type(cause).__name__).splitlines()[0])
        raise cause from (None if cause is error else error)
    finally:
        get_hooks(run.trainer.strategy).close()


def measure_start(run: Run, tracker: record.RunRecord, checkpoint: str | None) -> None:
    """Evaluate the untrained policy on val (row 0 of the metrics) and test."""
    if checkpoint is not None:
        summary = tracker.finish("stopped", error=KILLED)
        screen.announce(f"continuing after iteration {summary['iterations']}")
        return
    if run.stream.has_val:
        screen.announce(f"measuring the start: val, {describe_episodes(run, 'val')}")
        with screen.show_playing():
            run.trainer.validate(run.module, run.stream, verbose=False, weights_only=True)
    metrics = {name: value for name, value in run.module.row.items() if name.startswith("val/")}
    run.module.row = {}
    for logger in run.loggers:
        logger.log_metrics(metrics, step=0)
        logger.save()
    tracker.add("val", "start", 0, run.rollouts.val.outcomes)
    tracker.add_held_out("start", 0, metrics)
    if run.stream.has_test:
        screen.announce(f"measuring the start: test, {describe_episodes(run, 'test')}")
        with screen.show_playing():
            run.trainer.test(run.module, run.stream, verbose=False, weights_only=True)
        tracker.add("test", "start", 0, run.rollouts.test.outcomes)
    tracker.finish("stopped", error=KILLED)
    planned = run.trainer.max_epochs or 0
    screen.announce(f"training for {planned} iteration{'s' * (planned != 1)}")


def log_hyperparameters(run: Run) -> None:
    """Send the options of the run to its loggers."""
    for logger in run.loggers:
        logger.log_hyperparams(record.flatten_hyperparameters(to_plain_dict(run.cfg)))


def determine_status(run: Run) -> record.Status:
    """Return the status of a run whose training has ended.

    Raises:
        KeyboardInterrupt: training was interrupted; Lightning only sets a flag.
    """
    if run.trainer.interrupted:
        raise KeyboardInterrupt
    monitor = find_callback(run, CollapseMonitor)
    if monitor is not None and monitor.has_stopped:
        return "collapsed"
    return "completed" if run.trainer.current_epoch >= (run.trainer.max_epochs or 0) else "stopped"


def measure_end(run: Run, tracker: record.RunRecord) -> None:
    """Evaluate the last weights, then the best ones, on the same tasks."""
    totals, best = find_callback(run, Totals), find_callback(run, BestCheckpoint)
    assert totals is not None, "build_run adds it"
    totals.ignore_checkpoints()  # loading the best checkpoint below would also load its older totals
    iterations = run.trainer.current_epoch
    measure(run, tracker, "last", iterations)
    if best is not None and best.best_iteration is not None:
        if best.best_iteration == iterations:
            tracker.copy("last", "best")
        else:
            measure(run, tracker, "best", best.best_iteration, str(best.path))
    get_hooks(run.trainer.strategy).finish()


def measure(
    run: Run, tracker: record.RunRecord, stage: record.Stage, iteration: int, checkpoint: str | None = None
) -> None:
    """Evaluate a checkpoint, or the current weights, on val and test; record the scores."""
    arguments: dict[str, Any] = {"verbose": False, "ckpt_path": checkpoint, "weights_only": True}
    # the last iteration of training may have validated these weights already
    is_measured = checkpoint is None and run.rollouts.val.iteration == iteration
    metrics = get_iteration_metrics(run.module)
    if not is_measured and run.stream.has_val:
        metrics = run.module.row = {}
        screen.announce(f"measuring the {stage} weights: val, {describe_episodes(run, 'val')}")
        with screen.show_playing():
            run.trainer.validate(run.module, run.stream, **arguments)
    tracker.add("val", stage, iteration, run.rollouts.val.outcomes)
    tracker.add_held_out(stage, iteration, metrics)
    if run.stream.has_test:
        screen.announce(f"measuring the {stage} weights: test, {describe_episodes(run, 'test')}")
        with screen.show_playing():
            run.trainer.test(run.module, run.stream, **arguments)
        tracker.add("test", stage, iteration, run.rollouts.test.outcomes)


def print_results(run: Run, summary: reports.Summary) -> None:
    """Print the final table and where the results are, in the first process only."""
    if not ranks.is_first():
        return
    for logger in run.loggers:  # after the summary is written, so a plot that fails leaves the run complete
        if isinstance(logger, Concludes):
            logger.conclude(summary)
    print_summary(run.folder, summary)


def describe_episodes(run: Run, split: str) -> str:
    """Return a text with the number of episodes and the games of an evaluation."""
    if run.held_out:
        return run.held_out.describe_pairs(split)
    if not run.games.val:
        return run.stream.describe_held_out()
    specs = run.games.val if split == "val" else run.games.test
    return screen.describe_episodes([run.games.tasks[spec.task].name for spec in specs], specs[0].prompts)


def find_callback(run: Run, kind: type[_T]) -> _T | None:
    """Return the run's callback of this class, or None."""
    return next((c for c in run.trainer.callbacks if isinstance(c, kind)), None)  # type: ignore[attr-defined]
