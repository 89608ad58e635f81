"""Check a config against the signatures of its targets, before any is instantiated."""

from __future__ import annotations

import gc
import importlib
import inspect
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from lit_agentrl import screen
from lit_agentrl.checks import format_value, is_numeric
from lit_agentrl.config.errors import UserError, explain_import, find_nearest, get_first_line, suggest
from lit_agentrl.config.trainer_options import LIGHTNING, describe_arguments
from lit_agentrl.paths import list_options

HEAVY = ("lightning.pytorch", "transformers")


_HYDRA_KEYS = {"_target_", "_partial_", "_args_", "_recursive_", "_convert_"}
_TENSORS = ("_BT", "_B", "_BK")  # ends of the names of arguments that a run provides
_LISTS, _DICTS = (list, tuple, Sequence), (dict, Mapping)
# bounds of the absolute value of numeric options, except for those of optimizers, which check their own
LEAST, MOST = 1e-30, 1e15
_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    NoneType: "null",
}

SET_ELSEWHERE = {  # arguments that the program passes -> the option that decides them
    "env.game.split": "val and test",
    "optim.optimizer.lr": "optim.lr",
    "optim.optimizer.params": "model",
    "engine.max_context_tokens": "rollout.max_context_tokens",
    "engine.network": "model",
    "trainer.callbacks": "callbacks",
    "trainer.logger": "logger",
    "trainer.strategy": "strategy",
    "trainer.plugins": "strategy",
    "trainer.default_root_dir": "hydra.run.dir",
    "trainer.check_val_every_n_epoch": "val.every",
    "trainer.enable_checkpointing": "callbacks.last and callbacks.best",
    "trainer.gradient_clip_val": "update.grad_clip",
    "trainer.gradient_clip_algorithm": "update.grad_clip",
    "trainer.val_check_interval": "val.every",
    "trainer.limit_predict_batches": "no option: nothing is predicted",
    "trainer.barebones": "no option: runs are logged and saved",
    "trainer.accumulate_grad_batches": "update.minibatches",
    "trainer.log_every_n_steps": "no option: every iteration is logged",
    "trainer.num_sanity_val_steps": "no option: the start is always validated",
    "trainer.use_distributed_sampler": "no option: prompts are dealt by iteration",
    "trainer.enable_model_summary": "no option: no summary is printed",
}

# options whose ``auto`` is replaced by a value for the device before their part is made (`build.devices`)
BY_DEVICE = (
    "trainer.precision", "engine.num_slots", "update.checkpoint_activations", "update.tokens_per_microbatch",
    "update.logits_chunk",
)  # fmt: skip

SEPARATE = {"algo.structure"}  # nodes that are instantiated separately, not passed to their section's target


def load_libraries() -> None:
    """Import torch, Lightning and transformers, and print that this takes seconds."""
    if "lightning" in sys.modules:
        return
    screen.announce("loading torch and Lightning")
    with pause_collector():
        for name in HEAVY:
            importlib.import_module(name)


@contextmanager
def pause_collector() -> Iterator[None]:
    """Disable the garbage collector while libraries are imported.

    The imports create a million long-lived objects, and scanning these repeatedly would take a third of the time.
    The collector ignores the objects afterwards (``gc.freeze``).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def check_targets(
    cfg: DictConfig, modules: tuple[str, ...] = ("",), checks: Mapping[str, str] | None = None
) -> None:
    """Check the arguments of every node that has a ``_target_``, partial ones included.

    Args:
        cfg: the config, without the ``hydra`` node.
        modules: beginnings of the names of the targets that are imported and checked; default: all.
        checks: by target, the name of a function that has some of its options; only these are checked, and the
            target is not imported.

    Raises:
        UserError: a target that cannot be imported, an argument that it does not take, a required value that
            is missing, or a value of the wrong type; the message names the option and what is valid.
    """
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise UserError(f"{missing[0]} has no value; set {missing[0]}=…")
    for path, node in find_targets(OmegaConf.to_container(cfg, resolve=True)):
        name = str(node["_target_"])
        check = (checks or {}).get(name)
        if check is None and not name.startswith(modules):
            continue
        target = describe_arguments if name == LIGHTNING else _locate(path, check or name)
        parameters = inspect.signature(target).parameters
        hints = _get_hints(target)
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        for argument, value in node.items():
            option, is_known = f"{path}.{argument}", argument in parameters or takes_any
            is_skipped = argument in _HYDRA_KEYS or option in SEPARATE or (check and not is_known)
            if is_skipped or (value == "auto" and option in BY_DEVICE):
                continue
            if option in SET_ELSEWHERE:
                raise UserError(f"{option} would be ignored; it is decided by {SET_ELSEWHERE[option]}")
            if not is_known:
                raise UserError(f"unknown option {option}; {_suggest_names(path, str(argument), parameters)}")
            annotation = hints.get(str(argument), Any)
            _require_type(option, annotation, value)


def find_targets(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the option and the content of every node that has a ``_target_``."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield path, node
        for name, child in node.items():
            yield from find_targets(child, f"{path}.{name}" if path else str(name))


def list_entries(cfg: DictConfig, key: str) -> list[str]:
    """Return the options of a section's entries that are parts, without null entries.

    Raises:
        UserError: an entry is neither a target nor null.
    """
    options = []
    for name, entry in (cfg.get(key) or {}).items():
        if entry is None:
            continue
        if not isinstance(entry, DictConfig) or "_target_" not in entry:
            raise UserError(f"{key}.{name!s}={format_value(entry)} must have a _target_, or be null")
        options.append(f"{key}.{name!s}")
    return options


def _locate(path: str, name: str) -> Callable[..., Any]:
    try:
        logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # a failure is reported below
        target = get_object(name)
    except Exception as error:  # importing a user's module can fail in any way
        reason = explain_import(get_first_line(error.__cause__ or error))
        raise UserError(f"{path}._target_={name} cannot be imported: {reason}") from error
    if not callable(target):
        raise UserError(f"{path}._target_={name} is not a class or function")
    return target  # type: ignore[no-any-return]


def _get_hints(target: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except Exception:  # a hint that only type checkers can evaluate gives nothing to check
        return {}


def _suggest_names(path: str, name: str, parameters: Mapping[str, Any]) -> str:
    valid = [
        p
        for p in parameters
        if p != "self" and not p.endswith(_TENSORS) and f"{path}.{p}" not in SET_ELSEWHERE
    ]
    if hint := suggest(find_nearest(name, valid)):
        return hint
    if not valid:
        return f"{path} has no options"
    return f"{path} takes {', '.join(valid[:12])}{', …' if len(valid) > 12 else ''}"


def _split_union(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, UnionType):
        return tuple(m for part in get_args(annotation) for m in _split_union(part))
    return (NoneType if annotation is None else annotation,)


def _require_type(option: str, annotation: Any, value: Any) -> None:
    """Refuse a value that the annotation does not allow; name the entry of a mapping."""
    if _is_accepted(annotation, value):
        _require_size(option, value)
        return
    entries = [get_args(m) for m in _split_union(annotation) if get_origin(m) in _DICTS and get_args(m)]
    if entries and isinstance(value, Mapping):
        for name, inner in value.items():
            _require_type(f"{option}.{name}", entries[0][1], inner)
    text = repr(value) if isinstance(value, str) and is_numeric(value) else format_value(value)
    raise UserError(f"{option}={text} must be {_describe(annotation)}{_suggest_group(option)}")


def _suggest_group(option: str) -> str:
    """Return a hint if the option is a config group, and an empty text otherwise."""
    group = option.replace(".", "/")
    names = [file.stem for file in list_options(group)]
    return f"; {group}=NAME chooses its options; NAME is {' or '.join(names)}" if names else ""


def _require_size(option: str, value: Any) -> None:
    """Refuse numbers that would overflow or vanish in float32; each part checks ``inf`` itself."""
    if isinstance(value, bool) or not isinstance(value, int | float) or "optim." in option:
        return
    if isinstance(value, int) and value > MOST:
        raise UserError(f"{option}={value} must be at most {MOST:g}")
    if not (value in (0, math.inf, -math.inf) or LEAST <= abs(value) <= MOST):
        raise UserError(
            f"{option}={format_value(value)} must be 0, or from {LEAST:g} to {MOST:g} in size, for float32"
        )


def _is_accepted(annotation: Any, value: Any) -> bool:
    """Return whether the annotation allows a value; types that YAML cannot express allow every value."""
    if isinstance(value, Mapping) and "_target_" in value:  # its result is checked when it is instantiated
        return True
    return any(_is_of_type(member, value) for member in _split_union(annotation))


def _is_of_type(member: Any, value: Any) -> bool:
    origin, arguments = get_origin(member) or member, get_args(member)
    if origin is Literal:
        return value in arguments
    if origin in _LISTS:
        types = arguments[:1] if origin is not tuple or arguments[1:] == (...,) else ()
        return isinstance(value, list) and all(
            _is_accepted(item_type, item) for item_type in types for item in value
        )
    if origin in _DICTS:
        return isinstance(value, Mapping) and all(
            _is_accepted(arguments[1], v) for v in value.values() if arguments
        )
    if member in (int, float):
        is_number = isinstance(value, int if member is int else int | float)
        return is_number and not isinstance(value, bool) and not math.isnan(value)
    if _is_part(member):
        return False
    if member is Path:
        return isinstance(value, str)
    if origin is Callable:
        return isinstance(value, str | Mapping)  # which the part itself may read
    return member not in _TYPE_NAMES or isinstance(value, member)


def _is_part(member: Any) -> bool:
    """Return whether a type is a class of this package, which configs write as ``_target_``."""
    return inspect.isclass(member) and member.__module__.startswith("lit_agentrl.")


def _describe(annotation: Any) -> str:
    words = []
    for member in _split_union(annotation):
        origin, arguments = get_origin(member) or member, get_args(member)
        if origin is Literal:
            words += [format_value(value) for value in arguments]
        elif origin in _LISTS:
            words.append("a list, such as [" + ("a, b" if arguments[:1] == (str,) else "1, 2") + "]")
        elif origin in _DICTS:
            words.append("entries, such as {NAME: VALUE}")
        elif _is_part(member):
            words.append(f"options of {_add_article(member.__name__)}, with its _target_")
        elif origin is Callable:
            words.append("options of a function, with its _target_")
        else:
            words.append(_TYPE_NAMES[member])
    return " or ".join(dict.fromkeys(words))


def _add_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
