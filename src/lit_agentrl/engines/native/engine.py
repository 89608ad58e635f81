"""The native engine: decodes with the trainer's own network and caches state across turns."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from lit_agentrl.engines.base import Capabilities, TurnRequest, TurnResult, require_fork
from lit_agentrl.engines.native.attention import NAME, find_autocast_dtype
from lit_agentrl.engines.native.inference import Inference, Reader
from lit_agentrl.engines.native.play_copy import PlayCopy, choose_copy, require_copy
from lit_agentrl.engines.native.prefill import choose_packed, has_many_unread, pack_batches, pack_pieces
from lit_agentrl.engines.native.prefixes import Copy, find_common_prefixes
from lit_agentrl.engines.native.ragged import pack_unread
from lit_agentrl.engines.native.reencoding import ReencodingEngine
from lit_agentrl.engines.native.rows import Rows
from lit_agentrl.engines.native.sampling import draw_rows
from lit_agentrl.engines.native.stops import StopRule, StopTable
from lit_agentrl.engines.native.support import describe_copy_gap, find_obstacle
from lit_agentrl.engines.native.window import Window, choose_steps
from lit_agentrl.engines.options import AUTO, PACKED, PADDED, check_native
from lit_agentrl.engines.reweighted import Reweighted
from lit_agentrl.episode import FinishReason
from lit_agentrl.models.policy import copy_weights

_log = logging.getLogger(__name__)


class NativeEngine:
    """Continuous batched decoding over a fixed number of slots.

    One :meth:`poll` admits waiting episodes in order of submission and then runs forwards until some reply is
    complete. Each forward reads all unread tokens (the new prefix of an episode whose request just arrived, the last
    drawn token of the others) and draws one token for every episode.  The schedule depends on the requests alone, so
    equal requests give bit-equal results.

    Args:
        network: A causal LM of transformers, shared with the trainer.
        stop: Completes a reply, for example at the closing answer tag.
        end_of_turn_ids: Token ids that also complete a reply.
        num_slots: Number of episodes decoded together; memory is slots x context.
        max_context_tokens: Length of a slot.
        forward_context: The strategy's precision context.
        reader: Computes the logits; None uses the network alone.
        window: Number of decode steps after which the host reads the tokens, see `Window`; 0 decodes step by step,
            auto is 8 on CUDA and 0 elsewhere.
        play_copy: Whether windows decode with a `PlayCopy`, refreshed by :meth:`load`; see `choose_copy`.
        prefill: How unread tokens are read: ``packed`` reads all rows by one kernel before a step, ``padded`` reads
            batches of similar length, at most `PIECE_TOKENS` tokens on CUDA; see `choose_packed`.

    Attributes:
        window: The window in use, from the first poll on; None without windows.

    If slots cannot hold the network's state, all methods call a :class:`ReencodingEngine` instead, and a warning is
    logged.

    Raises:
        ValueError: If the network has fewer positions than ``max_context_tokens``; or if slots cannot hold the state of
            a network that is `Reweighted` or has an opponent.
    """

    capabilities = Capabilities(exact_log_probs=True, fork=True, opponent=True)

    def __init__(
        self,
        network: PreTrainedModel,
        *,
        stop: StopRule,
        end_of_turn_ids: Sequence[int],
        num_slots: int = 128,
        max_context_tokens: int = 1024,
        forward_context: Callable[[], AbstractContextManager[object]] = nullcontext,
        reader: Reader | None = None,
        window: int | str = AUTO,
        play_copy: bool | str = AUTO,
        prefill: str = AUTO,
    ) -> None:
        if network is None:  # a model behind an API
            raise ValueError(
                "model has no network here; use engine=openai engine.mode=chat, or another model"
            )
        check_native(num_slots=num_slots, window=window, play_copy=play_copy, prefill=prefill)
        self._network = network
        # `choose_packed` would try only one of an opponent's two networks
        self._prefill_option = PADDED if reader is not None and prefill == AUTO else prefill
        self._is_packed: bool | None = None  # unknown before the network is on its device
        vocabulary = network.config.get_text_config().vocab_size
        self._stops = StopTable(stop, vocabulary)
        self._is_end_V = np.zeros(vocabulary, dtype=np.bool_)
        self._is_end_V[list(end_of_turn_ids)] = True
        self._context = forward_context
        self._inference: Reader = Inference(network, NAME) if reader is None else reader
        self._fallback: ReencodingEngine | None = None
        if reader is not None and window not in (0, AUTO):
            raise ValueError(f"window={window} cannot serve an opponent; set engine.window=0")
        self._window_option: int | str = window if reader is None else 0
        self.window: Window | None = None
        # the network moves to its device later
        device = torch.device("cuda") if torch.cuda.is_available() else network.device
        require_copy(play_copy, network, steps=choose_steps(self._window_option, device))
        self._copy_option = play_copy
        self._copy: PlayCopy | None = None
        self._is_copy_stale = False
        if reason := find_obstacle(network, max_context_tokens, forward_context):
            _refuse_needs_of_slots(
                reason, network, has_opponent=reader is not None, window=window, prefill=prefill
            )
            _log.warning(
                "the native engine reads the whole history before each reply, since slots cannot hold the state of the "
                "model (%s)",
                reason,
            )
            self._fallback = ReencodingEngine(
                network, stops=self._stops, is_end=self._is_end_V, num_slots=num_slots,
                max_context_tokens=max_context_tokens, forward_context=forward_context,
            )  # fmt: skip
        self._cache = self._inference.make_cache(num_slots, max_context_tokens)
        self._rows = Rows(num_slots, max_context_tokens)
        self._waiting: deque[TurnRequest] = deque()
        self._refused: list[TurnResult] = []
        self._version = 0
        self._num_steps = 0

    @classmethod
    def check_options(
        cls,
        *,
        num_slots: int = 128,
        window: int | str = AUTO,
        play_copy: bool | str = AUTO,
        prefill: str = AUTO,
        **_: Any,
    ) -> Capabilities:
        """Check the options; see `CheckedEngine`."""
        check_native(num_slots=num_slots, window=window, play_copy=play_copy, prefill=prefill)
        return cls.capabilities

    # ------------------------------------------------------------------ protocol
    @property
    def num_steps(self) -> int:
        return self._fallback.num_steps if self._fallback else self._num_steps

    @property
    def num_pending(self) -> int:
        if self._fallback:
            return self._fallback.num_pending
        return len(self._waiting) + len(self._refused) + int(self._rows.is_writing_S.sum())

    @property
    def capacity(self) -> int:
        return self._rows.num_slots

    def submit(self, request: TurnRequest) -> None:
        if self._fallback:
            return self._fallback.submit(request)
        slot = self._rows.slot_of.get(request.episode)
        if slot is None:
            self._waiting.append(request)
        else:
            self._start_request(slot, request)

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """See :class:`Engine`; ``timeout`` is ignored, since the calling thread does the work."""
        if self._fallback:
            return self._fallback.poll()
        while self._waiting and self._rows.num_live < self._rows.num_slots:
            request = self._waiting.popleft()
            self._start_request(self._rows.open(request.episode), request)
        for move in self._rows.compact():
            self._cache.move(*move)
        finished, self._refused = self._refused, []
        if not finished and self._rows.is_writing_S.any():
            with self._inference(), self._context():
                last_step = None if steps is None else self._num_steps + steps
                window = self._open_window()
                while not finished and (last_step is None or self._num_steps < last_step):
                    finished = self._step() if window is None else self._run_window(window)
                    self._num_steps += 1 if window is None else window.steps
        return finished

    def fork(self, parent: int, child: int, at: int) -> None:
        """Start ``child`` from the first ``at`` tokens of ``parent``; needs a free slot."""
        if self._fallback:
            return self._fallback.fork(parent, child, at)
        rows, source = self._rows, self._rows.slot_of.get(parent)
        length = None if source is None else int(rows.total_S[source])
        require_fork(parent, child, at, length=length, is_new=child not in rows.slot_of)
        assert source is not None
        if rows.num_live >= rows.num_slots:
            raise ValueError("fork needs a free slot; raise engine.num_slots")
        slot, num_cached = rows.open(child), min(at, int(rows.cached_S[source]))
        rows.tokens_SL[slot, :at] = rows.tokens_SL[source, :at]
        rows.cached_S[slot], rows.total_S[slot] = num_cached, at
        self._cache.move(source, slot, num_cached)

    def close(self, episode: int) -> None:
        if self._fallback:
            return self._fallback.close(episode)
        if episode in self._rows.slot_of:
            self._rows.close(episode)
        else:
            self._waiting = deque(request for request in self._waiting if request.episode != episode)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """Copy the weights into the network in place; see :class:`Engine`."""
        if weights is not None:
            copy_weights(weights, self._network)
        if self._fallback:
            return self._fallback.forget(version)
        self._version, self._is_copy_stale = version, True
        self._rows.clear()
        self._waiting.clear()
        self._refused.clear()

    def stop(self) -> None:
        """Release the graphs and the copy of the weights."""
        self.window = self._copy = None

    def _start_request(self, slot: int, request: TurnRequest) -> None:
        if not self._rows.start(slot, request):
            result = TurnResult(request.episode, finish=FinishReason.CONTEXT, policy_version=self._version)
            self._refused.append(result)

    # ------------------------------------------------------------------ one forward
    def _step(self) -> list[TurnResult]:
        """Read all unread tokens and draw one token per active episode; return completed replies."""
        rows = self._rows
        if self._choose_packed() or has_many_unread(rows, self._network.device):
            self._read_ahead()
            copies = []
        else:
            copies = self._plan_copies(rows.total_S, unread=1)
        slots_A = np.flatnonzero(rows.is_writing_S)
        packed = pack_unread(rows, slots_A, copies, self._network.device)
        logits_AV = self._inference.read(self._cache, packed)
        kind_A = rows.params_S[slots_A]
        drawn = draw_rows(logits_AV, rows.draw_uniforms(slots_A), kind_A, rows.params)
        return self._record_draws(slots_A, *drawn)

    def _record_draws(
        self,
        slots_A: npt.NDArray[np.int64],
        token_A: npt.NDArray[np.int64],
        logp_A: npt.NDArray[np.float32],
        entropy_A: npt.NDArray[np.float32],
    ) -> list[TurnResult]:
        """Append one drawn token to each of these slots, whose other tokens have been read."""
        rows = self._rows
        place_A = rows.cached_S[slots_A] = rows.total_S[slots_A]
        rows.tokens_SL[slots_A, place_A] = token_A
        rows.logp_SL[slots_A, place_A] = logp_A
        rows.entropy_SL[slots_A, place_A] = entropy_A
        rows.total_S[slots_A] = place_A + 1
        state_A, stopped_A = self._stops.advance(rows.stop_state_S[slots_A], token_A)
        rows.stop_state_S[slots_A] = state_A
        stopped_A |= self._is_end_V[token_A]
        done_A = np.flatnonzero(stopped_A | (place_A + 1 >= rows.limit_S[slots_A]))
        return [
            rows.finish(int(slots_A[i]), stopped=bool(stopped_A[i]), version=self._version) for i in done_A
        ]

    def _plan_copies(self, end_S: npt.NDArray[np.int64], *, unread: int) -> list[Copy]:
        """Return the copies of tokens that start new episodes, and count these as cached.

        An episode's tokens up to ``end_S`` are copied from another one where equal, but the last ``unread`` never.
        """
        rows = self._rows
        new = np.flatnonzero(rows.is_writing_S & (rows.cached_S == 0)).tolist()
        if not new:
            return []
        starting = {slot: rows.tokens_SL[slot, : end_S[slot]] for slot in new}
        live = np.flatnonzero(rows.is_live_S & (rows.cached_S > 0)).tolist()
        held = {slot: rows.tokens_SL[slot, : rows.cached_S[slot]] for slot in live}
        copies = find_common_prefixes(starting, held, unread=unread)
        for copy in copies:
            targets = list(copy.targets)
            rows.cached_S[targets] = rows.shared_S[targets] = copy.length
        return copies

    def _choose_packed(self) -> bool:
        if self._is_packed is None:
            self._is_packed = choose_packed(self._prefill_option, self._network)
        return self._is_packed

    def _read_ahead(self) -> None:
        """Read all tokens but the last of each slot."""
        rows = self._rows
        end_S = rows.total_S - 1
        copies = self._plan_copies(end_S, unread=0)
        slots_A = np.flatnonzero(rows.is_writing_S & (rows.cached_S < end_S))
        if not len(slots_A):
            for copy in copies:
                for target in copy.targets:
                    self._cache.move(copy.source, target, copy.length)
        else:
            pack, read = pack_batches, self._inference.read
            if self._choose_packed():
                pack, read = pack_pieces, self._copy.read if self._copy else read
            for packed in pack(rows, slots_A, copies, self._network.device, end_S=end_S):
                read(self._cache, packed)
        rows.cached_S[slots_A] = end_S[slots_A]

    # ------------------------------------------------------------------ many steps at once
    def _open_window(self) -> Window | None:
        if self.window is not None:
            return self.window
        device = self._network.device
        steps = choose_steps(self._window_option, device)
        require_copy(self._copy_option, self._network, steps=steps)
        if steps:
            self._copy = self._open_copy()
            self._is_copy_stale = False
            read = self._copy.read if self._copy else self._inference.read
            self.window = Window(
                partial(read, self._cache), steps=steps, num_slots=self._rows.num_slots,
                max_length=self._rows.max_context, device=device,
            )  # fmt: skip
            if any(isinstance(module, FSDPModule) for module in self._network.modules()):
                self.window.capture = False  # gathered weights have another address in each wave
        return self.window

    def _open_copy(self) -> PlayCopy | None:
        network = self._network
        casts_to = find_autocast_dtype(network.device)
        if not choose_copy(self._copy_option, network, is_autocast=casts_to is not None):
            return None
        dtype = casts_to or network.dtype
        copy = PlayCopy(network, dtype)
        copy.update()
        reason = describe_copy_gap(self._inference.read, copy.read, network, dtype)
        if reason and self._copy_option is True:
            raise ValueError(f"play_copy=true cannot copy the model: {reason}; set engine.play_copy=auto")
        if reason:
            _log.warning("decode steps use the trainer's weights, not a copy of them: %s", reason)
        return None if reason else copy

    def _run_window(self, window: Window) -> list[TurnResult]:
        """Read all tokens but the last, then draw a window; return the completed replies."""
        if self._copy is not None and self._is_copy_stale:
            self._copy.update()
            self._is_copy_stale = False
        self._read_ahead()
        rows = self._rows
        finished = []
        for drawn in zip(*window.draw(rows), strict=True):
            slots_A = np.flatnonzero(rows.is_writing_S)
            finished += (
                self._record_draws(slots_A, *(part_R[slots_A] for part_R in drawn)) if len(slots_A) else []
            )
        return finished


def _refuse_needs_of_slots(
    reason: str, network: PreTrainedModel, *, has_opponent: bool, window: int | str, prefill: str
) -> None:
    """Refuse options that need slots; ``reason`` says why slots cannot hold the network's state."""
    if has_opponent:
        raise ValueError(f"slots cannot hold the state of the model ({reason}), and an opponent needs them")
    needs = {
        f"critic.beta={getattr(network, 'beta', 0.0):g}": ("critic.beta=0", isinstance(network, Reweighted)),
        f"window={window}": ("engine.window=0", window not in (0, AUTO)),
        f"prefill={prefill}": ("engine.prefill=auto", prefill == PACKED),
    }
    for option, (remedy, needs_slots) in needs.items():
        if needs_slots:
            raise ValueError(
                f"{option} needs slots, and they cannot hold the state of the model ({reason}); set {remedy}"
            )
