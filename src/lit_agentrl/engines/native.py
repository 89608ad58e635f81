"""The native engine: the trainer's own network, key/value state kept across turns, no weight copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.engines.base import Capabilities, TurnRequest, TurnResult
from lit_agentrl.engines.cache import SlotCache
from lit_agentrl.engines.sampling import draw_tokens
from lit_agentrl.seeds import uniforms
from lit_agentrl.types import FinishReason


class StopRule(Protocol):
    """Tells when a reply is complete; keeps a short string of state per reply."""

    def update(self, state: str, token: int) -> tuple[str, bool]: ...


@dataclass
class _Row:
    """One live episode: what is cached, what is being generated."""

    episode: int
    cached: list[int] = field(default_factory=list)  # tokens whose keys and values are in the slot
    unread: list[int] = field(default_factory=list)  # tokens to read before the next draw
    request: TurnRequest | None = None
    result: TurnResult | None = None
    stop_state: str = ""

    @property
    def is_starting(self) -> bool:
        return self.result is not None and not self.result.tokens


class NativeEngine:
    """Continuous decoding over a fixed number of slots on a logical clock.

    One :meth:`poll` alternates (1) admission of waiting episodes in order of submission, (2) one forward
    over the new prefixes, (3) single-token forwards over all rows, until some reply is complete.  The
    schedule is a function of the requests alone, so equal requests give equal bits.

    Args:
        network: causal LM with standard key/value cache support, shared with the trainer.
        stop: completes a reply at the answer's end tag.
        end_of_turn_ids: token ids that also complete a reply.
        num_slots: episodes decoded together; memory is slots x context.
        max_context_tokens: length of a slot.
        forward_context: the strategy's precision context.

    Raises:
        ValueError: the network cannot be driven exactly by this engine, with the reason and the remedy.
    """

    capabilities = Capabilities(keyed_sampling=True, kv_reuse=True, exact_log_probs=True, fork=True)

    def __init__(
        self,
        network: PreTrainedModel,
        *,
        stop: StopRule,
        end_of_turn_ids: Sequence[int],
        num_slots: int = 128,
        max_context_tokens: int = 1024,
        forward_context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        if num_slots < 1:
            raise ValueError(f"engine.num_slots={num_slots} must be >= 1")
        check_network(network, max_context_tokens)
        self._network = network
        self._stop = stop
        self._end_ids = frozenset(end_of_turn_ids)
        self._context = forward_context
        self._cache = SlotCache(num_slots, max_context_tokens)
        self._max_context = max_context_tokens
        self._rows: list[_Row] = []  # index = slot; live rows are always at the front
        self._slot_of: dict[int, int] = {}
        self._waiting: deque[TurnRequest] = deque()
        self._version = 0

    # ------------------------------------------------------------------ protocol
    @property
    def capacity(self) -> int:
        return self._cache.num_slots

    def submit(self, request: TurnRequest) -> None:
        slot = self._slot_of.get(request.episode)
        if slot is None:
            self._waiting.append(request)
        else:
            self._start(self._rows[slot], request)

    def poll(self, timeout: float | None = None) -> list[TurnResult]:
        """See :class:`Engine`; ``timeout`` is not needed here, since work is done in the calling thread."""
        self._admit()
        finished = self._refuse_too_long()
        with torch.no_grad(), self._context():
            was_training = self._network.training
            self._network.train(False)
            while not finished and any(row.result is not None for row in self._rows):
                finished = self._advance([i for i, row in enumerate(self._rows) if row.is_starting])
                if not finished:
                    finished = self._advance(
                        [i for i, row in enumerate(self._rows) if row.result is not None]
                    )
            self._network.train(was_training)
        return finished

    def fork(self, parent: int, child: int, at: int) -> None:
        """Start ``child`` from the first ``at`` tokens of ``parent``; needs a free slot."""
        source = self._rows[self._slot_of[parent]]
        history = source.cached + source.unread
        if not 0 < at <= len(history):
            raise ValueError(f"fork at {at}: episode {parent} has {len(history)} tokens")
        if len(self._rows) >= self._cache.num_slots:
            raise ValueError("fork needs a free slot; raise engine.num_slots")
        known = min(at, len(source.cached))
        row = _Row(child, cached=history[:known], unread=history[known:at])
        self._slot_of[child] = len(self._rows)
        self._rows.append(row)
        self._cache.move(self._slot_of[parent], self._slot_of[child], known)

    def close(self, episode: int) -> None:
        slot = self._slot_of.pop(episode, None)
        if slot is None:
            self._waiting = deque(r for r in self._waiting if r.episode != episode)
            return
        last = len(self._rows) - 1
        if slot != last:  # keep live rows at the front
            self._rows[slot] = self._rows[last]
            self._slot_of[self._rows[slot].episode] = slot
            self._cache.move(last, slot, len(self._rows[slot].cached))
        self._rows.pop()

    def sync_weights(self, version: int) -> None:
        """The weights are the trainer's own: only the version changes.  Live episodes are forgotten."""
        self._version = version
        self._rows.clear()
        self._slot_of.clear()
        self._waiting.clear()

    # ------------------------------------------------------------------ schedule
    def _admit(self) -> None:
        while self._waiting and len(self._rows) < self._cache.num_slots:
            request = self._waiting.popleft()
            self._slot_of[request.episode] = len(self._rows)
            self._rows.append(_Row(request.episode))
            self._start(self._rows[-1], request)

    def _start(self, row: _Row, request: TurnRequest) -> None:
        row.request, row.stop_state = request, ""
        row.unread = row.unread + list(request.prefix)
        row.result = TurnResult(
            request.episode, policy_version=self._version, num_prefilled=len(request.prefix)
        )

    def _refuse_too_long(self) -> list[TurnResult]:
        refused = []
        for row in self._rows:
            if row.result is not None and row.request is not None:
                limit = min(self._max_context, row.request.params.max_context_tokens)
                if len(row.cached) + len(row.unread) >= limit:
                    row.result.finish, row.result.num_prefilled = FinishReason.CONTEXT, 0
                    refused.append(row.result)
                    row.result, row.unread = None, []
        return refused

    def _advance(self, slots: list[int]) -> list[TurnResult]:
        """Draw one token for each of these slots; the replies that this completed."""
        if not slots:
            return []
        self._forward(slots)
        done = []
        for row in (self._rows[slot] for slot in slots):
            if row.result is None or row.request is None:
                continue
            params, token = row.request.params, row.result.tokens[-1]
            row.stop_state, stopped = self._stop.update(row.stop_state, token)
            if stopped or token in self._end_ids:
                row.result.finish = FinishReason.STOP
            elif len(row.result.tokens) >= params.max_reply_tokens:
                row.result.finish = FinishReason.LENGTH
            elif len(row.cached) + 1 >= min(self._max_context, params.max_context_tokens):
                row.result.finish = FinishReason.CONTEXT
            else:
                continue
            done.append(row.result)
            row.result = None
        return done

    # ------------------------------------------------------------------ forwards
    def _forward(self, slots: list[int]) -> None:
        """Read the unread tokens of these slots and draw one token for each."""
        logits_AV = self._logits(slots)
        rows = [self._rows[s] for s in slots]
        requests = [row.request for row in rows if row.request is not None]
        results = [row.result for row in rows if row.result is not None]
        keys = np.array([r.key for r in requests], dtype=np.uint64)
        counts = np.array([len(r.tokens) for r in results], dtype=np.uint64)
        uniform_A = torch.from_numpy(uniforms(keys, counts)).to(logits_AV.device)
        groups: dict[tuple[float, float, int], list[int]] = {}
        for i, request in enumerate(requests):
            p = request.params
            groups.setdefault((p.temperature, p.top_p, p.top_k), []).append(i)
        for (temperature, top_p, top_k), members in groups.items():
            whole = len(members) == len(rows)
            index = slice(None) if whole else torch.tensor(members, device=logits_AV.device)
            draw = draw_tokens(
                logits_AV[index],
                uniform_A=uniform_A[index],
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
            )
            drawn = zip(
                members, draw.token_A.tolist(), draw.logp_A.tolist(), draw.entropy_A.tolist(), strict=True
            )
            for i, token, logp, entropy in drawn:
                rows[i].unread = [token]
                results[i].tokens.append(token)
                results[i].logps.append(logp)
                results[i].entropies.append(entropy)

    def _logits(self, slots: list[int]) -> Tensor:
        """Next-token logits (A, V) after reading the unread tokens of ``slots``, left-padded to one width."""
        device = self._network.device
        rows = [self._rows[slot] for slot in slots]
        width = max(len(row.unread) for row in rows)
        tokens = np.zeros((len(rows), width), dtype=np.int64)
        positions = np.full((len(rows), width), -1, dtype=np.int64)  # -1: padding
        for i, row in enumerate(rows):
            start = width - len(row.unread)
            tokens[i, start:] = row.unread
            positions[i, start:] = np.arange(len(row.cached), len(row.cached) + len(row.unread))
            row.cached.extend(row.unread)
            row.unread = []
        filled = max(len(row.cached) for row in rows)
        position_AQ = torch.from_numpy(positions).to(device)
        row_N, column_N = torch.nonzero(position_AQ >= 0, as_tuple=True)
        slot_A = torch.tensor(slots, device=device)
        at_front = slots == list(range(len(slots)))
        self._cache.select(
            slice(0, len(slots)) if at_front else slot_A,
            write=(slot_A[row_N], position_AQ[row_N, column_N]),
            source=(row_N, column_N),
            filled=filled,
        )
        position_AQ = position_AQ.clamp(min=0)  # padding attends to token 0 alone, which keeps it finite
        mask_A1QL = (torch.arange(filled, device=device) <= position_AQ.unsqueeze(-1)).unsqueeze(1)
        if self._network.config._attn_implementation == "eager":
            lowest = torch.finfo(self._network.dtype).min
            mask_A1QL = torch.zeros_like(mask_A1QL, dtype=self._network.dtype).masked_fill(~mask_A1QL, lowest)
        output = self._network(
            input_ids=torch.from_numpy(tokens).to(device),
            attention_mask=mask_A1QL,
            position_ids=position_AQ,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def check_network(network: PreTrainedModel, max_context_tokens: int) -> None:
    """Refuse networks whose caches or masks are not plain causal attention over every token.

    Raises:
        ValueError: attention implementation, layer types or context length that cannot be served exactly.
    """
    config = network.config.get_text_config()
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(
            f"the native engine needs sdpa or eager attention, the model has {config._attn_implementation}; "
            "load it with attn_implementation=sdpa"
        )
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if window is not None and window < max_context_tokens:
        raise ValueError(
            f"the model attends over a window of {window} tokens, less than "
            f"rollout.max_context_tokens={max_context_tokens}; lower it to the window"
        )
    plain = {"full_attention", "sliding_attention"}
    if unusual := set(getattr(config, "layer_types", None) or plain) - plain:
        raise ValueError(f"the native engine cannot keep the state of {', '.join(sorted(unusual))} layers")
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and longest < max_context_tokens:
        raise ValueError(
            f"rollout.max_context_tokens={max_context_tokens} exceeds the model's {longest} positions"
        )
