"""What a reward model makes of episodes, in batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import RewardModel


@torch.no_grad()
def turn_values(
    model: RewardModel, episodes: Sequence[Episode], tokens_per_batch: int, device: torch.device
) -> Tensor:
    """After each turn of all episodes in order, float64: ``(score - mean) / std``, or the chance of a logit.

    Args:
        model: on the device.
        episodes: at least one.
        tokens_per_batch: that are computed together, padding included; a longer row stands alone.
        device: of the model.
    """
    rows = [row for episode in episodes for row in rows_of(episode)]
    order = sorted(range(len(rows)), key=lambda k: -len(rows[k][0]))
    found: dict[int, list[float]] = {}
    while order:
        count = max(1, tokens_per_batch // len(rows[order[0]][0]))
        chosen, order = order[:count], order[count:]
        tokens_BT = torch.zeros(len(chosen), len(rows[chosen[0]][0]), dtype=torch.int64)
        is_scored_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        for place, k in enumerate(chosen):
            tokens, ends = rows[k]
            tokens_BT[place, : len(tokens)] = torch.tensor(tokens)
            is_scored_BT[place, ends] = True
        score_BT = model.head(
            model.policy.network, tokens_BT=tokens_BT.to(device), is_scored_BT=is_scored_BT.to(device)
        ).cpu()
        for place, k in enumerate(chosen):
            found[k] = score_BT[place, rows[k][1]].double().tolist()
    score_A = torch.tensor([score for k in range(len(rows)) for score in found[k]], dtype=torch.float64)
    about = model.about
    return score_A.sigmoid() if about.kind == "logit" else (score_A - about.mean) / about.std


def rows_of(episode: Episode) -> list[tuple[list[int], list[int]]]:
    """The ids of each row of an episode, and where its turns end; a turn that ``starts_row`` begins a new one."""
    rows: list[tuple[list[int], list[int]]] = []
    for number, turn in enumerate(episode.turns):
        if turn.starts_row or not number:
            rows.append(([], []))
        tokens, ends = rows[-1]
        tokens += [*turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist()]
        ends.append(len(tokens) - 1)
    return rows
