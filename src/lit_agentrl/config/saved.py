"""Read the config saved in a run folder, as it is or for resuming."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lit_agentrl.config.composition import check_sections, list_user_folders, load_option
from lit_agentrl.config.errors import UserError, explain
from lit_agentrl.config.overrides import check_overrides, parse
from lit_agentrl.config.signatures import check_targets, load_libraries
from lit_agentrl.config.trust import (
    TRUST_RUN,
    UntrustedError,
    find_games,
    is_trusted,
    require_shipped,
    resolve_untrusted,
)
from lit_agentrl.renamed import rename_targets
from lit_agentrl.report import sweep as records

# what a resumed run may change: its length, the processes and devices it runs on, and whether its code is trusted
RESUMABLE = (
    "trainer.max_epochs", "strategy", "trainer.accelerator", "trainer.devices", "trainer.num_nodes",
    "traceback", TRUST_RUN,
)  # fmt: skip


def read_resumed_config(folder: Path, overrides: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """Return the config of a run to resume, overrides applied, and its config folders.

    Args:
        folder: the run folder.
        overrides: the changes that the command makes.

    Raises:
        UserError: the folder is not a run folder or names untrusted code, or an override is not in `RESUMABLE`.
    """
    check_overrides(overrides, is_multirun=False)
    parsed = sorted(parse(overrides), key=lambda override: override.key_or_group != "strategy")
    for override in parsed:
        key = override.key_or_group
        if key not in RESUMABLE and not key.startswith("strategy."):
            raise UserError(
                f"{override.input_line} cannot be given with resume={folder}: the run keeps its own saved "
                f"config; only {', '.join(RESUMABLE)} may change"
            )
    changes = {override.key_or_group: override.value() for override in parsed}
    trusted = is_trusted(changes.pop(TRUST_RUN, False))
    strategy = str(changes.pop("strategy", ""))
    added = [("strategy", strategy)] if strategy else []
    cfg, folders = read_saved_config(folder, "resume", trusted=trusted, added=added)
    if strategy:
        cfg.strategy = load_option("strategy", strategy, folders)
    for key, value in changes.items():
        if OmegaConf.select(cfg, key) is None:
            raise UserError(f"unknown option {key}={value}; valid: {', '.join(map(str, cfg.strategy))}")
        OmegaConf.update(cfg, key, value)
    check_targets(cfg)
    return cfg, folders


_log = logging.getLogger(__name__)

# removed arguments -> the value with which they had no effect, and the reason for the removal
_REMOVED: dict[str, dict[str, tuple[Any, str]]] = {
    "lit_agentrl.engines.native.engine.NativeEngine": {
        "compile": (
            False,
            "compiled decoding was no quicker where it was measured; tokens are decoded plainly",
        )
    },
    "lit_agentrl.rewards.learned.rnd.RandomNetworkDistillation": {
        "seed": ("${seed}", "its networks are keyed by the run's seed")
    },
}

# groups and sections that configs of earlier versions lack -> what reproduces the behaviour of those versions
_ADDED = {
    "dialect": "answer", "worker": "none", "data": "rollouts", "reference": "start", "task_sampler": "uniform",
}  # fmt: skip
_ADDED_SECTIONS = {"worlds": {"_target_": "lit_agentrl.rollout.worlds.pool.Worlds", "delay": 0, "wait": True}}

_PROCESS = "lit_agentrl.rollout.workers.process.ProcessSettings"

# a former algo.advantage=gvpo has the gradient of today's group loss if its other options are these
_GVPO_OPTIONS = {
    "ratio": "ratios.none",
    "clip": "clipping.none",
    "aggregate": "aggregation.seq_mean_token_sum",
    "tokens": "entropy.none",
    "correction": "correction.none",
}


def read_saved_config(
    folder: Path, option: str, *, trusted: bool = False, added: Sequence[tuple[str, str]] = ()
) -> tuple[DictConfig, list[str]]:
    """Return the config that a run was started with, and its config folders.

    ``run_dir`` is set to the folder's current location.

    Args:
        folder: the run folder.
        option: the option that named the folder (``run`` or ``resume``), for messages.
        trusted: whether to import and call whatever the config names, and to read the run's own config folders.
        added: options, as pairs of group and name, that the command adds.

    Raises:
        UntrustedError: the config is not trusted, and names something from outside of this package.
        UserError: the folder is not a run folder, or this version cannot read its config.
    """
    config, folders = _read(folder, option)
    load_libraries()
    if not trusted:
        config, folders = _restrict_untrusted(config, folders, folder, option, added), []
    cfg = OmegaConf.create(config)
    try:
        check_sections(cfg, "train")
        check_targets(cfg)
    except UserError as error:
        raise UserError(
            f"{option}={folder} was made by another version ({explain(error)}); "
            "use the version that its summary.json names"
        ) from error
    OmegaConf.resolve(cfg)
    OmegaConf.set_struct(cfg, True)
    return cfg, folders


def format_trust_option(folder: Path) -> str:
    """Return `` trust_run=true`` if a command on this folder needs it, else an empty text.

    The option is needed if the run names code from outside of this package.
    """
    try:
        _restrict_untrusted(*_read(folder, "run"), folder, "run")
    except UntrustedError:
        return f" {TRUST_RUN}=true"
    except (UserError, OmegaConfBaseException):  # not a run folder, or broken: trust does not help
        return ""
    return ""


def _restrict_untrusted(
    config: dict[str, Any], folders: Sequence[str], folder: Path, option: str,
    added: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:  # fmt: skip
    try:
        _require_inner_links(folder)
        resolved = resolve_untrusted(config, folder)
        require_shipped([*added, *find_games(resolved)], folders)
    except UntrustedError as error:
        raise UntrustedError(f"{option}={folder}: {error}") from error
    return resolved


def _require_inner_links(folder: Path) -> None:
    """Refuse links that lead out of the run folder, since writing to them writes outside."""
    home = folder.resolve()
    for path in home.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(home):
            raise UntrustedError(
                f"{path} is a link that leads out of the run folder, and a run folder can come from anyone; if it is "
                f"your own, add {TRUST_RUN}=true"
            )


def require_run_folder(folder: Path, option: str) -> Path:
    """Return the saved config of a run folder; refuse other folders.

    Raises:
        UserError: the folder is not a run folder; the message names ``option``.
    """
    inside = next((p for p in folder.absolute().parents if (p / ".hydra" / "config.yaml").is_file()), None)
    if not folder.is_dir():
        example = f"outputs/DATE/TIME; did you mean {option}={inside}?" if inside else "outputs/DATE/TIME"
        raise UserError(f"{option}={folder} is not a folder; give the folder of a run, such as {example}")
    file = folder / ".hydra" / "config.yaml"
    if not file.is_file():
        runs = sorted(path.parent.parent.name for path in folder.glob("*/.hydra/config.yaml"))
        hint = f"; it holds the runs {', '.join(runs)}" if runs else ""
        hint = f"; did you mean {option}={inside}?" if inside else hint
        if option == "resume" and (folder / records.FILE).is_file():
            hint += "; to resume the whole sweep, give -m, the options of the sweep, and resume=FOLDER"
        raise UserError(f"{option}={folder} is not the folder of a run: it has no .hydra/config.yaml{hint}")
    return file


def _read(folder: Path, option: str) -> tuple[dict[str, Any], list[str]]:
    """Return a folder's saved config in this version's form, and its config folders.

    References such as ``${rollout.prompts}`` are not resolved yet.
    """
    file = require_run_folder(folder, option)
    try:
        raw, hydra_config = (_load_plain(path) for path in (file, file.with_name("hydra.yaml")))
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeError) as error:
        raise UserError(f"{option}={folder}: its saved config cannot be read ({explain(error)})") from error
    if not isinstance(raw, dict) or not raw:
        raise UserError(
            f"{option}={folder}: {file} holds no config; copy the file again, or give another run"
        )
    try:
        raw = rename_targets(raw)
        config, other_loss = _drop_removed(raw), _find_other_loss(raw)
        _add_structure(config)
        _add_worker(config)
        _convert_action_and_bonus(config)
        _drop_profile(config)
        config.pop("eval_cache", None)  # removed option: whether to reuse another run's first evaluation
    except (AttributeError, TypeError) as error:  # for example a string in place of a section
        raise UserError(
            f"{option}={folder}: its saved config is not the config of a run ({error})"
        ) from error
    if option == "resume" and other_loss:
        raise UserError(
            f"{option}={folder} was trained by the advantage gvpo with {other_loss}, a loss that this version does not "
            "have; use the version that its summary.json names"
        )
    config["run_dir"] = str(folder.resolve())
    for group, name in _ADDED.items():
        if group not in config:
            config[group] = OmegaConf.to_container(load_option(group, name))
    for section, content in _ADDED_SECTIONS.items():
        config.setdefault(section, content)
    return config, _find_config_folders(hydra_config)


def _load_plain(file: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(file), resolve=False)


def _find_config_folders(hydra_config: Any) -> list[str]:
    """Return the user's config folders that the run read, if they still exist."""
    for name in ("hydra", "runtime", "config_sources"):
        hydra_config = hydra_config.get(name) if isinstance(hydra_config, dict) else None
    sources = hydra_config if isinstance(hydra_config, list) else []
    entries = [
        SimpleNamespace(
            schema=source.get("schema"), provider=source.get("provider"), path=str(source.get("path"))
        )
        for source in sources
        if isinstance(source, dict)
    ]
    return [path for path in list_user_folders(entries) if Path(path).is_dir()]


def _drop_removed(node: Any) -> Any:
    """Drop removed arguments from a config of an earlier version, whose targets are already renamed."""
    if isinstance(node, list):
        return [_drop_removed(child) for child in node]
    if not isinstance(node, dict):
        return node
    node = _convert_gvpo(node)
    target = str(node.get("_target_", ""))
    remaining = {}
    for name, child in node.items():
        default, reason = _REMOVED.get(target, {}).get(name, (child, None))
        if reason is None:
            remaining[name] = _drop_removed(child)
        elif child != default:
            _log.warning("%s=%s of the saved config was removed: %s", name, child, reason)
    return remaining


def _convert_gvpo(node: dict[str, Any]) -> dict[str, Any]:
    """Convert a former gvpo advantage into today's group loss; return other nodes unchanged."""
    advantage = node.get("advantage")
    if not isinstance(advantage, dict) or advantage.get("_target_") != "lit_agentrl.rl.policy.gvpo.gvpo":
        return node
    other_options: dict[str, Any] = {
        name: node[name] for name in ("name", "rows", "kl", "kl_controller", "entropy") if name in node
    }
    return {
        "_target_": "lit_agentrl.rl.policy.group_loss.GroupLoss",
        "advantage": {"_target_": "lit_agentrl.rl.credit.advantages.group_mean", "_partial_": True},
        "loss_of_groups": {**advantage, "_target_": "lit_agentrl.rl.policy.gvpo.gvpo_loss"},
        **other_options,
    }


def _add_structure(cfg: Any) -> None:
    """Add ``algo.structure`` to a config from before that group existed.

    The structure is `Greedy` if the advantage is the greedy one, which needs a greedy sibling, and `Refill` otherwise.
    """
    algo, rollout, groups = (cfg.get(name) or {} for name in ("algo", "rollout", "filter"))
    max_waves = rollout.pop("max_waves", None)
    if "_target_" in algo and "structure" not in algo:
        is_greedy = algo.get("advantage", {}).get("_target_") == "lit_agentrl.rl.credit.advantages.greedy"
        name = "greedy.Greedy" if is_greedy else "refill.Refill"
        algo["structure"] = {
            "_target_": f"lit_agentrl.rollout.structures.{name}",
            "max_waves": max_waves if groups.get("target") is not None else None,  # else without effect
        }


def _add_worker(cfg: Any) -> None:
    """Move the former ``rollout.overlap_*`` options to ``worker``, and add its missing options.

    A process worker of an earlier version gets the shipped values of the options that it lacks.
    """
    rollout = cfg.get("rollout") or {}
    names = [name for name in ("device", "threads", "patience") if f"overlap_{name}" in rollout]
    options = {name: rollout.pop(f"overlap_{name}") for name in names}
    if names and rollout.get("overlap") is True:
        cfg["worker"] = {"_target_": _PROCESS, **options}
    worker = cfg.get("worker")
    if worker is not None and worker.get("_target_", _PROCESS) == _PROCESS:
        shipped: Any = load_option("worker", "process" if worker else "none")
        cfg["worker"] = {**dict(shipped), **worker}


def _drop_profile(cfg: Any) -> None:
    """Remove the former profiling callback of ``debug=profile``, now Lightning's profiler."""
    callbacks = cfg.get("callbacks") or {}
    if "lit_agentrl.callbacks.profile.Profile" in str(callbacks.get("profile")):
        del callbacks["profile"]


def _convert_action_and_bonus(cfg: Any) -> None:
    """Convert the monitor's action (formerly a word) and the entropy bonus (formerly a function)."""
    for entry in (cfg.get("callbacks") or {}).values():
        if isinstance(entry, dict) and entry.get("action") in ("warn", "stop"):
            entry["action"] = {"_target_": f"lit_agentrl.monitor.actions.{entry['action'].title()}"}
    entropy = (cfg.get("algo") or {}).get("entropy")
    if isinstance(entropy, dict) and entropy.get("_target_") == "lit_agentrl.rl.policy.entropy.bonus":
        cfg["algo"]["entropy"] = {
            "_target_": "lit_agentrl.rl.policy.entropy.Bonus",
            "coef": entropy.get("coef"),
        }


def _find_other_loss(cfg: dict[str, Any]) -> str:
    """Return the option that makes a former gvpo differ from today's group loss, if any."""
    algo = cfg.get("algo") or {}
    if (algo.get("advantage") or {}).get("_target_") != "lit_agentrl.rl.policy.gvpo.gvpo":
        return ""
    if (cfg.get("rollout") or {}).get("overlap") is True:  # which implied a correction
        return "rollout.overlap=true"
    for axis, name in _GVPO_OPTIONS.items():
        target = (algo.get(axis) or {}).get("_target_", f"lit_agentrl.rl.policy.{name}")
        if target != f"lit_agentrl.rl.policy.{name}":
            return f"algo.{axis}={target.rpartition('.')[2]}"
    return ""


def find_run_folder(path: Path) -> Path:
    """Return the run folder of a path to that folder or to a checkpoint inside.

    Raises:
        UserError: the checkpoint does not exist.
    """
    if path.suffix != ".ckpt":
        return path
    if not path.exists():
        raise UserError(f"run={path} does not exist; give a run folder, or one of its .ckpt files")
    return path.resolve().parent.parent
