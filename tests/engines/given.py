"""An engine with weights of its own: the native one around a network of its own; and ways in which one may lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from lit_agentrl.engines.base import Capabilities, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import copy_weights


class Given(NativeEngine):
    """Is given weights, as a server is."""

    capabilities = Capabilities(exact_log_probs=True, fork=True, weights="given")

    def __init__(self, network: PreTrainedModel, *, max_sync_gap: float = 1e-3, **options: Any) -> None:
        self.own, self.max_sync_gap = AutoModelForCausalLM.from_config(network.config).eval(), max_sync_gap
        self.loads: list[tuple[int, bool]] = []
        super().__init__(self.own, **options)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        self.loads.append((version, weights is not None))
        super().load(weights, version)

    @torch.no_grad()
    def score(self, tokens: Sequence[int]) -> list[float]:
        row = torch.tensor([list(tokens)])
        is_scored = torch.ones_like(row, dtype=torch.bool)
        is_scored[:, 0] = False
        return score_tokens(self.own, tokens_BT=row, is_action_BT=is_scored).logp_BT[0, 1:].tolist()


class Keeps(Given):
    """Takes weights without a word, and keeps its first ones: a reload that did not reload."""

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        super().load(None, version)


class Stale(Given):
    """Keeps the keys and values of prompts that it read with older weights."""

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        self.loads.append((version, weights is not None))
        if weights is not None:
            copy_weights(weights, self.own)  # no slot is emptied

    def close(self, episode: int) -> None:
        pass  # so that the text of the probe is continued

    def submit(self, request: TurnRequest) -> None:
        slot = self._rows.slot_of.get(request.episode)
        if slot is not None:  # what was read of the text stays as it is
            self._rows.cached_S[slot] = self._rows.total_S[slot] = len(request.prefix) - 1
            request = replace(request, prefix=request.prefix[-1:])
        super().submit(request)


class Raw(Given):
    """Records log-probs at temperature 1, whatever the temperature."""

    def submit(self, request: TurnRequest) -> None:
        self._asked = request
        super().submit(request)

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> Any:
        results = super().poll(timeout, steps=steps)
        for result in results:
            tokens = [*self._asked.prefix, *result.tokens]
            result.logps = self.score(tokens)[-len(result.tokens) :]
        return results
