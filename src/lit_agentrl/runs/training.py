"""The training run: start measured, fit, last and best measured, summary written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from omegaconf import DictConfig
from rich.console import Console

from lit_agentrl import screen
from lit_agentrl.build.assembly import Run, build, plain
from lit_agentrl.build.critics import told_of_play
from lit_agentrl.build.games import TaskLoader
from lit_agentrl.build.idle import bounds_that_never_act, processes_without_prompts
from lit_agentrl.build.overlap import add_correction, add_worker
from lit_agentrl.build.parts import Parts
from lit_agentrl.build.structure import never_repeated
from lit_agentrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lit_agentrl.callbacks.iteration_log import Concludes, rewind
from lit_agentrl.checks import NotFinite
from lit_agentrl.config.overrides import program
from lit_agentrl.config.saved import trust_note
from lit_agentrl.monitor.callback import CollapseMonitor
from lit_agentrl.report import summary as reports
from lit_agentrl.runs import ranks, record, run_folder, threads
from lit_agentrl.runs.recovery import name_good_checkpoint
from lit_agentrl.runs.totals import Totals
from lit_agentrl.strategies.checkpoint_io import checkpoint_exists, progress_of
from lit_agentrl.strategies.hooks import get_hooks

_T = TypeVar("_T")
KILLED = "killed before the end"  # what the summary says from the start on, in case it comes so


# long: a straight list of what a run does, in order
def train(
    cfg: DictConfig,
    load_task: TaskLoader,
    *,
    command: str,
    is_resume: bool = False,
    parts: Parts | None = None,
) -> reports.Summary:
    """Run or continue a training run in ``cfg.run_dir``, which this process, or the first of several, owns.

    Args:
        cfg: the composed config.
        load_task: finds the config of a game by name.
        command: how the run was started, for the record.
        is_resume: continue from ``checkpoints/last.ckpt``; a run that was stopped before its first one starts over.
        parts: of this config, where they are made already.

    Raises:
        ValueError: an option that makes no sense, or a run whose checkpoints are gone, before anything is played.
        NotFinite: weights, logits or gradients are NaN or infinite; names the last good checkpoint.
        CheckpointError: no intact checkpoint, or one that cannot be written.
    """
    folder = Path(cfg.run_dir)
    is_first = ranks.is_first()
    run_folder.require_within(cfg)
    is_alone = ranks.processes_launched() in (None, (1, 1))
    fewer_threads = threads.LOAD.fit_threads() if is_alone else None
    totals = Totals()
    add_worker(cfg)  # what is recorded of the run names it, also where its parts are made already
    note = add_correction(cfg)
    screen.announce("making the policy and trying the games")
    run = build(cfg, load_task, parts=parts, extra_callbacks=[totals])
    monitor = _first(run, CollapseMonitor)
    is_older = cfg.rollout.overlap or run.structure.is_off_policy
    bounds = bounds_that_never_act(run.module, is_ahead=is_older)
    left_out = run.recorded.notes if run.recorded else ()
    repeated = never_repeated(run.structure, run.games, cfg.rollout.get("instances"))
    processes = run.trainer.world_size if run.stream.plays else 1
    idle = processes_without_prompts(cfg.rollout.prompts, processes)
    last = folder / "checkpoints" / "last.ckpt"
    can_continue = is_resume and checkpoint_exists(last)  # then with the threads of before
    lines = (bounds, repeated, idle, *left_out, None if can_continue else fewer_threads)
    at_start = [line for line in lines if line]
    if run.recorded:
        screen.note(run.recorded.description)
    if run.held_out:
        screen.note(run.held_out.note)
    planned = run.trainer.max_epochs or 0
    tracker = record.RunRecord(
        folder,
        run.held_out or run.games,
        totals,
        command=command,
        seed=cfg.seed,
        planned=planned,
        at_start=at_start,
        warnings=[monitor.warnings] if monitor else [],
        best=_first(run, BestCheckpoint),
        is_writing=is_first,
    )
    done = -1
    if can_continue:
        done = _iterations_done(last, totals, planned)
        tracker.restore()
    elif is_resume:
        saves = _first(run, LastCheckpoint)
        record.require_not_lost(folder, saves.every if saves else 0)
    rewind(run.trainer, done)
    for line in (*filter(None, [note, told_of_play(cfg)]), *(f"warning: {each}" for each in at_start)):
        screen.note(line)
    try:
        if can_continue:
            tracker.finish("stopped", error=KILLED)
            screen.announce(f"going on after iteration {done}")
        else:
            _measure_start(run, tracker)
        for logger in run.loggers:
            logger.log_hyperparams(record.hyperparameters(plain(cfg)))
        checkpoint = str(last) if can_continue else None
        if not can_continue:
            screen.announce(f"training for {planned} iteration{'s' * (planned != 1)}")
        run.trainer.fit(run.module, run.stream, ckpt_path=checkpoint, weights_only=True)
        if run.trainer.interrupted:
            raise KeyboardInterrupt
        is_complete = run.trainer.current_epoch >= planned
        totals.close()  # loading the best checkpoint below would also load its older totals
        _measure_end(run, tracker)
        get_hooks(run.trainer.strategy).finish()
        is_lost = monitor is not None and monitor.has_stopped
        result = tracker.finish("collapsed" if is_lost else "completed" if is_complete else "stopped")
    except (KeyboardInterrupt, SystemExit) as error:  # Lightning makes the second of the first
        tracker.finish("stopped", error="interrupted")
        raise KeyboardInterrupt from error
    except Exception as error:
        cause = get_hooks(run.trainer.strategy).failed(error)
        if isinstance(error, NotFinite):
            name_good_checkpoint(cause, error, folder, is_writing=is_first)
        tracker.finish("failed", error=(str(cause) or type(cause).__name__).splitlines()[0])
        raise cause from (None if cause is error else error)
    finally:
        get_hooks(run.trainer.strategy).close()
    if not is_first:
        return result
    for logger in run.loggers:  # the run is complete, whatever becomes of a picture of it
        if isinstance(logger, Concludes):
            logger.conclude(result)
    console = Console()
    console.print(reports.closing_table(result))
    if result["engine"]:
        console.print(f"engine, of the whole run: {reports.told(result['engine'])}", soft_wrap=True)
    console.print(f"results in {folder}", soft_wrap=True)
    console.print(f"look at them with: tensorboard --logdir {folder}", soft_wrap=True)
    if trust := trust_note(folder):
        evaluate = program("train").replace("train", "evaluate")
        told = f"its config names code of your own, or another machine: {evaluate} run={folder}{trust}"
        console.print(told, soft_wrap=True)
    return result


def _iterations_done(last: Path, totals: Totals, planned: int) -> int:
    """Look into the checkpoint, and take its totals over, before anything of the earlier launch is touched."""
    state = progress_of(last)["callbacks"][totals.state_key]
    done: int = state["counts"]["iterations"]
    if planned < done:
        raise ValueError(
            f"trainer.max_epochs={planned} is less than the {done} iterations that this run has behind it; "
            f"give at least {done}"
        )
    totals.load_state_dict(state)
    note = threads.restore(state.get("threads", totals.threads))  # earlier versions do not say
    totals.threads = torch.get_num_threads()
    if note and ranks.is_first():
        print(note)
    return done


def _measure_start(run: Run, tracker: record.RunRecord) -> None:
    """Row 0: the untrained policy on val; the same on test for the closing table."""
    screen.announce(f"measuring the start: val, {_played(run, 'val')}")
    run.trainer.validate(run.module, run.stream, verbose=False, weights_only=True)
    row = {name: value for name, value in run.module.row.items() if name.startswith("val/")}
    run.module.row = {}
    for logger in run.loggers:
        logger.log_metrics(row, step=0)
        logger.save()
    tracker.add("val", "start", 0, run.rollouts.val.outcomes)
    if run.stream.has_test:
        screen.announce(f"measuring the start: test, {_played(run, 'test')}")
        run.trainer.test(run.module, run.stream, verbose=False, weights_only=True)
        tracker.add("test", "start", 0, run.rollouts.test.outcomes)
    tracker.finish("stopped", error=KILLED)


def _measure_end(run: Run, tracker: record.RunRecord) -> None:
    """The last weights, then the best ones, on equal instances."""
    iterations = run.trainer.current_epoch
    _measure(run, tracker, "last", iterations)
    best = _first(run, BestCheckpoint)
    if best is None or best.best_iteration is None:
        return
    if best.best_iteration == iterations:
        tracker.copy("last", "best")
        return
    _measure(run, tracker, "best", best.best_iteration, str(best.path))


def _measure(
    run: Run, tracker: record.RunRecord, stage: record.Stage, iteration: int, checkpoint: str | None = None
) -> None:
    arguments: dict[str, Any] = {"verbose": False, "ckpt_path": checkpoint, "weights_only": True}
    is_measured = checkpoint is None and run.rollouts.val.iteration == iteration  # by the training just now
    if not is_measured:
        screen.announce(f"measuring the {stage} weights: val, {_played(run, 'val')}")
        run.trainer.validate(run.module, run.stream, **arguments)
    tracker.add("val", stage, iteration, run.rollouts.val.outcomes)
    if run.stream.has_test:
        screen.announce(f"measuring the {stage} weights: test, {_played(run, 'test')}")
        run.trainer.test(run.module, run.stream, **arguments)
        tracker.add("test", stage, iteration, run.rollouts.test.outcomes)


def _played(run: Run, split: str) -> str:
    if run.held_out:
        return run.held_out.told(split)
    specs = run.games.val if split == "val" else run.games.test
    return screen.describe_episodes([run.games.tasks[spec.task].name for spec in specs], specs[0].prompts)


def _first(run: Run, kind: type[_T]) -> _T | None:
    """The run's callback of this kind."""
    return next((c for c in run.trainer.callbacks if isinstance(c, kind)), None)  # type: ignore[attr-defined]
