"""Revisions of recorded replies by a judge, as rows of both replies.

The rows are the data of the first half of Constitutional AI (arXiv 2212.08073), for multi-turn agents: each revision is
of one reply to one state, whether or not the episode succeeded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig

from lit_agentrl import seeds
from lit_agentrl.config.errors import UserError
from lit_agentrl.data.row_folder import RowFolder, open_rows
from lit_agentrl.episode import Episode, Message
from lit_agentrl.rewards.learned.judge import Judge

Row = dict[str, Any]


class Revising:
    """The labels of ``asks=revision``: a judge revises replies; see `labelling.LabelKind`.

    Args:
        cfg: the options of ``conf/label.yaml``.
    """

    least = 1
    why = "revisions are written, and no reward is given"
    nouns = ("reply", "revisions")
    folder = partial(RowFolder, kind="revisions")
    open = staticmethod(partial(open_rows, kind="revisions"))

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg

    def check(self, judge: Judge) -> None:
        """Refuse a judge that is to be shown how the game ended.

        Raises:
            UserError: ``shows_end`` is set, although a revision must not depend on what came after the reply.
        """
        if judge.shows_end:
            raise UserError(
                "reward.judge.shows_end=true shows how the game ended, but a revision must not depend on what "
                "came after the reply; leave it out"
            )

    def repair(self, folder: RowFolder) -> None:
        """Repair what a killed process left."""
        folder.settle()

    def describe_content(self, folder: RowFolder) -> str:
        """Return the number of rows, as text."""
        return f"{sum(piece.rows for piece in folder.shards)} revisions are in {folder.rows}"

    def ask(
        self, judge: Judge, prompts: Sequence[Sequence[Episode]], start: int
    ) -> tuple[list[Row], Counter[str]]:
        """Return a row for each revision that differs from the reply, and counts.

        The counts include ``unread``, revisions that could not be read, and ``same``, those equal to the reply.
        """
        turns = [
            (episode, turn_index)
            for group in prompts
            for episode in group
            for turn_index in choose_turns(episode, self._cfg.rounds, self._cfg.seed)
        ]
        answers = judge.labels.revise(turns, address=start)
        rows, unread, same = [], 0, 0
        for (episode, turn_index), revision in zip(turns, answers.parsed, strict=True):
            if not revision:
                unread += 1
            elif revision[0][0] == episode.turns[turn_index].reply_text.strip():
                same += 1
            else:
                rows.append(build_row(episode, turn_index, revision[0][0]))
        counts = Counter(asked=len(turns), unread=unread, same=same, replies=answers.counts.pop("asked"))
        return rows, counts + answers.counts

    def add(self, folder: RowFolder, rows: Sequence[Row], start: int) -> RowFolder:
        """Write a shard of rows."""
        return folder.add(rows, good=len(rows))

    def describe_result(self, folder: RowFolder, counts: Mapping[str, int]) -> Iterator[str]:
        """Yield lines about the questions of this process and the rows in the folder."""
        reasons = [f"{name} {counts[name]}" for name in sorted(counts) if name.startswith("unread_")]
        yield (
            f"{counts['asked']} replies to revise: {counts['asked'] - counts['unread']} revisions were read, "
            f"in {counts['replies']} replies of the judge{''.join(f', {reason}' for reason in reasons)}; "
            f"{counts['same']} are equal to the reply"
        )
        yield f"{sum(piece.rows for piece in folder.shards)} rows in {folder.rows}"


def choose_turns(episode: Episode, limit: int, seed: int) -> list[int]:
    """Choose at random the indices of up to ``limit`` turns to revise.

    The choice depends only on the seed, the episode's place in the data and the turn's index.  A row of messages holds
    everything from the opening to a turn, so only turns are chosen for which the policy read all of that: with
    ``context=window`` the turns before the prompt was first rebuilt.  Blank replies are skipped: they show no worse
    reply to learn from.
    """
    row_starts = (index for index, turn in enumerate(episode.turns) if index and turn.starts_row)
    last = next(row_starts, len(episode.turns))
    key = (episode.iteration, episode.wave, episode.group, episode.member, episode.instance_seed)
    with_text = [index for index, turn in enumerate(episode.turns[:last]) if turn.reply_text.strip()]
    drawn = sorted(with_text, key=lambda index: seeds.make_key(seed, "revise", *key, index))
    return sorted(drawn[:limit])


def build_row(episode: Episode, turn_index: int, revision: str) -> Row:
    """Build a row of ``data=demonstrations`` and ``data=pairs``.

    The row holds the messages that the policy read, the revision, and the reply that was given.
    """
    prompt: list[Message] = list(episode.opening)
    for number, turn in enumerate(episode.turns[: turn_index + 1]):
        if number and turn.message:
            prompt.append({"role": "user", "content": turn.message})
        if number < turn_index:
            prompt.append({"role": "assistant", "content": turn.reply_text})
    better: list[Message] = [{"role": "assistant", "content": revision}]
    return {
        "prompt": prompt,
        "completion": better,
        "chosen": better,
        "rejected": [{"role": "assistant", "content": episode.turns[turn_index].reply_text}],
        "held_out_with": f"{episode.task_name}|{episode.instance_seed}",
    }
