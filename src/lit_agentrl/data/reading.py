"""Reader of data sets: folders of recorded episodes, and files of rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.episodes import MADE_WITH, EpisodeFolder, open_folder
from lit_agentrl.data.kinds import Kind, group_by_prompt, set_return
from lit_agentrl.data.labels import add_labels
from lit_agentrl.data.recordings import Group, Recordings
from lit_agentrl.data.referred import measure_longest_row
from lit_agentrl.data.row_folder import find_paths
from lit_agentrl.data.usage import ReadRow, Usage
from lit_agentrl.envs.tasks.messages import BadRow, read_held_out_with
from lit_agentrl.envs.tasks.row_formats import convert_row, find_column, has_repeated_prompt, is_missing
from lit_agentrl.envs.tasks.tables import read_table, shorten_path
from lit_agentrl.episode import Episode
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.lost_characters import format_lost
from lit_agentrl.text.token_bytes import describe_tokenizer, format_tokenizer


@dataclass(frozen=True)
class Student:
    """The model that is trained on a data set.

    Attributes:
        chat: renders messages for it.
        fingerprint: hash of its initial weights; None: unknown.
        tokenizer: hash of the tokenizer.
        vocabulary: size of the vocabulary.
        temperature: temperature of log-probs.
        max_context_tokens: limit of an episode.
    """

    chat: ChatRenderer
    fingerprint: str | None
    tokenizer: str
    vocabulary: int
    temperature: float
    max_context_tokens: int


@dataclass
class _Tally:
    """Counts of rows that were read and left out."""

    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first_bad: str = ""
    marked: int = 0  # rows that spell markers of the chat template
    first_marked: str = ""
    lossy: int = 0  # rows with characters that the tokenizer drops
    first_lossy: str = ""
    repeating: int = 0  # rows of texts whose answer begins with the prompt
    first_repeating: str = ""
    without_group: int = 0
    openings: Counter[str] = field(default_factory=Counter)  # groups of files by split key
    usage: Usage = field(default_factory=Usage)
    is_reference: bool = True

    def refuse(self, row_name: str, error: BadRow) -> None:
        self.bad[error.reason] += 1
        self.first_bad = self.first_bad or f"{row_name}: {escape_unprintable(str(error))}"


def read(kind: Kind, student: Student, *, seed: int, compares_held_out: bool = True) -> Recordings:
    """Read the groups of a data set.

    Args:
        kind: paths, and how groups are made.
        student: the model that is trained.
        seed: seed of the order of each pass.
        compares_held_out: compare all held-out episodes of a prompt, as for a reward model.  False: group them as in
            training, and use all of them to validate.

    Raises:
        ValueError: a file cannot be read, or there are too many bad rows or too few groups.
    """
    tally, reader = _Tally(), Reader(student.chat, student.max_context_tokens)
    splits: dict[str, list[Group]] = {"train": [], "val": [], "test": []}
    recorded: list[Episode] = []
    held_out_by_prompt: dict[str, list[Episode]] = {}
    for path in find_paths(kind.paths):
        if path.is_dir():
            recorded += _read_folder(kind, path, student, tally)
            continue
        for prompt, group in _read_rows(kind, path, reader, tally):
            if not _check_room(group, kind, student, tally):
                continue
            tally.openings[prompt] += 1
            if kind.get_split(prompt) == "train":
                splits["train"].append(group)
            elif compares_held_out:
                held_out_by_prompt.setdefault(prompt, []).extend(group)
            else:
                splits[kind.get_split(prompt)].append(group)
    for prompt, episodes in held_out_by_prompt.items():
        splits[kind.get_split(prompt)].append(episodes)
    for episodes in group_by_prompt(recorded):
        split = kind.get_split(f"{episodes[0].task_name}|{episodes[0].instance_seed}")
        is_compared = compares_held_out and split != "train"
        groups = kind.make_held_out_groups(episodes) if is_compared else kind.make_groups(episodes)
        fitting = [group for group in groups if _check_room(group, kind, student, tally)]
        if kind.smallest > 1 and not fitting:
            tally.without_group += 1
        splits[split] += fitting
    training = splits.pop("train")
    if not compares_held_out:
        splits = {"val": splits["val"] + splits["test"]}
    _require_few_bad(kind, tally)
    if not training:
        cause = describe_equal_openings(tally.openings, kind.held_out or 0.0)
        raise ValueError(
            f"path={kind.paths[0]}: none of its {tally.rows} rows makes a group to train on{cause and f': {cause}'}"
        )
    if kind.batch > len(training):
        raise ValueError(
            f"batch={kind.batch} exceeds the {len(training)} groups of path={kind.paths[0]}; lower it"
        )
    notes = [*_write_notes(tally, reader), describe_equal_openings(tally.openings, kind.held_out or 0.0)]
    rows = max(tally.rows, 1)
    metrics = {"data/dropped_share": tally.bad.total() / rows}
    if reader.num_read:
        metrics["data/truncated_share"] = reader.num_truncated / reader.num_read
    return Recordings(
        training, kind.batch, seed, notes=tuple(filter(None, notes)), metrics=metrics,
        is_reference=tally.is_reference and bool(recorded) and not reader.num_read, held_out=splits,
        openings=tally.openings,
    )  # fmt: skip


def describe_equal_openings(openings: Counter[str], held_out: float) -> str:
    """Describe an opening that more groups share than may be held out; else empty.

    Args:
        openings: number of groups by split key, by default the messages before the first reply.
        held_out: share of the groups to hold out.
    """
    largest, total = max(openings.values(), default=0), openings.total()
    if largest < 2 or largest <= held_out * total or not held_out:
        return ""
    return (
        f"{largest} of {total} groups begin with the same messages before the first reply, so that all of them are "
        "held out or none; a column held_out_with, with another text in each row, splits them"
    )


def _read_folder(kind: Kind, path: Path, student: Student, tally: _Tally) -> Iterator[Episode]:
    """Read the episodes of a folder that can be trained on."""
    folder = open_folder(path)
    assert folder is not None
    if not folder.is_complete:
        raise ValueError(
            f"path={path} has {len(folder.shards)} of {folder.planned} shards; repeat the command that collects it"
        )
    _require_same_ids(folder, student)
    _require_labels(kind, folder)
    if unknown := [score for score in kind.heads if score not in kind.scores]:
        raise ValueError(
            f"score={unknown[0]} is not a score of recorded episodes (path={path}); valid: "
            f"{', '.join(kind.scores)}"
        )
    policy, temperature = folder.described.get("policy", {}), folder.described.get("temperature")
    is_same = student.fingerprint is not None and policy.get("fingerprint") == student.fingerprint
    tally.is_reference = tally.is_reference and is_same and temperature == student.temperature
    for row_number, episode in enumerate(folder.read(), 1):
        tally.rows += 1
        try:
            _check_episode(episode, student)
            scored = _replace_return(episode, kind)
        except BadRow as error:
            tally.refuse(f"{path} episode {row_number}", error)
            continue
        yield scored


def _replace_return(episode: Episode, kind: Kind) -> Episode:
    """Return a copy of the episode whose return is its score by `Kind.score`."""
    if kind.heads:
        return add_labels(episode, [_get_label(episode, score) for score in kind.heads])
    value = _get_score(episode, str(kind.score))
    return episode if value is None else set_return(episode, value)


def _get_label(episode: Episode, score: str) -> float:
    """Return the label of a head; NaN if the game gives no costs."""
    if score == "cost" and all(turn.cost is None for turn in episode.turns):
        return math.nan
    value = _get_score(episode, score)
    return episode.training_return if value is None else value


def _get_score(episode: Episode, score: str) -> float | None:
    """Return the success or total cost of an episode; None keeps its return."""
    if score == "success":
        return float(episode.success)
    if score != "cost":
        return None
    costs = [turn.cost for turn in episode.turns if turn.cost is not None]
    if not costs:
        raise BadRow("no_cost", f"{episode.task_name} gave no costs: its steps have no info['cost']")
    for cost in costs:
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not math.isfinite(cost):
            raise BadRow("bad_cost", f"the cost of a turn is {str(cost)[:40]!r}, not a finite number")
    return sum(costs)


def _require_labels(kind: Kind, folder: EpisodeFolder) -> None:
    """Check that labels of turns are not read as rewards, nor rewards as labels."""
    has_labels = "continuations" in folder.described
    if has_labels and (kind.score == "return" or "return" in kind.heads):
        raise ValueError(
            f"score=return: path={folder.path} has labels of turns and no rewards; set data.score=success"
        )
    if has_labels and kind.score == "success" and "labels" in kind.scores:
        raise ValueError(
            f"score=success ignores the labels of turns that path={folder.path} has; set data.score=labels"
        )
    if kind.score == "labels" and not has_labels:
        raise ValueError(
            f"score=labels: path={folder.path} has no labels of turns; collect it with continuations=16, or set "
            "data.score=success"
        )


def _require_same_ids(folder: EpisodeFolder, student: Student) -> None:
    if folder.described.get("policy", {}).get("tokenizer") != student.tokenizer:
        raise ValueError(
            f"path={folder.path} holds token ids of another tokenizer than this model's: of "
            f"{format_tokenizer(folder.described.get(MADE_WITH))}, and this model has "
            f"{format_tokenizer(describe_tokenizer(student.chat.tokenizer))}; collect with this model, or write the "
            "messages into a .jsonl file"
        )


def _check_episode(episode: Episode, student: Student) -> None:
    if episode.failed:
        raise BadRow("failed", f"its game failed ({escape_unprintable(episode.error)[:80]})")
    if not episode.num_action_tokens:
        raise BadRow("empty", "it has no sampled token")
    largest_id = -1
    for turn in episode.turns:
        if not len(turn.prefix_tokens) + len(turn.reply_tokens):
            raise BadRow("empty", "a turn has no token")
        reward = turn.training_reward
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise BadRow("bad_reward", f"the reward of a turn is {str(reward)[:40]!r}, not a finite number")
        largest_id = max(largest_id, *turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist())
    _require_room(episode, student)
    if largest_id >= student.vocabulary:
        raise BadRow("unknown_id", f"token id {largest_id} is beyond the {student.vocabulary} of the model")
    if all(turn.policy_version >= 0 for turn in episode.turns):
        try:
            check_ledger(episode)
        except ValueError as error:
            raise BadRow("broken_ledger", str(error)) from error


def _require_room(episode: Episode, student: Student) -> None:
    if measure_longest_row(episode) > student.max_context_tokens:
        limit = student.max_context_tokens
        raise BadRow("too_long", f"it has more than rollout.max_context_tokens={limit} tokens")


def _check_room(group: Group, kind: Kind, student: Student, tally: _Tally) -> bool:
    """Return whether a group fits into the context; count it as bad if not.

    Only groups that are read after a reference answer are checked.
    """
    try:
        for episode in group if kind.is_referred else ():
            _require_room(episode, student)
    except BadRow as error:
        where = f"{group[0].task_name} instance seed {group[0].instance_seed}"
        tally.refuse(f"{kind.paths[0]} {where}", error)
        return False
    return True


def _read_rows(kind: Kind, path: Path, reader: Reader, tally: _Tally) -> Iterator[tuple[str, Group]]:
    """Read the groups of a file, each with its split key, by default the prompt."""
    columns = kind.columns or {}
    found_columns: set[str] = set()  # of the columns that the user named
    present: dict[str, None] = {}  # in the order of first occurrence
    for row_name, original in read_table(path):
        tally.rows += 1
        try:
            if isinstance(original, ValueError):
                raise BadRow("unreadable", str(original))
            if not isinstance(original, dict):
                raise BadRow("unreadable", 'it is not an object; write {"column": value, …}')
            present |= dict.fromkeys(map(str, original))
            found_columns |= {
                theirs for theirs in columns.values() if not is_missing(find_column(original, theirs))
            }
            converted = convert_row(original, path.suffix.lower(), columns)
            row = ReadRow(converted.row)
            markers, lost = reader.markers.total(), reader.lost.total()
            name = reader.row_name = f"{shorten_path(path)} {row_name}"
            split_key, group = read_held_out_with(row), kind.read_group(row, reader)
            tally.usage.count(original, converted, row)
            if reader.markers.total() > markers:
                tally.marked, tally.first_marked = tally.marked + 1, tally.first_marked or name
            if reader.lost.total() > lost:
                tally.lossy, tally.first_lossy = tally.lossy + 1, tally.first_lossy or name
            if has_repeated_prompt(converted.row):
                tally.repeating, tally.first_repeating = tally.repeating + 1, tally.first_repeating or name
            yield repr(group[0].opening) if split_key is None else split_key, group
        except BadRow as error:
            tally.refuse(f"{shorten_path(path)} {row_name}", error)
        except ValueError as error:  # of the chat template, for example without the role tool
            tally.refuse(
                f"{shorten_path(path)} {row_name}", BadRow("template", f"it cannot be rendered: {error}")
            )
    for ours, theirs in columns.items():
        if present and theirs not in found_columns:
            raise ValueError(
                f"columns.{ours}={theirs} is in no row of {shorten_path(path)} (there are "
                f"{escape_unprintable(', '.join(present))[:200]}); name one of them"
            )


def _require_few_bad(kind: Kind, tally: _Tally) -> None:
    bad = tally.bad.total()
    if bad > kind.max_bad_share * tally.rows:
        raise ValueError(
            f"path={tally.first_bad} ({bad} of {tally.rows} rows are bad: {_format_counts(tally)}; more than "
            f"max_bad_share={kind.max_bad_share:g})"
        )


def _format_counts(tally: _Tally) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(tally.bad.items()))


def _write_notes(tally: _Tally, reader: Reader) -> Iterator[str]:
    yield from tally.usage.write_notes()
    if tally.bad:
        counts = _format_counts(tally)
        yield f"data: left out {tally.bad.total()} of {tally.rows} rows ({counts}); the first: {tally.first_bad}"
    if tally.marked:
        named = ", ".join(repr(marker) for marker, _ in reader.markers.most_common(3))
        yield (
            f"data: {tally.marked} of {tally.rows} rows spell markers of the chat template ({named}), which are learnt "
            f"as plain characters; the first: {tally.first_marked}; write roles and contents without a template"
        )
    if tally.lossy:
        yield (
            f"data: {tally.lossy} of {tally.rows} rows hold {format_lost(reader.lost)}; the first: "
            f"{tally.first_lossy}; remove them, or use another model"
        )
    if tally.repeating:
        yield (
            f"data: answers of {tally.repeating} of {tally.rows} rows begin with the text of the prompt, which is "
            f"learnt; the first: {tally.first_repeating}; take it out of the answers"
        )
    if reader.num_folded:
        yield (
            f"data: the chat template has no system role: the system texts of {reader.num_folded} of {reader.num_read} "
            "episodes begin the first user message"
        )
    yield from reader.write_notes(tally.rows)
    if reader.has_unknown_words():
        yield (
            "data: the model's tokenizer spells the words letter by letter: it has not learnt them, and will hardly "
            "learn them from this; use a pretrained one: model=smollm2, or model=hf model.name=FOLDER"
        )
    if tally.without_group:
        yield f"data: {tally.without_group} prompts give no group, for example because all scores are equal"
    if reader.num_truncated:
        cut = f"{reader.num_truncated} of {reader.num_read}"
        yield f"data: {cut} episodes were cut off at rollout.max_context_tokens"
