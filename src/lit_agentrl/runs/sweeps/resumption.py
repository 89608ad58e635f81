"""Resume a sweep in its folder with its original options (``-m OPTIONS resume=SWEEP``).

The state of each run is read from the run's own folder, since a run can also be resumed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import parse
from lit_agentrl.config.trust import TRUST_RUN, is_trusted
from lit_agentrl.report import summary as reports
from lit_agentrl.report import sweep as records
from lit_agentrl.runs.sweeps import sweepers
from lit_agentrl.runs.sweeps.naming import keep_earlier_names

CONFIG = ".hydra"  # config folder of a run
_LAST_CONFIG_FILE = "overrides.yaml"  # written last, so it marks a complete config
_SWEEP_DIR = "hydra.sweep.dir"
_RESUME = "resume"
_NO_CONFIG = "hydra.output_subdir=null"


class ResumeOptions(NamedTuple):
    """The overrides of a sweep, split into those about resuming and all others.

    Attributes:
        folder: the folder of the sweep to resume; None for a new sweep.
        trusted: whether its runs may name the user's own code.
        rest: all other overrides.
    """

    folder: Path | None
    trusted: bool
    rest: list[str]


def split_resume_options(overrides: Sequence[str]) -> ResumeOptions:
    """Split the overrides of a sweep into those about resuming and all others.

    Raises:
        UserError: ``resume=`` does not name a sweep, or two folders are given.
    """
    resume_words = [
        text for text in overrides if text.startswith(f"{_RESUME}=") and text != f"{_RESUME}=null"
    ]
    if not resume_words:
        return ResumeOptions(None, False, list(overrides))
    folder = Path(resume_words[0].partition("=")[2].strip("'\""))
    folder_words = [text for text in overrides if text.lstrip("+").startswith(f"{_SWEEP_DIR}=")]
    if len(resume_words) > 1 or any(_parse_path(text) != folder.resolve() for text in folder_words):
        raise UserError(
            f"{resume_words[0]}, {(*resume_words[1:], *folder_words)[0]}: one sweep is resumed, in its folder; "
            "name it once"
        )
    if not (folder / records.FILE).is_file():
        is_run = (folder / CONFIG / "config.yaml").is_file()
        remedy = "leave -m and all options out" if is_run else "give the folder that holds its runs"
        raise UserError(
            f"{resume_words[0]} is {'a run' if is_run else 'not a sweep'}: there is no {records.FILE}; {remedy}"
        )
    trust_words = [text for text in overrides if text.startswith(f"{TRUST_RUN}=")]
    rest = [text for text in overrides if text not in (*resume_words, *folder_words, *trust_words)]
    return ResumeOptions(folder, any(is_trusted(override.value()) for override in parse(trust_words)), rest)


def _parse_path(text: str) -> Path:
    return Path(text.partition("=")[2].strip("'\"")).resolve()


def keep_folders(folder: Path, plan: sweepers.Plan) -> sweepers.Plan:
    """Keep the folder names of a sweep that an earlier version began."""
    entries = records.list_latest(records.read(folder))
    if not any(Path(entry["folder"]).name.startswith(f"{entry['run']}_") for entry in entries):
        return plan
    jobs = [keep_earlier_names(job) for job in plan.jobs]
    return plan._replace(overrides=keep_earlier_names(plan.overrides), jobs=jobs)


def require_same(folder: Path, plan: sweepers.Plan, jobs: Sequence[Sequence[str]]) -> None:
    """Refuse to resume a sweep with options that give other runs than it has started.

    Args:
        folder: the folder of the sweep.
        plan: the plan of the command.
        jobs: the overrides of its runs, without those of Hydra.

    Raises:
        UserError: the message names the first run that differs.
    """
    if not plan.is_complete:
        raise UserError(
            f"resume={folder}: a search chooses its runs while it runs; resume it with hydra.sweeper.storage"
        )
    overrides_by_run = dict(enumerate(jobs))
    for entry in records.list_latest(records.read(folder)):
        earlier, planned = entry["overrides"], overrides_by_run.get(entry["run"])
        if planned is None or sorted(earlier) != sorted(planned):
            reason = (
                "is not among the runs of this command"
                if planned is None
                else f"would be {' '.join(planned) or 'without options'}"
            )
            raise UserError(
                f"resume={folder}: run {entry['run']} was {' '.join(earlier) or 'without options'}, and {reason}; give "
                "the options that the sweep was started with"
            )


def read_final_summary(folder: Path) -> reports.Summary | None:
    """Return the summary of an ended run; None if the run can be resumed.

    Raises:
        ValueError: the run's ``summary.json`` is damaged.
    """
    if not (folder / "summary.json").is_file():
        return None
    summary = reports.read(folder / "summary.json")
    return None if summary["status"] == "stopped" else summary


def has_started(folder: Path) -> bool:
    """Return whether a run has left the complete config from which it can be resumed."""
    return (folder / CONFIG / _LAST_CONFIG_FILE).is_file()


def write_config(cfg: DictConfig, folder: Path) -> None:
    """Write the config files that Hydra normally writes at the start of a run.

    In a resumed sweep, Hydra itself must not write them, since it would overwrite those of runs that have ended.
    """
    path = folder / CONFIG
    path.mkdir(exist_ok=True)
    hydra_config: Any = OmegaConf.to_container(HydraConfig.get())
    hydra_config["output_subdir"] = CONFIG
    hydra_config["overrides"]["hydra"].remove(_NO_CONFIG)
    overrides = HydraConfig.get().overrides.task
    for name, node in (
        ("config.yaml", cfg),
        ("hydra.yaml", OmegaConf.create({"hydra": hydra_config})),
        (_LAST_CONFIG_FILE, overrides),
    ):
        OmegaConf.save(node, path / name)


def disable_config(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with one that keeps Hydra from writing configs."""
    return [*overrides, _NO_CONFIG]
