"""From the text of a reply to the actions in it: one decision table, read top to bottom.

A reply has the form ``<think>free text</think><answer>action || action</answer>``.  :data:`DECISION_TABLE`
says what happens to every other form; the first row that applies decides.  Two rows deserve their reason:

* *Two answer blocks* are invalid and play nothing.  Were one of them played, writing several answers would
  be a free way to hedge, and which one counts would be a convention the policy could exploit.
* *A missing think block* is accepted, because the rules forbid only a missing, empty or unknown answer; it
  is recorded so that a policy that stops thinking can be seen.

Think blocks do not nest: the first ``</think>`` closes.  A ``</think>`` before any ``<think>`` closes a block
that began with the reply (its opening tag was forced, hence not part of the reply).  Tags are matched in
any ASCII case.  Parsing is linear in the length of the reply and total: no text makes it raise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

VALID_PROBLEMS = frozenset({"", "no_think"})
INVALID_PROBLEMS = frozenset(
    {
        "no_answer",
        "two_answers",
        "unclosed_answer",
        "nested_tags",
        "empty_answer",
        "empty_action",
        "unknown_action",
    }
)
PROBLEMS = VALID_PROBLEMS | INVALID_PROBLEMS

# Condition, example (of a game with the actions Up and Down), problem, actions played.
DECISION_TABLE: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("empty reply", "", "no_answer", ()),
    ("no answer tag", "<think>a wall</think>Up", "no_answer", ()),
    ("closing answer tag only", "<think>a wall</think>Up</answer>", "no_answer", ()),
    ("answer inside the think block only", "<think><answer>Up</answer></think>", "no_answer", ()),
    ("two answer blocks, think blocks aside", "<answer>Up</answer><answer>Up</answer>", "two_answers", ()),
    ("second answer block unclosed", "<answer>Up</answer><answer>Do", "two_answers", ()),
    ("answer block unclosed (truncated)", "<think></think><answer>Up || Do", "unclosed_answer", ()),
    ("a think or answer tag inside the answer", "<answer><think></think>Up</answer>", "nested_tags", ()),
    ("nothing but white space in the answer", "<think></think><answer> </answer>", "empty_answer", ()),
    ("nothing between two separators", "<answer>Up || || Down</answer>", "empty_action", ("Up",)),
    ("separator at the end", "<answer>Up ||</answer>", "empty_action", ("Up",)),
    ("a name the game does not know", "<answer>Up || Jump || Down</answer>", "unknown_action", ("Up",)),
    ("valid answer, no think block before it", "<answer>Up</answer>", "no_think", ("Up",)),
    ("valid answer, think block unclosed", "<think>a wall<answer>Up</answer>", "no_think", ("Up",)),
    (
        "answers in and after the think block",
        "<think><answer></answer></think><answer>Up</answer>",
        "",
        ("Up",),
    ),
    ("think block inside a think block", "<think>a<think>b</think>c</think><answer>Up</answer>", "", ("Up",)),
    ("opening think tag was forced", "a wall</think><answer>Up</answer>", "", ("Up",)),
    ("tags or names in another case", "<Think>a</THINK><ANSWER>uP</Answer>", "", ("Up",)),
    ("text around the blocks", "Well <think>a</think> so <answer>Up</answer> done.", "", ("Up",)),
    ("the format", "<think>a wall</think><answer>Up || Down</answer>", "", ("Up", "Down")),
)

# ASCII: without it IGNORECASE also takes the long s and the Kelvin sign for letters of a tag.
_TAG = re.compile(r"<(/?)(think|answer)>", re.IGNORECASE | re.ASCII)

Kind = Literal["think", "answer"]


@dataclass(frozen=True)
class Block:
    """One tagged stretch of a text; positions are indices into it, ends exclusive."""

    kind: Kind
    start: int  # where its opening tag begins
    body_start: int
    body_end: int
    end: int  # where its closing tag ends
    is_closed: bool
    has_tags: bool = False  # an answer with a further tag inside


@dataclass(frozen=True)
class Reply:
    """A parsed reply: ``actions`` may be non-empty although ``is_valid`` is False (see the table)."""

    is_valid: bool
    actions: tuple[str, ...]
    problem: str  # one of PROBLEMS
    think: str  # text of the closed think blocks
    has_think: bool = False  # a closed think block stands before the answer


def find_blocks(text: str, *, think: bool = True, in_think: bool = False) -> list[Block]:
    """The think and answer blocks of a text in order; they never overlap.

    Args:
        text: Any text, also a truncated one.
        think: Whether think tags mean anything; if False they are plain text.
        in_think: Whether the text begins inside a think block (its opening tag was forced).

    Returns:
        The blocks.  A think block that is never closed ends where an answer begins, or with the text.
    """
    tags = [
        (match[2].lower(), bool(match[1]), match.start(), match.end())
        for match in _TAG.finditer(text)
        if think or match[2].lower() == "answer"
    ]
    think_tags = [(i, is_close) for i, (name, is_close, _, _) in enumerate(tags) if name == "think"]
    last_close = max((i for i, is_close in think_tags if is_close), default=-1)
    starts_inside = think and (in_think or (bool(think_tags) and think_tags[0][1]))
    blocks: list[Block] = []
    kind: Kind | None = "think" if starts_inside else None
    start = body_start = 0
    has_tags = False
    for i, (name, is_close, begin, end) in enumerate(tags):
        if kind is not None and kind == name and is_close:
            blocks.append(Block(kind, start, body_start, begin, end, True, has_tags))
            kind = None
        elif kind == "answer":
            has_tags = True
        elif not is_close and (kind is None or (name == "answer" and last_close < i)):
            if kind is not None:
                blocks.append(Block(kind, start, body_start, begin, begin, False))
            kind = "think" if name == "think" else "answer"
            start, body_start, has_tags = begin, end, False
    if kind is not None:
        blocks.append(Block(kind, start, body_start, len(text), len(text), False, has_tags))
    return blocks


def parse_reply(
    text: str, *, action_names: Sequence[str] | None, think: bool = True, separator: str = "||"
) -> Reply:
    """Read the actions out of a reply by :data:`DECISION_TABLE`.

    Args:
        text: The decoded reply.
        action_names: What the game knows; a name matches in any case after white space around it is
            stripped, and is returned as spelt here.  None takes every non-empty text as an action.
        think: Whether the format has a think block; if False think tags are plain text.
        separator: What stands between two actions.

    Raises:
        ValueError: If the separator is blank or two action names cannot be told apart.  No ``text`` raises.

    >>> parse_reply("<think>a wall</think><answer>up || Jump</answer>", action_names=("Up", "Down"))
    Reply(is_valid=False, actions=('Up',), problem='unknown_action', think='a wall', has_think=True)
    """
    names = _canonical_names(None if action_names is None else tuple(action_names), separator)
    blocks = find_blocks(text, think=think)
    closed = [block for block in blocks if block.kind == "think" and block.is_closed]
    thought = "\n".join(text[block.body_start : block.body_end].strip() for block in closed)
    answers = [block for block in blocks if block.kind == "answer"]
    has_think = bool(answers) and any(block.end <= answers[0].start for block in closed)
    problem = _answer_problem(answers)
    if problem:
        return Reply(False, (), problem, thought, has_think)
    body = text[answers[0].body_start : answers[0].body_end]
    actions, problem = _read_actions(body, names, separator)
    if not problem and think and not has_think:
        problem = "no_think"
    return Reply(problem in VALID_PROBLEMS, actions, problem, thought, has_think)


def _answer_problem(answers: list[Block]) -> str:
    if not answers:
        return "no_answer"
    if len(answers) > 1:
        return "two_answers"
    if not answers[0].is_closed:
        return "unclosed_answer"
    return "nested_tags" if answers[0].has_tags else ""


def _read_actions(body: str, names: dict[str, str] | None, separator: str) -> tuple[tuple[str, ...], str]:
    """The actions before the first that is not one, and what is wrong with that one."""
    if not body.strip():
        return (), "empty_answer"
    actions: list[str] = []
    for part in body.split(separator):
        word = part.strip()
        if not word:
            return tuple(actions), "empty_action"
        if names is not None and word.casefold() not in names:
            return tuple(actions), "unknown_action"
        actions.append(word if names is None else names[word.casefold()])
    return tuple(actions), ""


@lru_cache(maxsize=256)
def _canonical_names(action_names: tuple[str, ...] | None, separator: str) -> dict[str, str] | None:
    if not separator.strip():
        raise ValueError(f"separator={separator!r} is blank; it must hold a visible character, such as '||'")
    if action_names is None:
        return None
    names = {name.strip().casefold(): name for name in action_names}
    if "" in names or len(names) != len(action_names):
        raise ValueError(f"action_names={action_names!r} must be non-empty and differ in more than case")
    if any(separator in name for name in action_names):
        raise ValueError(f"action_names={action_names!r} must not contain the separator {separator!r}")
    return names
