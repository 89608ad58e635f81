"""Episode statistics as torchmetrics, weighted by what they average over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torchmetrics import MeanMetric, SumMetric

from lit_agentrl.episode import EndReason, Episode, Outcome

_PER_EPISODE = ("success", "return", "turns", "actions", "truncated_share", "cost")
_OTHER = ("reply_tokens", "invalid_share", "surplus_actions", "entropy", "distinct_2")
_PER_GROUP = ("return_std_within_group", "dead_group_share")
# of an evaluation; normalised where chance and oracle are known
EVALUATED = ("success", "return", "normalised", "turns", "invalid_share", "truncated_share", "failed", "cost")


class EpisodeMetrics(nn.Module):
    """Means over episodes, turns, tokens and groups; episodes that failed are only counted.

    Keys: ``success`` and ``truncated_share`` (shares of episodes), ``return`` (points), ``cost`` (where the game tells
    any), ``turns``,
    ``actions`` (played, per episode), ``reply_tokens`` (per turn), ``invalid_share`` (of turns),
    ``surplus_actions`` (per turn, named beyond a budget), ``entropy`` (nats per action token),
    ``distinct_2`` (distinct share of the reply bigrams of one update), ``return_std_within_group`` (points,
    ddof 1), ``dead_group_share`` (groups whose returns are all equal), ``episodes``, ``failed`` and
    ``broken_markers`` (counts; see `text.outside`).

    Args:
        is_shared: whether each rank has seen episodes of its own, so that they are to be added up.
    """

    def __init__(self, is_shared: bool = True) -> None:
        super().__init__()
        # ordered lists of names: torchmetrics objects reduce themselves over ranks at compute()
        names = (*_PER_EPISODE, *_OTHER, *_PER_GROUP)
        self.means = nn.ModuleDict({name: MeanMetric(sync_on_compute=is_shared) for name in names})
        self.weights = nn.ModuleDict({name: SumMetric(sync_on_compute=is_shared) for name in names})
        self.counts = nn.ModuleDict(
            {name: SumMetric(sync_on_compute=is_shared) for name in ("episodes", "failed", "broken_markers")}
        )

    def update(self, outcomes: Sequence[Outcome]) -> None:
        """Everything but ``distinct_2``."""
        played = [outcome for outcome in outcomes if not outcome.failed]
        self._count("episodes").update(len(played))
        self._count("failed").update(len(outcomes) - len(played))
        self._count("broken_markers").update(sum(outcome.broken for outcome in outcomes))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in self.means}
        for each in played:
            found["success"].append((each.success, 1))
            found["return"].append((each.total_reward, 1))
            found["turns"].append((each.turns, 1))
            found["actions"].append((each.actions, 1))
            found["truncated_share"].append((each.end is EndReason.CONTEXT_LIMIT, 1))
            if each.cost is not None:
                found["cost"].append((each.cost, 1))
            if each.taken:
                found["reply_tokens"].append((each.tokens / each.taken, each.taken))
                found["invalid_share"].append((each.invalid / each.taken, each.taken))
                found["surplus_actions"].append((each.surplus / each.taken, each.taken))
                if each.tokens and not math.isnan(each.entropy):  # of an engine that records none
                    found["entropy"].append((each.entropy / each.tokens, each.tokens))
        for std in _group_stds(played):
            found["return_std_within_group"].append((std, 1))
            found["dead_group_share"].append((std**2 < 1e-12, 1))
        for name, pairs in found.items():
            self._add(name, pairs)

    def update_texts(self, episodes: Sequence[Episode]) -> None:
        """``distinct_2``, which needs the tokens of replies."""
        pairs = [
            pair
            for episode in episodes
            if not episode.failed
            for tokens in (turn.reply_tokens.tolist() for turn in episode.turns)
            for pair in zip(tokens, tokens[1:], strict=False)
        ]
        self._add("distinct_2", [(len(set(pairs)) / len(pairs), len(pairs))] if pairs else [])

    def compute(self) -> dict[str, float]:
        """The means of what was seen; a key whose weight is zero is left out."""
        result = {name: float(self._count(name).compute()) for name in self.counts}
        for metric in [*self.means.values(), *self.weights.values()]:
            if not cast(MeanMetric, metric).update_called:  # which torchmetrics would warn of
                metric.update(0.0, 0.0) if isinstance(metric, MeanMetric) else cast(SumMetric, metric).update(
                    0.0
                )
        for name in self.means:  # every rank computes every one, also where it has seen nothing itself
            value, weight = float(self._mean(name).compute()), float(self._weight(name).compute())
            if weight > 0:
                result[name] = value
        return result

    def _mean(self, name: str) -> MeanMetric:
        return cast(MeanMetric, self.means[name])

    def _weight(self, name: str) -> SumMetric:
        return cast(SumMetric, self.weights[name])

    def _count(self, name: str) -> SumMetric:
        return cast(SumMetric, self.counts[name])

    def _add(self, name: str, pairs: Sequence[tuple[float, float]]) -> None:
        """Values and their weights, at once: metrics take their time over each call."""
        if pairs:
            values, weights = torch.tensor(pairs, dtype=torch.float32).unbind(1)
            self._mean(name).update(values, weights)
            self._weight(name).update(weights)


def _group_stds(outcomes: Sequence[Outcome]) -> Iterator[float]:
    """Of the returns of each group of several."""
    groups: dict[int, list[float]] = {}
    for each in outcomes:
        groups.setdefault(each.group, []).append(each.total_reward)
    for returns in groups.values():
        if len(returns) > 1:
            mean = math.fsum(returns) / len(returns)
            yield math.sqrt(math.fsum((r - mean) ** 2 for r in returns) / (len(returns) - 1))


def evaluation_row(
    split: str, metrics: Mapping[str, EpisodeMetrics], levels: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """``{split}/success`` and the like, means over games; with several games each also has its own entries.

    ``{split}/broken_markers`` is the sum over games, and is there where a marker was broken up.

    Args:
        split: prefix of the names.
        metrics: of each game.
        levels: chance and oracle success of each game where they are known, for ``normalised``; its mean is over these.
    """
    results = {name: metric.compute() for name, metric in metrics.items()}
    for name, result in results.items():
        if name in levels and "success" in result:  # where every episode failed, nothing is known
            chance, oracle = levels[name]
            result["normalised"] = (result["success"] - chance) / max(oracle - chance, 1e-9)
    row: dict[str, float] = {}
    for key in EVALUATED:
        values = {name: result[key] for name, result in results.items() if key in result}
        if values:
            row[f"{split}/{key}"] = sum(values.values()) / len(values)
            if len(values) > 1:
                row |= {f"{split}/{name}/{key}": value for name, value in values.items()}
    if broken := sum(result.get("broken_markers", 0.0) for result in results.values()):
        row[f"{split}/broken_markers"] = broken
    return row
