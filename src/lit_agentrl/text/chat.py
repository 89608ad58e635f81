"""Chat templates without re-tokenising: each turn adds only the tokens between two replies."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from lit_agentrl.episode import Segment
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect, leaves_tools
from lit_agentrl.text.outside import STAND_IN, Guarded, Outside
from lit_agentrl.text.token_bytes import require_fast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REMEDY = "set model.chat_template=append_only_chatml"


@dataclass(frozen=True)
class Prefix:
    """Tokens put before a reply, with one :class:`~lit_agentrl.episode.Segment` value for each.

    ``broken`` counts the markers that were broken up in them (see :class:`~lit_agentrl.text.outside.Outside`).
    """

    tokens: list[int]
    segments: list[int]
    broken: int = 0


class ChatRenderer:
    """Turns messages into tokens by the tokenizer's chat template.

    The template is probed at construction: the rendering of k turns must be a prefix of the rendering of
    k + 1, with replies (also their thinking) untouched.  Later turns then need only the text between two
    replies, which is rendered around a stand-in reply and tokenised alone; a sampled reply is never
    tokenised again, so the ledger holds exactly what the policy wrote.

    What messages spell is text: none of their tokens is a marker of template or tokenizer.

    Args:
        tokenizer: A tokenizer with a `tokenizers` backend and a chat template.
        dialect: How replies are written.
        force_think: End the reply header in what opens a think block.  A template whose own header does so already is
            left alone.
        shows_replies: Whether prompts show past replies (see `Context`).  If they do not, a template may rewrite
            history.

    Attributes:
        tokenizer: The tokenizer.
        dialect: How replies are written.
        forced_think: Whether the reply header ends in what opens a think block, so that replies begin inside the block.
        end_of_turn_ids: Sampling one of these ends a turn: the template's own marker where that is one
            token, then the tokenizer's end-of-sequence token.

    Raises:
        ValueError: If there is no usable chat template; the message names the remedy.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        dialect: Dialect = ANSWER,
        force_think: bool = False,
        shows_replies: bool = True,
    ) -> None:
        require_fast(tokenizer)
        if not tokenizer.chat_template:
            raise ValueError(f"chat_template=null but the tokenizer has no chat template; {REMEDY}")
        self.tokenizer = tokenizer
        self.dialect = dialect
        # stands for a reply; templates that edit thinking show it
        self._sentinel = dialect.write(["q2"], thought="q1")
        opened = self._render([_user("u")], header=True)
        self._header = opened.removeprefix(self._render([_user("u")], header=False))
        opening = dialect.think_start
        if force_think and not opening:
            raise ValueError("force_think=true needs a dialect whose thinking is opened by a tag")
        lead = re.search(rf"{re.escape(opening)}\s*\Z", self._header) if opening else None
        self._lead = lead[0] if lead else ""  # thinking opened by the template is part of a past reply
        self.forced_think = force_think or lead is not None
        self._forced = dialect.think_start if force_think and lead is None else ""
        around = self._around()
        rewrites = self._rewrites([_user("u")])
        if not rewrites and self._knows_system_role():
            rewrites = self._rewrites([{"role": "system", "content": "s"}, _user("u")])
        if rewrites and shows_replies:
            raise ValueError(
                f"the chat template is not append-only over turns ({rewrites}); {REMEDY}, or context=single"
            )
        self._is_append_only = not rewrites
        if leaves_tools(dialect):
            tool = {
                "type": "function",
                "function": {"name": "q3", "description": "", "parameters": {"type": "object"}},
            }
            if '"q3"' not in self._render([{**_user("u"), "tools": json.dumps([tool])}], header=True):
                raise ValueError("in_template=true but the chat template tells of no tools; set it to false")
        self._outside = Outside(tokenizer, around, spared=self._sentinel)
        closed = self._render([_user("u"), _assistant(STAND_IN)], header=False)
        self._end = closed.partition(STAND_IN)[2]
        marker = self._outside.encode(self._end.strip(), {}).tokens
        self._marker = marker[0] if len(marker) == 1 else None
        eos = tokenizer.eos_token_id
        ids = [i for i in (self._marker, eos) if isinstance(i, int)]
        self.end_of_turn_ids: tuple[int, ...] = tuple(dict.fromkeys(ids))

    def opening(self, messages: Sequence[Mapping[str, str]]) -> Prefix:
        """All tokens before the first reply: messages are PROMPT, the reply header is FORCED.

        Raises:
            ValueError: If the template refuses the messages (some know no system role).
        """
        guarded = self._outside.guard(messages)
        text = self._render(guarded.messages, header=True)
        end = len(text) - (len(self._header) if text.endswith(self._header) else 0)
        return self._prefix(text + self._forced, [(end, Segment.PROMPT)], guarded)

    def following(self, user_text: str, *, last_reply: Sequence[int]) -> Prefix:
        """As :meth:`between`, of one message of the environment."""
        return self.between([_user(user_text)], last_reply=last_reply)

    def between(self, messages: Sequence[Mapping[str, str]], *, last_reply: Sequence[int]) -> Prefix:
        """All tokens between two replies: end marker (FORCED), messages (OBSERVATION), header (FORCED).

        Where the template rewrites history, no dialogue of several turns is ever shown, and the messages open one.

        Args:
            messages: those of the environment.
            last_reply: Sampled ids of the reply before them.  Where its last id is the template's end marker,
                the marker is not put again.
        """
        if not self._is_append_only:
            return self.opening(messages)
        guarded = self._outside.guard(messages)
        shown = [_user("u"), _assistant(self._lead + self._sentinel), *guarded.messages]
        text = self._render(shown, header=True)
        text = text[text.index(self._sentinel) + len(self._sentinel) :]
        bounds = [(len(self._end), Segment.FORCED), (len(text) - len(self._header), Segment.OBSERVATION)]
        prefix = self._prefix(text + self._forced, bounds, guarded)
        if list(last_reply[-1:]) == [self._marker] and self._marker in prefix.tokens:
            after = prefix.tokens.index(self._marker) + 1
            return Prefix(prefix.tokens[after:], prefix.segments[after:], prefix.broken)
        return prefix

    def encode(self, text: str) -> list[int]:
        """Tokens of a text from outside by itself, such as a reply that was not sampled."""
        guarded = self._outside.guard([_user(text)])
        return self._outside.encode(guarded.messages[0]["content"], guarded.held).tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special tokens included, nothing tidied."""
        return str(
            self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def _prefix(self, text: str, bounds: Sequence[tuple[int, Segment]], guarded: Guarded) -> Prefix:
        """Tokenise; a token has the segment of the first bound it starts before, FORCED after the last."""
        encoded = self._outside.encode(text, guarded.held)
        segments: list[int] = []
        for bound, segment in bounds:  # starts and bounds ascend
            segments += [int(segment)] * (bisect_left(encoded.starts, bound) - len(segments))
        segments += [int(Segment.FORCED)] * (len(encoded.tokens) - len(segments))
        return Prefix(encoded.tokens, segments, guarded.broken + encoded.broken)

    def _render(self, messages: Sequence[Mapping[str, str]], *, header: bool) -> str:
        tools = [tool for message in messages for tool in json.loads(message.get("tools", "[]"))]
        shown = [{key: text for key, text in message.items() if key != "tools"} for message in messages]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    shown, tokenize=False, add_generation_prompt=header, tools=tools or None
                )
            )
        except TemplateError as error:
            roles = [message["role"] for message in messages]
            raise ValueError(
                f"the chat template refuses messages of roles {roles} ({error}); {REMEDY}"
            ) from error

    def _knows_system_role(self) -> bool:
        try:
            self._render([{"role": "system", "content": "s"}, _user("u")], header=True)
        except ValueError:
            return False  # fine unless a prompt has a system message, and then opening() says so
        return True

    def _around(self) -> list[str]:
        """What the template writes before, between and after messages."""
        user = _user(STAND_IN)
        dialogues = [[user], [user, _assistant(STAND_IN), user]]
        if self._knows_system_role():
            dialogues.append([{"role": "system", "content": STAND_IN}, user])
        return [text for each in dialogues for text in self._render(each, header=True).split(STAND_IN)]

    def _rewrites(self, messages: list[dict[str, str]]) -> str:
        """Grow a dialogue turn by turn; how what was rendered does not stay as a prefix, empty if it does."""
        rendered = self._render(messages, header=False)
        for turn in range(3):
            opened = self._render(messages, header=True)
            if opened != rendered + self._header:
                return "the reply header is not always the same text after the messages"
            messages = [*messages, _assistant(self._lead + self._sentinel)]
            closed = self._render(messages, header=False)
            if not closed.startswith(opened + self._sentinel):
                return f"it changes the reply of turn {turn + 1}"
            messages = [*messages, _user("u")]
            rendered = self._render(messages, header=False)
            if not rendered.startswith(closed):
                return f"turn {turn + 1} is rewritten once another message follows"
        return ""


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}
