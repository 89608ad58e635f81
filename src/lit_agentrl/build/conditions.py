"""Find options that the user chose and that break a condition of an estimator's certificate."""

from __future__ import annotations

from collections.abc import Sequence

from lit_agentrl.build.games import Games
from lit_agentrl.config.overrides import parse
from lit_agentrl.rl.binding import bare, tensor_names
from lit_agentrl.rl.credit.advantages import process_group
from lit_agentrl.rl.objective import Objective
from lit_agentrl.update.settings import UpdateSettings

_STEPS = ("update", "update.epochs", "update.minibatches")


def describe_blind_turns(objective: Objective, games: Games, overrides: Sequence[str]) -> str:
    """Return a line about an advantage that cannot see when an episode ends.

    It is empty if the user did not choose it, or if every training game has one turn.
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
