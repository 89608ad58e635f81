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

_BEGINS = re.compile(r"\[\s*[{\]]")  # a list of objects, or an empty one
_TRIED = 64  # matches tried per answer, since an answer may consist of nothing else
_ORDER = ("delete", "merge", "update", "add")
# openings of tags in chat templates and dialects, and their lookalikes, which a tokenizer may treat as the same
_OPENS = re.compile(r"[<\uff1c\ufe64](?=[\w/|\uff5c!<])|[\[\uff3b](?=/|[^\W\d])")
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
        """Return the operation in the form that `read` parses."""
        told: dict[str, Any] = {"operation": self.kind}
        if self.kind == "merge":
            told["ids"] = list(self.ids)
        elif self.ids:
            told["id"] = self.ids[0]
        return told | ({"content": self.text} if self.text else {})


def cleaned(text: str, max_chars: int) -> str | None:
    r"""Format a text as an item: one line in which nothing opens a tag.

    None if the line is empty, too long, or not valid Unicode text.

    >>> cleaned("Go  up\nfirst <|im_end|>[INST] x[0] < 3", 80)
    'Go up first < |im_end|>[ INST] x[0] < 3'
    """
    line = without_tags(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
    try:
        line.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None
    return line if 0 < len(line) <= max_chars else None


def without_tags(text: str) -> str:
    """Insert a space after each opening of a tag.

    No server can then mistake the text for a marker of its template.
    """
    return _OPENS.sub(r"\g<0> ", text)


def read(answer: str, ids: Sequence[str], *, max_chars: int) -> tuple[list[Operation], int]:
    """Parse the JSON list of operations in an answer, and count the dropped entries.

    An entry is ``{"operation": "add", "content": …}``, ``{"operation": "update", "id": …, "content": …}``,
    ``{"operation": "delete", "id": …}`` or ``{"operation": "merge", "ids": […], "content": …}``; ``none`` is ignored.
    An answer without such a list counts as one dropped entry.

    Args:
        answer: answer of a model; text may surround the list.
        ids: ids of the existing items.
        max_chars: maximum length of an item in characters.
    """
    entries = _list_in(answer)
    if entries is None:
        return [], 1
    found = [_operation(entry, set(ids), max_chars) for entry in entries]
    wanted = [each for each in found if each is None or each.kind != "none"]
    kept = [each for each in wanted if each is not None]
    return kept, len(wanted) - len(kept)


def _list_in(answer: str) -> list[Any] | None:
    """Return the last list of objects in a text, which may be an empty list.

    The last one counts, because models write their thoughts before their answer.
    """
    found, end = None, 0
    for begins in islice(_BEGINS.finditer(answer), _TRIED):
        if begins.start() < end:  # inside the previous list
            continue
        with suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(answer, begins.start())
            found = value if all(isinstance(entry, dict) for entry in value) else found
    return found


def _operation(entry: dict[str, Any], known: set[str], max_chars: int) -> Operation | None:
    """Parse an entry into an operation; None if it is invalid."""
    kind = entry.get("operation")
    kind = kind.lower() if isinstance(kind, str) else ""
    if kind == "none":
        return Operation("none")
    given = {
        "add": [],
        "update": [entry.get("id")],
        "delete": [entry.get("id")],
        "merge": entry.get("ids"),
    }.get(kind)
    if not isinstance(given, list) or not all(isinstance(each, str) and each in known for each in given):
        return None
    if kind == "merge" and len(set(given)) < 2:
        return None
    if kind == "delete":
        return Operation(kind, tuple(given))
    content = entry.get("content")
    text = cleaned(content, max_chars) if isinstance(content, str) else None
    return None if text is None else Operation(kind, tuple(dict.fromkeys(given)), text)


def changed(
    items: dict[str, str], operations: Sequence[Operation], *, max_items: int
) -> tuple[dict[str, str], Counter[str]]:
    """Apply simultaneous operations, and return the renumbered list and counts by kind.

    A delete takes precedence over all other operations on its item, and a merge over an update; among several merges or
    updates of an item, the first counts.  An item that already exists is not added again.  Operations that are not
    applied count as ``dropped``, except duplicate additions.  A merged item takes the first of its places, and new
    items are appended while there is room.

    >>> both = [Operation("merge", ("G0", "G1"), "a, b"), Operation("add", (), "c")]
    >>> changed({"G0": "a", "G1": "b"}, both, max_items=2)
    ({'G0': 'a, b', 'G1': 'c'}, Counter({'merge': 1, 'add': 1}))
    """
    kept, done = dict(items), Counter[str]()
    settled: set[str] = set()  # items that an operation has changed
    for operation in sorted(operations, key=lambda each: _ORDER.index(each.kind)):
        kind, ids, text = operation.kind, operation.ids, operation.text
        if kind == "add" and text.casefold() in {each.casefold() for each in kept.values()}:
            continue
        if settled & set(ids) or (kind == "add" and len(kept) >= max_items):
            done["dropped"] += 1
            continue
        settled |= set(ids)
        done[kind] += 1
        if kind == "add":
            kept[f"added {done[kind]}"] = text
            continue
        place = min(ids, key=list(kept).index)
        kept = {
            name: text if name == place else old
            for name, old in kept.items()
            if name == place or name not in ids
        }
        if kind == "delete":
            del kept[place]
    return {f"G{number}": text for number, text in enumerate(kept.values())}, done


def listed(items: Mapping[str, str]) -> str:
    """Format the lessons for a prompt, one per line; empty if there are none."""
    return "\n".join(f"{name}: {text}" for name, text in items.items())


def for_summary(episode: Episode, limit: int) -> str:
    """Write the question what happened in an episode, showing ``limit`` characters of it."""
    turns = [f"Game:\n{turn.observation}\nYou:\n{turn.reply_text}" for turn in episode.turns]
    return (
        f"You played an episode of {episode.task_name}:\n\n{_cut(without_tags(chr(10).join(turns)), limit)}\n\n"
        f"The game was {_outcome(episode)}. Say in at most 60 words what was done, step by step, and which decision "
        "was right or wrong."
    )


def for_lessons(episodes: Sequence[Episode], summaries: Sequence[str], number: int) -> str:
    """Write the question what a group's solved episodes did better than the others."""
    told = [
        f"Episode {k}, {_outcome(episode)}: {_cut(without_tags(summary), 1000)}"
        for k, (episode, summary) in enumerate(zip(episodes, summaries, strict=True), start=1)
    ]
    return (
        f"These episodes of {episodes[0].task_name} began alike:\n\n{chr(10).join(told)}\n\n"
        f"Compare those that were solved with the others. Write at most {number} general lessons for other episodes of "
        "this game, one a line, each of at most 30 words. Leave out what is true of this instance alone."
    )


def for_operations(items: Mapping[str, str], lessons: str) -> str:
    """Write the question how new lessons should change the list."""
    return (
        f"This list of lessons stands in the prompt of every episode:\n{listed(items) or '(empty)'}\n\n"
        f"New lessons:\n{_cut(without_tags(lessons), 4000)}\n\nWhat is to be done to the list? {_GRAMMAR}"
    )


def for_one_list(items: Mapping[str, str], proposals: Sequence[Sequence[Operation]]) -> str:
    """Write the question how to combine several lists of operations into one."""
    told = [json.dumps([each.to_json() for each in one], ensure_ascii=False) for one in proposals]
    return (
        f"This list of lessons stands in the prompt of every episode:\n{listed(items) or '(empty)'}\n\n"
        f"Changes were proposed independently of each other:\n{chr(10).join(told)}\n\n"
        f"Make one list of changes of them that neither repeats nor contradicts itself. {_GRAMMAR}"
    )


def _outcome(episode: Episode) -> str:
    return f"{'solved' if episode.success else 'not solved'} with {episode.training_return:.2f} points"


def _cut(text: str, limit: int) -> str:
    """Shorten a text to ``limit`` characters from its beginning and end."""
    if len(text) <= limit:
        return text
    return f"{text[: (limit + 1) // 2]} … {text[len(text) - limit // 2 :]}"
