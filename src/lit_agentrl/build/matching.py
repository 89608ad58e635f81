"""Match what the parts of a run require and provide, before anything is played."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from lit_agentrl import facts
from lit_agentrl.build.critics import describe_critic
from lit_agentrl.build.instantiation import get_engine_factory
from lit_agentrl.build.players import describe_players
from lit_agentrl.engines.needs import check_engine_options
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.requirements import Fact, Offer, Part, Requirement, describe_part, match
from lit_agentrl.rl.policy.filters import Selection, keeps_all, wanted_groups
from lit_agentrl.rollout.structures.base import DEFAULT_WAVES
from lit_agentrl.update.minibatches import name_units

if TYPE_CHECKING:
    from lit_agentrl.build.parts import Parts


def match_run(cfg: DictConfig, parts: Parts) -> list[Part]:
    """Refuse a run whose parts do not fit together, judging by their options.

    Returns:
        The parts without the engine, which may have to be made first to be described.

    Raises:
        ValueError: the message names the requiring part, what is missing, and the remedy.
    """
    descriptions, engine = list(describe_run(cfg, parts)), check_engine_options(get_engine_factory(cfg))
    match([*descriptions, *filter(None, [engine])], undecided={"env"} if engine else {"env", "engine"})
    return descriptions


def match_game(task: Task, played: Sequence[Episode], others: Sequence[Part]) -> None:
    """Refuse a game whose first episodes lack what the other parts require.

    Raises:
        ValueError: the message names the requiring part, the game, and the remedy.
    """
    turns = [turn for episode in played for turn in episode.turns]
    is_provided = {
        facts.STATE_KEYS: bool(turns[0].state_key),
        facts.COSTS: any(turn.cost is not None for turn in turns),
    }
    game = describe_part(
        "env", task, name=task.name, provides=[fact for fact in is_provided if is_provided[fact]]
    )
    match([*others, game], undecided={"engine"})


def describe_run(cfg: DictConfig, parts: Parts) -> Iterator[Part]:
    """Yield a description of each part of a run, in the order of error reports."""
    algorithm, rollout = parts.algorithm, parts.rollout
    yield describe_part("algo", algorithm, name=algorithm.name)
    yield describe_part("rollout", rollout if parts.plays else None, provides=_list_groups(cfg, parts))
    yield describe_part("update", parts.update, requires=[_require_units(parts)])
    is_whole = parts.context.is_append_only
    yield describe_part("context", parts.context, provides=[facts.WHOLE_CONTEXT] if is_whole else [])
    yield describe_part("algo.structure", parts.structure)
    yield describe_part("task_sampler", parts.sampler)
    yield describe_filter(parts.select_groups)
    yield describe_critic(parts.critic)
    yield describe_part("reference", parts.reference, name=type(parts.reference).__name__.lower())
    yield from describe_players(cfg, parts.worker)
    yield from _describe_rewards(parts)
    yield from _describe_data(parts)
    yield _describe_model(cfg)
    for key in ("optim", "prompt", "dialect", "worlds"):
        yield describe_part(key, getattr(parts, key))


def describe_filter(select_groups: Callable[..., Selection]) -> Part:
    """Describe the filter: whether it keeps all groups, or requires a number of them."""
    target = wanted_groups(select_groups)
    rule = select_groups.func if isinstance(select_groups, partial) else select_groups
    requires: list[Fact | Requirement] = []
    if target is not None:
        requires.append(Requirement(facts.MORE_GROUPS, remedy="filter.target=null"))
        requires.append(Requirement(facts.GROUPS, target, by=f"filter.target={target}"))
    return describe_part(
        "filter",
        rule,
        name=getattr(rule, "__name__", ""),
        requires=requires,
        provides=[
            *([facts.ALL_GROUPS] if keeps_all(select_groups) else []),
            *([facts.ASKS_FOR_GROUPS] if target is not None else []),
        ],
    )


def _list_groups(cfg: DictConfig, parts: Parts) -> list[Fact | Offer]:
    """List how many groups, and how many units to split into minibatches, an iteration offers."""
    rollout, kind = parts.rollout, parts.data
    factor = parts.algorithm.requirements.prompt_factor
    if kind is not None and not parts.plays:
        units = kind.batch * (kind.smallest if parts.algorithm.unit in (None, "trajectory_B") else 1)
        return [facts.IN_ORDER, Offer(facts.UNITS, units, f"data.batch={kind.batch}")]
    prompts = parts.structure.prompts(rollout.prompts, factor)
    units = prompts * (rollout.members if parts.algorithm.unit in (None, "trajectory_B") else 1)
    waves = OmegaConf.select(cfg, "algo.structure.max_waves") or DEFAULT_WAVES
    by = f"the {waves * prompts} groups that {waves} waves of rollout.prompts={rollout.prompts} give"
    unit_source = f"the {units} of rollout.prompts={rollout.prompts} and rollout.members={rollout.members}"
    return [Offer(facts.GROUPS, waves * prompts, by), Offer(facts.UNITS, units, unit_source)]


def _require_units(parts: Parts) -> Requirement:
    number, units = parts.update.minibatches, name_units(parts.algorithm.unit or "trajectory_B")
    fact = replace(facts.UNITS, sentence=f"{{}} {units} in an iteration")
    return Requirement(fact, number, by=f"update.minibatches={number}")


def _describe_rewards(parts: Parts) -> Iterator[Part]:
    shaping = parts.rewards.parts
    name = f"[{','.join(shaping)}]"
    yield describe_part("reward", name=name, provides=[] if shaping else [facts.UNSHAPED])
    for key, part in shaping.items():
        yield describe_part(f"reward.{key}", part)


def _describe_data(parts: Parts) -> Iterator[Part]:
    kind = parts.data
    if kind is None:
        yield describe_part(
            "data", name="rollouts", provides=[facts.PLAYED, facts.HELD_REFERENCE, facts.NO_IMITATION]
        )
    else:
        yield describe_part("data", kind, name=type(kind).__name__.lower())


def _describe_model(cfg: DictConfig) -> Part:
    """Describe the adapters of ``model`` from the config, since the model is not built yet."""
    lora = cfg.model.get("lora")
    if lora is None:
        return describe_part("model/lora", name="none", provides=[facts.NO_ADAPTERS])
    if not lora.get("levels"):
        return describe_part("model/lora", name="default")
    return describe_levels()


def describe_levels() -> Part:
    """Describe the option ``model/lora=levels``, with one adapter for each level."""
    default = "model/lora=default"
    idle = "a level may have no gradient, for which several processes would wait"
    return describe_part(
        "model/lora",
        name="levels",
        requires=[
            Requirement(facts.PLANS, reason="one adapter writes plans", remedy=default),
            Requirement(facts.ONE_PROCESS, reason=idle, remedy=default),
            Requirement(facts.POLICY_ALONE, remedy=default),
        ],
    )
