"""Make the objects that sections of a config describe, and check their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.actions import Actions, ToolSpec
from lit_agentrl.checks import blame, require_members
from lit_agentrl.config.composition import load_option
from lit_agentrl.config.errors import UserError
from lit_agentrl.engines.base import Engine
from lit_agentrl.models.policy import Policy
from lit_agentrl.models.remote import RemotePolicy
from lit_agentrl.text.dialects.base import Dialect, Reply
from lit_agentrl.text.prompts import Prompt

T = TypeVar("T")
SLOTS = 128  # of an engine whose slots nobody has chosen, see `choose_for_device`
_TOOLS = (ToolSpec("go", "goes", {"type": "object", "properties": {}}),)
_ACTIONS = {  # format of actions -> the possible actions, and an example
    "names": (Actions("names", ("Up", "Down")), "Up"),
    "text": (Actions("text"), "Up"),
    "tools": (Actions("tools", tools=_TOOLS), '{"name": "go", "arguments": {}}'),
}


def instantiate_as(cfg: DictConfig, key: str, kind: Callable[..., T]) -> T:
    """Instantiate a section, whose object must inherit ``kind`` and so has its defaults.

    Raises:
        ValueError: the object does not inherit ``kind``, or declares a member by its name in version 0.2, a key of
            ``kind.renamed_members`` (the message names ``_target_``); or the object itself refuses an option.
    """
    section = OmegaConf.select(cfg, key)
    built: T = instantiate(section)
    if kind not in type(built).__mro__:
        target = section.get("_target_") if isinstance(section, DictConfig) else section
        raise ValueError(
            f"{key}._target_={target} makes a {type(built).__name__}, which does not inherit "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    declared = {name for base in type(built).__mro__ for name in vars(base)}
    for old, new in getattr(kind, "renamed_members", {}).items():
        if old in declared:
            raise ValueError(
                f"{key}._target_={section._target_}: {type(built).__name__} declares {old}, which is not read since "
                f"0.3; name it {new}"
            )
    return built


def instantiate_like(cfg: DictConfig, key: str, protocol: type[Any]) -> Any:
    """Instantiate a section, whose object must have all members of a protocol.

    Raises:
        ValueError: the object lacks a member, which the message names; or the object itself refuses an option.
    """
    built = instantiate(OmegaConf.select(cfg, key))
    require_members(f"{key}._target_={OmegaConf.select(cfg, key)._target_}", built, protocol)
    return built


def make_policy(cfg: DictConfig, *, trains: bool = True) -> Policy:
    """Instantiate the policy of a run.

    If nothing is trained, this may be a `RemotePolicy`, which stands for a model behind an API and has no network.

    Raises:
        ValueError: a model behind an API is to be trained; or the object itself refuses an option.
    """
    policy = instantiate(cfg.model)
    if isinstance(policy, RemotePolicy) and not trains:
        return cast(Policy, policy)
    if not isinstance(policy, Policy):
        raise ValueError(
            "model has no network that could be trained: evaluate it (lit-agentrl evaluate "
            "model=remote engine=openai …), or choose another model"
        )
    return policy


def get_engine_factory(cfg: DictConfig) -> Callable[..., Engine]:
    """Return the function that makes the engine.

    Raises:
        ValueError: ``engine`` lacks ``_partial_: true``, and so makes the engine at once.
    """
    options = {"num_slots": SLOTS} if cfg.engine.get("num_slots") == "auto" else {}
    make = instantiate(cfg.engine, _convert_="all", **options)
    if not callable(make):
        raise ValueError("engine has no _partial_; write _partial_: true into its YAML")
    factory: Callable[..., Engine] = make
    return factory


def load_other_engine(cfg: DictConfig, saved: DictConfig) -> DictConfig:
    """Return the config of the engine that ``cfg.engine`` names, with the saved run's ``num_slots``.

    ``num_slots`` is copied only if both engines have it.

    Raises:
        UserError: there is no such engine, or it has a required option without a value.
    """
    engine = load_option("engine", str(cfg.engine))
    if missing := OmegaConf.missing_keys(engine):
        raise UserError(
            f"engine={cfg.engine} needs {min(missing)}, which cannot be given here; use engine=native or "
            "vllm, or leave it out to use the run's engine"
        )
    if "num_slots" in engine and "num_slots" in saved.engine:
        engine.num_slots = saved.engine.num_slots
    return engine


def make_dialect(cfg: DictConfig) -> Dialect:
    """Instantiate the dialect (the reply grammar), and call each of its methods as a test.

    Raises:
        ValueError: a method is missing, raises, or returns a wrong type.
    """
    dialect: Dialect = instantiate_like(cfg, "dialect", Dialect)
    with blame("dialect"):
        for kind in sorted(dialect.formats):
            actions, action = _ACTIONS[kind]
            dialect.instructions(actions, max_actions=2, think=True)
            dialect.rejected(action)
            for text in (
                dialect.write([action], thought="q"),
                dialect.write([action], thought=None),
                "",
                "?",
            ):
                dialect.spans(text, in_think=False)
                reply = dialect.parse(text, actions, think=True)
                if not isinstance(reply, Reply):
                    raise ValueError(f"parse must return a Reply, and returned {type(reply).__name__}")
    return dialect


def make_prompt_and_dialect(cfg: DictConfig) -> tuple[Prompt, Dialect]:
    """Instantiate the prompt and the dialect of replies.

    Raises:
        ValueError: thinking is forced, and the dialect has no opening tag for it.
    """
    prompt, dialect = instantiate_as(cfg, "prompt", Prompt), make_dialect(cfg)
    if prompt.force_think and not dialect.think_start:
        raise ValueError("prompt.force_think=true needs a dialect with an opening tag for thinking")
    return prompt, dialect
