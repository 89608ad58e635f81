"""Start a run or resume one.

Errors are raised here: a command reports them, the Python API passes them on.  Heavy imports wait until the command is
known to be valid, so that typos are reported at once.
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
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from lit_agentrl import screen
from lit_agentrl.config import composition, groups, signatures
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import get_program, rewrite_for_hydra
from lit_agentrl.config.saved import format_trust_option, read_resumed_config
from lit_agentrl.config.trust import TRUST_RUN
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.runs import ranks, run_folder
from lit_agentrl.runs.checking import CheckedJob, check_config, check_jobs, read_config_folders, take_parts
from lit_agentrl.runs.finished import print_if_finished

if TYPE_CHECKING:
    from lit_agentrl.build.parts import Parts
    from lit_agentrl.report.summary import Summary

# receives a failed run's error, whether to print a traceback, and a prefix such as the folder of the run
OnFailure = Callable[[Exception, bool, str], None]
_ONLY_PRINT = ("--help", "-h", "--hydra-help", "--shell-completion", "-sc")


class Interrupted(KeyboardInterrupt):
    """An interrupt of a run, which can be resumed in ``folder``."""

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"interrupted; continue with: {get_program('train')} resume={folder}{format_trust_option(Path(folder))}"
        )
        self.folder = Path(folder)


def launch(flags: Sequence[str], overrides: Sequence[str], *, on_failure: OnFailure) -> list[Path]:
    """Start the run that the arguments of ``train`` (without ``-m``) describe, or print information.

    Args:
        flags: flags such as ``--config-dir``, with their values.
        overrides: the options, in Hydra's syntax.
        on_failure: called if the run fails.

    Returns:
        The folder of the run.

    Raises:
        UserError: an unknown group, option or key; the message names the nearest valid ones.
        ValueError: an invalid value.
        Interrupted: the run was interrupted.
    """
    refuse_trust(overrides)
    command, overrides = format_command([*flags, *overrides]), rewrite_for_hydra(overrides)
    checked = [] if is_help(flags) else check_jobs(flags, overrides)
    folders: list[Path] = []

    def run(cfg: DictConfig) -> None:
        """Train the run whose config and folder Hydra has created."""
        folders.append(Path(cfg.run_dir))
        try:
            run_folder.require_untouched(Path(cfg.run_dir), list_hydra_files())
            job, parts = prepare(cfg, command, checked)
            load_train()(cfg, job, parts=parts)
        except KeyboardInterrupt as error:
            raise Interrupted(cfg.run_dir) from error
        except Exception as error:
            on_failure(error, cfg.traceback, "")
            run_folder.discard_unused(Path(cfg.run_dir))

    if folder := checked[0].new_folder if checked else None:
        overrides = run_folder.pin_folder(overrides, *folder)
    with run_folder.claim_new(*folder) if folder else nullcontext(), set_command_line(flags, overrides):
        make_hydra_app(run)()
    return folders


def resume(resumed: Sequence[str], flags: Sequence[str], overrides: Sequence[str]) -> Path:
    """Resume a run in place with its own saved config; return its folder.

    Args:
        resumed: ``resume=FOLDER``, as the only element.
        flags: must be empty.
        overrides: changes to the options that may change.

    Raises:
        UserError: the folder is not that of a run, or a resumed run does not allow an override.
        Interrupted: the run was interrupted.
    """
    if flags or len(resumed) > 1:
        not_allowed = " ".join([*flags, *resumed[1:]])
        raise UserError(
            f"{not_allowed} cannot be given with {resumed[0]}: one run is continued with its own saved config"
        )
    if resumed[0] == "resume=":
        raise UserError("resume= has no value; write the folder of a run, such as resume=outputs/DATE/TIME")
    folder = Path(resumed[0].removeprefix("resume="))
    cfg, folders = read_resumed_config(folder, overrides)
    arguments = [*resumed, *overrides]
    run_folder.require_writable(folder)
    with run_folder.lock_folder(folder), set_command_line([], arguments):
        if print_if_finished(cfg):
            return Path(cfg.run_dir)
        try:
            job = share_job(cfg, folders, format_command(arguments), is_resume=True)
            load_train()(cfg, job)
        except KeyboardInterrupt as error:
            raise Interrupted(cfg.run_dir) from error
    return Path(cfg.run_dir)


def join(job: ranks.Job, *, on_failure: OnFailure) -> None:
    """Take part in a run whose job the first process has composed.

    Args:
        job: the job received from that process.
        on_failure: called if the run fails.
    """
    cfg, rank = job.cfg, ranks.get_rank()
    try:
        load_train()(cfg, job)
    except Exception as error:
        needs_rank = rank > 0 and not hasattr(error, "is_reported")
        on_failure(error, cfg.traceback, f"rank {rank}: " if needs_rank else "")


def prepare(cfg: DictConfig, command: str, checked: list[CheckedJob]) -> tuple[ranks.Job, Parts | None]:
    """Check the config that Hydra composed, and share its job with all processes.

    Args:
        cfg: the config of the run; completed in place.
        command: the command that started it, for the record.
        checked: the jobs that were checked before; a job that is not among them is checked now.

    Returns:
        The job, and the parts that were built when it was checked, if any.

    Raises:
        ValueError: an invalid option, before anything is played.
    """
    hydra_config = HydraConfig.get()
    folders = composition.list_user_folders(hydra_config.runtime.config_sources)
    composition.use_current_names(cfg)
    parts = take_parts(cfg, checked)
    if parts is None:
        check_config(list(hydra_config.overrides.task), cfg)
    return share_job(cfg, folders, command, is_resume=False), parts


def share_job(cfg: DictConfig, folders: Sequence[str], command: str, *, is_resume: bool) -> ranks.Job:
    """Describe the run as a job, and send it to the other processes."""
    OmegaConf.resolve(cfg)
    ranks.fit_to_launcher(cfg)
    signatures.load_libraries()
    from lit_agentrl.build.devices import choose_for_device, save_choice

    if line := choose_for_device(cfg):
        screen.note(line)
    save_choice(cfg, Path(cfg.run_dir))
    job = ranks.make_job(folders, cfg, command, is_resume=is_resume)
    ranks.share(job, cfg.trainer.num_nodes)
    return job


def load_train() -> Callable[..., Summary | None]:
    """Import `training.train` with torch and Lightning, which takes seconds."""
    signatures.load_libraries()
    from lit_agentrl.runs import training

    return training.train


def refuse_trust(overrides: Sequence[str]) -> None:
    """Refuse ``trust_run`` in a command that reads no run folder.

    Raises:
        UserError: the option is given.
    """
    if any(text.startswith(f"{TRUST_RUN}=") for text in overrides):
        raise UserError(
            f"{TRUST_RUN} applies only with resume=FOLDER: a new run needs no permission for its code"
        )


def is_help(flags: Sequence[str]) -> bool:
    """Return whether Hydra prints something that needs no config."""
    return any(flag in _ONLY_PRINT for flag in flags)


def make_hydra_app(task: Callable[[DictConfig], float | None]) -> Callable[[], None]:
    """Wrap a function so that Hydra calls it with the config of each run."""
    groups.register_roots()
    app: Callable[[], None] = hydra.main(
        version_base="1.3", config_path=str(CONFIG_DIR), config_name="train"
    )(task)
    return app


def make_help_overrides(flags: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides that fill in what ``--help`` prints; a chosen algorithm is described."""
    texts = {"app_name": get_program("train")}
    if {"--help", "-h"} & set(flags):
        folders = read_config_folders(flags)[0]
        shipped, experimental = groups.describe_options(folders)
        chosen = [text.removeprefix("algo=") for text in overrides if text.startswith("algo=")]
        described = [groups.describe_algorithm(name, folders) for name in chosen]
        texts |= {
            "header": shipped,
            "footer": "\n\n".join([experimental, *filter(None, described)]),
        }
    return [
        f"hydra.help.{key}={QuotedString(text, Quote.single).with_quotes()}" for key, text in texts.items()
    ]


def list_hydra_files() -> set[str | None]:
    """Return the names of Hydra's config folder and log in a run folder."""
    hydra_config = HydraConfig.get()
    return {hydra_config.output_subdir, f"{hydra_config.job.name}.log"}


def format_command(arguments: Sequence[str]) -> str:
    """Return the command with these arguments, for the record of the run."""
    return f"{get_program('train')} {shlex.join(arguments)}"


@contextmanager
def set_command_line(flags: Sequence[str], overrides: Sequence[str]) -> Iterator[None]:
    """Set the arguments that Hydra reads, and make it raise errors instead of printing them."""
    help_texts = make_help_overrides(flags, overrides) if is_help(flags) else []
    old_argv, old_setting = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [sys.argv[0], *flags, *overrides, *help_texts], "1"
    try:
        yield
    finally:
        sys.argv = old_argv
        if old_setting is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = old_setting


@contextmanager
def clear_hydra() -> Iterator[None]:
    """Clear Hydra's global state inside the context, and restore it afterwards, for notebooks."""
    previous = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = previous
