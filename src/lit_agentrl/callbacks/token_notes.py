"""Collect the texts and advantages of tokens for the lines of transcripts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.episode import Episode
from lit_agentrl.rollout.pack import get_trajectory_id
from lit_agentrl.text.token_bytes import get_token_pieces

_COLUMNS = ("trajectory_B", "turn_BT", "is_action_BT", "is_kept_BT", "advantage_BT")
_DIGITS = 6  # significant ones of an advantage


class UpdateNotes:
    """The columns of an update that describe its tokens."""

    def __init__(self) -> None:
        self._rows: dict[str, Tensor] = {}

    def keep(self, rows: Mapping[str, Tensor]) -> None:
        """Keep the columns of an update, by reference."""
        self._rows = {name: rows[name] for name in _COLUMNS if name in rows}

    def clear(self) -> None:
        """Drop the columns, so that their memory is free."""
        self._rows = {}

    def describe(self, episode: Episode) -> dict[str, Any]:
        """Describe what the update made of the sampled tokens of an episode.

        Returns:
            ``trained``: for each turn, 1 for each token whose loss counts, else 0; ``advantages``: for each turn, those
            of its tokens, in the units of the algorithm, empty for an episode that a filter removed.  None where the
            objective has no advantages.
        """
        if "trajectory_B" not in self._rows:
            return {"trained": [[0] * len(turn.reply_tokens) for turn in episode.turns], "advantages": None}
        is_own_row_B = self._rows["trajectory_B"] == get_trajectory_id(episode)
        rows = {name: column[is_own_row_B].cpu() for name, column in self._rows.items()}
        is_trained_BT = rows["is_action_BT"] & rows.get("is_kept_BT", rows["is_action_BT"]).bool()
        trained, advantages = [], []
        for number, turn in enumerate(episode.turns):
            places = (rows["turn_BT"] == number).nonzero()
            places = places[max(0, len(places) - len(turn.reply_tokens)) :]  # a turn ends with its reply
            mask = is_trained_BT[places[:, 0], places[:, 1]].to(torch.int64).tolist()
            trained.append(mask or [0] * len(turn.reply_tokens))
            if "advantage_BT" in rows:
                values = rows["advantage_BT"][places[:, 0], places[:, 1]].tolist()
                advantages.append([_round(value) for value in values])
        return {"trained": trained, "advantages": advantages if "advantage_BT" in rows else None}


def _round(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def list_texts(episode: Episode, tokenizer: Any) -> dict[str, str]:
    """List the text of each token id of an episode.

    A token that is only part of a character is shown as escaped bytes.
    """
    pieces = get_token_pieces(tokenizer)
    columns: Sequence[Any] = [c for turn in episode.turns for c in (turn.prefix_tokens, turn.reply_tokens)]
    ids = sorted({int(token) for column in columns for token in column})
    return {str(token): pieces(token).decode("utf-8", "backslashreplace") for token in ids}
