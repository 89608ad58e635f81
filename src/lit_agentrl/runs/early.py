"""Tell wrong options that the config alone shows, before torch and Lightning are loaded.

Loading them takes seconds.  The checks are those of the parts themselves, in copies of their modules without the
libraries (`config.stand_ins`); what a copy cannot tell is told later, when the real parts are built.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lit_agentrl.checks import add_key, format_value
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.numbers import check_numbers
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.config.stand_ins import Absent, Needed, StandIn, locate
from lit_agentrl.data.row_folder import find_paths
from lit_agentrl.envs.base import Task
from lit_agentrl.rollout.settings import RolloutSettings, make_eval_params

_TENSORS = ("_BT", "_B", "_BK", "_P", "_S")  # arguments that a run provides
# sections and modules whose parts only look at their options when they are made
_SECTIONS = (
    "algo", "filter", "critic", "reference", "data", "rollout", "update", "optim", "env", "prompt", "dialect",
    "context", "worlds", "worker", "reward", "model.lora",
)  # fmt: skip
_MODULES = tuple(
    f"lit_agentrl.{module}"
    for module in (
        "rl.", "update.", "data.", "rollout.settings", "rollout.structures", "rollout.worlds",
        "rollout.workers.process", "envs.base", "envs.hosting", "envs.games", "envs.tasks", "text.",
        "rewards.shaping", "models.lora",
    )
)  # fmt: skip
_MADE = (
    "lit_agentrl.envs.games.",
    "lit_agentrl.envs.tasks.",
)  # games that are made at once, without a process


def check_early(cfg: DictConfig) -> None:
    """Refuse what the config alone shows to be wrong.

    Raises:
        ValueError: an invalid option, which the message names.
    """
    check_targets(cfg, lambda _, name: locate(name))
    check_numbers(cfg)
    _check_files(cfg)
    for section in _SECTIONS:
        built = _make(OmegaConf.to_container(cfg, resolve=True), section)
        game = OmegaConf.select(cfg, "env.game._target_") or ""
        if type(built) is Task and built.hosting.where == "inline" and game.startswith(_MADE):
            _try("env", partial(built.make, "train"))
        if type(built) is RolloutSettings:
            make_eval_params(built, cfg.val.temperature, "val")
            make_eval_params(built, cfg.test.temperature, "test")
    _check_engine(cfg)


def _check_files(cfg: DictConfig) -> None:
    """Refuse a data set and a model whose files are not there."""
    data = cfg.get("data") or {}
    path = data.get("path")
    if str(data.get("_target_", "")).startswith(_MODULES) and isinstance(path, str):
        _try("data", partial(find_paths, [path]))
    name = cfg.model.get("name")
    is_path = isinstance(name, str) and name.startswith(("/", "./", "../", "~"))
    if is_path and not os.path.exists(Path(name).expanduser()):
        raise UserError(
            f"model.name={format_value(name)} is not there; give a folder with config.json, safetensors weights and a "
            "tokenizer of a causal language model, or a hub id that this machine can reach"
        )


def _check_engine(cfg: DictConfig) -> None:
    """Let the class of the engine check its options, if it can."""
    engine = locate(str(cfg.engine.get("_target_", "")))
    if (check := getattr(engine, "check_options", None)) is not None:
        options = {
            str(name): 1 if (name, value) == ("num_slots", "auto") else value  # which is chosen later
            for name, value in OmegaConf.to_container(cfg.engine, resolve=True).items()  # type: ignore[union-attr]
            if not str(name).startswith("_")
        }
        _try("engine", partial(check, **options))


def _make(config: Any, path: str) -> Any:
    """Make the part that an option describes; a `StandIn` if it cannot be told."""
    node = config
    for name in path.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return _build(node, path)


def _build(node: Any, path: str) -> Any:
    if isinstance(node, list):
        return [_build(item, f"{path}.{place}") for place, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    parts = {
        name: _build(value, f"{path}.{name}") for name, value in node.items() if not name.startswith("_")
    }
    if "_target_" not in node:
        return parts
    target = locate(node["_target_"]) if str(node["_target_"]).startswith(_MODULES) else None
    if target is None or "_args_" in node:
        return partial(Absent(), **parts) if node.get("_partial_") else StandIn()
    if not node.get("_partial_"):
        return _try(path, partial(target, **parts))
    if not inspect.isclass(target):
        _try(path, partial(_call, target, parts))
    return partial(target, **parts)


def _call(function: Callable[..., Any], constants: Mapping[str, Any]) -> None:
    """Call a function of tensors, which checks its constants first."""
    names = inspect.signature(function).parameters
    function(**{name: StandIn() for name in names if name.endswith(_TENSORS)}, **constants)


def _try(path: str, make: Callable[[], Any]) -> Any:
    """Call ``make``; a `StandIn` stands for what cannot be told yet.

    Raises:
        UserError: it refuses an option.
    """
    try:
        return make()
    except Needed:
        return StandIn()
    except ValueError as error:
        raise UserError(add_key(path, str(error))) from error
    except Exception:  # it needs what a copy lacks; the real part tells
        return StandIn()
