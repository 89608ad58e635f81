"""Pairs that a reward model has ranked, told as episodes: to whatever reads evaluations they are such."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.episode import EndReason, Outcome
from lit_agentrl.rl.preference.judging import Verdicts

PAIRS, NEAR = "pairs", "equal length"  # what a reward model is judged on, in place of games


def of_head_named(head: str) -> str:
    """What the pairs of a head are called among these, where there are several."""
    return f"head {head}"


def outcomes(verdicts: Verdicts, name: str) -> list[Outcome]:
    """Of each pair, or of those of equal length, as an episode of a game of that name."""
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
