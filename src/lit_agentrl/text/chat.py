"""Render chat templates turn by turn, without tokenising replies again."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from lit_agentrl.episode import Segment
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect, has_tools_in_template
from lit_agentrl.text.marker_guard import STAND_IN, Encoded, Guarded, MarkerGuard
from lit_agentrl.text.token_bytes import require_fast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CLOCK = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
REMEDY = "set model.chat_template=append_only_chatml"


@dataclass(frozen=True)
class Prefix:
    """Tokens before a reply, with one :class:`~lit_agentrl.episode.Segment` value for each.

    ``broken`` counts the template markers that messages spelled and that were broken up by a space (see
    :class:`~lit_agentrl.text.marker_guard.MarkerGuard`).  ``continues`` is True if the tokens continue the row of the
    previous turn although the context is not append-only.
    """

    tokens: list[int]
    segments: list[int]
    broken: int = 0
    continues: bool = False


class ChatRenderer:
    """Render messages to tokens with the tokenizer's chat template, turn by turn.

    The constructor checks that the template only appends: the rendering of k turns must be a prefix of the
    rendering of k + 1 turns, with replies and their thinking unchanged.  Each later turn then needs only the text
    between two replies.  That text is rendered around a placeholder reply and tokenised alone; a sampled reply is
    never tokenised again, so the ledger holds exactly the tokens that the policy sampled.

    Template markers inside a message are encoded as plain text, never as special tokens.

    Args:
        tokenizer: A tokenizer with a `tokenizers` backend and a chat template.
        dialect: The reply grammar.
        force_think: Append the dialect's opening think tag to the reply header.  A template whose header already
            opens a think block is left unchanged.
        shows_replies: Whether prompts show past replies as sampled (see `Context`).  If not, the template may rewrite
            history.
        model_ends: Token ids that the model's configs name as ends (see `reply_ends.list_model_ends`).
        date: YEAR-MONTH-DAY, for templates that write today's date; the clock is never read.

    Attributes:
        tokenizer: The tokenizer.
        dialect: The reply grammar.
        folds_system: Whether the template has no system role (Gemma); system texts then begin the first user message.
        forced_think: Whether the reply header ends in an open think block, so that replies begin inside it.
        end_of_turn_ids: Token ids that end a turn: first the one that the template writes after a reply, if it is a
            single token; then the tokenizer's end-of-sequence token, and ``model_ends``.  A template without an end
            marker (GLM) ends a reply by the token that opens the next message, if it is among ``model_ends``.

    Raises:
        ValueError: If there is no usable chat template, or nothing ends its replies; the message names the remedy.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        dialect: Dialect = ANSWER,
        force_think: bool = False,
        shows_replies: bool = True,
        model_ends: Sequence[int] = (),
        date: str = "2026-01-01",
    ) -> None:
        require_fast(tokenizer)
        if not tokenizer.chat_template:
            raise ValueError(f"chat_template=null but the tokenizer has no chat template; {REMEDY}")
        self.tokenizer = tokenizer
        self._date = date
        self.dialect = dialect
        # a placeholder reply with thinking, to detect templates that edit thinking
        self._placeholder_reply = dialect.write(["q2"], thought="q1")
        shown = self._render([_make_user_message(STAND_IN), _make_assistant_message(STAND_IN)], header=False)
        if shown.count(STAND_IN) < 2:  # some templates of vision models show only lists of parts
            raise ValueError(f"the chat template leaves out contents that are texts; {REMEDY}")
        self.folds_system = not self._has_system_role()
        opened = self._render([_make_user_message("u")], header=True)
        self._header = opened.removeprefix(self._render([_make_user_message("u")], header=False))
        opening = dialect.think_start
        if force_think and not opening:
            raise ValueError("force_think=true needs a dialect that opens thinking with a tag")
        # a think tag that the template writes in its header belongs to the past reply
        header_think = re.search(rf"{re.escape(opening)}\s*\Z", self._header) if opening else None
        self._header_think = header_think[0] if header_think else ""
        self.forced_think = force_think or header_think is not None
        self._added_think = dialect.think_start if force_think and header_think is None else ""
        template_texts = self._collect_template_text()
        rewrites = self._find_rewrite([_make_user_message("u")])
        if not rewrites and not self.folds_system:
            rewrites = self._find_rewrite([{"role": "system", "content": "s"}, _make_user_message("u")])
        if rewrites and shows_replies:
            raise ValueError(
                f"the chat template is not append-only over turns ({rewrites}); set context=template, "
                f"{REMEDY.removeprefix('set ')}, or context=single"
            )
        self._is_append_only = not rewrites
        if has_tools_in_template(dialect):
            tool = {
                "type": "function",
                "function": {"name": "q3", "description": "", "parameters": {"type": "object"}},
            }
            message = {**_make_user_message("u"), "tools": json.dumps([tool])}
            if '"q3"' not in self._render([message], header=True):
                raise ValueError(
                    "in_template=true but the chat template does not list tools; set it to false"
                )
        self._guard = MarkerGuard(tokenizer, template_texts, spared=self._placeholder_reply)
        dialogue = [_make_user_message("u"), _make_assistant_message(STAND_IN)]
        self._end_text = self._render(dialogue, header=False).partition(STAND_IN)[2]
        others = [i for i in (tokenizer.eos_token_id, *model_ends) if isinstance(i, int)]
        self._end_id = self._find_end_id(others)
        ids = others if self._end_id is None else [self._end_id, *others]
        if not ids:
            raise ValueError(
                f"neither the chat template nor the model's files name a token that ends replies; {REMEDY}"
            )
        self.end_of_turn_ids: tuple[int, ...] = tuple(dict.fromkeys(ids))

    def render_opening(self, messages: Sequence[Mapping[str, str]]) -> Prefix:
        """Return the tokens before the first reply.

        Tokens of messages are PROMPT; those of the reply header are FORCED.

        Raises:
            ValueError: If the template refuses the messages (for example of the role tool).
        """
        guarded = self._guard.guard(fold_system(messages) if self.folds_system else messages)
        text = self._render(guarded.messages, header=True)
        end = len(text) - (len(self._header) if text.endswith(self._header) else 0)
        return self._encode_prefix(text + self._added_think, [(end, Segment.PROMPT)], guarded)

    def render_next(self, user_text: str, *, last_reply: Sequence[int]) -> Prefix:
        """Return the tokens between two replies for one environment message; see :meth:`render_between`."""
        return self.render_between([_make_user_message(user_text)], last_reply=last_reply)

    def render_between(self, messages: Sequence[Mapping[str, str]], *, last_reply: Sequence[int]) -> Prefix:
        """Return the tokens between two replies.

        These are the end marker (FORCED), the messages (OBSERVATION) and the reply header (FORCED).  If the template
        rewrites history, they are no part of a prompt; they only measure how much a turn adds.

        Args:
            messages: The messages of the environment.
            last_reply: Sampled ids of the reply before them.  If its last id is the template's end marker, the
                marker is not repeated.
        """
        guarded = self._guard.guard(messages)
        placeholder = self._placeholder_reply if self._is_append_only else "q5"
        reply = _make_assistant_message((self._header_think if self._is_append_only else "") + placeholder)
        text = self._render([_make_user_message("u"), reply, *guarded.messages], header=True)
        text = text.partition(placeholder)[2]
        bounds = [(len(self._end_text), Segment.FORCED), (len(text) - len(self._header), Segment.OBSERVATION)]
        prefix = self._encode_prefix(text + self._added_think, bounds, guarded)
        if list(last_reply[-1:]) == [self._end_id] and self._end_id in prefix.tokens:
            after = prefix.tokens.index(self._end_id) + 1
            return Prefix(prefix.tokens[after:], prefix.segments[after:], prefix.broken)
        return prefix

    def encode(self, text: str) -> list[int]:
        """Return the tokens of one external text, such as a reply that was not sampled."""
        guarded = self._guard.guard([_make_user_message(text)])
        return self._guard.encode(guarded.messages[0]["content"], guarded.contents).tokens

    @property
    def opening(self) -> str:
        """The text at the end of the reply header that opens a thought, or empty."""
        return self._header_think or self._added_think

    @property
    def end_text(self) -> str:
        """The text that the template writes after a reply."""
        return self._end_text

    @property
    def marker_ids(self) -> frozenset[int]:
        """The ids of markers and of tokens that end a turn."""
        return self._guard.ids | frozenset(self.end_of_turn_ids)

    def guard(self, messages: Sequence[Mapping[str, str]]) -> Guarded:
        """Return messages whose text cannot be mistaken for markers of the template."""
        return self._guard.guard(messages, is_minimal=True)

    def render_text(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] = (), header: bool
    ) -> str:
        """Return the template's rendering of messages in its own form.

        Args:
            messages: Guarded messages, with keys such as ``tool_calls``.
            tools: The tools that the template lists.
            header: Whether the header of a reply follows.

        Raises:
            ValueError: If the template refuses the messages.
        """
        return self._apply(messages, tools, header=header) + (self._added_think if header else "")

    def encode_text(self, text: str, contents: Mapping[str, str]) -> Encoded:
        """Return the tokens of a rendered text, with contents in place of their stand-ins."""
        return self._guard.encode(text, contents)

    def encode_prefix(
        self, text: str, contents: Mapping[str, str], bounds: Sequence[tuple[int, Segment]] = ()
    ) -> Prefix:
        """Tokenise a rendered text that ends before a reply.

        Args:
            text: The text.
            contents: The content of each stand-in.
            bounds: Ends of stretches with their segments; the messages after them are OBSERVATION.  Without any,
                all messages are PROMPT.  The reply header is FORCED.
        """
        header = self._header + self._added_think
        end = len(text) - (len(header) if text.endswith(header) else 0)
        last = Segment.OBSERVATION if bounds else Segment.PROMPT
        return self._encode_prefix(text, [*bounds, (end, last)], Guarded([], dict(contents)))

    def find_markers(self, text: str) -> list[str]:
        """Return the markers of the template that an external text spells."""
        return self._guard.find_markers(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included, without clean-up."""
        return str(
            self.tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def _encode_prefix(self, text: str, bounds: Sequence[tuple[int, Segment]], guarded: Guarded) -> Prefix:
        """Tokenise a rendered text and give each token its segment.

        A token belongs to the first bound that it starts before, and is FORCED after the last bound.
        """
        encoded = self._guard.encode(text, guarded.contents)
        segments: list[int] = []
        for bound, segment in bounds:  # both starts and bounds increase
            segments += [int(segment)] * (bisect_left(encoded.starts, bound) - len(segments))
        segments += [int(Segment.FORCED)] * (len(encoded.tokens) - len(segments))
        return Prefix(encoded.tokens, segments, guarded.broken + encoded.broken)

    def _render(self, messages: Sequence[Mapping[str, str]], *, header: bool) -> str:
        tools = [tool for message in messages for tool in json.loads(message.get("tools", "[]"))]
        shown = [{key: text for key, text in message.items() if key != "tools"} for message in messages]
        return self._apply(shown, tools, header=header)

    def _apply(self, shown: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, header: bool) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(message) for message in shown],
                    tokenize=False,
                    add_generation_prompt=header,
                    tools=list(tools) or None,
                    chat_template=fix_date(
                        str(self.tokenizer.get_chat_template(tools=list(tools) or None)), self._date
                    ),
                )  # fmt: skip
            )
        except (TemplateError, TypeError, AttributeError, LookupError) as error:
            roles = [message["role"] for message in shown]
            raise ValueError(
                f"the chat template refuses messages of roles {roles} ({error}); {REMEDY}"
            ) from error

    def _has_system_role(self) -> bool:
        """Return whether the template shows a system message; some refuse it, others leave it out."""
        try:
            text = self._render(
                [{"role": "system", "content": STAND_IN}, _make_user_message("u")], header=True
            )
        except ValueError:
            return False
        return STAND_IN in text

    def _find_end_id(self, ends: Sequence[int]) -> int | None:
        """Return the token that the template writes after a reply; None: no single one.

        Where it writes nothing, this is the token that opens the next message, if it is one of ``ends``.
        """
        user, reply = _make_user_message("u"), _make_assistant_message(STAND_IN)
        if self._end_text.strip():
            marker = self._guard.encode(self._end_text.strip(), {}).tokens
            return marker[0] if len(marker) == 1 else None
        following = self._render([user, reply, user], header=False).partition(STAND_IN)[2]
        opening = self._guard.encode(following.lstrip(), {}).tokens[:1]
        return opening[0] if opening and opening[0] in ends else None

    def _collect_template_text(self) -> list[str]:
        """Collect the text that the template writes before, between and after messages."""
        user = _make_user_message(STAND_IN)
        dialogues = [[user], [user, _make_assistant_message(STAND_IN), user]]
        if not self.folds_system:
            dialogues.append([{"role": "system", "content": STAND_IN}, user])
        return [
            text for dialogue in dialogues for text in self._render(dialogue, header=True).split(STAND_IN)
        ]

    def _find_rewrite(self, messages: list[dict[str, str]]) -> str:
        """Describe how the template changes text that it rendered before; empty if it only appends."""
        rendered = self._render(messages, header=False)
        for turn in range(3):
            opened = self._render(messages, header=True)
            if opened != rendered + self._header:
                return "the reply header is not always the same text after the messages"
            messages = [*messages, _make_assistant_message(self._header_think + self._placeholder_reply)]
            closed = self._render(messages, header=False)
            if not closed.startswith(opened + self._placeholder_reply):
                return f"it changes the reply of turn {turn + 1}"
            messages = [*messages, _make_user_message("u")]
            rendered = self._render(messages, header=False)
            if not rendered.startswith(closed):
                return f"turn {turn + 1} is rewritten once another message follows"
        return ""


def fold_system(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    r"""Return messages whose system texts begin the first user message.

    >>> fold_system([{"role": "system", "content": "Rules."}, {"role": "user", "content": "Go."}])
    [{'role': 'user', 'content': 'Rules.\n\nGo.'}]
    """
    system = [message for message in messages if message["role"] == "system"]
    others = [dict(message) for message in messages if message["role"] != "system"]
    if not system:
        return others
    if not others or others[0]["role"] != "user":
        others.insert(0, _make_user_message(""))
    texts = [*(message["content"] for message in system), others[0]["content"]]
    tools = {key: text for message in system for key, text in message.items() if key == "tools"}
    others[0] |= {"content": "\n\n".join(filter(None, texts)), **tools}
    return others


def fix_date(template: str, date: str) -> str:
    """Return a chat template with a fixed date in place of the clock.

    The text of the template is changed because transformers lets no caller replace the clock.

    Raises:
        ValueError: If the template calls the clock with anything but a quoted format.
    """
    day = datetime.strptime(date, "%Y-%m-%d")
    fixed = _CLOCK.sub(lambda match: json.dumps(day.strftime(match[2])), template)
    if "strftime_now(" in fixed:
        raise ValueError(f"the chat template reads the clock, and not in a form that can be fixed; {REMEDY}")
    return fixed


def _make_user_message(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _make_assistant_message(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}
