"""Reading a data set: folders of recorded episodes, exact; files of rows through the template; bad rows counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lit_agentrl.checks import escape_unprintable, require_local
from lit_agentrl.data.conversations import Reader
from lit_agentrl.data.episodes import EpisodeFolder, open_folder
from lit_agentrl.data.kinds import Kind, by_prompt, scored
from lit_agentrl.data.labels import labelled
from lit_agentrl.data.recordings import Group, Recordings
from lit_agentrl.data.referred import longest_row
from lit_agentrl.data.row_folder import kind_of
from lit_agentrl.envs.tasks.messages import BadRow, read_held_out_with
from lit_agentrl.envs.tasks.tables import READERS, read_table, shorten_path
from lit_agentrl.episode import Episode
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import check_ledger


@dataclass(frozen=True)
class Student:
    """Who is to learn from a data set.

    Attributes:
        chat: renders messages for it.
        fingerprint: of its weights at the start; None: nobody knows them.
        tokenizer: fingerprint of what maps texts to ids.
        vocabulary: ids are below it.
        temperature: at which log-probs are taken.
        max_context_tokens: of an episode.
    """

    chat: ChatRenderer
    fingerprint: str | None
    tokenizer: str
    vocabulary: int
    temperature: float
    max_context_tokens: int


@dataclass
class _Tally:
    """What has been read, and what was left out."""

    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first: str = ""
    without_pair: int = 0
    is_reference: bool = True

    def refuse(self, place: str, error: BadRow) -> None:
        self.bad[error.reason] += 1
        self.first = self.first or f"{place}: {escape_unprintable(str(error))}"


def find_paths(kind: Kind) -> list[Path]:
    """The folders and files of a data set.

    Raises:
        ValueError: one is not there, or of another kind.
    """
    for each in kind.paths:
        require_local("path", each)
    found = [Path(each).expanduser() for each in kind.paths]
    for path in found:
        if not path.exists():
            raise ValueError(f"path={path} is not there; looked for {path.absolute()}")
        if path.is_dir():
            if rows := kind_of(path):
                raise ValueError(f"path={path} is a folder of {rows}; name its file, {path / rows}.jsonl")
            if open_folder(path) is None:
                raise ValueError(f"path={path} is an empty folder; name one that lit-agentrl collect wrote")
        elif path.suffix not in READERS:
            raise ValueError(
                f"path={path} must be a folder of lit-agentrl collect, or a file that ends in {' or '.join(READERS)}"
            )
    return found


def read(kind: Kind, student: Student, *, seed: int) -> Recordings:
    """The groups of a data set.

    Args:
        kind: where it lies, and how groups are made.
        student: who is to learn from it.
        seed: of the orders of passes.

    Raises:
        ValueError: a file that cannot be read, too many bad rows, or too few groups.
    """
    tally, reader = _Tally(), Reader(student.chat, student.max_context_tokens)
    sides: dict[str, list[Group]] = {"train": [], "val": [], "test": []}
    recorded: list[Episode] = []
    of_prompt: dict[str, list[Episode]] = {}  # rows that are held out
    for path in find_paths(kind):
        if path.is_dir():
            recorded += _recorded(kind, path, student, tally)
            continue
        for prompt, group in _of_rows(kind, path, reader, tally):
            if not _has_room(group, kind, student, tally):
                continue
            if kind.side(prompt) == "train":
                sides["train"].append(group)
            else:
                of_prompt.setdefault(prompt, []).extend(group)
    for prompt, episodes in of_prompt.items():
        sides[kind.side(prompt)].append(episodes)
    for same in by_prompt(recorded):
        side = kind.side(f"{same[0].task_name}|{same[0].instance_seed}")
        made = kind.of_episodes(same) if side == "train" else kind.judged(same)
        found = [group for group in made if _has_room(group, kind, student, tally)]
        tally.without_pair += not found and kind.smallest > 1
        sides[side] += found
    groups = sides.pop("train")
    _require_good(kind, tally)
    if not groups:
        raise ValueError(f"path={kind.paths[0]}: none of its {tally.rows} rows makes a group to train on")
    if kind.batch > len(groups):
        raise ValueError(
            f"batch={kind.batch} exceeds the {len(groups)} groups of path={kind.paths[0]}; lower it"
        )
    rows = max(tally.rows, 1)
    metrics = {"data/dropped_share": tally.bad.total() / rows}
    if reader.num_read:
        metrics["data/truncated_share"] = reader.num_truncated / reader.num_read
    return Recordings(
        groups, kind.batch, seed, notes=tuple(_notes(tally, reader)), metrics=metrics,
        is_reference=tally.is_reference and bool(recorded) and not reader.num_read, held_out=sides,
    )  # fmt: skip


def _recorded(kind: Kind, path: Path, student: Student, tally: _Tally) -> Iterator[Episode]:
    """The episodes of a folder that can be trained on."""
    folder = open_folder(path)
    assert folder is not None
    if not folder.is_complete:
        raise ValueError(
            f"path={path} has {len(folder.shards)} of {folder.planned} shards; give the command that collects it again"
        )
    _require_same_ids(folder, student)
    _require_labels(kind, folder)
    if unknown := [score for score in kind.heads if score not in kind.scores]:
        raise ValueError(
            f"score={unknown[0]} is known of no recorded episode (path={path}); its scores are "
            f"{', '.join(kind.scores)}"
        )
    of_policy, temperature = folder.described.get("policy", {}), folder.described.get("temperature")
    is_same = of_policy.get("fingerprint") == student.fingerprint is not None
    tally.is_reference = tally.is_reference and is_same and temperature == student.temperature
    for number, episode in enumerate(folder.read(), 1):
        tally.rows += 1
        try:
            _check(episode, student)
            found = _valued(episode, kind)
        except BadRow as error:
            tally.refuse(f"{path} episode {number}", error)
            continue
        yield found


def _valued(episode: Episode, kind: Kind) -> Episode:
    """The episode, worth what `Kind.score` says."""
    if kind.heads:
        return labelled(episode, [_label(episode, score) for score in kind.heads])
    worth = _worth(episode, str(kind.score))
    return episode if worth is None else scored(episode, worth)


def _label(episode: Episode, score: str) -> float:
    """What it is worth to a head; NaN where its game tells no costs."""
    if score == "cost" and all(turn.cost is None for turn in episode.turns):
        return math.nan
    worth = _worth(episode, score)
    return episode.training_return if worth is None else worth


def _worth(episode: Episode, score: str) -> float | None:
    """What an episode is worth by `Kind.score`; None: what its turns say."""
    if score == "success":
        return float(episode.success)
    if score != "cost":
        return None
    costs = [turn.cost for turn in episode.turns if turn.cost is not None]
    if not costs:
        raise BadRow("no_cost", f"{episode.task_name} told no costs: its steps have no info['cost']")
    for cost in costs:
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not math.isfinite(cost):
            raise BadRow("bad_cost", f"the cost of a turn is {str(cost)[:40]!r}, no finite number")
    return sum(costs)


def _require_labels(kind: Kind, folder: EpisodeFolder) -> None:
    """Labels of turns stand where points do: neither is taken for the other."""
    has_labels = "continuations" in folder.described
    if has_labels and (kind.score == "return" or "return" in kind.heads):
        raise ValueError(
            f"score=return: path={folder.path} has labels of turns, and no points; set data.score=success"
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
            f"path={folder.path} holds token ids of another tokenizer than this model's; collect with this model, or "
            "write the messages into a .jsonl file"
        )


def _check(episode: Episode, student: Student) -> None:
    if episode.failed:
        raise BadRow("failed", f"its game failed ({escape_unprintable(episode.error)[:80]})")
    if not episode.num_action_tokens:
        raise BadRow("empty", "it has no sampled token")
    most = -1
    for turn in episode.turns:
        points = turn.training_reward
        if isinstance(points, bool) or not isinstance(points, int | float) or not math.isfinite(points):
            raise BadRow("bad_reward", f"the points of a turn are {str(points)[:40]!r}, no finite number")
        most = max(most, *turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist())
    _require_room(episode, student)
    if most >= student.vocabulary:
        raise BadRow("unknown_id", f"token id {most} is beyond the {student.vocabulary} of the model")
    if all(turn.policy_version >= 0 for turn in episode.turns):
        try:
            check_ledger(episode)
        except ValueError as error:
            raise BadRow("broken_ledger", str(error)) from error


def _require_room(episode: Episode, student: Student) -> None:
    if longest_row(episode) > student.max_context_tokens:
        most = student.max_context_tokens
        raise BadRow("too_long", f"it has more than rollout.max_context_tokens={most} tokens")


def _has_room(group: Group, kind: Kind, student: Student, tally: _Tally) -> bool:
    """Whether a group is not too long; where something was put before it that nobody has measured."""
    try:
        for episode in group if kind.is_referred else ():
            _require_room(episode, student)
    except BadRow as error:
        where = f"{group[0].task_name} instance seed {group[0].instance_seed}"
        tally.refuse(f"{kind.paths[0]} {where}", error)
        return False
    return True


def _of_rows(kind: Kind, path: Path, reader: Reader, tally: _Tally) -> Iterator[tuple[str, Group]]:
    """The groups of a file, each with what it is held out by: its prompt, unless it says another text."""
    for where, row in read_table(path):
        tally.rows += 1
        try:
            if isinstance(row, ValueError):
                raise BadRow("unreadable", str(row))
            if not isinstance(row, dict):
                raise BadRow("unreadable", 'it is no object; write {"column": value, …}')
            by, group = read_held_out_with(row), kind.of_row(row, reader)
            yield repr(group[0].opening) if by is None else by, group
        except BadRow as error:
            tally.refuse(f"{shorten_path(path)} {where}", error)
        except ValueError as error:  # of the chat template, which may know no system message, or no tool
            tally.refuse(
                f"{shorten_path(path)} {where}", BadRow("template", f"it cannot be rendered: {error}")
            )


def _require_good(kind: Kind, tally: _Tally) -> None:
    bad = tally.bad.total()
    if bad > kind.max_bad_share * tally.rows:
        raise ValueError(
            f"path={tally.first} ({bad} of {tally.rows} rows are bad: {_counted(tally)}; more than "
            f"max_bad_share={kind.max_bad_share:g})"
        )


def _counted(tally: _Tally) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in sorted(tally.bad.items()))


def _notes(tally: _Tally, reader: Reader) -> Iterator[str]:
    if tally.bad:
        yield f"data: left out {tally.bad.total()} of {tally.rows} rows ({_counted(tally)}); the first: {tally.first}"
    if tally.without_pair:
        yield f"data: {tally.without_pair} prompts give no group, as where all episodes came to the same"
    if reader.num_truncated:
        cut = f"{reader.num_truncated} of {reader.num_read}"
        yield f"data: {cut} episodes were cut off at rollout.max_context_tokens"
