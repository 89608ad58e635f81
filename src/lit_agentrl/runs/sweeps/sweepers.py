"""Plan the runs of a sweep before the first one, and check sweeper and launcher."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep
from hydra.utils import instantiate
from omegaconf import DictConfig

from lit_agentrl.checks import add_key, format_value, require_whole
from lit_agentrl.config.composition import compose_job, initialize_hydra
from lit_agentrl.config.errors import UserError, explain, refuse_first
from lit_agentrl.config.overrides import check_overrides, parse
from lit_agentrl.runs.sweeps.launchers import check_launcher, count_parallel_runs, list_local_overrides
from lit_agentrl.runs.sweeps.naming import name_folders

_PLUGINS = {  # option of Hydra that needs a plugin -> the module of the plugin
    ("hydra/sweeper", "optuna"): "hydra_optuna_sweeper",
    ("hydra/launcher", "joblib"): "hydra_joblib_launcher",
    ("hydra/launcher", "submitit_local"): "hydra_submitit_launcher",
    ("hydra/launcher", "submitit_slurm"): "hydra_submitit_launcher",
}
_BEST = "lit_agentrl.callbacks.checkpoints.BestCheckpoint"
_MOST_RUNS = 10_000
_DIRECTIONS = {"max": "maximize", "min": "minimize"}


class Plan(NamedTuple):
    """The plan of a sweep before its first run.

    Attributes:
        overrides: the overrides as typed, and those that the plan adds.
        jobs: the overrides of each run, in order.  A sweeper that searches chooses its runs later; the jobs are then
            those at the bounds of the search space.
        is_complete: whether ``jobs`` are all runs of the sweep.
        uses_processes: whether other processes train the runs.
        num_parallel: the number of runs at once on this machine.
        swept: the options that differ between runs.
    """

    overrides: list[str]
    jobs: list[list[str]]
    is_complete: bool
    uses_processes: bool
    num_parallel: int
    swept: frozenset[str]


def plan_sweep(overrides: Sequence[str], search_overrides: Sequence[str] = ()) -> Plan:
    """Plan the sweep that the chosen sweeper and launcher will run.

    Args:
        overrides: the overrides as typed.
        search_overrides: overrides of Hydra's search path, as in `compose_job`.

    Raises:
        UserError: a plugin is not installed, an option of sweeper or launcher is invalid, or the sweep is impossible.
        ValueError: a value is invalid.
    """
    check_overrides(overrides, is_multirun=True)
    with initialize_hydra():
        loader = GlobalHydra.instance().config_loader()
    parsed = parse(overrides, loader)
    refuse_first(_find_problems(parsed))
    first = compose_job("train", _list_bounds(parsed)[0], search_overrides)
    sweeper, launcher = first.hydra.sweeper, str(first.hydra.launcher._target_)
    typed_keys = {override.key_or_group for override in parsed}
    configured = [
        f"{key}={value}" for key, value in (sweeper.get("params") or {}).items() if key not in typed_keys
    ]
    all_overrides = parse([*configured, *overrides], loader)
    is_complete = str(sweeper._target_).endswith(".BasicSweeper")
    if sweeper.get("max_batch_size") is not None:
        require_whole("hydra.sweeper.max_batch_size", sweeper.max_batch_size, 1)
    jobs = _list_jobs(all_overrides) if is_complete else _list_bounds(all_overrides)
    check_launcher(first.hydra.launcher)
    num_parallel = count_parallel_runs(first.hydra.launcher)
    # with one run at a time, joblib trains in this process
    is_in_process = launcher.endswith(".JoblibLauncher") and num_parallel == 1
    uses_processes = not launcher.endswith(".BasicLauncher") and not is_in_process
    added = name_folders(all_overrides, first.hydra.runtime.choices)
    if launcher.endswith(".LocalLauncher"):
        added += list_local_overrides(first.hydra.launcher, typed_keys)
        if is_complete and sweeper.max_batch_size is None:
            added += [f"hydra.sweeper.max_batch_size={num_parallel}"] if len(jobs) > num_parallel else []
        elif is_complete:
            num_parallel = sweeper.max_batch_size
    if str(sweeper._target_).endswith(".OptunaSweeper"):
        added += _plan_optuna(first, all_overrides, typed_keys)
        num_parallel = min(num_parallel, sweeper.n_jobs)
    elif is_complete:
        num_parallel = min(num_parallel, len(jobs), sweeper.max_batch_size or num_parallel)
    swept = frozenset(
        override.get_key_element() for override in all_overrides if override.is_sweep_override()
    )
    jobs = [[*job, *added] for job in jobs]
    return Plan([*overrides, *added], jobs, is_complete, uses_processes, num_parallel, swept)


def _find_problems(parsed: Sequence[Override]) -> Iterator[str]:
    """Yield a line about each override that would make composing a run fail."""
    for override in parsed:
        if override.key_or_group.startswith("hydra.sweeper.search_space"):
            yield (
                f"{override.input_line} is how earlier versions wrote a search; give an option a range, such as "
                "optim.lr=interval(1e-5,1e-3)"
            )
        if isinstance(override.value(), Glob) and not list(override.sweep_string_iterator()):
            yield (
                f"{override.input_line} names no option of {override.key_or_group}: glob lists the files of a group; "
                f"write the values, such as {override.key_or_group}=1,2"
            )
    for override in parsed:
        plugin = _PLUGINS.get((override.key_or_group, str(override.value())))
        if plugin is not None and None in (find_spec(f"hydra_plugins.{plugin}"), find_spec("psutil")):
            yield (
                f"{override.input_line} needs a plugin of Hydra that is not installed; pip install 'lit-agentrl[sweep]'"
            )


def require_one_value(jobs: Sequence[DictConfig]) -> None:
    """Refuse a search whose runs have no value, or values of different metrics.

    Raises:
        UserError: the message names the option.
    """
    monitored = {_find_monitored(cfg) for cfg in jobs}
    if None in monitored:
        raise UserError(
            "a sweeper that searches needs the value of each run, which callbacks.best measures; keep callbacks.best"
        )
    if len(monitored) > 1:
        raise UserError(
            "callbacks.best.monitor and callbacks.best.mode must be the same in all runs of a search: values of "
            "different metrics cannot be compared"
        )


def _find_monitored(cfg: DictConfig) -> tuple[str, str] | None:
    """Return metric and mode of the best checkpoint, which give the value of a run."""
    for name, entry in (cfg.callbacks or {}).items():
        if isinstance(entry, DictConfig) and entry.get("_target_") == _BEST:
            from lit_agentrl.build.monitors import choose_monitors, find_judging_metric
            from lit_agentrl.build.structure import build_algorithm

            job = cfg.copy()
            choose_monitors(job.callbacks, judged_by=find_judging_metric(job, build_algorithm(job)[0]))
            entry = job.callbacks[name]
            return str(entry.get("monitor", "val/success")), str(entry.get("mode", "max"))
    return None


def _list_jobs(overrides: Sequence[Override]) -> list[list[str]]:
    for override in overrides:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(
                f"{override.input_line}: the default sweeper cannot list infinitely many values; write some, such as "
                f"{override.key_or_group}=choice(…), or search with hydra/sweeper=optuna"
            )
    count = math.prod(_count_values(override) for override in overrides)
    if count > _MOST_RUNS:
        raise UserError(
            f"this sweep would have {count} runs; write at most {_MOST_RUNS}, or search with Optuna"
        )
    (jobs,) = BasicSweeper.split_arguments(list(overrides), max_batch_size=None)
    return [list(job) for job in jobs]


def _count_values(override: Override) -> int:
    """Return the number of values of an override, without listing them."""
    value = override.value()
    if isinstance(value, RangeSweep):
        if value.step == 0:
            raise UserError(f"{override.input_line} never ends; write a step other than 0")
        return max(0, math.ceil((float(value.stop or 0) - float(value.start or 0)) / value.step))
    return len(value.list) if isinstance(value, ChoiceSweep) else 1


def _list_bounds(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of runs at the bounds of the search space.

    The first run has the first value of each option.  Each further run has another value of one option.
    """
    values = [list(_list_bounds_of(override)) for override in overrides]
    first = [option_values[0] for option_values in values]
    return [first] + [
        [*first[:index], value, *first[index + 1 :]]
        for index, option_values in enumerate(values)
        for value in option_values[1:]
    ]


def _list_bounds_of(override: Override) -> Iterator[str]:
    """Yield the override with each of its choices, or with both ends of its range."""
    key, value = override.get_key_element(), override.value()
    if isinstance(value, IntervalSweep | RangeSweep) and not _is_ascending(value):
        raise UserError(f"{override.input_line} is empty; write the lower end first")
    if isinstance(value, IntervalSweep):
        yield from (f"{key}={value.start}", f"{key}={value.end}")
    elif isinstance(value, RangeSweep) and not value.shuffle:
        yield from (f"{key}={value.start}", f"{key}={value.stop}")
    elif override.is_sweep_override():
        yield from (f"{key}={text}" for text in override.sweep_string_iterator())
    else:
        yield override.input_line or ""


def _is_ascending(value: IntervalSweep | RangeSweep) -> bool:
    end = value.end if isinstance(value, IntervalSweep) else value.stop
    return value.start is not None and end is not None and value.start < end


def _plan_optuna(first: DictConfig, overrides: Sequence[Override], typed_keys: set[str]) -> list[str]:
    """Check the options of Optuna's sweeper, and return overrides that the sweep must add.

    The overrides set the direction of the search and the seed of the sampler, and let the sweep continue after failed
    runs.
    """
    node = first.hydra.sweeper
    require_whole("hydra.sweeper.n_trials", node.n_trials, 1)
    require_whole("hydra.sweeper.n_jobs", node.n_jobs, 1)
    searched = [override for override in overrides if override.is_sweep_override()]
    refuse_first(_find_optuna_problems(node, searched, typed_keys))
    _, mode = _find_monitored(first) or ("", "max")
    direction = _DIRECTIONS.get(mode, "")
    direction_given = (
        node.direction if isinstance(node.direction, str) else getattr(node.direction, "name", None)
    )
    if "hydra.sweeper.direction" in typed_keys and direction_given != direction:
        raise UserError(
            f"hydra.sweeper.direction={format_value(node.direction)}: the value of a run is that of callbacks.best, "
            f"whose mode={mode} is to {direction}; leave it out, or set callbacks.best.mode"
        )
    added = ["hydra.sweeper.max_failure_rate=1.0"]
    added += [] if "hydra.sweeper.direction" in typed_keys else [f"hydra.sweeper.direction={direction}"]
    if "seed" in node.sampler and node.sampler.seed is None:
        added.append(f"hydra.sweeper.sampler.seed={first.seed}")
    try:
        instantiate(node.sampler)
    except Exception as error:
        raise UserError(add_key("hydra.sweeper.sampler", explain(error))) from error
    return added


def _find_optuna_problems(
    node: DictConfig, searched: Sequence[Override], typed_keys: set[str]
) -> Iterator[str]:
    """Yield a line about each invalid option of the sweeper or of the search."""
    if "hydra.sweeper.max_failure_rate" in typed_keys or node.max_failure_rate:
        yield (
            f"hydra.sweeper.max_failure_rate={node.max_failure_rate} has no effect: a failed run is reported to "
            "Optuna, and the sweep continues; leave it out"
        )
    yield from _find_storage_problem(node.storage)
    if not searched and not node.custom_search_space:
        yield (
            "hydra/sweeper=optuna has nothing to search; give an option a range, such as optim.lr=interval(1e-5,1e-3)"
        )
    for override in searched:
        if not isinstance(override.value(), ChoiceSweep | RangeSweep | IntervalSweep):
            yield f"{override.input_line}: Optuna searches a choice(…), a range(…) or an interval(…)"
        if str(node.sampler._target_).endswith(".GridSampler") and isinstance(
            override.value(), IntervalSweep
        ):
            yield (
                f"{override.input_line}: hydra/sweeper/sampler=grid tries every value, and an interval has infinitely "
                f"many; write {override.key_or_group}=choice(…), or choose sampler=tpe"
            )


def _find_storage_problem(storage: Any) -> Iterator[str]:
    """Yield a line about a database that Optuna 2.10 cannot use, with SQLAlchemy 2."""
    if storage is None or str(storage).startswith("redis"):
        return
    installed = version("sqlalchemy")
    if int(installed.partition(".")[0]) >= 2:
        yield (
            f"hydra.sweeper.storage={storage}: a database needs SQLAlchemy 1.4, and {installed} is installed; pip "
            "install 'sqlalchemy<2', or leave it out"
        )
