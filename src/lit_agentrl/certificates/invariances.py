"""Changes of a game that leave the direction of the exact gradient as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.certificates.estimator import Estimator
from lit_agentrl.certificates.games import (
    TableGame,
    add_tokens,
    add_turns,
    scale_rewards,
    shift_returns,
)
from lit_agentrl.certificates.groups import Batches, list_batches
from lit_agentrl.certificates.shipped import ONE_TURN
from lit_agentrl.rl.objective import Objective

_SHIFT, _FACTOR, _CLOSE = 2.0, 3.0, 1e-9


def measure_invariances(objective: Objective, members: int, *, is_ordered: bool) -> dict[str, str]:
    """Measure how the update responds to changes that keep the exact direction.

    Args:
        objective: as a run composes it.
        members: members of each group.
        is_ordered: whether the update depends on the order of members.

    Returns:
        One word for each change; ``moves`` if none of the other words holds.

        - ``shift`` (a number is added to every return): ``same`` if no update changes, ``mean`` if their mean does not.
        - ``scale`` (rewards are multiplied): ``linear`` if updates are multiplied too, ``free`` if they do not change.
        - ``length`` and ``turns`` (forced tokens or turns are added to some episodes): ``same`` if the expected update
          keeps its direction.
        - ``order`` (members change places): ``same`` if no update changes.
    """
    return {
        "shift": _measure_shift(objective, members),
        "scale": _measure_scale(objective, members),
        "length": _compare_directions(objective, members, add_tokens(ONE_TURN)),
        "turns": _compare_directions(objective, members, add_turns(ONE_TURN)),
        "order": "moves" if is_ordered else "same",
    }


def _compute_updates(objective: Objective, game: TableGame, members: int) -> tuple[Tensor, Batches]:
    estimator = Estimator(objective, game)
    batches = list_batches(estimator.table, members)
    return estimator.compute_updates(batches), batches


def _measure_shift(objective: Objective, members: int) -> str:
    before, batches = _compute_updates(objective, ONE_TURN, members)
    after, _ = _compute_updates(objective, shift_returns(ONE_TURN, _SHIFT), members)
    if _is_close(before, after):
        return "same"
    return "mean" if _is_close(batches.weights @ before, batches.weights @ after) else "moves"


def _measure_scale(objective: Objective, members: int) -> str:
    before, _ = _compute_updates(objective, ONE_TURN, members)
    after, _ = _compute_updates(objective, scale_rewards(ONE_TURN, _FACTOR), members)
    if _is_close(_FACTOR * before, after):
        return "linear"
    # a looser tolerance: dividing by std + 1e-6 instead of std makes a small difference
    return "free" if _is_close(before, after, 1e-4) else "moves"


def _compare_directions(objective: Objective, members: int, changed: TableGame) -> str:
    before, batches = _compute_updates(objective, ONE_TURN, members)
    after, changed_batches = _compute_updates(objective, changed, members)
    first, second = batches.weights @ before, changed_batches.weights @ after
    second = second[: len(first)]  # logits of forced tokens come last, and have no gradient
    if float(first.norm()) < _CLOSE or float(second.norm()) < _CLOSE:
        return "same" if _is_close(first, second) else "moves"
    return "same" if _is_close(first / first.norm(), second / second.norm()) else "moves"


def _is_close(a: Tensor, b: Tensor, tolerance: float = _CLOSE) -> bool:
    return float((a - b).abs().max()) <= tolerance * max(
        1.0, float(torch.maximum(a.abs().max(), b.abs().max()))
    )
