"""Starting a run, or continuing one.

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
from typing import TYPE_CHECKING

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lit_agentrl import screen
from lit_agentrl.config import composition, groups, libraries
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import as_names, program
from lit_agentrl.config.resuming import resumed_config
from lit_agentrl.config.saved import trust_note
from lit_agentrl.config.search_path import register
from lit_agentrl.config.trust import TRUST_RUN
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.runs import ownership, ranks, run_folder
from lit_agentrl.runs.checking import Checked, check, check_config, own_folders, parts_of

if TYPE_CHECKING:
    from lit_agentrl.build.parts import Parts


_ONLY_PRINT = ("--help", "-h", "--hydra-help", "--shell-completion", "-sc")


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
    """Do what ``train`` with these arguments, without ``-m``, asks for: a run, or to print.

    Args:
        flags: such as ``--config-dir``, with their values.
        overrides: options, as Hydra reads them.
        on_failure: told if the run fails, with its config.

    Returns:
        The folder of the run.

    Raises:
        UserError: an unknown group, option or key, naming the nearest valid ones.
        ValueError: a value that makes no sense.
        Interrupted: the run was told to end.
    """
    require_untrusting(overrides)
    command, overrides = command_of([*flags, *overrides]), as_names(overrides)
    checked = [] if only_prints(flags) else check(flags, overrides)
    found: list[Path] = []

    def job(cfg: DictConfig) -> None:
        found.append(Path(cfg.run_dir))
        try:
            run_folder.require_untouched(Path(cfg.run_dir), names_of_hydra())
            begin(cfg, command, checked)
        except KeyboardInterrupt as error:
            raise Interrupted(cfg.run_dir) from error
        except Exception as error:
            on_failure(error, cfg)
            run_folder.discard_unused(Path(cfg.run_dir))

    if place := checked[0].place if checked else None:
        overrides = run_folder.pinned(overrides, *place)
    with run_folder.begun(*place) if place else nullcontext():
        call_hydra(flags, overrides, job)
    return found


def require_untrusting(overrides: Sequence[str]) -> None:
    """Refuse trust in code that a run folder names, where none is read.

    Raises:
        UserError: naming the option.
    """
    if any(text.startswith(f"{TRUST_RUN}=") for text in overrides):
        raise UserError(f"{TRUST_RUN} goes with resume=FOLDER: a run that begins names its code itself")


def only_prints(flags: Sequence[str]) -> bool:
    """Whether Hydra shows something that needs no config."""
    return any(flag in _ONLY_PRINT for flag in flags)


def call_hydra(
    flags: Sequence[str], overrides: Sequence[str], task: Callable[[DictConfig], float | None]
) -> None:
    """Have Hydra print, or call ``task`` with the config of each run, as the arguments say."""
    named = _name_help(flags) if only_prints(flags) else []
    with _command_line([*flags, *overrides, *named]):
        register()
        hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="train")(task)()


def _name_help(flags: Sequence[str]) -> list[str]:
    """Return the overrides that fill in what ``--help`` prints."""
    name = f"hydra.help.app_name='{program('train')}'"
    if not {"--help", "-h"} & set(flags):
        return [name]
    shipped, experimental = groups.describe_options(own_folders(flags)[0])
    return [name, f"hydra.help.header='{shipped}'", f"hydra.help.footer='{experimental}'"]


def names_of_hydra() -> set[str | None]:
    """What Hydra writes to the folder of the run that it calls: its folder for the config, and its log."""
    of_hydra = HydraConfig.get()
    return {of_hydra.output_subdir, f"{of_hydra.job.name}.log"}


def begin(cfg: DictConfig, command: str, checked: list[Checked]) -> None:
    """Train the run that Hydra calls, in its folder.

    Args:
        cfg: its config.
        command: how it was started, for the record.
        checked: jobs that were checked before; one that is not among them is checked now.

    Raises:
        ValueError: an option that makes no sense, before anything is played.
    """
    of_hydra = HydraConfig.get()
    folders = composition.own_folders(of_hydra.runtime.config_sources)
    composition.use_current_names(cfg)
    parts = parts_of(cfg, checked)
    if parts is None:
        check_config(list(of_hydra.overrides.task), cfg)
    _fit(cfg, folders, command, is_resume=False, parts=parts)


def command_of(arguments: Sequence[str]) -> str:
    """The command with these arguments, as it is recorded."""
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
        libraries.load()
        from lit_agentrl.runs.training import train

        with ownership.owned(cfg.run_dir) if ranks.is_first() else nullcontext():
            if ranks.is_first() and not job.is_resume:
                run_folder.require_not_begun(Path(cfg.run_dir))
            train(
                cfg, composition.task_loader(job.folders), command=job.command, is_resume=job.is_resume,
                parts=parts,
            )  # fmt: skip
        return
    from lit_agentrl.runs.record import ending_told

    screen.announce("starting the processes of the run")
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
    run_folder.require_writable(folder)
    with ownership.owned(folder), _command_line(arguments):
        try:
            _fit(cfg, folders, command_of(arguments), is_resume=True)
        except KeyboardInterrupt as error:
            raise Interrupted(cfg.run_dir) from error
    return Path(cfg.run_dir)
