"""The live episodes of an engine as arrays: one row per slot, nothing per token in Python."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lit_agentrl.engines.base import SamplingParams, TurnRequest, TurnResult
from lit_agentrl.episode import FinishReason
from lit_agentrl.seeds import draw_uniforms


class Rows:
    """What is known of the episode in each slot.

    ``tokens_SL[slot, :known]`` are those whose keys and values are cached, up to ``total`` those that are
    read next.  A reply in the making begins at ``begin``.  Live episodes are the first ``len(slot_of)``
    slots once :meth:`compact` has run.
    """

    def __init__(self, num_slots: int, max_context_tokens: int) -> None:
        self.num_slots = num_slots
        self.max_context = max_context_tokens
        self.slot_of: dict[int, int] = {}
        self.episode_S = np.full(num_slots, -1, dtype=np.int64)
        self.is_live_S = np.zeros(num_slots, dtype=np.bool_)
        self.is_writing_S = np.zeros(num_slots, dtype=np.bool_)
        self.known_S = np.zeros(num_slots, dtype=np.int64)
        self.total_S = np.zeros(num_slots, dtype=np.int64)
        self.begin_S = np.zeros(num_slots, dtype=np.int64)
        self.limit_S = np.zeros(num_slots, dtype=np.int64)  # of total
        self.key_S = np.zeros(num_slots, dtype=np.uint64)
        self.stop_state_S = np.zeros(num_slots, dtype=np.int32)
        self.shared_S = np.zeros(num_slots, dtype=np.int64)
        self.given_S = np.zeros(num_slots, dtype=np.int64)
        self.params_S = np.zeros(num_slots, dtype=np.int64)  # index into params
        self.params: list[SamplingParams] = []
        self.tokens_SL = np.zeros((num_slots, max_context_tokens), dtype=np.int64)
        self.logp_SL = np.zeros((num_slots, max_context_tokens), dtype=np.float32)
        self.entropy_SL = np.zeros((num_slots, max_context_tokens), dtype=np.float32)

    @property
    def num_live(self) -> int:
        return len(self.slot_of)

    def clear(self) -> None:
        self.slot_of.clear()
        self.episode_S.fill(-1)
        self.is_live_S.fill(False)
        self.is_writing_S.fill(False)
        self.params.clear()

    def open(self, episode: int) -> int:
        """Give an episode the first free slot."""
        slot = int(np.argmin(self.is_live_S))
        self.slot_of[episode] = slot
        self.episode_S[slot] = episode
        self.is_live_S[slot] = True
        self.is_writing_S[slot] = False
        self.known_S[slot] = self.total_S[slot] = 0
        return slot

    def close(self, episode: int) -> None:
        slot = self.slot_of.pop(episode)
        self.is_live_S[slot] = self.is_writing_S[slot] = False
        self.episode_S[slot] = -1

    def compact(self) -> list[tuple[int, int, int]]:
        """Move live episodes to the front; the moves made, as (source, target, cached tokens)."""
        moves = []
        holes = np.flatnonzero(~self.is_live_S[: self.num_live])
        beyond = self.num_live + np.flatnonzero(self.is_live_S[self.num_live :])
        for target, source in zip(holes.tolist(), beyond[::-1].tolist(), strict=True):
            for name, array in vars(self).items():
                if name.endswith("_S"):
                    array[target] = array[source]
            total = int(self.total_S[source])
            for array in (self.tokens_SL, self.logp_SL, self.entropy_SL):
                array[target, :total] = array[source, :total]
            self.slot_of[int(self.episode_S[source])] = target
            self.is_live_S[source] = self.is_writing_S[source] = False
            moves.append((source, target, int(self.known_S[source])))
        return moves

    def start(self, slot: int, request: TurnRequest) -> bool:
        """Queue a request's tokens for reading; False, and nothing is read, if they leave no room to write."""
        params, total = request.params, int(self.total_S[slot])
        end = total + len(request.prefix)
        limit = min(self.max_context, params.max_context_tokens)
        if end >= limit:
            self.total_S[slot] = self.known_S[slot]
            return False
        self.tokens_SL[slot, total:end] = request.prefix
        self.total_S[slot] = self.begin_S[slot] = end
        self.limit_S[slot] = min(limit, end + params.max_reply_tokens)
        self.given_S[slot], self.shared_S[slot] = len(request.prefix), 0
        self.key_S[slot], self.stop_state_S[slot] = request.key, 0
        if params not in self.params:
            self.params.append(params)
        self.params_S[slot] = self.params.index(params)
        self.is_writing_S[slot] = True
        return True

    def uniforms(self, slots_A: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The draw of each row's next token."""
        counts = self.total_S[slots_A] - self.begin_S[slots_A]
        return draw_uniforms(self.key_S[slots_A], counts.astype(np.uint64))

    def finish(self, slot: int, *, stopped: bool, version: int) -> TurnResult:
        """Cut the reply of a slot out of the arrays."""
        begin, end = int(self.begin_S[slot]), int(self.total_S[slot])
        self.is_writing_S[slot] = False
        params = self.params[self.params_S[slot]]
        if stopped:
            reason = FinishReason.STOP
        elif end - begin >= params.max_reply_tokens:
            reason = FinishReason.LENGTH
        else:
            reason = FinishReason.CONTEXT
        shared = int(self.shared_S[slot])
        return TurnResult(
            int(self.episode_S[slot]),
            tokens=self.tokens_SL[slot, begin:end].tolist(),
            logps=self.logp_SL[slot, begin:end].tolist(),
            entropies=self.entropy_SL[slot, begin:end].tolist(),
            finish=reason,
            policy_version=version,
            num_prefilled=int(self.given_S[slot]) - shared,
            num_shared=shared,
        )
