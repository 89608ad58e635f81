"""Report options that the config alone shows to be wrong, before Lightning is loaded.

Loading Lightning takes longer than all the rest.  The checks are those of the parts themselves.  Parts that need more
than torch are checked later, when all parts are built.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.checks import add_key, format_value
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.numbers import check_numbers
from lit_agentrl.config.signatures import BY_DEVICE, check_targets, list_entries
from lit_agentrl.config.trainer_options import LIGHTNING
from lit_agentrl.data.row_folder import find_paths
from lit_agentrl.envs.base import Task
from lit_agentrl.rollout.settings import RolloutSettings, make_eval_params

_TENSORS = ("_BT", "_B", "_BK", "_P", "_S")  # ends of the names of arguments that a run provides
# sections whose parts only look at their options when they are made; optimizers import most
_SECTIONS = (
    "rollout", "env", "prompt", "dialect", "context", "worlds", "reward", "algo", "filter", "data", "task_sampler",
    "update", "model", "engine", "worker", "strategy", "callbacks", "optim", "critic",
)  # fmt: skip
_MODULES = (  # they load no library that is slower than torch
    "torch.optim.",
    LIGHTNING,
    *(f"lit_agentrl.{module}"
    for module in (
        "rollout.settings", "rollout.worlds", "envs.base", "envs.hosting", "envs.games", "envs.tasks", "text.",
        "rewards.shaping", "rl.", "data.", "update.settings", "update.gradients", "update.stop", "task_sampler",
        "experimental.task_samplers", "monitor.rules", "monitor.signals",
    )
))  # fmt: skip
# parts of slow modules -> functions with the names and types of some of their options, which check these
CHECKS = {
    f"lit_agentrl.{part}": f"lit_agentrl.{check}"
    for part, check in {
        "models.policy.load_pretrained": "models.options.check_pretrained",
        "models.lora.LoRA": "models.options.check_lora",
        "update.critic.separate": "update.settings.check_critic",
        "update.critic.separate_if_needed": "update.settings.check_critic",
        "update.critic.shared": "update.settings.check_critic",
        "update.critic.from_reward_model": "update.settings.check_critic",
        "engines.native.engine.NativeEngine": "engines.options.check_native",
        "engines.served.openai.OpenAIEngine": "engines.served.settings.ServerSettings",
        "engines.served.vllm.VLLMEngine": "engines.options.check_vllm",
        "rollout.workers.inline.Here": "rollout.workers.options.check_here",
        "rollout.workers.process.ProcessSettings": "rollout.workers.options.check_processes",
        "rollout.workers.ray.RaySettings": "rollout.workers.options.check_actors",
        "strategies.ddp.DDP": "strategies.options.check_timeout",
        "strategies.fsdp.FSDP": "strategies.options.check_fsdp",
        "callbacks.transcripts.Transcripts": "callbacks.options.check_transcripts",
        "callbacks.progress.LiveDisplay": "callbacks.options.check_display",
        "callbacks.checkpoints.BestCheckpoint": "callbacks.options.check_best",
        "callbacks.checkpoints.LastCheckpoint": "callbacks.options.check_last",
        "callbacks.start_kl.StartKL": "callbacks.options.check_start_kl",
        "monitor.rollback.Rollback": "callbacks.options.check_rollback",
    }.items()
}
_MODEL_FILES = ("config.json", "adapter_config.json")  # adapters have a message of their own
_GAMES = ("lit_agentrl.envs.games.", "lit_agentrl.envs.tasks.")  # made at once, without a process


def check_early(cfg: DictConfig) -> None:
    """Refuse what the config alone shows to be wrong.

    Raises:
        ValueError: an invalid option, which the message names.
    """
    check_numbers(cfg)
    for key in ("callbacks", "logger"):
        list_entries(cfg, key)
    _check_files(cfg)
    check_targets(cfg, _MODULES, CHECKS)  # imports torch, which takes seconds
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    if cfg.trainer.get("accelerator") in ("cuda", "gpu"):
        from lit_agentrl.strategies.gpus import require_gpus

        _try("trainer", partial(require_gpus, cfg.trainer.accelerator, config["trainer"].get("devices", 1)))
    for section in _SECTIONS:
        built = _build(config.get(section), section)
        game = OmegaConf.select(cfg, "env.game._target_") or ""
        if type(built) is Task and built.hosting.where == "inline" and game.startswith(_GAMES):
            _try("env", partial(built.make, "train"))
        if type(built) is RolloutSettings:
            make_eval_params(built, cfg.val.temperature, "val")
            make_eval_params(built, cfg.test.temperature, "test")


def _check_files(cfg: DictConfig) -> None:
    """Refuse a data set and a model whose files are not there."""
    data = cfg.get("data") or {}
    path = data.get("path")
    if str(data.get("_target_", "")).startswith(_MODULES) and isinstance(path, str):
        _try("data", partial(find_paths, [path]))
    name = cfg.model.get("name")
    if not isinstance(name, str) or not name.startswith(("/", "./", "../", "~")):
        return
    folder = Path(name).expanduser()
    remedy = (
        "give a folder with config.json, safetensors weights and a tokenizer of a causal language model, or a hub id "
        "that this machine can reach"
    )
    if not os.path.exists(folder):
        raise UserError(f"model.name={format_value(name)} is not there; {remedy}")
    if folder.is_dir() and not any((folder / file).exists() for file in _MODEL_FILES):
        if (folder / "hf" / "config.json").exists():
            remedy = f"the weights of this run are in model.name={folder / 'hf'}"
        raise UserError(
            f"model.name={format_value(name)} could not be loaded (it has no config.json); {remedy}"
        )


def _build(node: Any, path: str) -> Any:
    if isinstance(node, list):
        return [_build(item, f"{path}.{place}") for place, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    check = CHECKS.get(str(node.get("_target_")))
    if check:
        _try(path, partial(_check_options, get_object(check), node, path))
    parts = {
        name: _build(value, f"{path}.{name}") for name, value in node.items() if not name.startswith("_")
    }
    if "_target_" not in node:
        return parts
    if check or not str(node["_target_"]).startswith(_MODULES) or "_args_" in node:
        return _Unknown()
    target = get_object(node["_target_"])
    if any(isinstance(part, _Unknown) for part in parts.values()):
        return _Unknown()
    if not node.get("_partial_"):
        return _try(path, partial(target, **parts))
    if not inspect.isclass(target):
        _try(path, partial(_call, target, parts))
    return partial(target, **parts)


def _check_options(check: Callable[..., Any], node: Mapping[str, Any], path: str) -> None:
    """Check the options that a function has, except ``auto`` in place of another type."""
    names = inspect.signature(check).parameters
    options = {name: value for name, value in node.items() if name in names}
    check(**{n: value for n, value in options.items() if value != "auto" or f"{path}.{n}" not in BY_DEVICE})


class _Unknown:
    """A value that is not known yet, such as a tensor or a slow part."""


def _call(function: Callable[..., Any], constants: Mapping[str, Any]) -> None:
    """Call a function of tensors, which checks its constants first."""
    names = inspect.signature(function).parameters
    function(**{name: _Unknown() for name in names if name.endswith(_TENSORS)}, **constants)


def _try(path: str, make: Callable[[], Any]) -> Any:
    """Call ``make``; return an `_Unknown` if it needs more than its options.

    Raises:
        UserError: the part refuses an option.
    """
    try:
        return make()
    except ValueError as error:
        raise UserError(add_key(path, str(error))) from error
    except Exception:  # the part needs a tensor, or its arguments are wrong, which the real build reports
        return _Unknown()
