"""Critiques of recorded episodes by a judge, as training rows of a reward model (CLoud)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig

from lit_agentrl.config.errors import UserError
from lit_agentrl.data.row_folder import RowFolder, open_rows
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.learned.judge import Judge

Row = dict[str, Any]


class Criticising:
    """The labels of ``asks=critique``: a judge criticises episodes; see `labelling.LabelKind`.

    Args:
        cfg: the options of ``conf/label.yaml``.
    """

    least = 1
    why = "critiques are written, and no reward is given"
    nouns = ("reply", "critiques")
    folder = partial(RowFolder, kind="critiques")
    open = staticmethod(partial(open_rows, kind="critiques"))

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg

    def check(self, judge: Judge) -> None:
        """Refuse a judge that repeats its critiques or is shown the label.

        Raises:
            UserError: several rounds are asked of a judge with temperature 0, or the judge sees how the game ended,
                which a reward model is to learn.
        """
        if self._cfg.rounds > 1 and not judge.temperature:
            raise UserError(
                f"rounds={self._cfg.rounds} with reward.judge.temperature=0 would ask for the same critique several "
                "times; raise it, or set rounds=1"
            )
        if judge.shows_end:
            raise UserError(
                "reward.judge.shows_end=true shows the judge the label that a reward model is to learn; leave it out"
            )

    def repair(self, folder: RowFolder) -> None:
        """Repair what a killed process left."""
        folder.settle()

    def describe_content(self, folder: RowFolder) -> str:
        """Return the number of rows, as text."""
        return f"{sum(piece.rows for piece in folder.shards)} critiques are in {folder.rows}"

    def ask(
        self, judge: Judge, prompts: Sequence[Sequence[Episode]], start: int
    ) -> tuple[list[Row], Counter[str]]:
        """Return a row for each critique, and counts that include ``unread`` ones."""
        episodes = [episode for group in prompts for episode in group]
        texts, answers = judge.labels.criticise(episodes, rounds=self._cfg.rounds, address=start)
        rows = [
            build_row(text, critique, episode)
            for text, episode, critiques in zip(texts, episodes, answers.parsed, strict=True)
            for critique, _ in critiques
        ]
        num_questions = len(episodes) * self._cfg.rounds
        counts = Counter(
            asked=num_questions,
            unread=num_questions - len(rows),
            episodes=len(episodes),
            replies=answers.counts.pop("asked"),
        )
        return rows, counts + answers.counts

    def add(self, folder: RowFolder, rows: Sequence[Row], start: int) -> RowFolder:
        """Write a shard of rows."""
        return folder.add(rows, good=sum(row["label"] for row in rows))

    def describe_result(self, folder: RowFolder, counts: Mapping[str, int]) -> Iterator[str]:
        """Yield lines about the questions of this process and the rows in the folder."""
        read = counts["asked"] - counts["unread"]
        reasons = [f"{name} {counts[name]}" for name in sorted(counts) if name.startswith("unread_")]
        yield (
            f"{counts['asked']} critiques of {counts['episodes']} episodes: {read} were read, in {counts['replies']} "
            f"replies{''.join(f', {reason}' for reason in reasons)}"
        )
        rows, good = (sum(getattr(piece, name) for piece in folder.shards) for name in ("rows", "good"))
        yield f"{rows} rows, {good} of them of successes, in {folder.rows}"
        if good in (0, rows):
            yield "all rows have the same label, so no reward model can learn from them; record other episodes"


def build_row(question: str, critique: str, episode: Episode) -> dict[str, Any]:
    """Build a row of ``data=unpaired``, with the critique as answer and success as label.

    A question belongs to one episode, so ``held_out_with`` groups rows by task: rows of a task are all held out or all
    trained on, as its recorded episodes are, and are compared with each other.
    """
    return {
        "prompt": [{"role": "user", "content": question}],
        "completion": [{"role": "assistant", "content": critique}],
        "label": bool(episode.success),
        "held_out_with": f"{episode.task_name}|{episode.instance_seed}",
    }
