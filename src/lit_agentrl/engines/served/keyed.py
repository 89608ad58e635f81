"""Keyed draws inside vLLM, as a logits processor; imports no vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.sampling import draw_rows
from lit_agentrl.seeds import draw_uniforms

# the extra argument of a vLLM request; its value is the request's key in `DRAWS`
NUMBER = "lit_agentrl_draws"


@dataclass
class Draws:
    """The draws of one reply: their key, and all drawn tokens so far."""

    key: int
    params: SamplingParams
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)

    def note(self, position: int, token: int, logp: float, entropy: float) -> None:
        """Record the draw for this position of the reply, and drop later draws.

        A position is drawn again because vLLM also draws while a prompt is only partly read.
        """
        self.tokens[position:], self.logps[position:], self.entropies[position:] = [token], [logp], [entropy]


# draws of unfinished replies; global, since vLLM builds the processor and copies the arguments of a request
DRAWS: dict[int, Draws] = {}


class KeyedDraws:
    """Draws each token with its reply's key, and leaves vLLM no other token.

    It records token, log-prob (nats, over the full vocabulary at the temperature, also under ``top_p`` and ``top_k``)
    and entropy of each draw, as `draw_tokens` does.  Rows of requests without a number are left unchanged.

    It implements vLLM's ``LogitsProcessor``, so its method names are fixed.  A row's tokens are a list that vLLM keeps
    appending to.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[Draws, Sequence[int]]] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Accept all parameters."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow vLLM's rows, which are removed, added and moved, in this order."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, _, tokens in batch_update.added:
            number = (params.extra_args or {}).get(NUMBER)
            if number is None:
                self._rows.pop(row, None)
            else:
                self._rows[row] = (DRAWS[number], tokens)
        for source, target, direction in batch_update.moved:
            moving, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
            if moving is not None:
                self._rows[target] = moving
            if replaced is not None and direction.name == "SWAP":
                self._rows[source] = replaced

    def apply(self, logits: Tensor) -> Tensor:
        """Draw one token of each row with a key; changes ``logits`` (rows, V) in place."""
        if not self._rows:
            return logits
        rows = sorted(self._rows)
        draws = [self._rows[row][0] for row in rows]
        position_A = [len(self._rows[row][1]) for row in rows]
        distinct_params = list(dict.fromkeys(draw.params for draw in draws))
        params_index_A = np.array([distinct_params.index(draw.params) for draw in draws])
        uniform_A = draw_uniforms(
            np.array([draw.key for draw in draws], dtype=np.uint64), np.array(position_A, dtype=np.uint64)
        )
        row_A = torch.tensor(rows, device=logits.device)
        token_A, logp_A, entropy_A = draw_rows(logits[row_A], uniform_A, params_index_A, distinct_params)
        logits[row_A] = -torch.inf
        logits[row_A, torch.from_numpy(token_A).to(logits.device)] = 0.0
        for i, draw in enumerate(draws):
            draw.note(position_A[i], int(token_A[i]), float(logp_A[i]), float(entropy_A[i]))
        return logits
