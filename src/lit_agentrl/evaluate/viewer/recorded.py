"""Read the transcripts of a run that may still be written, as untrusted data."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_agentrl.callbacks.transcript_lines import from_record
from lit_agentrl.checks import escape_unprintable
from lit_agentrl.episode import Episode, Segment, Turn

SPLITS = ("train", "val")
_MAX_LINE = 64 * 2**20  # bytes of one episode; longer lines count as damaged
_TAIL = 64  # bytes before the position, by which a replaced file is recognised
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
_KINDS = {segment.value: segment.name.lower() for segment in Segment}


@dataclass
class _File:
    """The lines of a transcript file that were read so far."""

    episodes: list[dict[str, Any]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # offset and length of each episode's line
    position: int = 0
    tail: bytes = b""
    damaged: int = 0


class Recorded:
    """The recorded episodes of a run.

    Args:
        folder: the run folder; only files inside are read, and links that lead out of it are not followed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._files = {split: _File() for split in SPLITS}
        self._problems: dict[str, str] = {}
        self._revision = 0
        self._lock = threading.Lock()

    def describe(self) -> dict[str, Any]:
        """Describe which iterations are recorded, after reading what was written since the last call.

        ``revision`` grows whenever something was read.
        """
        with self._lock:
            for split in SPLITS:
                self._update(split)
            files = self._files
            damaged = [
                f"{split}.jsonl: damaged lines that are left out: {file.damaged}"
                for split, file in files.items()
                if file.damaged
            ]
            return {
                "revision": self._revision,
                "splits": {split: _count(file.episodes) for split, file in files.items()},
                "problems": [*self._problems.values(), *damaged],
            }

    def list_episodes(self, split: str, iteration: int) -> list[dict[str, Any]]:
        """List the episodes of an iteration, each in a few words.

        ``line`` is the number for :meth:`get_episode`.
        """
        with self._lock:
            return [each for each in self._files[split].episodes if each["iteration"] == iteration]

    def get_episode(self, split: str, line: int) -> dict[str, Any] | None:
        """Return all of an episode for the page; None without such a line."""
        with self._lock:
            file = self._files[split]
            if not 0 <= line < len(file.spans):
                return None
            offset, length = file.spans[line]
            try:
                with self._open(split) as stream:
                    stream.seek(offset)
                    record = json.loads(stream.read(length))
                return {**file.episodes[line], **_show_episode(record)}
            except (OSError, *_BROKEN):  # the file was replaced since
                return None

    def _update(self, split: str) -> None:
        """Read the lines that were added to a file; begin again if it was replaced."""
        file = self._files[split]
        try:
            with self._open(split) as stream:
                stream.seek(max(0, file.position - _TAIL))
                if stream.read(min(_TAIL, file.position)) != file.tail:
                    file = self._files[split] = _File()
                    self._revision += 1
                    stream.seek(0)
                self._read_lines(stream, file)
            self._problems.pop(split, None)
        except FileNotFoundError:
            if file.position:
                self._files[split], self._revision = _File(), self._revision + 1
        except OSError as error:
            self._problems[split] = f"transcripts/{split}.jsonl is not read: {error.strerror}"

    def _read_lines(self, stream: Any, file: _File) -> None:
        while (line := stream.readline(_MAX_LINE)).endswith(b"\n") or len(line) == _MAX_LINE:
            start, file.position = file.position, file.position + len(line)
            file.tail = (file.tail + line)[-_TAIL:]
            self._revision += 1
            try:
                if len(line) == _MAX_LINE:
                    raise ValueError("too long")
                summary = _summarise(json.loads(line))
            except _BROKEN:
                file.damaged += 1
                continue
            file.episodes.append({"line": len(file.episodes), **summary})
            file.spans.append((start, len(line)))

    def _open(self, split: str) -> Any:
        """Open a transcript file for reading.

        Raises:
            OSError: the file cannot be read, is no regular file, or a link leads out of the run folder.
        """
        path = self._folder / "transcripts" / f"{split}.jsonl"
        if path.exists() and not path.resolve().is_relative_to(self._folder):
            raise OSError(0, "it leads out of the run folder")
        descriptor = os.open(path.resolve(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(0, "it is no regular file")
        return os.fdopen(descriptor, "rb")


def _count(episodes: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Count episodes and successes by iteration, in order."""
    counts: dict[int, dict[str, int]] = {}
    for each in episodes:
        entry = counts.setdefault(
            each["iteration"], {"iteration": each["iteration"], "episodes": 0, "success": 0}
        )
        entry["episodes"] += 1
        entry["success"] += "success" in each["outcomes"]
    return [counts[iteration] for iteration in sorted(counts)]


def _summarise(record: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise an episode for lists.

    Raises:
        Exception: one of `_BROKEN`, if the line is no episode.
    """
    iteration, episode = from_record(record)
    return {
        "iteration": int(iteration),
        "game": make_visible(episode.task_name),
        "instance": make_visible(episode.instance_id),
        "group": int(episode.group),
        "member": int(episode.member),
        "wave": int(episode.wave),
        "end": episode.end.name.lower().replace("_", " "),
        "outcomes": list(_list_outcomes(episode)),
        "return": make_finite(episode.total_reward),
        "turns": len(episode.turns),
        "tokens": episode.num_action_tokens,
    }


def _list_outcomes(episode: Episode) -> Iterator[str]:
    if episode.failed:
        yield "error"
    else:
        yield "success" if episode.success else "failure"
    if episode.is_truncated:
        yield "truncated"
    if any(len(turn.reply_tokens) and not turn.is_valid for turn in episode.turns):
        yield "invalid"


def _show_episode(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows of an episode; every text is made visible."""
    _, episode = from_record(record)
    texts = record.get("texts")
    texts = texts if isinstance(texts, dict) else {}
    update = record.get("update")
    update = update if isinstance(update, dict) else {}
    rows = []
    for number, turn in enumerate(episode.turns):
        trained, advantages = (_get_entry(update.get(name), number) for name in ("trained", "advantages"))
        rows.append(_show_turn(number, turn, trained, advantages, has_texts=bool(texts)))
    return {
        "error": make_visible(episode.error),
        "trained_return": make_finite(episode.training_return),
        "texts": {
            token: make_visible(text) for token, text in texts.items() if token.isascii() and token.isdigit()
        },
        "is_update_known": bool(update),
        "rows": rows,
    }


def _get_entry(columns: object, number: int) -> object:
    return columns[number] if isinstance(columns, list) and number < len(columns) else None


def _show_turn(
    number: int, turn: Turn, trained: object, advantages: object, *, has_texts: bool
) -> dict[str, Any]:
    num_given, num_sampled = len(turn.prefix_tokens), len(turn.reply_tokens)
    tokens = [*turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist()]
    segments = [*turn.prefix_segments.tolist(), *turn.reply_segments.tolist()]
    unknown = [None] * num_given
    return {
        "number": number + 1,
        "starts_row": bool(turn.starts_row),
        "player": make_visible(turn.player),
        "reward": make_finite(turn.reward),
        "trained_reward": make_finite(turn.training_reward),
        "shaping": {make_visible(name): make_finite(value) for name, value in turn.shaping.items()},
        "finish": turn.finish.name.lower(),
        "is_valid": bool(turn.is_valid),
        "problem": make_visible(turn.problem),
        "actions": [make_visible(action) for action in turn.actions],
        "surplus": int(turn.num_surplus_actions),
        "observation": "" if has_texts else make_visible(turn.observation),
        "reply": "" if has_texts else make_visible(turn.reply_text),
        "given": num_given,  # tokens before the reply
        "ids": tokens,
        "kinds": [
            _KINDS.get(segment, "other") for segment in _fill_unknown(segments, num_given + num_sampled, 5)
        ],
        "logp": unknown + _fill_unknown(turn.reply_logps.tolist(), num_sampled),
        "entropy": unknown + _fill_unknown(turn.reply_entropies.tolist(), num_sampled),
        "advantage": unknown + _fill_unknown(advantages, num_sampled),
        "trained": [0] * num_given + [int(value == 1) for value in _fill_unknown(trained, num_sampled)],
    }


def _fill_unknown(values: object, length: int, default: Any = None) -> list[Any]:
    """Return one finite number for each token; the default where none is known."""
    if not isinstance(values, list) or len(values) != length:
        return [default] * length
    return [default if (number := make_finite(value)) is None else number for value in values]


def make_finite(value: object) -> float | None:
    """Return a finite number, or None for anything else, which JSON lacks."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number else None  # type: ignore[return-value]


def make_visible(text: object) -> str:
    """Return a text whose unprintable characters are escape sequences; line ends stay.

    These are control characters, those that change the direction of writing, and lone surrogates.
    """
    lines = str(text).split("\n")
    return "\n".join(line if line.isprintable() else escape_unprintable(line) for line in lines)
