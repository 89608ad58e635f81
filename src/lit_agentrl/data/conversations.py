"""Convert conversations in files to episodes whose replies are trained on.

Contents are plain text: none of their tokens is a marker of template or tokenizer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from lit_agentrl.envs.tasks.messages import BadRow, Messages
from lit_agentrl.envs.tasks.spelling import spell_out
from lit_agentrl.episode import EndReason, Episode, Segment, Turn
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import reply_segments
from lit_agentrl.text.lost_characters import find_lost


class Reader:
    """Converter of messages to episodes.

    Args:
        chat: renders the messages as those of games.
        max_context_tokens: limit of an episode; the rest is cut off.

    Attributes:
        num_read, num_truncated: numbers of episodes so far.
        num_folded: number of episodes whose system text begins the first user message.
        markers: the template's markers that messages spelt so far; they are learnt as plain characters.
        lost: the characters that the tokenizer dropped so far.
    """

    def __init__(self, chat: ChatRenderer, max_context_tokens: int) -> None:
        self._chat = chat
        self._max_tokens = max_context_tokens
        self.num_read = self.num_truncated = self.num_folded = 0
        self.markers: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()

    def make_episode(self, context: Messages, learnt: Messages) -> Episode:
        """Make an episode with unknown log-probs (NaN).

        Args:
            context: messages without training, replies included.
            learnt: the messages after them; their replies are trained on.

        Raises:
            BadRow: there is no reply to train on, or none of its tokens fits.
        """
        messages = spell_out([*context, *learnt])
        first_learnt = len(messages) - len(learnt)
        turns: list[Turn] = []
        prefix, segments, start = [], [], 0
        last: list[int] = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            between = messages[start:index]
            if not between and start:
                raise BadRow("two_replies", "two assistant messages follow one another; join them")
            if not between:
                raise BadRow("no_prompt", "it begins with an assistant message; put a user message before it")
            piece = (
                self._chat.render_between(between, last_reply=last)
                if start
                else self._chat.render_opening(between)
            )
            last, start = self._encode_reply(message["content"]), index + 1
            prefix += piece.tokens
            segments += piece.segments
            if index < first_learnt:
                prefix += last
                segments += [int(Segment.PAST)] * len(last)
                continue
            turns.append(self._make_turn(prefix, segments, last, message["content"], is_first=not turns))
            prefix, segments = [], []
        if not turns:
            raise BadRow("no_reply", "it has no assistant message to train on")
        self._require_known(turns)
        fitting = self._truncate(turns)
        self._count([message["content"] for message in messages])
        self.num_folded += self._chat.folds_system and any(m["role"] == "system" for m in messages)
        opening = messages[: _find_first_reply(messages)]
        return Episode(0, 0, 0, 0, "data", 0, opening=opening, turns=fitting, end=EndReason.TURN_LIMIT)

    def make_stepwise_episode(self, context: Messages, steps: Sequence[str], separator: str) -> Episode:
        """Make an episode whose single reply consists of steps, each a turn."""
        context = spell_out(context)
        piece = self._chat.render_opening(context)
        prefix, segments = list(piece.tokens), list(piece.segments)
        turns: list[Turn] = []
        for number, step in enumerate(steps, 1):
            is_last = number == len(steps)
            reply = self._encode_reply(step) if is_last else self._chat.encode(step + separator)
            turns.append(self._make_turn(prefix, segments, reply, step, is_first=not turns))
            prefix, segments = [], []
        self._require_known(turns)
        fitting = self._truncate(turns)
        self._count([*(message["content"] for message in context), *steps])
        return Episode(0, 0, 0, 0, "data", 0, opening=list(context), turns=fitting, end=EndReason.TURN_LIMIT)

    def _encode_reply(self, text: str) -> list[int]:
        """Encode a reply with the end marker of the template."""
        opening = self._chat.dialect.think_start
        if self._chat.forced_think and opening and text.startswith(opening):
            text = text.removeprefix(opening)
        return [*self._chat.encode(text), *self._chat.end_of_turn_ids[:1]]

    def _make_turn(
        self, prefix: list[int], segments: list[int], reply: list[int], text: str, *, is_first: bool
    ) -> Turn:
        unknown = np.full(len(reply), math.nan)
        roles = reply_segments(
            self._chat.tokenizer, reply, forced_think=self._chat.forced_think, dialect=self._chat.dialect
        )
        return Turn(
            observation="", prefix_tokens=np.array(prefix), prefix_segments=np.array(segments, np.int8),
            starts_row=is_first, reply_tokens=np.array(reply), reply_segments=np.array(roles, np.int8),
            reply_logps=unknown, reply_entropies=unknown, policy_version=-1, reply_text=text, is_valid=True,
        )  # fmt: skip

    def _require_known(self, turns: Sequence[Turn]) -> None:
        unknown = self._chat.tokenizer.unk_token_id
        if unknown is None or unknown in self._chat.end_of_turn_ids:
            return
        count = sum(
            int((part == unknown).sum()) for turn in turns for part in (turn.prefix_tokens, turn.reply_tokens)
        )
        if count:
            raise BadRow(
                "unknown_text", f"{count} of its tokens are unknown to the tokenizer; use another model"
            )

    def _count(self, texts: Sequence[str]) -> None:
        self.num_read += 1
        self.lost += find_lost(self._chat.tokenizer, texts)
        for text in texts:
            self.markers.update(self._chat.find_markers(text))

    def _truncate(self, turns: list[Turn]) -> list[Turn]:
        """Truncate the turns to the maximum length."""
        fitting: list[Turn] = []
        left = self._max_tokens
        for turn in turns:
            left -= len(turn.prefix_tokens)
            if left <= 0:
                break
            if len(turn.reply_tokens) > left:
                for name in ("reply_tokens", "reply_segments", "reply_logps", "reply_entropies"):
                    setattr(turn, name, getattr(turn, name)[:left])
            left -= len(turn.reply_tokens)
            fitting.append(turn)
        if not fitting:
            raise BadRow(
                "truncated",
                f"rollout.max_context_tokens={self._max_tokens} leaves no room for a reply after "
                f"{len(turns[0].prefix_tokens)} tokens",
            )
        self.num_truncated += len(fitting) < len(turns) or left <= 0
        return fitting


def _find_first_reply(messages: Messages) -> int:
    return next(k for k, message in enumerate(messages) if message["role"] == "assistant")
