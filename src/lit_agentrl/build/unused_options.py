"""Find options without effect: refuse typed ones, and report those in an algorithm's own YAML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.build.games import Games
from lit_agentrl.build.parts import Parts
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import parse
from lit_agentrl.modules.base import AgentModule
from lit_agentrl.rl.binding import bare, bind, constants, tensor_names, with_computed
from lit_agentrl.rl.credit.advantages import process_group
from lit_agentrl.rl.credit.comparison_advantages import demonstration
from lit_agentrl.rl.credit.value_loss import ValueLoss
from lit_agentrl.rl.objective import SCORES, Objective
from lit_agentrl.update.settings import UpdateSettings


class Rule(NamedTuple):
    """A rule about the options whose names begin with ``key``.

    Attributes:
        key: beginning of the names.
        has_effect: True if the options have an effect in this run.
        why: the reason and the remedy if they have none.
    """

    key: str
    has_effect: Callable[[DictConfig, Parts], bool]
    why: str


def _has_test(cfg: DictConfig, parts: Parts) -> bool:
    return bool(cfg.test.episodes)


def _is_played(cfg: DictConfig, parts: Parts) -> bool:
    return parts.plays


def _is_policy(cfg: DictConfig, parts: Parts) -> bool:
    return parts.algorithm.reads != SCORES


def _is_truncated(cfg: DictConfig, parts: Parts) -> bool:
    allowed: bool = cfg.rollout.allow_truncated_sampling
    return not allowed or parts.rollout.top_p < 1 or parts.rollout.top_k > 0


def _has_room_for_tries(cfg: DictConfig, parts: Parts) -> bool:
    return bool(cfg.env.game.tries <= parts.games.tasks[0].action_budget)


def _is_trained(cfg: DictConfig, parts: Parts) -> bool:
    return parts.algorithm.trains


def _is_filter_usable(cfg: DictConfig, parts: Parts) -> bool:
    """Return whether there is a filter, or the monitor's action leaves it alone."""
    return parts.plays or not OmegaConf.select(cfg, "callbacks.collapse.action.filter")


def _has_world(cfg: DictConfig, parts: Parts) -> bool:
    return bool(parts.games.tasks) or not _is_policy(cfg, parts)  # reward models have rules of their own


def _has_own_messages(cfg: DictConfig, parts: Parts) -> bool:
    """Return whether the run writes its messages itself, and not a program."""
    tasks = parts.games.tasks
    return not tasks or any(task.play_class is None for task in tasks) or bool(cfg.prompt.force_think)


_NOT_TRAINED = "the algorithm takes no step; leave it out"
_NO_TEST = "test.episodes=0 plays no test; leave it out, or set test.episodes"
RULES = (
    Rule(
        "critic.",
        lambda cfg, parts: parts.critic is not None,
        "the advantage needs no values, so there is no critic; leave it out, or choose an estimator such as "
        "algo/advantage=gae_token",
    ),
    Rule("prompt", _has_own_messages, "a program writes its own messages; leave it out"),
    Rule("optim", _is_trained, _NOT_TRAINED),
    Rule("update", _is_trained, _NOT_TRAINED),
    Rule("test.temperature", _has_test, _NO_TEST),
    Rule("test.envs", _has_test, _NO_TEST),
    *(
        Rule(key, _is_played, "nothing is played in training; leave it out, or set data=rollouts")
        for key in (
            "filter",
            "task_sampler",
            "rollout.prompts",
            "rollout.members",
            "rollout.instances",
            "rollout.top_",
            "rollout.allow_",
        )
    ),
    *(
        Rule(key, _is_policy, "a reward model plays nothing: it is evaluated on held-out pairs; leave it out")
        for key in ("val.episodes", "val.envs", "val.temperature", "test.envs", "test.temperature")
    ),
    *(
        Rule(
            key,
            _has_world,
            "no env is named, so that nothing is played: data.held_out judges; name env=WORLD",
        )
        for key in ("val.episodes", "val.temperature", "test.temperature")
    ),
    Rule(
        "callbacks/collapse/action",
        _is_filter_usable,
        "nothing is played in training, so there is no filter to change; set callbacks.collapse.action.filter=null, or "
        "data=rollouts",
    ),
    Rule(
        "rollout.allow_truncated_sampling",
        _is_truncated,
        "nothing is truncated; leave it out, or set rollout.top_p below 1 or rollout.top_k above 0",
    ),
    Rule(
        "update.max_logp_gap",
        lambda cfg, parts: not parts.algorithm.needs("sampler_logp_BT"),
        "algo/correction recomputes log-probs for any gap; leave it out, or use algo/correction=none",
    ),
    Rule(
        "reward.delta.at_iteration",
        lambda cfg, parts: (cfg.reward.delta.at_iteration or 0) < cfg.trainer.max_epochs,
        "the run ends before it; give an iteration below trainer.max_epochs, or leave it out",
    ),
    Rule(
        "env.game.tries",
        _has_room_for_tries,
        "an episode ends before, at env.max_turns replies or env.max_actions answers; raise both to at least as many, "
        "or lower it",
    ),
    Rule(
        "env.game.instruction",
        lambda cfg, parts: parts.prompt.style != "compact",
        "prompt=compact writes no system message; leave it out, or set prompt=full",
    ),
    Rule(
        "env.hosting.restarts",
        lambda cfg, parts: any(task.hosting.where != "inline" for task in parts.games.tasks),
        "games that answer inline have no workers; leave it out, or set env.hosting.where=thread or process",
    ),
)


def refuse_unused_options(overrides: Sequence[str], jobs: Sequence[tuple[DictConfig, Parts]]) -> None:
    """Refuse overrides that have no effect in any of a command's jobs.

    Args:
        overrides: the overrides as typed.
        jobs: the config and the built parts of each job.

    Raises:
        UserError: the message names the option, why it has no effect, and the remedy.
    """
    for override in parse(overrides):
        for rule in RULES:
            is_meant = override.key_or_group.startswith(rule.key)
            if is_meant and not any(rule.has_effect(cfg, parts) for cfg, parts in jobs):
                raise UserError(f"{override.input_line} has no effect: {rule.why}")
    _refuse_long_warmup({override.key_or_group for override in parse(overrides)}, jobs)
    for cfg, parts in jobs:
        warmup, iterations = cfg.critic.get("warmup_iterations", 0), cfg.trainer.max_epochs
        if parts.critic is not None and warmup >= iterations:
            raise UserError(
                f"critic.warmup_iterations={warmup} of trainer.max_epochs={iterations}: the policy would never be "
                "trained; lower the first, or raise the second"
            )


def _refuse_long_warmup(typed: set[str], jobs: Sequence[tuple[DictConfig, Parts]]) -> None:
    """Refuse a warm-up that no job of the command finishes, unless ``debug`` shortens the runs."""
    for section in ("optim", "critic.optim"):
        option = f"{section}.warmup_iterations"
        if option not in typed or "debug" in typed:
            continue
        pairs = [(int(OmegaConf.select(cfg, option)), int(cfg.trainer.max_epochs)) for cfg, _ in jobs]
        if all(warmup >= iterations for warmup, iterations in pairs):
            warmup, iterations = pairs[0]
            raise UserError(
                f"{option}={warmup} of trainer.max_epochs={iterations}: {section}.lr would never be reached; lower "
                "the first, or raise the second"
            )


def describe_idle_processes(prompts: int, processes: int) -> str:
    """Return a line about processes that get no prompt in an iteration; may be empty."""
    if processes <= prompts:
        return ""
    return (
        f"rollout.prompts={prompts} gives {processes - prompts} of {processes} processes nothing to play; raise it, or "
        "lower trainer.devices"
    )


def describe_inactive_bounds(module: AgentModule, *, is_older: bool, overrides: Sequence[str]) -> str:
    """Return a line about clip bounds that the user chose and that never act.

    In the first step of an iteration, the ratios are 1 and the values have not changed.  Bounds that an algorithm
    brings are not named.

    Args:
        module: the module with its objective, critic and settings.
        is_older: whether episodes are played with older weights than those that are trained.
        overrides: the overrides as typed.

    Returns:
        The line; empty if every bound can act.
    """
    settings, objective = module.updater.settings, module.objective
    if settings.epochs * settings.minibatches > 1:
        return ""
    rows = TrajectoryBatch.make_toy().to_dict()
    has_other_ratios = is_older and not objective.needs("sampler_logp_BT")
    why_by_name = {} if has_other_ratios else dict.fromkeys(
        (f"algo.{name}" for name in objective.ratio_bounds(rows)), "every ratio is 1 up to rounding"
    )  # fmt: skip
    if module.critic is not None:
        loss = module.critic.loss
        result: ValueLoss = bind(loss, with_computed(rows))  # with unchanged values
        if "old_value_BT" in tensor_names(loss) and not bool(result.is_clipped_BT.any()):
            why_by_name |= {f"critic.loss.{name}": "no value has changed" for name in constants(loss)}
    keys = {override.key_or_group.replace("/", ".") for override in parse(overrides)}
    chosen_keys = keys - {"algo", "critic"}
    names = [name for name in why_by_name if any(f"{name}.".startswith(f"{key}.") for key in chosen_keys)]
    if not names:
        return ""
    why = dict.fromkeys(why_by_name[name] for name in names)
    verb, them = ("acts", "it") if len(names) == 1 else ("act", "them")
    return (
        f"{' and '.join(names)} never {verb}: an iteration has one step, in which {' and '.join(why)}; "
        f"update=four_minibatches makes {them} act"
    )


# options that set the number of steps in an iteration
_STEPS = ("update", "update.epochs", "update.minibatches")


def describe_blind_turns(objective: Objective, games: Games, overrides: Sequence[str]) -> str:
    """Return a line about an advantage that cannot see when an episode ends.

    The line is empty if the user did not choose the advantage, or if every training game has one turn.
    """
    chosen = [each.input_line for each in parse(overrides) if each.key_or_group == "algo/advantage"]
    part = getattr(objective, "advantage", None)
    if not chosen or part is None or bare(part) is not process_group:
        return ""
    names = [task.name for task in games.tasks[: len(games.weights)] if task.max_turns > 1]
    if not names:
        return ""
    return (
        f"{chosen[-1]} cannot see when an episode ends, which the policy may decide in {', '.join(names)}; "
        "algo/advantage=process_group_baseline can"
    )


def describe_own_imitation(objective: Objective, overrides: Sequence[str]) -> str:
    """Return a line about a policy that imitates all that it plays itself.

    The line is empty if the user chose data, a filter or a structure, which decide what is imitated.
    """
    part = getattr(objective, "advantage", None)
    chooses = any(
        each.key_or_group.startswith(("data", "filter", "algo/structure")) for each in parse(overrides)
    )
    if part is None or bare(part) is not demonstration or chooses:
        return ""
    return (
        "algo/advantage=demonstration imitates every episode that the policy plays, good or bad, and learns nothing "
        "about the game; data=demonstrations data.path=FILE imitates recorded ones"
    )


def describe_idle_reference(
    objective: Objective, settings: UpdateSettings, overrides: Sequence[str], *, is_older: bool
) -> str:
    """Return a line about a reference that is the policy itself in the only step.

    Args:
        objective: a loss of pairs, or of groups.
        settings: steps of an iteration.
        overrides: the overrides as typed.
        is_older: whether older weights, or recorded players, sampled what is trained on.

    Returns:
        The line; empty if the user did not choose the number of steps, or if the reference acts.
    """
    chosen = [each.input_line for each in parse(overrides) if each.key_or_group in _STEPS]
    parts = [getattr(objective, axis, None) for axis in ("reference", "loss_of_groups")]
    if not chosen or is_older or settings.epochs * settings.minibatches > 1:
        return ""
    if not any(part is not None and "old_logp_BT" in tensor_names(part) for part in parts):
        return ""
    return (
        f"{chosen[-1]} leaves one step an iteration, in which the reference of algo={objective.name} is the policy "
        "itself and does not act; update=four_minibatches makes it act"
    )
