"""Recorded episodes criticised by a judge: rows that train a reward model to read critiques (CLoud)."""

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
    """``asks=critique``; see `labelling.Way`.

    Args:
        cfg: the options of ``conf/label.yaml``.
    """

    least = 1
    why = "critiques are asked for, and nothing is paid"
    nouns = ("reply", "critiques")
    folder = partial(RowFolder, kind="critiques")
    open = staticmethod(partial(open_rows, kind="critiques"))

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg

    def check(self, judge: Judge) -> None:
        """Refuse a judge that writes the same twice, or that is told what a reward model is to find out.

        Raises:
            UserError: it does.
        """
        if self._cfg.rounds > 1 and not judge.temperature:
            raise UserError(
                f"rounds={self._cfg.rounds} with reward.judge.temperature=0 would ask for the same critique again; "
                "raise it, or set rounds=1"
            )
        if judge.shows_end:
            raise UserError(
                "reward.judge.shows_end=true tells the label that a reward model is to learn; leave it out"
            )

    def settle(self, folder: RowFolder) -> str:
        """How many rows there are, after what a kill left half done is done."""
        folder.settle()
        return f"{sum(piece.rows for piece in folder.shards)} critiques are in {folder.rows}"

    def ask(
        self, judge: Judge, prompts: Sequence[Sequence[Episode]], start: int
    ) -> tuple[list[Row], Counter[str]]:
        """A row of each critique, and how many could not be read."""
        episodes = [episode for group in prompts for episode in group]
        texts, heard = judge.labels.criticise(episodes, rounds=self._cfg.rounds, address=start)
        rows = [
            row_of(text, critique, episode)
            for text, episode, found in zip(texts, episodes, heard.parsed, strict=True)
            for critique, _ in found
        ]
        asked = len(episodes) * self._cfg.rounds
        counts = Counter(
            asked=asked, unread=asked - len(rows), episodes=len(episodes), replies=heard.counts.pop("asked")
        )
        return rows, counts + heard.counts

    def add(self, folder: RowFolder, found: Sequence[Row], start: int) -> RowFolder:
        """A further piece."""
        return folder.add(found, good=sum(row["label"] for row in found))

    def lines(self, folder: RowFolder, counts: Mapping[str, int]) -> Iterator[str]:
        """What came of the questions of this process, and what is in the folder."""
        read = counts["asked"] - counts["unread"]
        reasons = [f"{name} {counts[name]}" for name in sorted(counts) if name.startswith("unread_")]
        yield (
            f"{counts['asked']} critiques of {counts['episodes']} episodes: {read} were read, in {counts['replies']} "
            f"replies{''.join(f', {each}' for each in reasons)}"
        )
        rows, good = (sum(getattr(piece, name) for piece in folder.shards) for name in ("rows", "good"))
        yield f"{rows} rows, {good} of them of successes, in {folder.rows}"
        if good in (0, rows):
            yield "all rows have the same label, so no reward model can learn from them; record other episodes"


def row_of(question: str, critique: str, episode: Episode) -> dict[str, Any]:
    """A row of ``data=unpaired``: the critique answers the question, and is as good as the episode.

    A question belongs to one episode, so rows are held out and compared with those of the same instance: those of an
    instance are on the side on which its recorded episodes are.
    """
    return {
        "prompt": [{"role": "user", "content": question}],
        "completion": [{"role": "assistant", "content": critique}],
        "label": bool(episode.success),
        "held_out_with": f"{episode.task_name}|{episode.instance_seed}",
    }
