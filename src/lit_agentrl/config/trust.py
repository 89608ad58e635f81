"""Restrict what the config of an untrusted run folder may name.

A run folder can come from anyone, and whatever its config names is imported and called.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import yaml
from omegaconf import OmegaConf

from lit_agentrl.config.errors import UserError
from lit_agentrl.paths import EXPERIMENTAL_DIR, find_config, name_config

TRUST_RUN = "trust_run"  # the option that lets a run folder execute code from outside of this package
# Lightning's callbacks that only log, print or stop: they write no files, change no weights and call no argument
_LIGHTNING_CALLBACKS = (
    "DeviceStatsMonitor", "EarlyStopping", "LearningRateMonitor", "ModelSummary", "RichModelSummary", "Timer",
)  # fmt: skip
# Place in a config (* matches one key, ** any path below) -> the targets allowed there: one name; everything that a
# subpackage of this package defines (.*), if nothing in it touches files; or the subclasses of a class in the same
# library (+).  The first place that matches decides.
_ACCEPTED: dict[str, tuple[str, ...]] = {
    "algo.structure": ("lit_agentrl.rollout.structures.*",),
    "algo": ("lit_agentrl.rl.*",),
    "algo.**": ("lit_agentrl.rl.*",),
    "callbacks.*": (
        "lightning.pytorch.callbacks.Callback+",
        *(f"lightning.pytorch.callbacks.{name}" for name in _LIGHTNING_CALLBACKS),
    ),
    "callbacks.*.action": ("lit_agentrl.monitor.actions.Action+",),
    "callbacks.*.dialect": ("lit_agentrl.text.dialects.*",),
    "callbacks.*.rules.*": ("lit_agentrl.monitor.rules.Rule",),
    "callbacks.*.rules.*.count": ("lit_agentrl.monitor.signals.count_validated",),
    "callbacks.*.rules.*.signal": (
        "lit_agentrl.monitor.signals.both_fallen",
        "lit_agentrl.monitor.signals.learned_gap",
        "lit_agentrl.monitor.signals.reward_gap",
    ),
    "context": ("lit_agentrl.text.context.*", "lit_agentrl.text.template_context.Template"),
    "context.condense": ("lit_agentrl.text.condensers.*",),
    "critic": tuple(
        f"lit_agentrl.update.critic.{name}"
        for name in ("separate", "separate_if_needed", "shared", "from_reward_model")
    ),
    "critic.head": ("lit_agentrl.models.heads.ValuesAndCosts",),
    "critic.loss": ("lit_agentrl.rl.*",),
    "critic.optim": ("lit_agentrl.update.settings.OptimSettings",),
    "critic.optim.optimizer": ("torch.optim.Optimizer+",),
    "data": ("lit_agentrl.data.kinds.Kind+",),
    "dialect": ("lit_agentrl.text.dialects.*",),
    "engine": (
        "lit_agentrl.engines.native.engine.NativeEngine",
        "lit_agentrl.engines.served.vllm.VLLMEngine",
    ),
    "env": ("lit_agentrl.envs.base.Task", "lit_agentrl.envs.base.Mixture"),
    "env.game": ("lit_agentrl.envs.world.World+",),
    "env.game.reward": ("lit_agentrl.envs.tasks.dataset.exact",),
    "env.hosting": ("lit_agentrl.envs.hosting.Hosting",),
    "filter": ("lit_agentrl.rl.*",),
    "logger.*": ("lightning.pytorch.loggers.logger.Logger+",),
    "model": (
        "lit_agentrl.models.policy.load_nano",
        "lit_agentrl.models.policy.load_pretrained",
        "lit_agentrl.models.remote.load_remote",
    ),
    "model.lora": ("lit_agentrl.models.lora.LoRA",),
    "optim": ("lit_agentrl.update.settings.OptimSettings",),
    "optim.optimizer": ("torch.optim.Optimizer+",),
    "prompt": ("lit_agentrl.text.prompts.Prompt",),
    "reference": ("lit_agentrl.update.reference.Reference+",),
    "reward.*": ("lit_agentrl.rewards.base.RewardPart+",),
    "reward.*.engine": (
        "lit_agentrl.engines.native.engine.NativeEngine",
        "lit_agentrl.engines.served.vllm.VLLMEngine",
    ),
    "reward.*.model": ("lit_agentrl.models.policy.load_nano", "lit_agentrl.models.policy.load_pretrained"),
    "reward.*.of": ("lit_agentrl.rewards.shaping.potential.StepsToGoal",),
    "reward.*.references": ("lit_agentrl.data.references.References",),
    "rollout": ("lit_agentrl.rollout.settings.RolloutSettings",),
    "strategy": ("lit_agentrl.strategies.single.single", "lightning.pytorch.strategies.Strategy+"),
    "task_sampler": ("lit_agentrl.task_sampler.*",),
    "trainer": ("lightning.pytorch.Trainer",),
    "trainer.profiler": ("lightning.pytorch.profilers.PyTorchProfiler",),
    "trainer.profiler.on_trace_ready": ("torch.profiler.tensorboard_trace_handler",),
    "trainer.profiler.schedule": ("torch.profiler.schedule",),
    "update": ("lit_agentrl.update.settings.UpdateSettings",),
    "update.gradients": ("lit_agentrl.update.gradients.SpreadBuckets",),
    "update.stop": ("lit_agentrl.update.stop.KLStop",),
    "worker": ("lit_agentrl.rollout.workers.base.WorkerSettings+",),
    "worlds": ("lit_agentrl.rollout.worlds.pool.Worlds",),
}
_PLACES = [
    (re.compile(re.escape(place).replace(r"\*\*", ".+").replace(r"\*", r"[^.]+")), accepted)
    for place, accepted in _ACCEPTED.items()
]
_LIBRARIES = {"torch.optim.Optimizer": "torch.optim"}  # library of the subclasses, if not this package
_KEYS = ("_target_", "_partial_")  # Hydra's keys that are allowed; others, such as _args_, are refused
# places in a config whose parts write files
_WRITING = re.compile(r"(callbacks|logger|trainer\.profiler)\.(?![^.]+\.dialect\.).+|data\.cache_reference")
_REFERENCE = re.compile(r"\$\{[\w.\[\]-]*\}")  # reference to another key; resolvers are refused


class UntrustedError(UserError):
    """A run folder names code outside of this package, or a place outside of itself."""


def is_trusted(value: object) -> bool:
    """Check the value of ``trust_run``, and return it.

    Raises:
        UserError: the value is neither true nor false.
    """
    if not isinstance(value, bool):
        raise UserError(f"{TRUST_RUN}={value} must be true or false")
    return value


def resolve_untrusted(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the references of a saved config, and refuse content that this package never writes.

    Args:
        config: the saved config, with current target names, and ``run_dir`` set to ``folder``.
        folder: the run folder.

    Raises:
        UntrustedError: the config names a class or function that is not allowed at that place, a resolver such as
            ``${oc.env:HOME}``, another machine, a program, or a folder outside of the run folder; the message says
            where.
    """
    for path, value in iterate_values(config, ""):
        if isinstance(value, str) and not _is_reference(value):
            raise _make_refusal(f"{path}={value}", "uses a resolver")
    resolved = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    assert isinstance(resolved, dict)
    for path, value in iterate_values(resolved, ""):
        if danger := _find_danger(path, value, folder.resolve()):
            raise _make_refusal(f"{path}={value}", danger)
    return resolved  # type: ignore[return-value]  # keys are strings


def _find_danger(path: str, value: Any, folder: Path) -> str:
    """Return why an untrusted config may not have this value here; empty if it may."""
    section, _, key = path.rpartition(".")
    if isinstance(value, str) and "${" in value:  # a later reading would resolve it
        return "would be resolved again"
    if key == "_target_" and not is_allowed(section, value):
        return "is not an object of this version that is allowed there"
    # another machine would receive objects, and send some back
    is_elsewhere = path == "worker.address" and value not in (None, "auto")
    if is_elsewhere or (path == "env.game.url" and value is not None):
        return "connects to another machine"
    if path.startswith(("env.game.command", "env.game.function")) and value is not None:
        return "starts a program"
    if _WRITING.fullmatch(path) and _is_outside(key, value, folder):
        return "lies outside of the run folder"
    return ""


def require_shipped(options: Iterable[tuple[str, str]], folders: Sequence[str]) -> None:
    """Refuse options (group, name) that exist only in a run's own config folders.

    Raises:
        UntrustedError: there is such an option; the message names the option and its folder.
    """
    for group, name in options:
        file = f"{group}/{name}.yaml"
        user_folder = next((folder for folder in folders if (Path(folder) / file).is_file()), None)
        if user_folder is not None and not find_config(file).is_file():
            raise _make_refusal(
                f"{group}={name}", f"is an option of the run's own config folder {user_folder}"
            )


def find_games(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the game options that a config names and that the build loads by name."""
    for section, key in (("env", "weights"), ("val", "envs"), ("test", "envs")):
        names = config[section].get(key) if isinstance(config.get(section), dict) else None
        for name in [names] if isinstance(names, str) else names if isinstance(names, list | dict) else ():
            yield "env", str(name)


def _make_refusal(subject: str, why: str) -> UntrustedError:
    return UntrustedError(
        f"{subject} {why}, and a run folder can come from anyone; if it is your own, add {TRUST_RUN}=true"
    )


def iterate_values(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every value of a config with its place.

    Raises:
        UntrustedError: a key that only Hydra reads and that is not in `_KEYS`, or a target that is not a string.
    """
    if isinstance(node, dict):
        for key, child in node.items():
            key_path = f"{path}.{key}" if path else str(key)
            if re.fullmatch(r"_\w+_", str(key)) and key not in _KEYS:
                raise _make_refusal(key_path, "controls how Hydra calls a target")
            if key == "_target_" and not isinstance(child, str):
                raise _make_refusal(f"{key_path}={child}", "is not a name")
            yield from iterate_values(child, key_path)
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from iterate_values(child, f"{path}[{index}]")
    else:
        yield path, node


def _is_reference(text: str) -> bool:
    """Return whether a string refers only to other keys, such as ``${rollout.prompts}``."""
    previous = None
    while previous != text:  # innermost references first
        previous, text = text, _REFERENCE.sub("", text)
    return "${" not in text


def _is_outside(key: str, value: Any, folder: Path) -> bool:
    """Return whether a value would make its part write files outside of the run folder."""
    if not isinstance(value, str):
        return False
    path = Path(value)
    if ".." in path.parts:
        return True
    is_place = path.is_absolute() or key in ("dirpath", "dir_name", "save_dir", "cache_reference")
    return is_place and not path.resolve().is_relative_to(folder)


def is_allowed(key_path: str, name: str) -> bool:
    """Return whether a target is allowed at a place of a saved config."""
    accepted = next((accepted for pattern, accepted in _PLACES if pattern.fullmatch(key_path)), ())
    return (
        any(_is_one_of(kind, name) for kind in accepted) or (key_path, name) in _list_experimental_targets()
    )


@cache
def _list_experimental_targets() -> frozenset[tuple[str, str]]:
    """Return the pairs of place and target that options of ``conf/experimental`` contain.

    A part with ``key_variable`` is left out, because it would send a key of the user to any server.
    """
    targets = set()
    for file in EXPERIMENTAL_DIR.rglob("*.yaml"):
        group = name_config(file).rpartition("/")[0].replace("/", ".")
        values = dict(iterate_values(yaml.safe_load(file.read_text(encoding="utf-8")), group))
        for path, value in values.items():
            place, _, key = path.rpartition(".")
            if key == "_target_" and f"{place}.key_variable" not in values:
                targets.add((place, value))
    return frozenset(targets)


def _is_one_of(kind: str, name: str) -> bool:
    base = kind.removesuffix("+")
    if kind == name:
        return True
    if kind.endswith(".*"):
        return name.startswith(kind[:-1]) and _import_defined(name, "lit_agentrl") is not None
    if base == kind:
        return False
    target, parent = _import_defined(name, _LIBRARIES.get(base, "lit_agentrl")), _import_object(base)
    return isinstance(target, type) and isinstance(parent, type) and issubclass(target, parent)


def _import_defined(name: str, library: str) -> type | FunctionType | None:
    """Return the public class or function that a module of ``library`` itself defines, or None."""
    module = name.rpartition(".")[0]
    if not f"{module}.".startswith(f"{library}.") or any(part.startswith("_") for part in name.split(".")):
        return None
    value = _import_object(name)
    if not isinstance(value, type | FunctionType):
        return None
    return value if f"{value.__module__}.".startswith(f"{module}.") else None


def _import_object(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except (ImportError, ValueError):  # ValueError: an empty module name
        return None
