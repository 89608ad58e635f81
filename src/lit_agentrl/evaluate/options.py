"""Options of ``conf/evaluate.yaml``, checked before torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from lit_agentrl.checks import (
    MOST_EPISODES,
    format_value,
    require,
    require_number,
    require_one_of,
    require_whole,
)
from lit_agentrl.config.composition import compose_job, format_search_path, load_option
from lit_agentrl.config.errors import UserError
from lit_agentrl.envs.splits import SPLITS
from lit_agentrl.files import has_checkpoint

FOLDER = Path("outputs") / "evaluations"  # of models without a run
CHECKPOINTS = ("last", "best", "start")
_MOST_SHOTS = 1000  # solved episodes in a prompt


def as_list(value: Any) -> list[Any]:
    """Return a value as a list; options allow a single value without brackets."""
    return list(value) if isinstance(value, ListConfig | list) else [value]


def check_options(cfg: DictConfig) -> None:
    """Check that the options of ``conf/evaluate.yaml`` are in range.

    Raises:
        ValueError: an option is out of range; the message names it.
    """
    temperatures = as_list(cfg.temperature)
    _require_known_checkpoint(cfg)
    if cfg.env is not None and not as_list(cfg.env):
        raise UserError("env=[] names no game; write some, such as env=[sokoban,bandit]")
    require_one_of("split", cfg.split, SPLITS)
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    for name in ("diagnostics", "baselines", "ratings"):
        require(isinstance(cfg[name], bool), name, cfg[name], "true or false")
    cfg.shots = as_list(cfg.shots)  # a single number needs no brackets
    require(bool(cfg.shots), "shots", cfg.shots, "a whole number >= 0, or a list of them")
    for value in cfg.shots:
        require_whole("shots", value, 0, _MOST_SHOTS)
    for name in ("episodes", "members"):
        if name == "members" or cfg.episodes != "all":
            alternative = ", or all" if name == "episodes" else ""
            require_whole(name, cfg[name], 1, MOST_EPISODES, alternative=alternative)
    cfg.pass_k = as_list(cfg.pass_k)  # a single number needs no brackets
    _require_enough_episodes(cfg, "pass_k", 1)
    if 0 not in list_shots(cfg) and (cfg.diagnostics or cfg.best_of):
        option = "diagnostics=true" if cfg.diagnostics else f"best_of={format_value(as_list(cfg.best_of))}"
        raise UserError(
            f"{option} looks at episodes without shots, and shots={format_value(cfg.shots)} plays none; add 0 to shots"
        )
    _check_best_of(cfg)
    require(bool(temperatures), "temperature", cfg.temperature, "a number >= 0, or a list of them")
    for option, values in (("shots", cfg.shots), ("temperature", temperatures)):
        if len(set(values)) < len(values):
            raise UserError(f"{option}={format_value(values)} names a value twice; keep one")
    for value in temperatures:
        require_number("temperature", value, "a number >= 0, or a list of them", lambda number: number >= 0)
    if cfg.members > 1 and 0 in temperatures:
        raise UserError(
            f"members={cfg.members} with temperature=0 would repeat the same episode; use members=1"
        )


def check_play_options(cfg: DictConfig) -> None:
    """Check that the options of ``conf/play.yaml`` are in range.

    Raises:
        ValueError: an option is out of range; the message names it.
    """
    require_one_of("split", cfg.split, SPLITS)
    require_whole("instance", cfg.instance, 0)
    require_whole("episodes", cfg.episodes, 1)
    require_whole("seed", cfg.seed, 0, 2**32 - 1)
    require_number("temperature", cfg.temperature, "a number >= 0", lambda value: value >= 0)
    require(isinstance(cfg.messages, bool), "messages", cfg.messages, "true or false")
    require(cfg.env is None or isinstance(cfg.env, str), "env", cfg.env, "the name of one game")
    if cfg.env is None and "run" not in cfg:
        raise UserError("env has no value; name the game to play, such as env=bandit")


def _require_known_checkpoint(cfg: DictConfig) -> None:
    stage = cfg.get("checkpoint")  # a model without a run has none
    if stage is not None and stage not in CHECKPOINTS:
        raise UserError(f"checkpoint={stage} is unknown; valid: {', '.join(CHECKPOINTS)}")


def compose_model_config(
    cfg: DictConfig, model_overrides: Sequence[str], folders: Sequence[str] = ()
) -> DictConfig:
    """Compose the config in which a described model plays the games of ``cfg.env``.

    Games and other options are searched in ``conf`` and in these folders.

    Raises:
        UserError: an unknown option or game, or no game.
    """
    names = [str(name) for name in as_list(cfg.env)] if cfg.env is not None else []
    if not names:
        raise UserError("env has no value; name the games to play, such as env=[sokoban,bandit]")
    for name in names[1:]:
        load_option("env", name, folders)
    saved = compose_job("train", [*model_overrides, f"seed={cfg.seed}"], format_search_path(folders))
    OmegaConf.set_struct(saved, False)
    saved.env = load_option("env", names[0], folders)
    if "weights" in saved.env:
        raise UserError(f"env={names[0]} is a mixture; name its games, such as env=[sokoban,bandit]")
    saved.pop("hydra", None)
    saved.run_dir = str(FOLDER)
    saved.test.envs, saved.val.envs = names, None
    saved.test.episodes = 1 if cfg.episodes == "all" else cfg.episodes
    return saved


def list_shots(cfg: DictConfig) -> list[int]:
    """Return the numbers of solved episodes to show; ``baselines=true`` compares them with 0."""
    return sorted({*cfg.shots, *([0] if cfg.baselines else [])})


def _check_best_of(cfg: DictConfig) -> None:
    """Check the options ``best_of`` and ``reward_model``.

    Raises:
        ValueError: an option is invalid; the message names it.
    """
    cfg.best_of = as_list(cfg.best_of)  # a single number needs no brackets
    _require_enough_episodes(cfg, "best_of", 2)
    path = cfg.reward_model
    if path is None:
        if cfg.best_of:
            raise UserError(
                f"best_of={format_value(cfg.best_of)} needs reward_model=RUN, the folder of a run that trained one"
            )
        return
    require(isinstance(path, str) and bool(path.strip()), "reward_model", path, "the folder of a run")
    if not cfg.best_of:
        raise UserError(
            "reward_model has no effect without best_of; set best_of=8 members=8, or leave it out"
        )


def _require_enough_episodes(cfg: DictConfig, option: str, least: int) -> None:
    """Check that each k of an option is from ``least`` to ``members``.

    Raises:
        ValueError: the message names the option.
    """
    for k in cfg[option]:
        require_whole(option, k, least)
        if k > cfg.members:
            raise UserError(
                f"{option}={format_value(cfg[option])} needs members >= {k}, and members={cfg.members}"
            )


def find_checkpoint(cfg: DictConfig, folder: Path) -> Path | None:
    """Find the requested checkpoint; None stands for the policy before training.

    Raises:
        UserError: there is no such checkpoint.
    """
    run_path = Path(str(cfg.run))
    _require_known_checkpoint(cfg)
    stage = "last" if cfg.checkpoint is None else cfg.checkpoint
    if run_path.suffix == ".ckpt" and cfg.checkpoint is not None:
        raise UserError(
            f"checkpoint={stage} would be ignored: run={run_path} names a file; leave one of them out"
        )
    if run_path.suffix == ".ckpt":
        return run_path
    if stage == "start":
        return None
    path = folder / "checkpoints" / f"{stage}.ckpt"
    if not has_checkpoint(path):
        raise UserError(f"{folder} has no {stage} checkpoint; checkpoint=start measures the untrained policy")
    return path
