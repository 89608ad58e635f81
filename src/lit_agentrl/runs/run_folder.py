"""The folder of a run or of a sweep: new when it begins, and all that a run writes lies in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from lit_agentrl.config.errors import UserError
from lit_agentrl.runs.ownership import LOCK, FolderInUse, owned, owner

_CONFIG = ".hydra"
_OF_A_RUN = ("checkpoints", "transcripts", "metrics.csv")  # what it writes first
_LAST_OF_CONFIG = "overrides.yaml"  # which Hydra writes last
_PLACES = {"dirpath", "save_dir"}  # options of callbacks and loggers
_FOLDERS = ("checkpoints", "transcripts", "tensorboard", "hf")  # of a run, some of which it may not have
_FILES = ("metrics.csv", "summary.json")
_CHECKPOINTS = "lit_agentrl.callbacks.checkpoints."


@contextmanager
def begun(option: str, folder: Path) -> Iterator[None]:
    """Around a new run or sweep: it owns its folder, in which nothing was before.

    Raises:
        UserError: the folder holds something, is another's, or cannot be made.
    """
    require_new(option, folder)
    place = folder.absolute()
    new = [each for each in (place, *place.parents) if not each.exists()]  # such as outputs/DATE
    try:
        with owned(folder):
            require_new(option, folder)  # another may have begun there since
            yield
    finally:
        with suppress(OSError):  # the first that holds something stays, and all above it
            for each in new:
                if each.exists():
                    each.rmdir()


def require_new(option: str, folder: Path) -> None:
    """Refuse a folder that holds anything, lies within another's, or cannot be made; nothing is written.

    Args:
        option: by which it was chosen, for messages.
        folder: of a new run or sweep.

    Raises:
        UserError: it does.
    """
    try:
        above = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    except OSError as error:
        told = f"{str(folder)[:40]}…" if len(str(folder)) > 40 else folder
        raise UserError(
            f"{option}={told} cannot be created: {error.strerror}; choose another with {option}=FOLDER"
        ) from error
    if not above.is_dir() or not os.access(above, os.W_OK):
        reason = "is not writable" if above.is_dir() else "is not a folder"
        raise UserError(
            f"{option}={folder} cannot be created: {above} {reason}; choose another with {option}=FOLDER"
        )
    if folder.is_dir() and not _is_unused(folder):
        is_run = (folder / _CONFIG / "config.yaml").is_file()
        otherwise = f", or continue it with resume={folder}" if is_run else ""
        what = "holds a run" if is_run else "is not empty"
        raise UserError(f"{option}={folder} {what} already; choose a new folder{otherwise}")
    for parent in folder.absolute().parents:
        if (other := owner(parent)) is not None:
            raise UserError(f"{option}={folder} lies in {parent}, which is in use by {other}; choose another")


def _is_unused(folder: Path) -> bool:
    """Whether nothing is lost with what the folder holds: nothing, or what a run killed at its very start left."""
    names = {path.name for path in folder.iterdir()} - {LOCK}
    return not names or (names == {_CONFIG} and not (folder / _CONFIG / _LAST_OF_CONFIG).exists())


def require_apart(jobs: Sequence[DictConfig], *, is_new: bool = True) -> None:
    """Refuse a sweep of which two runs would write to one folder, or one to a folder that holds something.

    Args:
        jobs: the composed config of each run, with Hydra's own node.
        is_new: whether nothing of the sweep is there yet.

    Raises:
        UserError: naming the option.
    """
    seen: set[Path] = set()
    for number, cfg in enumerate(jobs):
        with read_write(cfg.hydra.job):
            cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
        try:
            place = str(cfg.hydra.sweep.subdir)
        except OmegaConfBaseException:  # only Hydra can tell, when the run begins
            return
        folder = Path(os.path.abspath(Path(str(jobs[0].hydra.sweep.dir)) / place))
        if folder in seen:
            raise UserError(
                f"hydra.sweep.subdir={place} is the folder of several runs of the sweep; leave it out, or name what "
                "differs, such as hydra.sweep.subdir='seed${seed}'"
            )
        seen.add(folder)
        if is_new:
            require_new("hydra.sweep.subdir", folder)


def require_within(cfg: DictConfig) -> None:
    """Refuse callbacks and loggers that would write outside of the run folder, over what lies there.

    Checkpoints have their place in it, where ``resume=`` and ``evaluate.py`` look for them.

    Args:
        cfg: of a run, interpolations resolved.

    Raises:
        UserError: naming the option.
    """
    folder = os.path.abspath(cfg.run_dir)
    for section in ("callbacks", "logger"):
        for name, entry in (cfg[section] or {}).items():
            for option in _PLACES & set(entry if isinstance(entry, DictConfig) else ()):
                place = os.path.abspath(str(entry[option]))
                is_checkpoint = str(entry.get("_target_")).startswith(_CHECKPOINTS)
                if (
                    place == os.path.join(folder, "checkpoints")
                    if is_checkpoint
                    else Path(place).is_relative_to(folder)
                ):
                    continue
                where = "another place than its checkpoints/" if is_checkpoint else "outside of it"
                raise UserError(
                    f"{section}.{name}.{option}={entry[option]} would write {where}: the run folder is {folder}; leave "
                    f"{option} out, and choose the folder with hydra.run.dir=FOLDER"
                )


def require_untouched(folder: Path, of_hydra: set[str | None]) -> None:
    """Refuse the folder of a run that is about to begin if more is there than Hydra has written.

    Args:
        folder: the run folder.
        of_hydra: names of its folder for the config, and of its log.

    Raises:
        UserError: it holds what another run has left.
    """
    if {path.name for path in folder.iterdir()} - {LOCK, *of_hydra}:
        raise UserError(
            f"{folder} holds a run already; let hydra.sweep.subdir tell the runs of the sweep apart"
        )


def require_not_begun(folder: Path) -> None:
    """Refuse a new run that somebody else has continued while nobody owned its folder, as its processes were started.

    Raises:
        FolderInUse: somebody has.
    """
    if any((folder / name).exists() for name in _OF_A_RUN):
        raise FolderInUse(
            f"{folder} holds a run that another process has begun meanwhile; continue that with resume={folder}, or "
            "choose a new folder"
        )


def require_writable(folder: Path) -> None:
    """Refuse to continue a run in a folder that could not take what it will write; nothing is changed.

    Raises:
        UserError: a part of it is not writable, or of another kind than a run leaves.
    """
    for place in (folder, *(folder / name for name in _FOLDERS)):
        if place.exists() and not place.is_dir():
            raise UserError(f"resume={folder}: {place} is no folder, as a run leaves one there; move it away")
        if place.is_dir() and not os.access(place, os.W_OK):
            raise UserError(
                f"resume={folder}: {place} is not writable; make it so, or continue a copy of the run"
            )
    for place in (folder / name for name in _FILES):
        if place.exists() and not place.is_file():
            raise UserError(f"resume={folder}: {place} is no file, as a run leaves one there; move it away")


def discard_unused(folder: Path, printed: str | None = None) -> None:
    """Take back the folder of a run that failed before it wrote anything of its own but to the file ``printed``."""
    if owner(folder) is None and {path.name for path in folder.iterdir()} - {LOCK, printed} == {_CONFIG}:
        shutil.rmtree(folder / _CONFIG)
        if printed is not None:
            (folder / printed).unlink(missing_ok=True)
        with suppress(OSError):  # the lock is in it: its owner removes both
            folder.rmdir()


def pinned(overrides: Sequence[str], option: str, folder: Path) -> list[str]:
    """The overrides of a command with its folder as it was checked, since Hydra would ask the clock again."""
    kept = [text for text in overrides if text.lstrip("+").partition("=")[0] != option]
    return [*kept, f"{option}={QuotedString(str(folder), Quote.single).with_quotes()}"]


def chosen(cfg: DictConfig, *, is_multirun: bool) -> tuple[str, Path]:
    """The option that names the folder of a command, and that folder."""
    option = "hydra.sweep.dir" if is_multirun else "hydra.run.dir"
    return option, Path(str(OmegaConf.select(cfg, option)))
