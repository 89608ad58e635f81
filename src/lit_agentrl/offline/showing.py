"""Show rows of a data set as a model reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lit_agentrl.build.instantiation import instantiate_as, make_policy, make_prompt_and_dialect
from lit_agentrl.checks import name_errors
from lit_agentrl.config.composition import compose_job
from lit_agentrl.config.overrides import parse
from lit_agentrl.data.kinds import Kind
from lit_agentrl.data.pairs import Pairs
from lit_agentrl.data.reading import Student, read
from lit_agentrl.data.recordings import Group
from lit_agentrl.data.row_folder import find_paths
from lit_agentrl.envs.tasks.tables import READERS, read_table
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.pack import split_rows
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.reply_ends import list_model_ends
from lit_agentrl.text.token_bytes import hash_tokenizer

_KINDS = {  # data set by a column that it alone has
    "chosen": "pairs", "rejected": "pairs", "scores": "ranked", "labels": "stepwise", "label": "unpaired",
    "score": "unpaired",
}  # fmt: skip


@dataclass(frozen=True)
class ShownRow:
    """A row of a batch as text.

    Attributes:
        title: which row it is.
        parts: pieces of its text in order; True marks a piece that is learnt.
    """

    title: str
    parts: Sequence[tuple[str, bool]]


@dataclass(frozen=True)
class ShownData:
    """Lines about a data set, and its first rows."""

    lines: Sequence[str]
    rows: Sequence[ShownRow]


def show(path: str, overrides: Sequence[str], count: int) -> ShownData:
    """Read a data set as a run would, and return its first groups as text.

    Args:
        path: a file of rows, or a folder of recorded episodes.
        overrides: options of a run, such as ``model=…``, ``data=pairs`` and ``dialect=…``.
        count: number of groups.

    Raises:
        UserError: an unknown option.
        ValueError: an invalid option, or data that a run refuses.
    """
    keys = {override.key_or_group for override in parse(overrides)}
    options = [] if "data" in keys else [f"data={guess_kind(Path(path).expanduser())}"]
    options += [
        f"{key}={value}" for key, value in (("data.path", "FILE"), ("data.batch", 1)) if key not in keys
    ]
    cfg = compose_job("train", [*options, *overrides])
    cfg.data.path = path
    with name_errors("data"):
        kind = instantiate_as(cfg, "data", Kind)
        find_paths(kind.paths)
    prompt, dialect = make_prompt_and_dialect(cfg)
    policy = make_policy(cfg, trains=False)
    with name_errors("model"):
        chat = ChatRenderer(
            policy.tokenizer, dialect=dialect, force_think=prompt.force_think, shows_replies=False,
            model_ends=list_model_ends(policy.network, policy.tokenizer), date=policy.date,
        )  # fmt: skip
    student = Student(
        chat,
        None,
        hash_tokenizer(policy.tokenizer),
        len(policy.tokenizer),
        1.0,
        cfg.rollout.max_context_tokens,
    )
    with name_errors("data"):
        data = read(kind, student, seed=0, compares_held_out=False)
    name = type(kind).__name__.lower()
    lines = [describe_groups(name, data.groups), *data.notes]
    rows = [
        row
        for number, group in enumerate(data.groups[:count], 1)
        for row in _show_group(
            f"{number} of {len(data.groups)}", group, chat, is_pair=isinstance(kind, Pairs)
        )
    ]
    return ShownData(lines, rows)


def guess_kind(path: Path) -> str:
    """Guess the data set of a file by the columns of its first row."""
    if not path.is_file() or path.suffix.lower() not in READERS:
        return "demonstrations"
    with name_errors("data"):
        row = next(iter(read_table(path)), ("", {}))[1]
    columns = [key for key, value in row.items() if value is not None] if isinstance(row, dict) else []
    return next((_KINDS[column] for column in columns if column in _KINDS), "demonstrations")


def describe_groups(name: str, groups: Sequence[Group]) -> str:
    """Describe how many groups there are, and how much of them is learnt."""
    episodes = [episode for group in groups for episode in group]
    turns = [turn for episode in episodes for turn in episode.turns]
    learnt = sum(len(turn.reply_tokens) for turn in turns)
    whole = learnt + sum(len(turn.prefix_tokens) for turn in turns)
    rows = sum(len(split_rows(episode)) for episode in episodes)
    return (
        f"data={name}: {len(groups)} groups, {len(episodes)} episodes, {rows} rows; {len(turns)} replies are learnt, "
        f"{learnt} of {whole} tokens"
    )


def _show_group(title: str, group: Group, chat: ChatRenderer, *, is_pair: bool) -> Iterator[ShownRow]:
    best = max(episode.training_return for episode in group)
    for number, episode in enumerate(group, 1):
        name = title
        if is_pair:
            name += ", chosen" if episode.training_return == best else ", rejected"
        elif len(group) > 1:
            name += f", answer {number} of {len(group)}, return {episode.training_return:g}"
        yield from _show_episode(name, episode, chat)


def _show_episode(title: str, episode: Episode, chat: ChatRenderer) -> Iterator[ShownRow]:
    rows = split_rows(episode)
    for number, (_, turns) in enumerate(rows, 1):
        parts: list[tuple[str, bool]] = []
        for turn in turns:
            parts.append((chat.decode(turn.prefix_tokens.tolist()), False))
            parts.append((chat.decode(turn.reply_tokens.tolist()), True))
        yield ShownRow(title if len(rows) == 1 else f"{title}, row {number} of {len(rows)}", parts)
