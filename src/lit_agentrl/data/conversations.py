"""Convert conversations in files to episodes whose replies are trained on.

Contents are plain text: none of their tokens is a marker of the template or of the tokenizer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lit_agentrl.data.dialogues import TEXTS, THOUGHTS, DialogueWriter
from lit_agentrl.envs.tasks.messages import BadRow, Messages
from lit_agentrl.envs.tasks.spelling import spell_out
from lit_agentrl.episode import EndReason, Episode, Message, Segment, Turn
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.known_words import is_spelt
from lit_agentrl.text.ledger import reply_segments
from lit_agentrl.text.lost_characters import count_lost

_REMEDIES = {
    THOUGHTS: "write them into the contents, or set model.chat_template",
    TEXTS: "leave them out, or set model.chat_template=append_only_chatml",
}
_TEXTS = ("content", "thought", "calls", "tools")  # keys of a message that hold outside text
_LEAST_TEXTS, _MOST_TEXTS = 20, 200  # numbers of texts that are searched for unknown words


class Reader:
    """Converter of messages to episodes.

    Args:
        chat: renders the messages in the same way as those of games.
        max_context_tokens: largest number of tokens of a row; the rest is cut off.

    Attributes:
        num_read, num_truncated: numbers of episodes so far.
        num_folded: number of episodes whose system text begins the first user message.
        markers: the template's markers that messages so far contain as text; they are learnt as plain characters.
        lost: the characters that the tokenizer has dropped so far.
        num_split: number of episodes with a row for each turn, because the template renders earlier turns differently.
        row_name: file and line of the current row, for notes.
    """

    def __init__(self, chat: ChatRenderer, max_context_tokens: int) -> None:
        self._chat = chat
        self._writer = DialogueWriter(chat)
        self._max_tokens = max_context_tokens
        self.num_read = self.num_truncated = self.num_folded = 0
        self.markers: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.num_split = 0
        self.row_name = ""
        self._spelt_rows: list[str] = []
        self._losing_rows: dict[str, list[str]] = {}  # names of rows by the part that they lose
        self._first_texts: list[str] = []  # the texts that are searched for unknown words

    def make_episode(self, context: Messages, learnt: Messages) -> Episode:
        """Make an episode with unknown log-probs (NaN).

        Args:
            context: messages that are not trained on, including replies.
            learnt: the messages after them; their replies are trained on.

        Raises:
            BadRow: there is no reply to train on, or none of its tokens fits.
        """
        messages = [*context, *learnt]
        _check_order(messages)
        learnt_replies = [
            index >= len(context) and is_learnt_reply(message)
            for index, message in enumerate(messages)
            if message["role"] == "assistant"
        ]
        if not any(learnt_replies):
            raise BadRow("no_reply", "it has no assistant message to train on")
        turns: list[Turn] = []
        prefix: list[int] = []
        segments: list[int] = []
        starts_row = True
        lost: set[str] = set()
        for reply, is_learnt in zip(
            self._writer.render(self._writer.spell(messages)), learnt_replies, strict=True
        ):
            if reply.starts_row:  # the template now renders earlier turns differently from the row so far
                prefix, segments, starts_row = [], [], True
            prefix += reply.prefix_tokens
            segments += reply.prefix_segments
            if not is_learnt:
                prefix += reply.tokens
                segments += [int(Segment.PAST)] * len(reply.tokens)
                continue
            turn = self._make_turn(prefix, segments, reply.tokens, reply.text, reply.is_in_thought)
            turn.starts_row = starts_row
            turns.append(turn)
            lost |= set(reply.lost)
            prefix, segments, starts_row = [], [], False
        self._refuse_unknown_tokens(turns)
        fitting = self._truncate(turns)
        self.num_split += sum(turn.starts_row for turn in turns) > 1
        self._record_losses(lost)
        if self._writer.must_spell(messages) and self._spelt_rows[-1:] != [self.row_name]:
            self._spelt_rows.append(self.row_name)
        self._count_texts(messages)
        opening = spell_out(messages)
        opening = opening[: _find_first_reply(opening)]
        return Episode(0, 0, 0, 0, "data", 0, opening=opening, turns=fitting, end=EndReason.TURN_LIMIT)

    def make_stepwise_episode(self, context: Messages, steps: Sequence[str], separator: str) -> Episode:
        """Make an episode whose single reply consists of steps, each a turn."""
        whole = separator.join(steps)
        messages = [*context, {"role": "assistant", "content": whole}]
        _check_order(messages)
        prefix: list[int] = []
        segments: list[int] = []
        for reply in self._writer.render(self._writer.spell(messages)):
            prefix = [*([] if reply.starts_row else prefix), *reply.prefix_tokens]
            segments = [*([] if reply.starts_row else segments), *reply.prefix_segments]
            last = reply
            prefix, segments = prefix + reply.tokens, segments + [int(Segment.PAST)] * len(reply.tokens)
        # the last reply consists of the steps, so it is no part of the prefix
        prefix, segments = prefix[: -len(last.tokens)], segments[: -len(last.tokens)]
        # what the template writes before the first step, such as the end of a thought
        before = last.text.partition(whole)[0] if whole in last.text else ""
        turns: list[Turn] = []
        for number, step in enumerate(steps, 1):
            is_last = number == len(steps)
            tokens = self._chat.encode(step if is_last else step + separator)
            tokens = [*self._chat.encode_text(before, {}).tokens, *tokens, *(last.ends if is_last else [])]
            turn = self._make_turn(prefix, segments, tokens, step, last.is_in_thought and number == 1)
            turn.starts_row = number == 1
            turns.append(turn)
            prefix, segments, before = [], [], ""
        self._refuse_unknown_tokens(turns)
        fitting = self._truncate(turns)
        self._count_texts(messages)
        return Episode(
            0, 0, 0, 0, "data", 0, opening=spell_out(context), turns=fitting, end=EndReason.TURN_LIMIT
        )

    def _make_turn(
        self, prefix: list[int], segments: list[int], reply: list[int], text: str, is_in_thought: bool
    ) -> Turn:
        unknown = np.full(len(reply), math.nan)
        roles = reply_segments(
            self._chat.tokenizer, reply, forced_think=is_in_thought, dialect=self._chat.dialect
        )
        return Turn(
            observation="", prefix_tokens=np.array(prefix), prefix_segments=np.array(segments, np.int8),
            reply_tokens=np.array(reply), reply_segments=np.array(roles, np.int8),
            reply_logps=unknown, reply_entropies=unknown, policy_version=-1, reply_text=text, is_valid=True,
        )  # fmt: skip

    def _refuse_unknown_tokens(self, turns: Sequence[Turn]) -> None:
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

    def _count_texts(self, messages: Messages) -> None:
        self.num_read += 1
        self.num_folded += self._chat.folds_system and any(m["role"] == "system" for m in messages)
        texts = [message[key] for message in messages for key in _TEXTS if key in message]
        self.lost += count_lost(self._chat.tokenizer, texts)
        self._first_texts += texts[: _MOST_TEXTS - len(self._first_texts)]
        for text in texts:
            self.markers.update(self._chat.find_markers(text))

    def _record_losses(self, parts: Iterable[str]) -> None:
        for part in parts:
            names = self._losing_rows.setdefault(part, [])
            if names[-1:] != [self.row_name]:  # the answers of a row are read one after the other
                names.append(self.row_name)

    def has_unknown_words(self) -> bool:
        """Return whether the tokenizer spells most words letter by letter; False for few texts."""
        return len(self._first_texts) >= _LEAST_TEXTS and is_spelt(self._chat.tokenizer, self._first_texts)

    def write_notes(self, num_rows: int) -> Iterator[str]:
        """Write a line for each kind of loss, and for split rows."""
        for part, names in sorted(self._losing_rows.items()):
            yield (
                f"data: {len(names)} of {num_rows} rows lose their {part}, which the chat template leaves out; "
                f"the first: {names[0]}; {_REMEDIES[part]}"
            )
        if self._spelt_rows:
            yield (
                f"data: {len(self._spelt_rows)} of {num_rows} rows hold tools or calls that the chat template does not "
                f"write, so they are written as text; the first: {self._spelt_rows[0]}; lit-agentrl data show shows "
                "them, and dialect sets the format of calls"
            )
        if self.num_split:
            yield (
                f"data: the chat template renders earlier turns differently, so {self.num_split} of {self.num_read} "
                "episodes have several rows, each with its own prompt"
            )

    def _truncate(self, turns: list[Turn]) -> list[Turn]:
        """Truncate the turns to the maximum length."""
        fitting: list[Turn] = []
        left, is_cut = self._max_tokens, False
        for turn in turns:
            left = self._max_tokens if turn.starts_row else left
            left -= len(turn.prefix_tokens)
            if left <= 0:
                break
            is_cut = is_cut or len(turn.reply_tokens) > left
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
        self.num_truncated += len(fitting) < len(turns) or is_cut
        return fitting


def _find_first_reply(messages: Messages) -> int:
    return next(k for k, message in enumerate(messages) if message["role"] == "assistant")


def is_learnt_reply(message: Message) -> bool:
    """Return whether a reply may be trained on: an assistant message without weight 0."""
    return message["role"] == "assistant" and message.get("weight") != "0"


def _check_order(messages: Messages) -> None:
    """Check that each reply follows a message that is not a reply."""
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if not index:
            raise BadRow("no_prompt", "it begins with an assistant message; put a user message before it")
        if messages[index - 1]["role"] == "assistant":
            raise BadRow("two_replies", "two assistant messages follow one another; join them")
