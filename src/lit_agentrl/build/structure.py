"""Build the structure of rollouts, and check it against the games."""

from __future__ import annotations

import copy
from contextlib import closing

from omegaconf import DictConfig, open_dict

from lit_agentrl.build.games import Games
from lit_agentrl.build.instantiation import instantiate_as
from lit_agentrl.checks import blame
from lit_agentrl.rl.objective import Objective
from lit_agentrl.rollout.structures.base import Structure
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill

# members that a structure of version 0.2 may declare, and that nothing reads any more
_UNREAD = (
    "needs", "gives", "is_off_policy", "mixes_groups", "is_sequential", "takes_trials", "asks_critic", "take_critic",
    "opponent",
)  # fmt: skip
# members that a structure of version 0.2 may declare -> their current names in `StructureHook`
_MOVED = {
    "check_game": "check_game", "setup": "setup", "wrap_engine": "wrap_engine", "wants_repeats": "wants_repeats",
    "evaluated": "plan_evaluation", "trial": "plan_temporary_step", "left_out": "mask_tokens", "notes": "make_notes",
}  # fmt: skip


def build_algorithm(cfg: DictConfig) -> tuple[Objective, Structure]:
    """Instantiate the algorithm, and the structure in ``algo.structure`` or else `Refill`."""
    if "structure" not in cfg.algo:
        return _build_objective(cfg), Refill()
    structure = instantiate_as(cfg, "algo.structure", Structure)
    _refuse_old_members(structure)
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        del cfg.algo.structure
    return _build_objective(cfg), structure


def _refuse_old_members(structure: Structure) -> None:
    """Refuse a structure for version 0.2 whose declarations would be ignored.

    Raises:
        ValueError: there is such a declaration; the message names it and the remedy.
    """
    declared = {name for kind in type(structure).__mro__ if kind is not StructureHook for name in vars(kind)}
    for name in _UNREAD:
        if name in declared:
            raise ValueError(
                f"algo.structure={type(structure).__name__} declares {name}, which is not read since 0.3; declare "
                "facts in requires and provides, and take the critic in StructureHook.setup (docs/extend.md)"
            )
    for name, current in _MOVED.items():
        if name in declared and (name != current or not isinstance(structure, StructureHook)):
            raise ValueError(
                f"algo.structure={type(structure).__name__} declares {name}, which is not read since 0.3; inherit from "
                f"lit_agentrl.rollout.structures.hook.StructureHook first, and name it {current} (docs/extend.md)"
            )


def _build_objective(cfg: DictConfig) -> Objective:
    return instantiate_as(cfg, "algo", Objective)


def check_trained(structure: Structure, games: Games) -> None:
    """Refuse training games that the structure cannot play.

    Raises:
        ValueError: the message names the structure, the game and the remedy.
    """
    for task in games.tasks[: len(games.weights)]:
        with blame("algo.structure", f"algo.structure={type(structure).__name__}: game {task.name}"):
            structure.hook.check_game(task)


def describe_missing_repeats(structure: Structure, games: Games, instances: int | None) -> str:
    """Return a line about a structure that needs repeated tasks but never gets them.

    The line is empty if the structure does not need them, or if a game or ``rollout.instances`` repeats tasks.
    """
    if not structure.hook.wants_repeats or instances is not None:
        return ""
    for task in games.tasks[: len(games.weights)]:
        with closing(task.make("train")) as env:
            if env.instances is not None:
                return ""
    return (
        f"algo.structure={type(structure).__name__} needs repeated tasks, and "
        "rollout.instances=null always draws new ones; set rollout.instances=128"
    )
