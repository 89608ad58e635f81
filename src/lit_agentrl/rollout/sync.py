"""Weight loading into engines, verified by a probe because an engine may keep old weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl import seeds
from lit_agentrl.distributed import get_rank
from lit_agentrl.engines.base import (
    Engine,
    GivenEngine,
    MeteredEngine,
    RestingEngine,
    SamplingParams,
    TurnRequest,
    TurnResult,
)
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.models.policy import copy_weights, get_plain_parameters
from lit_agentrl.rollout.rules import ForwardContext, Rules

_TEXT = (
    "The rain had stopped before noon. On the bridge stood 7 people, and each of them counted the boats that went "
    "down the river: 3 red ones, 12 blue ones, and a long grey one that nobody could name. "
) * 8
_TOKENS = 288  # of the text: prefix caches store only whole blocks, of up to 256 tokens
_REPLY = 16  # tokens sampled
_EPISODE = -1  # no episode of a wave has this number


class SyncError(ValueError):
    """An engine does not compute with its given weights; the message is one line."""


class WeightSync:
    """Loader of weights into an engine.

    An engine with weights of its own is then compared with the trainer's network.  The probe has two parts.  First the
    log-probs of a fixed text, once per version: they reveal weights that did not arrive.  Then the log-probs of a
    reply to this text, sampled as in the wave, once per version and sampling parameters: they reveal cached keys and
    values of older weights, and log-probs at another temperature or of a truncated distribution.

    Args:
        engine: Receives weights, if it takes any.
        network: The trainer's network, or a copy, which then receives the same weights.
        rules: Rules by which episodes are played.
        forward_context: Precision context of the strategy.
        barrier: Waits for all processes of the run; its argument names the event.
    """

    def __init__(
        self,
        engine: Engine,
        network: PreTrainedModel,
        rules: Rules,
        forward_context: ForwardContext,
        *,
        barrier: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._engine = engine
        self._network = network
        self._context = forward_context
        self._barrier = barrier
        self._rules = rules
        self._version: int | None = None  # version of the weights that the engine received
        self._gaps: dict[SamplingParams | None, float] = {}  # of this version; None: of the fixed text
        self._seconds = 0.0
        self._metered: dict[str, float] = {}  # at the last call of `measure_usage`

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """Reset all episodes and use these weights for later replies.

        If the engine receives weights, all processes of a strategy must call this, with completely gathered weights.
        It returns after the weights have arrived, so that no process gathers while another still sends.

        Args:
            weights: Weights by name; None for those of the network.
            version: Version of the weights.
        """
        how = self._engine.capabilities.weights
        if how == "shared":
            return self._engine.load(weights, version)
        if weights is not None:
            copy_weights(weights, self._network)
        if how == "none" or version == self._version:
            return self._engine.load(None, version)
        started = time.perf_counter()
        is_sender = get_rank() == 0 or not self._engine.capabilities.is_server
        self._engine.load(get_plain_parameters(self._network) if is_sender else None, version)
        self._barrier("weights sent")
        self._seconds = time.perf_counter() - started
        self._version = version
        self._gaps.clear()

    def probe(self, params: SamplingParams) -> dict[str, float]:
        """Compare the engine with the network unless already done; return what is logged.

        Args:
            params: Sampling parameters of the episodes to be played.

        Raises:
            SyncError: The engine answers with an error, or its log-probs differ; the message names engine, version and
                gap.
        """
        if self._version is None:
            return {}
        engine = cast(GivenEngine, self._engine)
        started = time.perf_counter()
        opening = self._rules.chat.render_opening([{"role": "user", "content": _TEXT}])
        text = opening.tokens[: max(2, min(_TOKENS, params.max_context_tokens - _REPLY - 1))]
        if None not in self._gaps:
            self._require_small_gap(None, self._compute_gap(text[:1], text[1:], engine.score(text), 1.0))
        if params not in self._gaps:
            reply = self._sample_reply(text, params)
            if reply.error or not reply.tokens:
                raise SyncError(f"{self._where}: it answers no probe: {reply.error or 'an empty reply'}")
            self._require_small_gap(
                params, self._compute_gap(text, reply.tokens, reply.logps, params.temperature or 1.0)
            )
        self._seconds += time.perf_counter() - started
        return {"engine/sync_gap": max(self._gaps.values()), "engine/sync_seconds": self._seconds}

    def rest(self) -> None:
        """Let the engine give memory up until the next :meth:`load`, if it can."""
        if isinstance(self._engine, RestingEngine) and self._engine.rest():
            self._version = None

    def measure_usage(self) -> dict[str, float]:
        """Return the engine's usage since the last call, by name; empty if not metered."""
        if not isinstance(self._engine, MeteredEngine):
            return {}
        before, self._metered = self._metered, self._engine.meter()
        return {name: value - before.get(name, 0.0) for name, value in self._metered.items()}

    @property
    def _where(self) -> str:
        return f"engine={type(self._engine).__name__}, version {self._version} of the weights"

    def _require_small_gap(self, params: SamplingParams | None, gap: float) -> None:
        self._gaps[params] = gap
        limit = cast(GivenEngine, self._engine).max_sync_gap
        if gap <= limit:
            return
        text = "a fixed text" if params is None else f"a reply sampled at temperature {params.temperature:g}"
        why = (
            "it has other weights, or computes in another precision"
            if params is None
            else "it reads what it kept of older weights, or records log-probs that are not at this temperature over "
            "the full vocabulary"
        )
        raise SyncError(
            f"{self._where}: log-probs of {text} differ from the trainer's by up to {gap:.3g} nats, more than "
            f"engine.max_sync_gap={limit:g}; {why}"
        )

    def _sample_reply(self, text: Sequence[int], params: SamplingParams) -> TurnResult:
        short = replace(params, max_reply_tokens=min(_REPLY, params.max_reply_tokens))
        key = seeds.make_key(self._rules.seed, "probe", cast(int, self._version))
        self._engine.submit(TurnRequest(_EPISODE, text, key, short))
        results: list[TurnResult] = []
        while not results and self._engine.num_pending:
            results = self._engine.poll()
        self._engine.close(_EPISODE)
        return results[0] if results else TurnResult(_EPISODE, error="nothing")

    @torch.no_grad()
    def _compute_gap(
        self, before: Sequence[int], tokens: Sequence[int], logps: Sequence[float], temperature: float
    ) -> float:
        """Return the largest difference from the network's log-probs.

        It is infinite if log-probs are missing or one is not finite.
        """
        if len(logps) != len(tokens) or not all(map(math.isfinite, logps)):
            return math.inf
        row = torch.tensor([[*before, *tokens]], device=self._network.device)
        is_scored = torch.zeros_like(row, dtype=torch.bool)
        is_scored[:, len(before) :] = True
        with self._context():
            scores = score_tokens(
                self._network, tokens_BT=row, is_action_BT=is_scored, temperature=temperature
            )
        own = scores.logp_BT[is_scored].double().cpu()
        gap = float((own - torch.tensor(logps, dtype=torch.float64)).abs().max())
        return gap if math.isfinite(gap) else math.inf
