"""Comparison of recorded episodes by a judge, and ratings from its verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from omegaconf import DictConfig

from lit_agentrl import seeds
from lit_agentrl.data.episodes import EpisodeFolder, open_folder
from lit_agentrl.data.kinds import list_replies, set_return
from lit_agentrl.data.ratings import Comparison, estimate_ratings, find_connected
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.learned.judge import Judge


class Comparing:
    """The labels of ``asks=better``: a judge compares episodes of a prompt; see `labelling.LabelKind`.

    Args:
        cfg: the options of ``conf/label.yaml``.
    """

    least = 2
    why = "pairs are compared, and no reward is given"
    nouns = ("verdict", "comparisons")
    folder = EpisodeFolder
    open = staticmethod(open_folder)

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg

    def check(self, judge: Judge) -> None:
        """Accept any judge."""

    def repair(self, folder: EpisodeFolder) -> None:
        """Do nothing: a shard is written whole or not at all."""

    def describe_content(self, folder: EpisodeFolder) -> str:
        """Return the number of rated episodes, as text."""
        return f"{sum(shard.episodes for shard in folder.shards)} episodes are rated"

    def ask(
        self, judge: Judge, prompts: Sequence[Sequence[Episode]], start: int
    ) -> tuple[list[Episode], Counter[str]]:
        """Return the episodes that verdicts connect, with ratings, and counts of comparisons."""
        compared = [
            (number, i, j)
            for number, group in enumerate(prompts)
            for i, j in self._iterate_pairs(group, start + number)
        ]
        pairs = [(prompts[number][i], prompts[number][j]) for number, i, j in compared]
        verdicts = judge.labels.compare(pairs, address=start)
        comparisons_by_prompt: list[list[Comparison]] = [[] for _ in prompts]
        counts = Counter[str](asked=len(compared))
        for (number, i, j), (first, second), verdict in zip(compared, pairs, verdicts, strict=True):
            counts[verdict if isinstance(verdict, str) else "consistent"] += 1
            if isinstance(verdict, str):
                continue
            comparisons_by_prompt[number].append((i, j, verdict))
            gap = first.total_reward - second.total_reward
            if gap and verdict != 0.5:
                counts["decided"] += 1
                counts["agreed"] += (gap > 0) == (verdict == 1)
        rated = []
        for group, comparisons in zip(prompts, comparisons_by_prompt, strict=True):
            strengths = estimate_ratings(comparisons, len(group))
            connected = find_connected(comparisons, len(group)) if comparisons else []
            rated += [set_return(group[index], strengths[index]) for index in connected]
        counts.update(episodes=sum(map(len, prompts)), rated=len(rated))
        return rated, counts

    def add(self, folder: EpisodeFolder, episodes: Sequence[Episode], start: int) -> EpisodeFolder:
        """Write a shard of rated episodes."""
        return folder.add(f"judged-{start:07d}", episodes)

    def describe_result(self, folder: EpisodeFolder, counts: Mapping[str, int]) -> Iterator[str]:
        """Yield lines about the comparisons of this process."""
        share = {
            name: counts.get(name, 0) / max(counts["asked"], 1)
            for name in ("consistent", "inconsistent", "unread")
        }
        yield (
            f"{counts['asked']} comparisons, each in both orders: {share['consistent']:.3f} consistent, "
            f"{share['inconsistent']:.3f} inconsistent, {share['unread']:.3f} unread"
        )
        if decided := counts.get("decided", 0):
            agreed = counts.get("agreed", 0) / decided
            yield f"the judge agrees with the returns in {agreed:.3f} of {decided} that differ"
        yield f"{counts['rated']} of {counts['episodes']} episodes are rated, in {self._cfg.out}"

    def _iterate_pairs(self, group: Sequence[Episode], number: int) -> Iterator[tuple[int, int]]:
        """Yield each pair of a prompt's episodes once, except pairs of equal replies.

        The episodes form a ring in random order; round k pairs each with the k-th after it.
        """
        rng = np.random.default_rng(seeds.make_key(self._cfg.seed, "ring", number))
        order = rng.permutation(len(group)).tolist()
        paired = set()
        for step in range(1, self._cfg.rounds + 1):
            for index, first in enumerate(order):
                second = order[(index + step) % len(order)]
                pair = frozenset((first, second))
                if (
                    len(pair) == 2
                    and pair not in paired
                    and list_replies(group[first]) != list_replies(group[second])
                ):
                    paired.add(pair)
                    yield first, second
