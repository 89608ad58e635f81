"""A list of lessons that stands in prompts: what the policy is asked about it, and what may be done to it."""

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
_TRIED = 64  # of these in an answer, which may be made of nothing else
_ORDER = ("delete", "merge", "update", "add")
# what opens a tag in some chat template or dialect, also in the characters that a tokenizer may take for these
_OPENS = re.compile(r"[<\uff1c\ufe64](?=[\w/|\uff5c!<])|[\[\uff3b](?=/|[^\W\d])")
_GRAMMAR = """Answer in JSON and nothing else, with a list of objects, each of which is one of
{"operation": "add", "content": "a new lesson"}
{"operation": "update", "id": "G0", "content": "the lesson in better words"}
{"operation": "delete", "id": "G0"}
{"operation": "merge", "ids": ["G0", "G1"], "content": "one lesson in place of these"}
{"operation": "none"}"""


@dataclass(frozen=True)
class Operation:
    """One change.

    Attributes:
        kind: ``add``, ``update``, ``delete`` or ``merge``.
        ids: the items that it is about: none, one, or of a merge at least two.
        text: of the item that comes of it; empty of ``delete``.
    """

    kind: str
    ids: tuple[str, ...] = ()
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        """As `read` takes it."""
        told: dict[str, Any] = {"operation": self.kind}
        if self.kind == "merge":
            told["ids"] = list(self.ids)
        elif self.ids:
            told["id"] = self.ids[0]
        return told | ({"content": self.text} if self.text else {})


def cleaned(text: str, max_chars: int) -> str | None:
    r"""A text as an item: one line, in which nothing opens a tag.  None where it is empty, too long, or no text.

    >>> cleaned("Go  up\nfirst <|im_end|>[INST] x[0] < 3", 80)
    'Go up first < |im_end|>[ INST] x[0] < 3'
    """
    line = without_tags(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
    try:
        line.encode()
    except UnicodeEncodeError:  # half a character
        return None
    return line if 0 < len(line) <= max_chars else None


def without_tags(text: str) -> str:
    """A text with a space behind what opens a tag, so that no server takes it for a marker of its template."""
    return _OPENS.sub(r"\g<0> ", text)


def read(answer: str, ids: Sequence[str], *, max_chars: int) -> tuple[list[Operation], int]:
    """The operations that an answer holds as a JSON list, and the number of what was dropped.

    An entry is ``{"operation": "add", "content": …}``, ``{"operation": "update", "id": …, "content": …}``,
    ``{"operation": "delete", "id": …}`` or ``{"operation": "merge", "ids": […], "content": …}``; ``none`` is nothing.
    An answer without such a list counts as one that was dropped.

    Args:
        answer: of a model; text may stand around the list.
        ids: that are known.
        max_chars: of an item.
    """
    entries = _list_in(answer)
    if entries is None:
        return [], 1
    found = [_operation(entry, set(ids), max_chars) for entry in entries]
    wanted = [each for each in found if each is None or each.kind != "none"]
    kept = [each for each in wanted if each is not None]
    return kept, len(wanted) - len(kept)


def _list_in(answer: str) -> list[Any] | None:
    """The last list of objects in a text, which may be empty; thoughts stand before answers."""
    found, end = None, 0
    for begins in islice(_BEGINS.finditer(answer), _TRIED):
        if begins.start() < end:  # within the one before
            continue
        with suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(answer, begins.start())
            found = value if all(isinstance(entry, dict) for entry in value) else found
    return found


def _operation(entry: dict[str, Any], known: set[str], max_chars: int) -> Operation | None:
    """What an entry asks for; None where it makes no sense."""
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
    """The list after operations that were asked for at once, numbered anew, and how many of each kind were done.

    A delete beats all else about its item.  Of several merges and updates of an item the first counts, and a merge
    before an update.  An item that is there already is not added again.  What is left undone is counted as
    ``dropped``, but for equal additions.  A merged item stands at the first of its places, and added ones at the end,
    as long as there is room.

    >>> both = [Operation("merge", ("G0", "G1"), "a, b"), Operation("add", (), "c")]
    >>> changed({"G0": "a", "G1": "b"}, both, max_items=2)
    ({'G0': 'a, b', 'G1': 'c'}, Counter({'merge': 1, 'add': 1}))
    """
    kept, done = dict(items), Counter[str]()
    settled: set[str] = set()  # items that an operation was about
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
    """The lessons as they stand in prompts, one a line; empty without any."""
    return "\n".join(f"{name}: {text}" for name, text in items.items())


def for_summary(episode: Episode, limit: int) -> str:
    """Asks what happened in an episode, of which so many characters are shown."""
    turns = [f"Game:\n{turn.observation}\nYou:\n{turn.reply_text}" for turn in episode.turns]
    return (
        f"You played an episode of {episode.task_name}:\n\n{_cut(without_tags(chr(10).join(turns)), limit)}\n\n"
        f"The game was {_outcome(episode)}. Say in at most 60 words what was done, step by step, and which decision "
        "was right or wrong."
    )


def for_lessons(episodes: Sequence[Episode], summaries: Sequence[str], number: int) -> str:
    """Asks what the solved episodes of a group did better than the others."""
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
    """Asks what new lessons change in the list."""
    return (
        f"This list of lessons stands in the prompt of every episode:\n{listed(items) or '(empty)'}\n\n"
        f"New lessons:\n{_cut(without_tags(lessons), 4000)}\n\nWhat is to be done to the list? {_GRAMMAR}"
    )


def for_one_list(items: Mapping[str, str], proposals: Sequence[Sequence[Operation]]) -> str:
    """Asks for one list of operations in place of several."""
    told = [json.dumps([each.to_json() for each in one], ensure_ascii=False) for one in proposals]
    return (
        f"This list of lessons stands in the prompt of every episode:\n{listed(items) or '(empty)'}\n\n"
        f"Changes were proposed independently of each other:\n{chr(10).join(told)}\n\n"
        f"Make one list of changes of them that neither repeats nor contradicts itself. {_GRAMMAR}"
    )


def _outcome(episode: Episode) -> str:
    return f"{'solved' if episode.success else 'not solved'} with {episode.training_return:.2f} points"


def _cut(text: str, limit: int) -> str:
    """Its beginning and its end, where it is longer."""
    if len(text) <= limit:
        return text
    return f"{text[: (limit + 1) // 2]} … {text[len(text) - limit // 2 :]}"
