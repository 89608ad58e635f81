"""Pairs ranked by a reward model, represented as episode outcomes.

Code that reads evaluations can then treat a ranked pair as an episode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.episode import EndReason, Outcome
from lit_agentrl.rl.preference.judging import Verdicts

PAIRS, NEAR = "pairs", "equal length"  # names used in place of games when a reward model is evaluated


def name_head_game(head: str) -> str:
    """Name the pairs of one head as a game, if there are several heads."""
    return f"head {head}"


def convert_to_outcomes(verdicts: Verdicts, name: str) -> list[Outcome]:
    """Convert pairs to outcomes of a game called ``name``.

    With ``NEAR`` as the name only pairs of equal length are converted.
    """
    keep_P: Tensor = verdicts.is_near_P if name == NEAR else torch.ones(len(verdicts), dtype=torch.bool)
    columns = zip(verdicts.column("group").tolist(), verdicts.column("margin").tolist(), strict=True)
    return [
        Outcome(
            wave=0,
            group=int(group),
            member=member,
            end=EndReason.TURN_LIMIT,
            success=margin > 0,
            total_reward=margin,
            turns=0,
            taken=0,
            actions=0,
            invalid=0,
            surplus=0,
            tokens=0,
            entropy=0.0,
            task_name=name,
            error="",
        )  # fmt: skip
        for member, ((group, margin), is_kept) in enumerate(zip(columns, keep_P.tolist(), strict=True))
        if is_kept
    ]
