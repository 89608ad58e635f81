"""The live episodes of an engine as arrays, one row per slot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lit_agentrl.engines.base import SamplingParams, TurnRequest, TurnResult
from lit_agentrl.episode import FinishReason
from lit_agentrl.seeds import draw_uniforms


class Rows:
    """The state of the episode in each slot.

    ``tokens_SL[slot, :cached]`` are the tokens whose keys and values are cached; the tokens from there to ``total`` are
    read next.  An unfinished reply begins at ``begin``.  After :meth:`compact`, live episodes occupy the first
    ``len(slot_of)`` slots.
    """

    def __init__(self, num_slots: int, max_context_tokens: int) -> None:
        self.num_slots = num_slots
        self.max_context = max_context_tokens
        self.slot_of: dict[int, int] = {}
        self.episode_S = np.full(num_slots, -1, dtype=np.int64)
        self.is_live_S = np.zeros(num_slots, dtype=np.bool_)
        self.is_writing_S = np.zeros(num_slots, dtype=np.bool_)
        self.cached_S = np.zeros(num_slots, dtype=np.int64)
        self.total_S = np.zeros(num_slots, dtype=np.int64)
        self.begin_S = np.zeros(num_slots, dtype=np.int64)
        self.limit_S = np.zeros(num_slots, dtype=np.int64)  # maximum of total_S
        self.key_S = np.zeros(num_slots, dtype=np.uint64)
        self.stop_state_S = np.zeros(num_slots, dtype=np.int32)
        self.shared_S = np.zeros(num_slots, dtype=np.int64)  # prefix tokens copied from another slot
        self.prefix_S = np.zeros(num_slots, dtype=np.int64)  # tokens of the request's prefix
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
        self.cached_S[slot] = self.total_S[slot] = 0
        return slot

    def close(self, episode: int) -> None:
        slot = self.slot_of.pop(episode)
        self.is_live_S[slot] = self.is_writing_S[slot] = False
        self.episode_S[slot] = -1

    def compact(self) -> list[tuple[int, int, int]]:
        """Move live episodes to the front.

        Returns:
            The moves as (source, target, cached tokens).
        """
        moves = []
        free_slots = np.flatnonzero(~self.is_live_S[: self.num_live])
        slots_to_move = self.num_live + np.flatnonzero(self.is_live_S[self.num_live :])
        for target, source in zip(free_slots.tolist(), slots_to_move[::-1].tolist(), strict=True):
            for name, array in vars(self).items():
                if name.endswith("_S"):
                    array[target] = array[source]
            total = int(self.total_S[source])
            for array in (self.tokens_SL, self.logp_SL, self.entropy_SL):
                array[target, :total] = array[source, :total]
            self.slot_of[int(self.episode_S[source])] = target
            self.is_live_S[source] = self.is_writing_S[source] = False
            moves.append((source, target, int(self.cached_S[source])))
        return moves

    def start(self, slot: int, request: TurnRequest) -> bool:
        """Queue a request's tokens for reading.

        Returns:
            Whether the tokens were queued; False if they leave no space for a reply.
        """
        params, total = request.params, int(self.total_S[slot])
        end = total + len(request.prefix)
        limit = min(self.max_context, params.max_context_tokens)
        if end >= limit:
            self.total_S[slot] = self.cached_S[slot]
            return False
        self.tokens_SL[slot, total:end] = request.prefix
        self.total_S[slot] = self.begin_S[slot] = end
        self.limit_S[slot] = min(limit, end + params.max_reply_tokens)
        self.prefix_S[slot], self.shared_S[slot] = len(request.prefix), 0
        self.key_S[slot], self.stop_state_S[slot] = request.key, 0
        if params not in self.params:
            self.params.append(params)
        self.params_S[slot] = self.params.index(params)
        self.is_writing_S[slot] = True
        return True

    def draw_uniforms(self, slots_A: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the uniform draw for each row's next token."""
        counts = self.total_S[slots_A] - self.begin_S[slots_A]
        return draw_uniforms(self.key_S[slots_A], counts.astype(np.uint64))

    def finish(self, slot: int, *, stopped: bool, version: int) -> TurnResult:
        """Extract the completed reply of a slot."""
        begin, end = int(self.begin_S[slot]), int(self.total_S[slot])
        self.is_writing_S[slot] = False
        params = self.params[self.params_S[slot]]
        if stopped:
            reason = FinishReason.STOP
        elif end - begin >= params.max_reply_tokens:
            reason = FinishReason.LENGTH
        else:
            reason = FinishReason.CONTEXT
        num_shared = int(self.shared_S[slot])
        return TurnResult(
            int(self.episode_S[slot]),
            tokens=self.tokens_SL[slot, begin:end].tolist(),
            logps=self.logp_SL[slot, begin:end].tolist(),
            entropies=self.entropy_SL[slot, begin:end].tolist(),
            finish=reason,
            policy_version=version,
            num_prefilled=int(self.prefix_S[slot]) - num_shared,
            num_shared=num_shared,
        )
