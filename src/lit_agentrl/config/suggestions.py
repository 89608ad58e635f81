"""Suggest the nearest valid groups, options and keys for a command that Hydra refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any
from warnings import catch_warnings

from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from lit_agentrl.config.errors import (
    UserError,
    explain,
    explain_unreadable,
    explain_wrong_type,
    find_nearest,
    suggest,
)
from lit_agentrl.config.groups import list_group_options, list_groups
from lit_agentrl.config.overrides import get_table, parse
from lit_agentrl.paths import find_config

# names from other libraries -> ours; matched with the last word of a key, or with the whole key
ALIASES = {
    "adv_estimator": "algo",
    "algorithm": "algo",
    "batch_size": "rollout.prompts",
    "ckpt_path": "resume",
    "clip_ratio": "algo.clip.epsilon",
    "entropy_coef": "algo.entropy.coef",
    "entropy_coeff": "algo.entropy.coef",
    "environment": "env",
    "epochs": "trainer.max_epochs",
    "eval_steps": "val.every",
    "game": "env",
    "gpus": "trainer.devices",
    "group_size": "rollout.members",
    "iterations": "trainer.max_epochs",
    "kl_coef": "algo.kl.coef",
    "kl_loss_coef": "algo.kl.coef",
    "learning_rate": "optim.lr",
    "lora_alpha": "model.lora.alpha",
    "lora_r": "model.lora.r",
    "lora_rank": "model.lora.r",
    "lr_scheduler_type": "optim.schedule",
    "max_completion_length": "rollout.max_reply_tokens",
    "max_grad_norm": "update.grad_clip",
    "max_new_tokens": "rollout.max_reply_tokens",
    "max_prompt_length": "rollout.max_context_tokens",
    "max_response_length": "rollout.max_reply_tokens",
    "max_steps": "trainer.max_epochs",
    "model.path": "model.name",
    "model_name": "model.name",
    "model_name_or_path": "model.name",
    "model_path": "model.name",
    "n": "rollout.members",
    "n_gpus_per_node": "trainer.devices",
    "nnodes": "trainer.num_nodes",
    "num_generations": "rollout.members",
    "num_train_epochs": "trainer.max_epochs",
    "output_dir": "hydra.run.dir",
    "policy": "model",
    "ppo_epochs": "update.epochs",
    "project_name": "logger.wandb.project",
    "random_seed": "seed",
    "resume_from_checkpoint": "resume",
    "save_freq": "callbacks.last.every",
    "save_steps": "callbacks.last.every",
    "test_freq": "val.every",
    "total_epochs": "trainer.max_epochs",
    "train_batch_size": "rollout.prompts",
    "warmup_steps": "optim.warmup_iterations",
}
# axis of algorithms that compare or judge recorded replies -> the option of data that they learn from
_DATA_OF_AXES = {"algo/pairing": "pairs", "algo/label": "unpaired"}
# options of earlier versions -> what to write instead
REMOVED = {
    "algo/advantage=gvpo": "algo=gvpo",
    "algo/clip=asymmetric_seed": "algo/clip=clip_higher algo.clip.low=0.15 algo.clip.high=0.25",
    "callbacks.profile.dirpath": "trainer.profiler.dirpath=…",
    "callbacks.profile.iteration": "trainer.profiler.schedule.wait=…, the iterations before the one that is traced",
    "callbacks.profile.rows": "trainer.profiler.row_limit=…",
    "eval_cache": "nothing in its place: the start is always played",
    "rollout.overlap_device": "worker=process worker.device=…",
    "rollout.overlap_threads": "worker=process worker.threads=…",
    "rollout.overlap_patience": "worker=process worker.patience=…",
}


def explain_composition(
    error: Exception, name: str, job: Sequence[str], search_overrides: Sequence[str] = ()
) -> UserError:
    """Explain why Hydra refused the overrides of a job, or a file that they name.

    Args:
        error: what Hydra raised.
        name: the name of the primary config.
        job: the overrides.
        search_overrides: overrides of Hydra's search path.

    Returns:
        The error to raise, which names what is wrong and what is valid.
    """
    if isinstance(error, UnicodeError) and (message := explain_unreadable(search_overrides)):
        return UserError(message)
    groups = list_groups(search_overrides)
    group_overrides = []
    for override in parse(job):
        key, value = override.key_or_group, override.value()
        if key not in groups and "/" in key:
            return UserError(
                f"unknown group {key}; {suggest(find_nearest(key, groups)) or 'valid: ' + ', '.join(groups)}"
            )
        if key not in groups or isinstance(value, dict):
            continue
        options = list_group_options(key, search_overrides)
        if override.is_add():
            return UserError(
                f"{override.input_line}: {key} is chosen already; write {key}={value} without the +"
            )
        names = [str(name) for name in (value if isinstance(value, list) else [value])]
        if unknown := [name for name in names if name not in options]:
            if new := REMOVED.get(f"{key}={unknown[0]}"):
                return UserError(f"{key}={unknown[0]} was removed; write {new}")
            return UserError(f"unknown option {key}={unknown[0]}; {_suggest_name(key, unknown[0], options)}")
        group_overrides.append(str(override.input_line))
    try:
        base = compose(
            config_name=name, overrides=[*group_overrides, *search_overrides], return_hydra_config=True
        )
    except Exception as cause:
        if isinstance(cause, YAMLError):
            return UserError(explain(cause))
        if missing := re.match(r"Could not override '([\w/]+)'\. No match", str(cause)):
            outer = missing[1].rpartition("/")[0]
            override_text = next(text for text in group_overrides if text.startswith(f"{missing[1]}="))
            outer_overrides = [text for text in group_overrides if text.startswith(f"{outer}=")]
            option = outer_overrides[0] if outer_overrides else f"the {outer} chosen"
            return UserError(
                f"{override_text} has no effect: {option} has no {missing[1]}; leave it out, or choose another {outer}"
            )
        return UserError(f"{' '.join(group_overrides)}: {explain(cause)}")
    known_keys = [key for key, _ in _flatten_entries(OmegaConf.to_container(base, resolve=False))]
    for override in parse(job):
        key = override.key_or_group
        if new := REMOVED.get(key):
            return UserError(f"{key} was removed; write {new}")
        if not override.is_add() and key not in [*known_keys, *groups] and get_table(key) not in known_keys:
            return UserError(_suggest_key(key, known_keys, base, search_overrides))
        if str(error).startswith(f"Could not override '{key}'.") and "Key '" in explain(error):
            return UserError(
                _suggest_key(key + "." + explain(error).split("'")[3], known_keys, base, search_overrides)
            )
        if "Error merging override" in str(error) and str(override.input_line) in str(error):
            below = [k for k in known_keys if k.rpartition(".")[0] == key and not k.endswith("_")]
            if below:
                reason = f"is a section; set one of its options: {', '.join(below)}"
                return UserError(f"{override.input_line}: {key} {reason}")
            return UserError(
                explain_wrong_type(str(override.input_line), key, OmegaConf.select(base, key), error)
            )
    return UserError(explain(error))


def _suggest_name(group: str, name: str, options: Sequence[str]) -> str:
    """Suggest what to write instead of an option that a group does not have."""
    if group == "model" and "/" in name:
        return f"write model=hf model.name={name}"
    return f"{suggest(find_nearest(name, options))} valid: {', '.join(options)}".strip()


def _suggest_key(
    key: str, known_keys: Sequence[str], base: DictConfig, search_overrides: Sequence[str]
) -> str:
    """Suggest valid keys for an unknown one.

    These are, in order of preference: the same key in other options of its group, similar keys in the same section, the
    key for another library's name, keys with the same last word, and similar keys elsewhere.
    """
    parent = key
    while parent and parent not in known_keys:
        parent = parent.rpartition(".")[0]
    prefix = f"{parent}." if parent else ""
    below = [k.removeprefix(prefix) for k in known_keys if k.startswith(prefix)]
    children = sorted(k for k in below if "." not in k and not k.startswith("_") and k != "hydra")
    rest, leaf = key.removeprefix(prefix), key.rpartition(".")[2]
    head = key.partition(".")[0]
    choices = base.hydra.runtime.choices
    if (group := key.replace(".", "/")) in choices:
        return f"{key} is chosen by name: {group}=NAME; valid: {', '.join(list_group_options(group, search_overrides))}"
    groups = [str(name) for name in choices if key.startswith(f"{str(name).replace('/', '.')}.")]
    group = max(groups, key=len, default="")  # the innermost: its option may add keys to an outer one
    if group and (others := _list_options_with(key, group, search_overrides)):
        # the option that fits the algorithm comes first
        fitting = _find_fitting_data(choices) if group == "data" else ""
        others.sort(key=lambda option: option != fitting)
        option = key[len(group) + 1 :]
        return (
            f"{group}={choices[group]} has no option {option}; {key} belongs to {group}={', '.join(others)}"
        )
    if parent and not below and OmegaConf.select(base, parent) is None:  # null may stand for a mapping
        return f"unknown option {key}; {parent} takes one value; if it takes a mapping, write '{parent}={{{rest}: …}}'"
    near = [f"{prefix}{k}" for k in find_nearest(rest, children, cutoff=0.65)]
    near = near or [
        ALIASES[word] for word in dict.fromkeys((key, leaf)) if word in ALIASES and ALIASES[word] != key
    ]
    near = near or [f"{prefix}{k}" for k in find_nearest(rest, children)]
    near = near or [k for k in known_keys if k.rpartition(".")[2] == leaf and not k.startswith("hydra")]
    if head not in known_keys:
        near = near or [
            ALIASES[word] + key[len(head) :] for word in find_nearest(head, ALIASES, cutoff=0.75)[:1]
        ]
    # keys that begin with _ are Hydra's or the configs' own
    near = near or find_nearest(
        key, [k for k in known_keys if "_" not in (k[0], k.rpartition(".")[2][0]) and k != parent], cutoff=0.8
    )
    listed = (
        f"valid: {', '.join(prefix + k for k in children)}"
        if children
        else f"{group}={choices.get(group)} has none"
    )
    return f"unknown option {key}; {suggest(near) or listed}"


def _find_fitting_data(choices: Mapping[str, str]) -> str:
    """Return the option of ``data`` that the chosen algorithm learns from; empty if it plays."""
    if choices.get("algo/advantage") == "demonstration":
        return "demonstrations"
    return next((data for axis, data in _DATA_OF_AXES.items() if axis in choices), "")


def _list_options_with(key: str, group: str, search_overrides: Sequence[str]) -> list[str]:
    """List the options of a group that have ``key``.

    Of options that differ only in numbers, the first one is listed.
    """
    options: dict[frozenset[str], str] = {}
    for option in list_group_options(group, search_overrides):
        content = _read_option_content(group, option, tuple(search_overrides))
        if key in content:
            options.setdefault(content, option)
    return list(options.values())


@cache
def _read_option_content(group: str, option: str, search_overrides: tuple[str, ...]) -> frozenset[str]:
    """Return the keys of an option, and ``key=value`` for each value that is a string."""
    content: Any = {}
    # Hydra may warn about the file of a plugin
    with suppress(HydraException, YAMLError), catch_warnings(action="ignore"):
        content = compose(config_name=f"{group}/{option}", overrides=list(search_overrides))
    # a file that overrides other groups cannot be composed alone
    if not content and (file := find_config(f"{group}/{option}.yaml")).is_file():
        content = OmegaConf.create()
        OmegaConf.update(content, group.replace("/", "."), OmegaConf.load(file))
    entries = list(_flatten_entries(OmegaConf.to_container(OmegaConf.create(content), resolve=False)))
    texts = [f"{key}={value}" for key, value in entries if isinstance(value, str)]
    return frozenset([*(key for key, _ in entries), *texts])


def _flatten_entries(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of a config, nested ones included, with its value."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield f"{prefix}{key}", child
            yield from _flatten_entries(child, f"{prefix}{key}.")
