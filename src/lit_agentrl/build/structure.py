"""The structure of rollouts: found among an algorithm's axes, and checked against what asks for its episodes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing

from omegaconf import DictConfig, open_dict

from lit_agentrl.build.games import Games
from lit_agentrl.build.making import made
from lit_agentrl.checks import blame, name_errors
from lit_agentrl.rl.objective import Objective
from lit_agentrl.rl.policy.filters import Selection, keeps_all, may_want_more, wanted_groups
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.structures.base import (
    BASELINE,
    BRANCHES,
    MORE_GROUPS,
    PLANS,
    WAVES,
    WHOLE_CONTEXT,
    Structure,
)
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.text.context import Context


def build_algorithm(cfg: DictConfig) -> tuple[Objective, Structure]:
    """The algorithm, and the structure of its rollouts, which stands among its axes; `Refill` where none does."""
    if "structure" not in cfg.algo:
        return _objective(cfg), Refill()
    structure = made(cfg, "algo.structure", Structure)
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        del cfg.algo.structure
    return _objective(cfg), structure


def _objective(cfg: DictConfig) -> Objective:
    return made(cfg, "algo", Objective)


def check_structure(
    structure: Structure,
    algorithm: Objective,
    select_groups: Callable[..., Selection],
    max_waves: int | None,
    context: Context,
    rollout: RolloutSettings,
) -> None:
    """Refuse an algorithm or a filter that asks for episodes which the structure does not play.

    Raises:
        ValueError: naming part, need and remedy.
    """
    name = type(structure).__name__
    _check_learning(name, structure, algorithm)
    _check_opponent(name, structure, algorithm)
    if structure.is_off_policy and not algorithm.needs("old_logp_BT"):
        raise ValueError(
            f"algo.structure={name} trains on rows of other weights, and {algorithm.name} compares none with those of "
            "now; set algo/ratio=token and a clip rule, or algo/structure=refill"
        )
    known = {"fork", "entropies", "opponent", WHOLE_CONTEXT}
    if unknown := sorted(structure.needs - known):
        valid = ", ".join(sorted(known))
        raise ValueError(f"algo.structure={name} needs {unknown[0]}, which is unknown; valid: {valid}")
    if WHOLE_CONTEXT in structure.needs and not context.is_append_only:
        raise ValueError(
            f"algo.structure={name} tells each thing once, and context={type(context).__name__} cuts the past; set "
            "context=full"
        )
    if algorithm.requirements.all_groups and not keeps_all(select_groups):
        raise ValueError(
            f"algo.cost of {algorithm.name} goes by the mean cost of all that is played, and the filter drops groups; "
            "set filter=none"
        )
    with name_errors("algo.structure"):
        structure.branching(rollout.members)
    _check_episodes(name, structure, algorithm)
    if max_waves is not None and not may_want_more(select_groups):
        raise ValueError(
            f"algo.structure.max_waves={max_waves} has no effect where the filter never asks for more groups; set "
            "filter=dynamic_sampling, or leave it out"
        )
    if MORE_GROUPS in structure.gives:
        return _check_target(structure, algorithm, select_groups, max_waves, rollout)
    if may_want_more(select_groups):
        raise ValueError(
            f"filter asks for more groups where too few are left, and algo.structure={name} plays none; set "
            "algo/structure=refill, or filter.target=null"
        )
    factor = algorithm.requirements.prompt_factor
    if factor != 1:
        raise ValueError(
            f"algo.rows of {algorithm.name} asks for {factor:g} times as many prompts, and "
            f"algo.structure={name} plays no more; set algo/structure=refill, or algo.rows.refill=false"
        )


def _check_episodes(name: str, structure: Structure, algorithm: Objective) -> None:
    """Refuse an estimator that asks for episodes of a kind that are not played."""
    if BRANCHES not in structure.gives and (algorithm.needs("tree_B") or algorithm.needs("node_BT")):
        raise ValueError(
            f"algo.advantage of {algorithm.name} needs episodes that branch, and those of algo.structure={name} are "
            "independent: it would be algo/advantage=group_mean_std, so use it, or algo/structure=tree, branch or mcts"
        )
    if structure.mixes_groups and algorithm.requirements.min_members > 1:
        raise ValueError(
            f"algo.advantage of {algorithm.name} compares the members of a group, and algo.structure={name} puts "
            "episodes of other instances into it; set algo/advantage=archer, or algo/structure=refill"
        )
    if PLANS not in structure.gives and algorithm.needs("is_plan_BT"):
        raise ValueError(
            f"algo.advantage of {algorithm.name} tells a planner from an executor, and episodes of "
            f"algo.structure={name} have no plans; set algo/structure=two_level with every above 0, or "
            "algo/advantage=group_mean_std"
        )
    if algorithm.needs(BASELINE) and BASELINE not in structure.gives:
        raise ValueError(
            f"algo.advantage of {algorithm.name} takes off the points of a greedy episode of each prompt, and "
            f"algo.structure={name} plays none; set algo/structure=greedy, or algo/advantage=loo"
        )


def _check_target(
    structure: Structure,
    algorithm: Objective,
    select_groups: Callable[..., Selection],
    max_waves: int | None,
    rollout: RolloutSettings,
) -> None:
    """Refuse a filter that wants more groups than all waves of an iteration give: each would play all of them.

    Raises:
        ValueError: naming the option and the remedy.
    """
    target, waves = wanted_groups(select_groups), max_waves or WAVES
    most = waves * structure.prompts(rollout.prompts, algorithm.requirements.prompt_factor)
    if target is not None and target > most:
        raise ValueError(
            f"filter.target={target} is more than the {most} groups that {waves} waves of rollout.prompts="
            f"{rollout.prompts} give; lower it, or raise rollout.prompts or algo.structure.max_waves"
        )


def _check_learning(name: str, structure: Structure, algorithm: Objective) -> None:
    """Refuse a run in which nothing learns."""
    if not algorithm.trains and not structure.is_sequential:
        raise ValueError(
            f"algo={algorithm.name} trains nothing, and algo.structure={name} learns nothing for the next iteration; "
            "set algo/structure=experience, or another algorithm"
        )


def _check_opponent(name: str, structure: Structure, algorithm: Objective) -> None:
    """Refuse an opponent whose episodes would be taken for the policy's, one without a network, and none at all."""
    if structure.opponent is None:
        if algorithm.needs("is_opponent_B"):
            raise ValueError(
                f"algo={algorithm.name} compares the policy with an opponent, and algo.structure={name} plays none; "
                "set algo/structure=opponent"
            )
        return
    if not algorithm.needs("is_opponent_B"):
        raise ValueError(
            f"algo.structure={name} plays an opponent, whose episodes algo={algorithm.name} would take for the "
            "policy's; use algo=xpo, algo=nash_md, or algo/structure=refill"
        )
    if not algorithm.needs("ref_logp_BT"):
        raise ValueError(
            f"algo.structure={name} plays with the reference, and {algorithm.name} asks for none; set "
            "algo/reference=frozen, or a KL term such as algo/kl=loss_k1_plus"
        )


def check_trained(structure: Structure, games: Games) -> None:
    """Refuse games to train on that the structure cannot play.

    Raises:
        ValueError: naming structure, game and remedy.
    """
    for task in games.tasks[: len(games.weights)]:
        with blame("algo.structure", f"algo.structure={type(structure).__name__}: game {task.name}"):
            structure.check_game(task)


def never_repeated(structure: Structure, games: Games, instances: int | None) -> str:
    """A line about a structure that acts where an instance is played again, which may never come; else empty."""
    if not structure.wants_repeats or instances is not None:
        return ""
    for task in games.tasks[: len(games.weights)]:
        with closing(task.make("train")) as env:
            if env.instances is not None:
                return ""
    return (
        f"algo.structure={type(structure).__name__} acts on instances that are played again, and "
        "rollout.instances=null draws new ones always; set rollout.instances=128"
    )


def check_critic(structure: Structure, *, has_critic: bool, plays_here: bool) -> None:
    """Refuse a structure that asks a critic where there is none, or asks one or a reference where others play.

    Raises:
        ValueError: naming the remedy.
    """
    name = type(structure).__name__
    if structure.asks_critic and not has_critic:
        raise ValueError(
            f"algo.structure={name} asks a critic, and the advantage asks for no values, so there is none; set "
            "algo/advantage=gae_turn, algo/targets=tree for a loss of pairs, or algo.structure.critic_share=0"
        )
    if structure.asks_critic and not plays_here:
        raise ValueError(
            f"algo.structure={name} asks the critic while episodes are played, and workers have none; set worker=none "
            "and rollout.overlap=false, or algo.structure.critic_share=0"
        )
    if structure.opponent is not None and not plays_here:
        raise ValueError(
            f"algo.structure={name} plays with the reference, and workers have none; set worker=none and "
            "rollout.overlap=false"
        )


def check_levels(structure: Structure, *, processes: int) -> None:
    """Refuse an adapter for each level where there are no levels, or where each weight must have a gradient.

    Raises:
        ValueError: naming the remedy.
    """
    name = type(structure).__name__
    if PLANS not in structure.gives:
        raise ValueError(
            f"model/lora=levels has an adapter for plans, and episodes of algo.structure={name} have none; set "
            "model/lora=default, or algo/structure=two_level"
        )
    if processes > 1:
        raise ValueError(
            "model/lora=levels leaves a level without gradients, and several processes wait for those of all weights; "
            "set strategy=single, or model/lora=default"
        )


def check_overlap(structure: Structure, *, is_ahead: bool) -> None:
    """Refuse a structure that moves the weights, or waits for what it learns, where a process plays ahead.

    Raises:
        ValueError: naming the remedy.
    """
    if structure.is_sequential and is_ahead:
        raise ValueError(
            f"algo.structure={type(structure).__name__} plans an iteration with what the one before it has taught, and "
            "rollout.overlap=true plays it before that is known; set rollout.overlap=false"
        )
    if structure.takes_trials and is_ahead:
        raise ValueError(
            f"algo.structure={type(structure).__name__} moves the weights between two waves, and rollout.overlap=true "
            "plays with older ones; set rollout.overlap=false"
        )
