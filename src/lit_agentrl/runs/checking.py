"""Compose and check all runs of a command before the first one starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lit_agentrl.build.overlap import refuse_contradictions
from lit_agentrl.checks import require
from lit_agentrl.config import composition, signatures
from lit_agentrl.config.composition import check_folders
from lit_agentrl.config.errors import UserError, refuse_unknown
from lit_agentrl.config.overrides import check_overrides, get_flag_values, rewrite_for_hydra
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.runs import run_folder
from lit_agentrl.runs.sweeps import sweepers

if TYPE_CHECKING:
    from lit_agentrl.build.parts import Parts

_RUN_SECTIONS = ("hydra", "run_dir", "trainer", "callbacks", "logger")  # sections from which no part is built


class CheckedJob(NamedTuple):
    """A valid job and its built parts.

    Attributes:
        config: the config without the ``hydra`` node.
        sections: the sections of it from which the parts are built.
        parts: the parts built from them.
        new_folder: the option that names the command's folder, and that folder.
    """

    config: DictConfig
    sections: dict[str, Any]
    parts: Parts
    new_folder: tuple[str, Path]


def read_config_folders(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the folders of ``--config-dir``, and the override that makes ``compose`` search them.

    Raises:
        UserError: a path is not a folder, or has a file with the name of a shipped one.
    """
    folders = get_flag_values(flags, "--config-dir", "-cd")
    search_overrides = composition.format_search_path(folders)
    check_folders(folders)
    return folders, search_overrides


def is_printing(flags: Sequence[str]) -> bool:
    """Return whether the command prints its config or info instead of starting runs."""
    return bool(get_flag_values(flags, "--cfg", "-c", "--info", "-i")) or "--info" in flags or "-i" in flags


def check_jobs(
    flags: Sequence[str],
    overrides: Sequence[str],
    *,
    plan: sweepers.Plan | None = None,
    is_new: bool = True,
) -> list[CheckedJob]:
    """Compose all jobs of a command and build their parts, before the first one starts.

    Args:
        flags: flags such as ``--config-dir``, with their values.
        overrides: the overrides as typed.
        plan: the plan of a sweep; None for a single run.
        is_new: whether the command's folder must be new; False for a sweep that is resumed in its folder.

    Returns:
        The checked jobs; empty if the command only prints.

    Raises:
        UserError: an unknown group, option or key; the message names the nearest valid ones.
        ValueError: an invalid value.
    """
    overrides = rewrite_for_hydra(overrides)
    check_overrides(overrides, is_multirun=plan is not None)
    folders, search_overrides = read_config_folders(flags)
    job_overrides = plan.jobs if plan else [list(overrides)]
    jobs = [composition.compose_job("train", job, search_overrides) for job in job_overrides]
    _check_print_flags(flags, jobs[0])
    if is_printing(flags):
        return []
    folder = run_folder.read_folder(jobs[0], is_multirun=plan is not None)
    if is_new:
        run_folder.require_new(*folder)
    if plan:
        run_folder.require_separate_folders(jobs, is_new=is_new)
        if plan.is_complete:
            _refuse_equal_runs(job_overrides)
        else:
            sweepers.require_one_value(jobs)
    for job, cfg in zip(job_overrides, jobs, strict=True):
        OmegaConf.set_struct(cfg, False)
        del cfg["hydra"]
        cfg.run_dir = "."  # Hydra sets it when the run starts
        check_options(job, cfg)
    signatures.load_libraries()
    from lit_agentrl.build.parts import build_parts
    from lit_agentrl.build.unused_options import refuse_unused_options

    checked: list[CheckedJob] = []
    for cfg in jobs:
        check_targets(cfg)
        sections = _select_part_sections(cfg)
        checked.append(
            CheckedJob(cfg, sections, build_parts(cfg, composition.make_task_loader(folders)), folder)
        )
    refuse_unused_options(overrides, [(job.config, job.parts) for job in checked])
    return checked


def _check_print_flags(flags: Sequence[str], cfg: DictConfig) -> None:
    """Refuse flags that need ``--cfg`` without it, and parts that the config lacks.

    Raises:
        UserError: the message names the flag and valid values.
    """
    kinds = get_flag_values(flags, "--cfg", "-c")
    for flag in ("--package", "-p", "--resolve"):
        if not kinds and any(each.partition("=")[0] == flag for each in flags):
            raise UserError(f"{flag} says how a config is printed; add --cfg job, or leave it out")
    for part in get_flag_values(flags, "--package", "-p"):
        shown = [str(key) for key in cfg if kinds[0] == "all" or (key == "hydra") == (kinds[0] == "hydra")]
        place, _, name = part.rpartition(".")
        holder = OmegaConf.select(cfg, place) if place else cfg
        is_there = isinstance(holder, DictConfig) and name in holder and part.split(".")[0] in shown
        if part != "_global_" and not is_there:
            names = (
                [f"{place}.{key!s}" for key in holder] if place and isinstance(holder, DictConfig) else shown
            )
            refuse_unknown(f"--package {part} is no part of this config", part, names)


def _refuse_equal_runs(jobs: Sequence[Sequence[str]]) -> None:
    """Refuse a sweep with two equal runs, whose results would count twice in a report.

    Raises:
        UserError: two runs are equal; the message names their options.
    """
    seen: set[tuple[str, ...]] = set()
    for job in map(tuple, jobs):
        if job in seen:
            options = " ".join(text for text in job if not text.startswith("hydra."))
            raise UserError(f"-m: several runs have the options {options}; give each value once")
        seen.add(job)


def check_config(job: Sequence[str], cfg: DictConfig) -> None:
    """Check what can be checked before anything is built; arguments as of `check_options`.

    Raises:
        UserError: an invalid option, which the message names.
    """
    check_options(job, cfg)
    check_targets(cfg)


def check_options(job: Sequence[str], cfg: DictConfig) -> None:
    """Check what the config alone shows, without loading Lightning.

    Args:
        job: the overrides of the run.
        cfg: its config, without the ``hydra`` node.

    Raises:
        UserError: an invalid option, which the message names.
    """
    require(isinstance(cfg.traceback, bool), "traceback", cfg.traceback, "true or false")
    refuse_contradictions(job, cfg)
    if "lightning" not in sys.modules:  # otherwise the parts themselves report errors as early
        # this imports torch and gymnasium, which --help does not need
        with signatures.pause_collector():
            from lit_agentrl.runs.early import check_early

            check_early(cfg)


def _select_part_sections(cfg: DictConfig) -> dict[str, Any]:
    """Return the sections of a config from which parts are built.

    Values that only a started run knows, and sections that only its trainer reads, are left out.
    """
    plain = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(plain, dict)
    return {str(name): section for name, section in plain.items() if name not in _RUN_SECTIONS}


def take_parts(cfg: DictConfig, checked: list[CheckedJob]) -> Parts | None:
    """Return the parts that were built when this job was checked, or None.

    Each checked job gives its parts to one run only.  None is returned if the config differs from all checked ones,
    for example because an option depends on the run folder.
    """
    OmegaConf.resolve(cfg)
    index = next((i for i, job in enumerate(checked) if job.sections == _select_part_sections(cfg)), None)
    return None if index is None else checked.pop(index).parts
