"""Tagged blocks of a reply: thinking and answer; shared by the dialects with two tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from lit_agentrl.actions import BadCall, ToolSpec, read_call
from lit_agentrl.text.token_bytes import get_token_pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Kind = Literal["think", "answer"]
THINK = "think"
THINK_START = f"<{THINK}>"
EXAMPLE_CALL = '{"name": "the tool", "arguments": {"an argument": "its value"}}'


@dataclass(frozen=True)
class Block:
    """A tagged part of a text; positions are indices into the text, ends exclusive."""

    kind: Kind  # "answer" marks the played block, whatever its tag
    start: int  # where its opening tag begins
    body_start: int
    body_end: int
    end: int  # where its closing tag ends
    is_closed: bool
    has_tags: bool = False  # whether an answer has another tag inside


def find_blocks(text: str, tag: str, *, think: bool = True, in_think: bool = False) -> list[Block]:
    """Return the think and answer blocks of a text, in order and without overlap.

    Think blocks do not nest: the first ``</think>`` closes.  A ``</think>`` before any ``<think>`` closes a
    block that began with the text.  Tags are matched in any ASCII case.  Linear in the length of the text.

    Args:
        text: Any text, possibly truncated.
        tag: Name of the tag around the answer.
        think: Whether think tags have meaning; if False they are plain text.
        in_think: Whether the text begins inside a think block (its opening tag was forced).

    Returns:
        The blocks.  An unclosed think block ends where an answer begins, or at the end of the text.
    """
    tags = [
        (match[2].lower(), bool(match[1]), match.start(), match.end())
        for match in _match_tags(tag).finditer(text)
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
def _match_tags(tag: str) -> re.Pattern[str]:
    # without ASCII, IGNORECASE would also match the long s and the Kelvin sign as letters of a tag
    return re.compile(rf"<(/?)({THINK}|{re.escape(tag)})>", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class ReplyParts:
    """The thinking and the answer blocks of a reply, before the answer is read."""

    answers: Sequence[Block]
    think: str  # text of the closed think blocks
    has_think: bool  # whether a closed think block precedes the first answer


@dataclass(frozen=True)
class Tag:
    """The form ``<think>…</think><tag>…</tag>``, shared by several dialects.

    Args:
        name: Name of the tag around the answer.
        noun: Noun for its content, used in the names of problems.
    """

    name: str
    noun: str

    def find_parts(self, text: str, *, think: bool) -> ReplyParts:
        """Return the answers and the thinking of a reply; ``think`` as in :func:`find_blocks`."""
        blocks = find_blocks(text, self.name, think=think)
        closed = [block for block in blocks if block.kind == "think" and block.is_closed]
        answers = [block for block in blocks if block.kind == "answer"]
        has_think = bool(answers) and any(block.end <= answers[0].start for block in closed)
        return ReplyParts(
            answers, "\n".join(text[b.body_start : b.body_end].strip() for b in closed), has_think
        )

    def find_problem(self, answers: Sequence[Block]) -> str:
        """Return why these are not one closed answer, such as ``two_answers``; else empty."""
        if not answers:
            return f"no_{self.noun}"
        if len(answers) > 1:
            return f"two_{self.noun}s"
        return "" if answers[0].is_closed else f"unclosed_{self.noun}"

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return find_blocks(text, self.name, in_think=in_think)

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> TagStop:
        """Return the rule that ends a reply at the closing tag."""
        return TagStop(tokenizer, f"</{self.name}>")

    def write(self, bodies: Sequence[str], *, thought: str | None) -> str:
        """Write a reply with tagged bodies, after a think block unless ``thought`` is None."""
        before = "" if thought is None else f"<{THINK}>{thought}</{THINK}>"
        return before + "".join(f"<{self.name}>{body}</{self.name}>" for body in bodies)


def read_calls(
    *bodies: str, tools: Sequence[ToolSpec], key: str = "arguments"
) -> tuple[tuple[str, ...], str, str]:
    """Read the calls in these texts as actions, up to the first invalid one.

    Returns:
        The actions, and problem and complaint of the invalid call (empty if all are valid).
    """
    played: list[str] = []
    for number, body in enumerate(bodies, 1):
        call = read_call(body, tools, key=key)
        if isinstance(call, BadCall):
            call_name = f"call {number} of {len(bodies)}: " if len(bodies) > 1 else ""
            return tuple(played), call.problem, call_name + call.message
        played.append(str(call))
    return tuple(played), "", ""


def write_think_lines(think: bool) -> list[str]:
    """Return the instruction about thinking as a list of at most one line."""
    return [f"Think inside <{THINK}> </{THINK}> first, then act."] if think else []


class NoStop:
    """A rule that never stops: the model ends a reply."""

    def update(self, row_state: str, token_id: int) -> tuple[str, bool]:
        """Return the unchanged state and False."""
        return row_state, False


class TagStop:
    """Stops a reply once it has completed a closing tag (in any ASCII case).

    The state of a row is the longest prefix of the tag that ends its lower-cased text, so there are as many states
    as the tag has bytes.  A row starts with ``""``.

    Args:
        tokenizer: Gives the bytes of tokens.
        end: The closing tag, in lower case.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: str) -> None:
        self._piece_of = get_token_pieces(tokenizer)
        self._end = end

    def update(self, row_state: str, token_id: int) -> tuple[str, bool]:
        """Add one sampled token; return the new state and whether this token completed the tag."""
        tag, text = self._end, row_state + self._piece_of(token_id).lower().decode("latin-1")
        matched = next(size for size in range(len(tag) - 1, -1, -1) if text.endswith(tag[:size]))
        return tag[:matched], tag in text
