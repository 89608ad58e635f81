"""Decode steps as a pure function of tensors.

No size depends on data, and nothing waits for the host. One step reads the last token of every row, writes its keys
and values to the slots, attends over them under a length mask, and draws the next token with the row's own key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lit_agentrl.engines.native.attention import MaskedLayout, Visible
from lit_agentrl.engines.native.drawing import Settings, draw_tokens, draw_uniforms
from lit_agentrl.engines.native.ragged import Packed
from lit_agentrl.engines.native.sampling import Draw

Read = Callable[[Packed], Tensor]


class State(NamedTuple):
    """The rows before a step; row r is slot r.

    A row whose ``position + 1`` has reached ``limit`` writes nothing to its slot, and its draws have no meaning.  All
    tensors but the settings are int64.
    """

    token_R: Tensor  # last token, not read yet
    position_R: Tensor  # position of that token
    limit_R: Tensor  # maximum number of tokens of the slot
    key_R: Tensor  # key of the reply's draws, its bits as int64
    count_R: Tensor  # tokens of the reply so far
    settings: Settings


def step(read: Read, state: State, *, num_slots: int, length: int, truncates: bool) -> tuple[State, Draw]:
    """Read one token per row and draw the next.

    Args:
        read: Returns logits (R, V) of packed tokens, and writes the slots.
        state: The rows.
        num_slots: Number of slots; the slot after the last takes writes without meaning.
        length: Positions that attention reads; at least ``position + 1`` of each row.
        truncates: Whether some row sets top-k or top-p.

    Returns:
        The rows before the next step, and their draws.
    """
    device, rows = state.token_R.device, len(state.token_R)
    is_idle_R = state.position_R + 1 >= state.limit_R
    position_R = state.position_R.masked_fill(is_idle_R, 0)
    is_visible_RL = torch.arange(length, device=device) <= position_R.unsqueeze(1)
    layout = MaskedLayout(
        slot_N=torch.arange(rows, device=device).masked_fill(is_idle_R, num_slots),
        position_N=position_R,
        num_last=rows,
        num_rows=rows,
        max_visible=length,
        last_sees_R=Visible(is_visible_RL.view(rows, 1, 1, length)),
    )
    logits_RV = read(Packed(state.token_R.unsqueeze(0), position_R.unsqueeze(0), layout))
    uniform_R = draw_uniforms(state.key_R, state.count_R)
    draw = draw_tokens(logits_RV, uniform_R, state.settings, truncates=truncates)
    next_state = state._replace(
        token_R=draw.token_A, position_R=state.position_R + 1, count_R=state.count_R + 1
    )
    return next_state, draw


def decode(
    read: Read, rows_FR: Tensor, *, steps: int, num_slots: int, length: int, truncates: bool
) -> Tensor:
    """Return token, log-prob and entropy of ``steps`` steps, (3, steps, R) float64.

    ``rows_FR`` holds the fields of `window.pack_rows`; the other arguments are those of `step`.
    """
    state, draws = _unpack_rows(rows_FR), []
    for _ in range(steps):
        state, draw = step(read, state, num_slots=num_slots, length=length, truncates=truncates)
        # float64 holds any token id and any float32 exactly
        draws.append(torch.stack([part.double() for part in draw]))
    return torch.stack(draws, dim=1)


def _unpack_rows(rows_FR: Tensor) -> State:
    token_R, position_R, limit_R, key_R, count_R, top_k_R, temperature_R, top_p_R = rows_FR.unbind()
    settings = Settings(temperature_R.view(torch.float64), top_p_R.view(torch.float64), top_k_R)
    return State(token_R, position_R, limit_R, key_R, count_R, settings)
