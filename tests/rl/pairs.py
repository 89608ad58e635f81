"""Three recorded pairs whose sums of log-probs are given, as rows between observations that hold garbage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.rl.preference import links, pairing, scores
from lit_agentrl.rl.preference.objective import PreferenceLoss

# summed log-probs (nats) of policy and reference, lengths (tokens), points; chosen side first
POLICY = [(-12.0, -14.0), (-4.0, -3.5), (-9.0, -6.0)]
REFERENCE = [(-13.0, -13.5), (-4.5, -3.0), (-7.5, -6.5)]
LENGTH = [(6, 10), (4, 5), (3, 4)]
POINTS = [(2.0, 0.5), (1.0, 0.9), (0.4, -1.6)]
# token log-ratios by turn of a pair of several turns
TURNS = ([[0.1, 0.2], [0.3], [-0.1, 0.05, 0.15]], [[-0.2, 0.1], [-0.3, -0.2]])


def rows(
    turns: Sequence[Sequence[Sequence[tuple[float, float]]]], points: Sequence[float]
) -> dict[str, Tensor]:
    """Groups of two rows: each turn an observation of two tokens, then replies of (log-prob, of the reference).

    Columns of tokens that were not sampled hold 9 nats.
    """
    B, T = len(turns), max(sum(2 + len(turn) for turn in row) for row in turns)
    made = {name: torch.full((B, T), 9.0, dtype=torch.float64) for name in ("logp_BT", "ref_logp_BT")}
    made |= {"is_action_BT": torch.zeros(B, T, dtype=torch.bool), "turn_BT": torch.full((B, T), -1)}
    for b, row in enumerate(turns):
        place = 0
        for number, turn in enumerate(row):
            made["turn_BT"][b, place : place + 2 + len(turn)] = number
            for t, (logp, ref) in enumerate(turn, start=place + 2):
                made["logp_BT"][b, t], made["ref_logp_BT"][b, t] = logp, ref
                made["is_action_BT"][b, t] = True
            place += 2 + len(turn)
    group_B = torch.arange(B) // 2
    return {
        **made,
        "old_logp_BT": made["ref_logp_BT"].clone(),
        "entropy_BT": torch.ones(B, T, dtype=torch.float64),
        "tokens_BT": torch.arange(B * T).reshape(B, T),
        "return_B": torch.tensor(points, dtype=torch.float64),
        "group_B": group_B,
        "trajectory_B": torch.arange(B),
        "first_turn_B": torch.zeros(B, dtype=torch.int64),
        "state_key_BK": torch.zeros(B, 3, dtype=torch.int64),
    }


def three() -> dict[str, Tensor]:
    """The three pairs, each reply cut into two turns; equal log-probs at the tokens of a row."""

    def turns(logp: float, ref: float, length: int) -> list[list[tuple[float, float]]]:
        tokens = [(logp / length, ref / length)] * length
        return [tokens[:2], tokens[2:]]

    sides = zip(POLICY, REFERENCE, LENGTH, strict=True)
    made = [turns(p[side], r[side], n[side]) for p, r, n in sides for side in (0, 1)]
    return rows(made, [value for pair in POINTS for value in pair])


def several_turns() -> dict[str, Tensor]:
    """One pair of three turns against two."""
    made = [[[(x - 1.0, -1.0) for x in turn] for turn in row] for row in TURNS]
    return rows(made, [1.0, 0.0])


def objective(link: Any = links.logistic, **parts: Any) -> PreferenceLoss:
    """DPO with ``beta`` 0.1, but for the parts given."""
    defaults = {
        "pairing": pairing.all_pairs,
        "score": scores.summed,
        "reference": scores.frozen,
        "name": "test",
        "beta": 0.1,
    }
    return PreferenceLoss(link=partial(link) if callable(link) else link, **(defaults | parts))


def loss_of(made: Any, tensors: dict[str, Tensor]) -> float:
    """Of one minibatch."""
    made = made if hasattr(made, "loss") else objective(made)
    return float(made.loss(tensors | made.count(tensors))[0].detach())


def each(made: Any, tensors: dict[str, Tensor] | None = None) -> list[float]:
    """The loss of each pair alone."""
    tensors = three() if tensors is None else tensors
    groups = tensors["group_B"].unique()
    return [loss_of(made, {n: t[tensors["group_B"] == g] for n, t in tensors.items()}) for g in groups]
