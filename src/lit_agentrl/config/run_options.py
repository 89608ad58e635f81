"""Read the options of commands on a finished run, and open that run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lit_agentrl.checks import format_value
from lit_agentrl.config.composition import make_task_loader
from lit_agentrl.config.errors import UserError, refuse_unknown
from lit_agentrl.config.overrides import check_overrides, parse, take_variant
from lit_agentrl.config.saved import find_run_folder, read_saved_config
from lit_agentrl.config.trust import TRUST_RUN, is_trusted
from lit_agentrl.paths import find_config

# sections of conf/train.yaml that describe the model and how it plays; an evaluation without a run reads only these
_MODEL_KEYS = ("model", "engine", "prompt", "dialect", "context", "worlds", "rollout.max_")
_MODEL_COMMANDS = ("evaluate", "collect", "play")  # commands that accept any model, from a run or not


def compose_options(name: str, overrides: Sequence[str]) -> DictConfig:
    """Return ``conf/NAME.yaml`` with these overrides applied.

    The file is read without Hydra, which would take ``env=`` for the choice of a group.

    Raises:
        UserError: an unknown option, a sweep, or a required option without a value, such as ``run``.
    """
    cfg = OmegaConf.load(find_config(f"{name}.yaml"))
    assert isinstance(cfg, DictConfig)
    keys = [str(key) for key in cfg]
    for override in parse(overrides):
        if override.is_sweep_override():
            raise UserError(
                f"{override.input_line} is a sweep, and {name} takes one value; write "
                f"{override.key_or_group}=[…] where a list is meant"
            )
    check_overrides(overrides, is_multirun=False)
    for override in take_variant(parse(overrides), cfg):
        key = override.key_or_group
        if key not in keys and key.startswith(_MODEL_KEYS) and name in _MODEL_COMMANDS:
            raise UserError(
                f"{override.input_line} describes a model, and run= names one already; leave run= out to {name} it"
            )
        if key not in keys or override.is_add() or override.is_delete():
            refuse_unknown(f"unknown option {override.input_line}", key, keys)
        cfg[key] = override.value()
    if OmegaConf.is_missing(cfg, "run"):
        raise UserError(
            "run has no value; set run=FOLDER to the folder of a run, such as run=outputs/DATE/TIME"
        )
    if missing := OmegaConf.missing_keys(cfg):
        raise UserError(f"{min(missing)} has no value; {name} --help explains it")
    return cfg


def split_model_options(
    overrides: Sequence[str], name: str = "evaluate"
) -> tuple[DictConfig, list[str]] | None:
    """Split overrides into the options of ``conf/NAME.yaml`` and those that describe a model.

    Returns:
        The options as a config, and the overrides of the model; None if the overrides name a run instead of a model.

    Raises:
        UserError: an option that belongs to neither, or that only applies to a run.
    """
    parsed = parse(overrides)
    keys = [override.key_or_group for override in parsed]
    model_keys = [key for key in keys if key.startswith(_MODEL_KEYS)]
    if not model_keys or "run" in keys:
        return None
    other_options = [text for text, key in zip(overrides, keys, strict=True) if key not in model_keys]
    for key in ("checkpoint", "beta", TRUST_RUN):
        if key in keys:
            raise UserError(
                f"{key} would be ignored: it applies to a run, and {model_keys[0]} describes a model; leave it out"
            )
    cfg = compose_options(name, [*other_options, "run=null"])
    for run_key in ("run", "checkpoint", "engine", "beta", TRUST_RUN):
        cfg.pop(run_key, None)
    return cfg, [text for text, key in zip(overrides, keys, strict=True) if key in model_keys]


def split_models(model_overrides: Sequence[str]) -> list[list[str]]:
    """Return the options of each model, if ``model`` names several as a list.

    Raises:
        UserError: an option of one model is given for several.
    """
    parsed = parse(model_overrides)
    models = next((override.value() for override in parsed if override.key_or_group == "model"), None)
    if not isinstance(models, list):
        return [list(model_overrides)]
    if not models or len(set(map(str, models))) < len(models):
        raise UserError(
            f"model={format_value(models)} must name models, each once, such as model=[smollm2,nano]"
        )
    others = [
        t for t, override in zip(model_overrides, parsed, strict=True) if override.key_or_group != "model"
    ]
    if own := [text for text in others if text.startswith("model.")]:
        raise UserError(
            f"{own[0]} belongs to one model, and {len(models)} are named; evaluate that one alone, and show it in one "
            "table by compare=FILE of the others"
        )
    return [[f"model={model}", *others] for model in models]


def open_run(cfg: DictConfig) -> tuple[Path, DictConfig, Callable[[str], DictConfig]]:
    """Return the folder that ``run`` names, its saved config, and a loader of game configs.

    Raises:
        UserError: not a run folder, one that this version cannot read, or one that names untrusted code.
    """
    folder = find_run_folder(Path(str(cfg.run)))
    trusted = is_trusted(cfg.pop(TRUST_RUN))  # the recorded evaluation options do not include it
    games = [cfg.env] if isinstance(cfg.env, str) else cfg.env or ()
    saved, folders = read_saved_config(
        folder, "run", trusted=trusted, added=[("env", str(name)) for name in games]
    )
    return folder, saved, make_task_loader(folders)
