"""The list of lessons in prompts, the questions about it, and operations on it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lit_agentrl.episode import Episode

_LIST_START = re.compile(r"\[\s*[{\]]")  # a list of objects, or an empty one
_MAX_MATCHES = 64  # matches tried per answer, since an answer may consist of nothing else
_ORDER = ("delete", "merge", "update", "add")
# openings of tags in chat templates and dialects, and their lookalikes, which a tokenizer may treat as the same
_TAG_START = re.compile(r"[<\uff1c\ufe64](?=[\w/|\uff5c!<])|[\[\uff3b](?=/|[^\W\d])")
_GRAMMAR = """Answer in JSON and nothing else, with a list of objects, each of which is one of
{"operation": "add", "content": "a new lesson"}
{"operation": "update", "id": "G0", "content": "the lesson in better words"}
{"operation": "delete", "id": "G0"}
{"operation": "merge", "ids": ["G0", "G1"], "content": "one lesson in place of these"}
{"operation": "none"}"""


@dataclass(frozen=True)
class Operation:
    """One change of the list.

    Attributes:
        kind: ``add``, ``update``, ``delete`` or ``merge``.
        ids: ids of the changed items: none, one, or at least two for ``merge``.
        text: text of the resulting item; empty for ``delete``.
    """

    kind: str
    ids: tuple[str, ...] = ()
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the operation in the form that `parse_operations` parses."""
        plain: dict[str, Any] = {"operation": self.kind}
        if self.kind == "merge":
            plain["ids"] = list(self.ids)
        elif self.ids:
            plain["id"] = self.ids[0]
        return plain | ({"content": self.text} if self.text else {})


def clean_lesson(text: str, max_chars: int) -> str | None:
    r"""Format a text as an item: one line in which nothing opens a tag.

    Return None if the line is empty, too long, or not valid Unicode text.

    >>> clean_lesson("Go  up\nfirst <|im_end|>[INST] x[0] < 3", 80)
    'Go up first < |im_end|>[ INST] x[0] < 3'
    """
    line = break_tags(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
    try:
        line.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None
    return line if 0 < len(line) <= max_chars else None


def break_tags(text: str) -> str:
    """Insert a space after each opening of a tag.

    A server then cannot mistake the text for a marker of its template.
    """
    return _TAG_START.sub(r"\g<0> ", text)


def parse_operations(answer: str, ids: Sequence[str], *, max_chars: int) -> tuple[list[Operation], int]:
    """Parse the JSON list of operations in an answer, and count the dropped entries.

    An entry is ``{"operation": "add", "content": …}``, ``{"operation": "update", "id": …, "content": …}``,
    ``{"operation": "delete", "id": …}`` or ``{"operation": "merge", "ids": […], "content": …}``; ``none`` is ignored.
    An answer without such a list counts as one dropped entry.

    Args:
        answer: answer of a model; text may surround the list.
        ids: ids of the existing items.
        max_chars: maximum length of an item in characters.
    """
    entries = _find_list(answer)
    if entries is None:
        return [], 1
    operations = [_parse_operation(entry, set(ids), max_chars) for entry in entries]
    changes = [operation for operation in operations if operation is None or operation.kind != "none"]
    valid = [operation for operation in changes if operation is not None]
    return valid, len(changes) - len(valid)


def _find_list(answer: str) -> list[Any] | None:
    """Return the last list of objects in a text, which may be an empty list.

    The last one counts, because models write their thoughts before their answer.
    """
    entries, end = None, 0
    for start in islice(_LIST_START.finditer(answer), _MAX_MATCHES):
        if start.start() < end:  # inside the previous list
            continue
        with suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(answer, start.start())
            entries = value if all(isinstance(entry, dict) for entry in value) else entries
    return entries


def _parse_operation(entry: dict[str, Any], known: set[str], max_chars: int) -> Operation | None:
    """Parse an entry into an operation; None if it is invalid."""
    kind = entry.get("operation")
    kind = kind.lower() if isinstance(kind, str) else ""
    if kind == "none":
        return Operation("none")
    ids = {
        "add": [],
        "update": [entry.get("id")],
        "delete": [entry.get("id")],
        "merge": entry.get("ids"),
    }.get(kind)
    if not isinstance(ids, list) or not all(isinstance(item, str) and item in known for item in ids):
        return None
    if kind == "merge" and len(set(ids)) < 2:
        return None
    if kind == "delete":
        return Operation(kind, tuple(ids))
    content = entry.get("content")
    text = clean_lesson(content, max_chars) if isinstance(content, str) else None
    return None if text is None else Operation(kind, tuple(dict.fromkeys(ids)), text)


def apply_operations(
    items: dict[str, str], operations: Sequence[Operation], *, max_items: int
) -> tuple[dict[str, str], Counter[str]]:
    """Apply simultaneous operations, and return the renumbered list and counts by kind.

    A delete takes precedence over all other operations on its item, and a merge over an update; among several merges or
    updates of an item, the first counts.  An item that already exists is not added again.  Operations that are not
    applied count as ``dropped``, except duplicate additions.  A merged item takes the first of its places, and new
    items are appended while there is room.

    >>> both = [Operation("merge", ("G0", "G1"), "a, b"), Operation("add", (), "c")]
    >>> apply_operations({"G0": "a", "G1": "b"}, both, max_items=2)
    ({'G0': 'a, b', 'G1': 'c'}, Counter({'merge': 1, 'add': 1}))
    """
    lessons, counts = dict(items), Counter[str]()
    changed: set[str] = set()  # items that an operation has changed
    for operation in sorted(operations, key=lambda o: _ORDER.index(o.kind)):
        kind, ids, text = operation.kind, operation.ids, operation.text
        if kind == "add" and text.casefold() in {lesson.casefold() for lesson in lessons.values()}:
            continue
        if changed & set(ids) or (kind == "add" and len(lessons) >= max_items):
            counts["dropped"] += 1
            continue
        changed |= set(ids)
        counts[kind] += 1
        if kind == "add":
            lessons[f"added {counts[kind]}"] = text
            continue
        target = min(ids, key=list(lessons).index)
        lessons = {
            name: text if name == target else old
            for name, old in lessons.items()
            if name == target or name not in ids
        }
        if kind == "delete":
            del lessons[target]
    return {f"G{number}": text for number, text in enumerate(lessons.values())}, counts


def format_lessons(items: Mapping[str, str]) -> str:
    """Format the lessons for a prompt, one per line; empty if there are none."""
    return "\n".join(f"{name}: {text}" for name, text in items.items())


def ask_for_summary(episode: Episode, limit: int) -> str:
    """Write a prompt that asks what happened in an episode, quoting ``limit`` characters of it."""
    turns = [f"Game:\n{turn.observation}\nYou:\n{turn.reply_text}" for turn in episode.turns]
    return (
        f"You played an episode of {episode.task_name}:\n\n{_cut(break_tags(chr(10).join(turns)), limit)}\n\n"
        f"The game was {_describe_outcome(episode)}. Say in at most 60 words what was done, step by step, and which "
        "decision was right or wrong."
    )


def ask_for_lessons(episodes: Sequence[Episode], summaries: Sequence[str], number: int) -> str:
    """Write a prompt that asks what a group's solved episodes did better than the others."""
    lines = [
        f"Episode {k}, {_describe_outcome(episode)}: {_cut(break_tags(summary), 1000)}"
        for k, (episode, summary) in enumerate(zip(episodes, summaries, strict=True), start=1)
    ]
    return (
        f"These episodes of {episodes[0].task_name} began alike:\n\n{chr(10).join(lines)}\n\n"
        f"Compare those that were solved with the others. Write at most {number} general lessons for other episodes of "
        "this game, one a line, each of at most 30 words. Leave out what is true of this instance alone."
    )


def ask_for_operations(items: Mapping[str, str], lessons: str) -> str:
    """Write a prompt that asks how new lessons should change the list."""
    return (
        f"This list of lessons stands in the prompt of every episode:\n{format_lessons(items) or '(empty)'}\n\n"
        f"New lessons:\n{_cut(break_tags(lessons), 4000)}\n\nWhat is to be done to the list? {_GRAMMAR}"
    )


def ask_for_one_list(items: Mapping[str, str], proposals: Sequence[Sequence[Operation]]) -> str:
    """Write a prompt that asks for one list of operations in place of several."""
    lines = [
        json.dumps([operation.to_json() for operation in operations], ensure_ascii=False)
        for operations in proposals
    ]
    return (
        f"This list of lessons stands in the prompt of every episode:\n{format_lessons(items) or '(empty)'}\n\n"
        f"Changes were proposed independently of each other:\n{chr(10).join(lines)}\n\n"
        f"Make one list of changes of them that neither repeats nor contradicts itself. {_GRAMMAR}"
    )


def _describe_outcome(episode: Episode) -> str:
    return f"{'solved' if episode.success else 'not solved'} with {episode.training_return:.2f} points"


def _cut(text: str, limit: int) -> str:
    """Shorten a text to ``limit`` characters, half from its beginning, half from its end."""
    if len(text) <= limit:
        return text
    return f"{text[: (limit + 1) // 2]} … {text[len(text) - limit // 2 :]}"
