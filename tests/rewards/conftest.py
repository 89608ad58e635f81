"""Episodes by hand: only what reward parts look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.rewards.base import RewardContext
from tests.conftest import nano_tokenizer


def turn(tokens: int = 2, *, reward: float = 0.0, key: int = 0, text: str = "P", **fields: Any) -> Turn:
    """A valid turn of so many distinct tokens."""
    sampled = fields.pop("sampled", list(range(tokens)))
    made = Turn(
        observation=text, prefix_tokens=[7], prefix_segments=[0], state_key=key, reply_tokens=sampled,
        reply_segments=[4] * len(sampled), reply_logps=[-0.5] * len(sampled),
        reply_entropies=[0.1] * len(sampled), is_valid=True, is_well_formed=True, reward=reward,
    )  # fmt: skip
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def episode(
    turns: Sequence[Turn], *, group: int = 0, member: int = 0, success: bool = False, task: str = "game"
) -> Episode:
    end = EndReason.SUCCESS if success else EndReason.TURN_LIMIT
    return Episode(0, group, member, 0, task, 1, turns=list(turns), end=end, success=success)


def context(seed: int = 0) -> RewardContext:
    """Of a run on the CPU that has no engine."""
    return RewardContext(
        device=torch.device("cpu"), tokenizer=nano_tokenizer(), seed=seed, open_answerer=_no_engine
    )


def _no_engine(*given: object) -> Any:
    raise AssertionError("no part of this test opens an engine")


def sized(tokens: int, *, reward: float = 0.0, **fields: Any) -> Episode:
    """An episode of one turn."""
    return episode([turn(tokens, reward=reward)], **fields)


def golden() -> list[Episode]:
    """The two groups of the worked example: rewards of turns, tokens of turns, success where the return is 1."""
    rows = [
        (0, 0, [(2, 0.0), (2, 1.0)]),
        (0, 1, [(1, 0.0), (3, 0.0)]),
        (0, 2, [(3, 0.5), (3, 0.0)]),
        (1, 0, [(1, 0.0), (1, 1.0)]),
        (1, 1, [(3, 1.0)]),
        (1, 2, [(2, -0.1), (3, 0.0)]),
    ]
    return [
        episode(
            [turn(n, reward=r) for n, r in turns], group=g, member=m, success=sum(r for _, r in turns) == 1
        )
        for g, m, turns in rows
    ]
