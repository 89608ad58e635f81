"""Starting runs: all that a command asks for is composed and checked before the first of its jobs begins.

Errors are raised here, for whoever asked: a command tells them, the Python API passes them on.  Heavy imports wait
until a command is known to make sense, so that typing errors are instant.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.entry import composition, ownership, ranks, run_folder, screen
from lit_agentrl.entry.errors import UserError
from lit_agentrl.entry.overlap import refuse_contradictions
from lit_agentrl.entry.overrides import MULTIRUN, as_names, check_overrides, expand, flag_values, program
from lit_agentrl.entry.own_configs import check_folders
from lit_agentrl.entry.resuming import resumed_config
from lit_agentrl.entry.saved import trust_note
from lit_agentrl.entry.signatures import check_targets
from lit_agentrl.entry.trust import TRUST_RUN

if TYPE_CHECKING:
    from lit_agentrl.entry.parts import Parts


_OF_A_RUN = ("hydra", "run_dir", "trainer", "callbacks", "logger")  # sections that no part is made of
_ONLY_PRINT = ("--help", "-h", "--hydra-help", "--shell-completion", "-sc")


class Checked(NamedTuple):
    """A job that makes sense.

    Attributes:
        config: all of it, but for Hydra's own node.
        described: what its parts are made of.
        parts: made of that.
        place: the option that names the folder of the command, and that folder.
    """

    config: DictConfig
    described: dict[str, Any]
    parts: Parts
    place: tuple[str, Path]


class Interrupted(KeyboardInterrupt):
    """A run was told to end; ``folder`` is where it can be continued."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"interrupted; continue with: {program('train')} resume={folder}{trust_note(Path(folder))}"
        )
        self.folder = Path(folder)


def launch(
    flags: Sequence[str], overrides: Sequence[str], *, on_failure: Callable[[Exception, DictConfig], None]
) -> list[Path]:
    """Do what ``train`` with these arguments asks for: a run, the runs of a sweep, or to print.

    Args:
        flags: such as ``-m`` and ``--config-dir``, with their values.
        overrides: options, as Hydra reads them.
        on_failure: told of each run that fails, and its config, before the next one has its turn.

    Returns:
        The folder of each run, those of failed ones included.

    Raises:
        UserError: an unknown group, option or key, naming the nearest valid ones.
        ValueError: a value that makes no sense.
        Interrupted: the run was told to end.
    """
    if any(text.startswith(f"{TRUST_RUN}=") for text in overrides):
        raise UserError(f"{TRUST_RUN} goes with resume=FOLDER: a run that begins names its code itself")
    command, overrides = _command([*flags, *overrides]), as_names(overrides)
    is_multirun = any(flag in MULTIRUN for flag in flags)
    if is_multirun:
        ranks.require_one_process("a sweep (-m) starts the processes of each run itself")
    is_printing = any(flag in _ONLY_PRINT for flag in flags)
    checked = [] if is_printing else check(flags, overrides, is_multirun=is_multirun)
    num_jobs = len(checked)  # each takes its parts away
    found: list[Path] = []

    def job(cfg: DictConfig) -> None:
        of_hydra = HydraConfig.get()
        folders = composition.own_folders(of_hydra.runtime.config_sources)
        found.append(Path(cfg.run_dir))
        if is_multirun:
            number, asked = of_hydra.job.num + 1, shlex.join(of_hydra.overrides.task)
            screen.note(f"run {number} of {num_jobs}: {asked}", style="bold")
        try:
            of_its_own = {of_hydra.output_subdir, f"{of_hydra.job.name}.log"}
            run_folder.require_untouched(Path(cfg.run_dir), of_its_own)
            _fit(cfg, folders, command, is_resume=False, parts=_parts_of(cfg, checked))
        except KeyboardInterrupt as error:
            raise Interrupted(cfg.run_dir) from error
        except Exception as error:  # the other runs of a sweep still have their turn
            on_failure(error, cfg)
            run_folder.discard_unused(Path(cfg.run_dir))

    if place := checked[0].place if checked else None:
        overrides = run_folder.pinned(overrides, *place)
    named = [f"hydra.help.app_name='{program('train')}'"] if is_printing else []
    with run_folder.begun(*place) if place else nullcontext(), _command_line([*flags, *overrides, *named]):
        hydra.main(version_base="1.3", config_path=str(composition.CONFIG_DIR), config_name="train")(job)()
    return found


def _command(arguments: Sequence[str]) -> str:
    return f"{program('train')} {shlex.join(arguments)}"


@contextmanager
def _command_line(arguments: list[str]) -> Iterator[None]:
    """What Hydra reads; and errors come out of it as errors, instead of being printed by it."""
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [sys.argv[0], *arguments], "1"
    try:
        yield
    finally:
        sys.argv = before[0]
        if before[1] is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before[1]


@contextmanager
def apart() -> Iterator[None]:
    """Around everything that a notebook asks for, which may have set Hydra up for purposes of its own."""
    theirs = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = theirs


def check(flags: Sequence[str], overrides: Sequence[str], *, is_multirun: bool) -> list[Checked]:
    """Compose every job of the command and make its parts, before the first begins.

    Raises:
        UserError: an unknown group, option or key, naming the nearest valid ones.
        ValueError: a value that makes no sense.
    """
    overrides = as_names(overrides)
    check_overrides(overrides, is_multirun=is_multirun)
    folders = flag_values(flags, "--config-dir", "-cd")
    search = composition.search_path(folders)
    check_folders(folders)
    listed = expand(overrides) if is_multirun else [list(overrides)]
    jobs = [composition.compose_job("train", job, search) for job in listed]
    if flag_values(flags, "--cfg", "-c", "--info", "-i") or "--info" in flags or "-i" in flags:
        return []
    place = run_folder.chosen(jobs[0], is_multirun=is_multirun)
    run_folder.require_new(*place)
    if is_multirun:
        run_folder.require_apart(jobs)
    screen.loading()
    from lit_agentrl.entry.idle import refuse_idle
    from lit_agentrl.entry.parts import build_parts

    checked: list[Checked] = []
    for job, cfg in zip(listed, jobs, strict=True):
        refuse_contradictions(job, cfg)
        OmegaConf.set_struct(cfg, False)
        del cfg["hydra"]
        cfg.run_dir = "."  # Hydra chooses it when the run begins
        check_targets(cfg)
        parts = build_parts(cfg, composition.task_loader(folders))
        checked.append(Checked(cfg, _described(cfg), parts, place))
    refuse_idle(overrides, [(job.config, job.parts) for job in checked])
    return checked


def _described(cfg: DictConfig) -> dict[str, Any]:
    """What parts are made of: a config without what only a run knows, or only its trainer reads."""
    told = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(told, dict)
    return {str(name): section for name, section in told.items() if name not in _OF_A_RUN}


def _parts_of(cfg: DictConfig, checked: list[Checked]) -> Parts | None:
    """Those that were made when this job was checked, given out once; None where one depends on the run folder."""
    OmegaConf.resolve(cfg)
    place = next((i for i, job in enumerate(checked) if job.described == _described(cfg)), None)
    return None if place is None else checked.pop(place).parts


def _fit(
    cfg: DictConfig, folders: Sequence[str], command: str, *, is_resume: bool, parts: Parts | None = None
) -> None:
    OmegaConf.resolve(cfg)
    ranks.fit_to_launcher(cfg)
    job = ranks.describe(folders, cfg, command, is_resume=is_resume)
    ranks.share(job, cfg.trainer.num_nodes)
    take_part(cfg, job, parts)


def take_part(cfg: DictConfig, job: ranks.Job, parts: Parts | None = None) -> None:
    """As one of the run's processes, or by starting those of this machine."""
    if ranks.are_started(cfg):
        screen.loading()
        from lit_agentrl.entry.training import train

        with ownership.owned(cfg.run_dir) if ranks.is_first() else nullcontext():
            if ranks.is_first() and not job.is_resume:
                run_folder.require_not_begun(Path(cfg.run_dir))
            train(
                cfg, composition.task_loader(job.folders), command=job.command, is_resume=job.is_resume,
                parts=parts,
            )  # fmt: skip
        return
    from lit_agentrl.entry.record import ending_told

    screen.doing("starting the processes of the run")
    ownership.give_up(cfg.run_dir)  # to the first of those that are started
    with ending_told(Path(cfg.run_dir), is_writing=ranks.is_first()):
        ranks.start(cfg)


def resume(resumed: Sequence[str], flags: Sequence[str], overrides: Sequence[str]) -> Path:
    """Continue a run in place with its own saved config; returns its folder.

    Args:
        resumed: ``resume=FOLDER``, once.
        flags: none is taken.
        overrides: what may change.

    Raises:
        UserError: not a run folder, or an override that would make it another run.
        Interrupted: the run was told to end.
    """
    if flags or len(resumed) > 1:
        given = " ".join([*flags, *resumed[1:]])
        raise UserError(
            f"{given} cannot be given with {resumed[0]}: one run is continued with its own saved config"
        )
    folder = Path(resumed[0].removeprefix("resume="))
    cfg, folders = resumed_config(folder, overrides)
    arguments = [*resumed, *overrides]
    with ownership.owned(folder), _command_line(arguments):
        try:
            _fit(cfg, folders, _command(arguments), is_resume=True)
        except KeyboardInterrupt as error:
            raise Interrupted(cfg.run_dir) from error
    return Path(cfg.run_dir)
