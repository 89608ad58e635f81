"""Command lines: composing configs, resuming, and errors of one line that name cause and remedy.

Heavy imports wait until a command is known to make sense, so that ``--help`` and typing errors are instant.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.entry.errors import UserError, explain, explain_composition, report
from lit_agentrl.entry.overrides import check_overrides, expand, split_arguments

CONFIG_DIR = Path(__file__).resolve().parents[3] / "conf"
RESUMABLE = ("trainer.max_epochs", "traceback")  # what may be changed when a run is continued


def main_train(argv: Sequence[str] | None = None) -> None:
    """``train.py``."""
    _main("train", _train_job, list(sys.argv[1:] if argv is None else argv))


def main_evaluate(argv: Sequence[str] | None = None) -> None:
    """``evaluate.py``."""
    _main("evaluate", _evaluate_job, list(sys.argv[1:] if argv is None else argv))


def _main(name: str, job: Callable[[DictConfig], None], argv: list[str]) -> None:
    flags, overrides = split_arguments(argv)
    show_traceback = any(o.replace(" ", "").lower() == "traceback=true" for o in overrides)
    try:
        resumed = [o for o in overrides if o.startswith("resume=") and o not in ("resume=null", "resume=")]
        if resumed and name == "train":
            _resume(Path(resumed[-1].removeprefix("resume=")), [o for o in overrides if not o.startswith("resume=")])
            return
        if not any(flag in ("--help", "-h", "--hydra-help", "--info", "--version") for flag in flags):
            _check(name, flags, overrides)
        sys.argv = [name + ".py", *argv]  # what Hydra reads
        hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name=name)(_guarded(job))()
    except KeyboardInterrupt:
        print("interrupted; continue with: python train.py resume=FOLDER", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if show_traceback:
            raise
        report(explain(error))
        sys.exit(1)


def _guarded(job: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Errors end the process here, with one line, before Hydra can print a page about them."""

    def run(cfg: DictConfig) -> None:
        try:
            job(cfg)
        except Exception as error:
            if cfg.get("traceback"):
                import traceback

                traceback.print_exc()
            else:
                report(explain(error))
            sys.exit(1)

    return run


def _check(name: str, flags: Sequence[str], overrides: Sequence[str]) -> None:
    """Compose every job of the command once, so that a typing error costs no rollout.

    Raises:
        UserError: an unknown group, option or key, or a value of the wrong type, naming the nearest valid ones.
    """
    search = [flags[i + 1] for i, flag in enumerate(flags[:-1]) if flag in ("--config-dir", "-cd")]
    search += [flag.split("=", 1)[1] for flag in flags if flag.startswith("--config-dir=")]
    for folder in search:
        if not Path(folder).is_dir():
            raise UserError(f"--config-dir {folder} is not a folder")
    paths = ",".join(f"file://{Path(folder).resolve()}" for folder in search)
    extra = [f"hydra.searchpath=[{paths}]"] if search else []
    is_multirun = any(flag in ("-m", "--multirun") for flag in flags)
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        for job in expand(overrides) if is_multirun else [list(overrides)]:
            try:
                compose(config_name=name, overrides=[*job, *extra])
            except Exception as error:
                raise explain_composition(error, name, job) from error
        check_overrides(overrides, is_multirun=is_multirun)


def load_task(name: str) -> DictConfig:
    """The config of a game, from the search path of the running command.

    Raises:
        UserError: there is none of that name.
    """
    options = GlobalHydra.instance().config_loader().get_group_options("env")
    if name not in options:
        raise UserError(f"there is no game named {name}; valid: {', '.join(options)}")
    task: DictConfig = compose(config_name=f"env/{name}").env
    return task


def _train_job(cfg: DictConfig) -> None:
    from lit_agentrl.entry.training import train

    OmegaConf.resolve(cfg)
    train(cfg, load_task, command=shlex.join(["python", *sys.argv]))


def _evaluate_job(cfg: DictConfig) -> None:
    from lit_agentrl.entry.evaluation import evaluate

    evaluate(cfg, load_task)


def _resume(folder: Path, overrides: Sequence[str]) -> None:
    """Continue a run in place with its own saved config.

    Raises:
        UserError: not a run folder, or an override that would make it another run.
    """
    cfg, search = saved_config(folder)
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key not in RESUMABLE:
            raise UserError(
                f"{override}: a resumed run keeps its own config; only {', '.join(RESUMABLE)} may change"
            )
        OmegaConf.update(cfg, key, OmegaConf.create(f"v: {value}").v)
    from lit_agentrl.entry.training import train

    command = shlex.join(["python", *sys.argv])
    with searching(search):
        train(cfg, load_task, command=command, is_resume=True)


def saved_config(folder: Path) -> tuple[DictConfig, list[str]]:
    """The config that a run was started with, aimed at its folder as it lies now, and its search path.

    Raises:
        UserError: not a run folder.
    """
    file = folder / ".hydra" / "config.yaml"
    if not file.exists():
        raise UserError(f"{os.fspath(folder)} is not a run folder: it has no .hydra/config.yaml")
    cfg = OmegaConf.load(file)
    assert isinstance(cfg, DictConfig)
    cfg.run_dir = str(folder.resolve())
    OmegaConf.resolve(cfg)
    OmegaConf.set_struct(cfg, True)
    sources: Any = OmegaConf.select(OmegaConf.load(folder / ".hydra" / "hydra.yaml"), "hydra.runtime.config_sources")
    search = [s.path for s in sources or [] if s.schema == "file" and Path(s.path) != CONFIG_DIR]
    return cfg, search


def searching(folders: Sequence[str]) -> Any:
    """A context in which :func:`load_task` also finds the games of these folders."""
    from contextlib import contextmanager

    @contextmanager
    def context() -> Any:
        paths = ",".join(f"file://{folder}" for folder in folders)
        with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
            if folders:
                from hydra.core.config_search_path import ConfigSearchPath  # noqa: F401

                path = GlobalHydra.instance().config_loader().get_search_path()
                for folder in folders:
                    path.append("resume", f"file://{folder}")
            yield paths

    return context()
