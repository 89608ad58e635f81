"""Tagged blocks of a reply: thinking, and what is played; what all dialects of two such tags share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from lit_agentrl.actions import BadCall, ToolSpec, read_call
from lit_agentrl.text.token_bytes import pieces_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Kind = Literal["think", "answer"]
THINK = "think"
THINK_START = f"<{THINK}>"
EXAMPLE_CALL = '{"name": "the tool", "arguments": {"an argument": "its value"}}'


@dataclass(frozen=True)
class Block:
    """One tagged stretch of a text; positions are indices into it, ends exclusive."""

    kind: Kind  # "answer": what is played, whatever its tag
    start: int  # where its opening tag begins
    body_start: int
    body_end: int
    end: int  # where its closing tag ends
    is_closed: bool
    has_tags: bool = False  # an answer with a further tag inside


def find_blocks(text: str, tag: str, *, think: bool = True, in_think: bool = False) -> list[Block]:
    """The think and answer blocks of a text in order; they never overlap.

    Think blocks do not nest: the first ``</think>`` closes.  A ``</think>`` before any ``<think>`` closes a
    block that began with the text.  Tags are matched in any ASCII case.  Linear in the length of the text.

    Args:
        text: Any text, also a truncated one.
        tag: Name of the tag around what is played.
        think: Whether think tags mean anything; if False they are plain text.
        in_think: Whether the text begins inside a think block (its opening tag was forced).

    Returns:
        The blocks.  A think block that is never closed ends where an answer begins, or with the text.
    """
    tags = [
        (match[2].lower(), bool(match[1]), match.start(), match.end())
        for match in _tags(tag).finditer(text)
        if think or match[2].lower() == tag
    ]
    think_tags = [(i, is_close) for i, (name, is_close, _, _) in enumerate(tags) if name == THINK]
    last_close = max((i for i, is_close in think_tags if is_close), default=-1)
    starts_inside = think and (in_think or (bool(think_tags) and think_tags[0][1]))
    blocks: list[Block] = []
    kind: Kind | None = "think" if starts_inside else None
    start = body_start = 0
    has_tags = False
    for i, (name, is_close, begin, end) in enumerate(tags):
        named: Kind = "think" if name == THINK else "answer"
        if kind is not None and kind == named and is_close:
            blocks.append(Block(kind, start, body_start, begin, end, True, has_tags))
            kind = None
        elif kind == "answer":
            has_tags = True
        elif not is_close and (kind is None or (named == "answer" and last_close < i)):
            if kind is not None:
                blocks.append(Block(kind, start, body_start, begin, begin, False))
            kind, start, body_start, has_tags = named, begin, end, False
    if kind is not None:
        blocks.append(Block(kind, start, body_start, len(text), len(text), False, has_tags))
    return blocks


@lru_cache
def _tags(tag: str) -> re.Pattern[str]:
    # ASCII: without it IGNORECASE also takes the long s and the Kelvin sign for letters of a tag
    return re.compile(rf"<(/?)({THINK}|{re.escape(tag)})>", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Found:
    """What the blocks of a reply say before anybody looks inside the answer."""

    answers: Sequence[Block]
    think: str  # text of the closed think blocks
    has_think: bool  # one of them stands before the first answer


@dataclass(frozen=True)
class Tag:
    """``<think>…</think><tag>…</tag>``: what all dialects of this form share.

    Args:
        name: of the tag around what is played.
        noun: for what it holds, in the names of problems.
    """

    name: str
    noun: str

    def look(self, text: str, *, think: bool) -> Found:
        """The answers of a reply and its thinking; ``think`` as of :func:`find_blocks`."""
        blocks = find_blocks(text, self.name, think=think)
        closed = [block for block in blocks if block.kind == "think" and block.is_closed]
        answers = [block for block in blocks if block.kind == "answer"]
        has_think = bool(answers) and any(block.end <= answers[0].start for block in closed)
        return Found(answers, "\n".join(text[b.body_start : b.body_end].strip() for b in closed), has_think)

    def problem(self, answers: Sequence[Block]) -> str:
        """Why these are not the one closed answer of a reply, such as ``two_answers``; empty if they are."""
        if not answers:
            return f"no_{self.noun}"
        if len(answers) > 1:
            return f"two_{self.noun}s"
        return "" if answers[0].is_closed else f"unclosed_{self.noun}"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return find_blocks(text, self.name, in_think=in_think)

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> TagStop:
        """At the closing tag."""
        return TagStop(tokenizer, f"</{self.name}>")

    def write(self, bodies: Sequence[str], *, thought: str | None) -> str:
        """A reply with these between tags, after a think block unless ``thought`` is None."""
        before = "" if thought is None else f"<{THINK}>{thought}</{THINK}>"
        return before + "".join(f"<{self.name}>{body}</{self.name}>" for body in bodies)


def read_played(
    *bodies: str, tools: Sequence[ToolSpec], key: str = "arguments"
) -> tuple[tuple[str, ...], str, str]:
    """The calls that these texts write, as actions, up to the first that is none; of that, problem and complaint."""
    played: list[str] = []
    for number, body in enumerate(bodies, 1):
        call = read_call(body, tools, key=key)
        if isinstance(call, BadCall):
            which = f"call {number} of {len(bodies)}: " if len(bodies) > 1 else ""
            return tuple(played), call.problem, which + call.message
        played.append(str(call))
    return tuple(played), "", ""


def think_first(think: bool) -> list[str]:
    """The line of the instructions about thinking."""
    return [f"Think inside <{THINK}> </{THINK}> first, then act."] if think else []


class NoStop:
    """A reply ends where the model ends it."""

    def update(self, row_state: str, token_id: int) -> tuple[str, bool]:
        """The state, and False."""
        return row_state, False


class TagStop:
    """Tells, token by token, when a reply has just completed a closing tag (in any ASCII case).

    The state of a row is the part of the tag that its lower-cased text ends in, so there are as many states
    as the tag has bytes.  A row starts with ``""``.

    Args:
        tokenizer: Gives the bytes of tokens.
        end: The closing tag, in lower case.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: str) -> None:
        self._piece_of = pieces_of(tokenizer)
        self._end = end

    def update(self, row_state: str, token_id: int) -> tuple[str, bool]:
        """Add one sampled token: the new state, and whether this token completed the tag."""
        tag, text = self._end, row_state + self._piece_of(token_id).lower().decode("latin-1")
        begun = next(size for size in range(len(tag) - 1, -1, -1) if text.endswith(tag[:size]))
        return tag[:begun], tag in text
