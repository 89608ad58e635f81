"""Episode statistics as torchmetrics, weighted by the number of averaged units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn
from torchmetrics import MeanMetric, SumMetric

from lit_agentrl.distributed import gather_objects
from lit_agentrl.episode import EndReason, Episode, Outcome
from lit_agentrl.report.completion import list_solved_scenarios

_PER_EPISODE = ("success", "return", "turns", "actions", "truncated_share", "cost")
_PROMPT_COUNTS = ("broken_markers", "lost_characters")  # counts of what prompts contain
WARNING_CUT_SHARE = 0.9  # a warning is printed if at least this share of replies is cut
_OTHER = (
    *("reply_tokens", "cut_share", "invalid_share", "surplus_actions", "entropy", "distinct_2"),
    "distinct_answers",
)
GAME_COUNT_PREFIX = "count_"
_PER_GROUP = ("return_std_within_group", "dead_group_share")
# keys of an evaluation; ``normalised`` only if chance and oracle success are known
EVALUATION_KEYS = (
    *("success", "return", "normalised", "turns", "cut_share", "invalid_share", "truncated_share"),
    *("failed", "cost", "distinct_answers", "scenario_success"),
)


class EpisodeMetrics(nn.Module):
    """Means over episodes, turns, tokens and groups; failed episodes are only counted.

    Keys: ``success`` and ``truncated_share`` (shares of episodes), ``return`` (environment reward), ``cost`` (if the
    game reports one), ``turns``, ``actions`` (played, per episode), ``reply_tokens`` (per turn), ``cut_share``
    (of turns whose reply reached ``rollout.max_reply_tokens``), ``invalid_share`` (of turns),
    ``surplus_actions`` (per turn, parsed but beyond a budget), ``entropy`` (nats per action token),
    ``distinct_2`` (distinct share of the reply bigrams of one update), ``distinct_answers`` (E / T, E the number of
    distinct answers among those of T valid replies, mean over episodes with T >= 2; UFO, arXiv 2507.14295),
    ``count_{name}`` (sum over an episode of what the game counts under this name, mean over episodes that report it),
    ``scenario_success`` (if not ``is_shared``; see `report.completion`), ``return_std_within_group`` (environment
    reward, ddof 1), ``dead_group_share`` (groups whose returns are all equal), ``episodes``, ``failed``,
    ``broken_markers`` (counts; see `text.marker_guard`) and ``lost_characters`` (count, if not 0).

    Args:
        is_shared: whether each rank holds different episodes, so that results are reduced over ranks.
    """

    def __init__(self, is_shared: bool = True) -> None:
        super().__init__()
        # all ranks need the same order of names: each metric is reduced over ranks in compute()
        names = (*_PER_EPISODE, *_OTHER, *_PER_GROUP)
        self._is_shared = is_shared
        self._game_counts: dict[str, tuple[float, int]] = {}  # by name: sum, and number of episodes
        self._scenario_outcomes: list[Outcome] = []
        self.means = nn.ModuleDict({name: MeanMetric(sync_on_compute=is_shared) for name in names})
        self.weights = nn.ModuleDict({name: SumMetric(sync_on_compute=is_shared) for name in names})
        self.counts = nn.ModuleDict(
            {name: SumMetric(sync_on_compute=is_shared) for name in ("episodes", "failed", *_PROMPT_COUNTS)}
        )

    def update(self, outcomes: Sequence[Outcome]) -> None:
        """Add episodes to all metrics except ``distinct_2``."""
        played = [outcome for outcome in outcomes if not outcome.failed]
        self._get_count("episodes").update(len(played))
        self._get_count("failed").update(len(outcomes) - len(played))
        self._get_count("broken_markers").update(sum(outcome.broken for outcome in outcomes))
        self._get_count("lost_characters").update(sum(outcome.lost for outcome in outcomes))
        for outcome in played:
            values = {
                "success": outcome.success,
                "return": outcome.total_reward,
                "turns": outcome.turns,
                "actions": outcome.actions,
                "truncated_share": outcome.end is EndReason.CONTEXT_LIMIT,
            }
            if outcome.cost is not None:
                values["cost"] = outcome.cost
            for name, value in values.items():
                self._add(name, float(value), 1)
            if outcome.taken:
                self._add("reply_tokens", outcome.tokens / outcome.taken, outcome.taken)
                self._add("cut_share", outcome.cut / outcome.taken, outcome.taken)
                self._add("invalid_share", outcome.invalid / outcome.taken, outcome.taken)
                self._add("surplus_actions", outcome.surplus / outcome.taken, outcome.taken)
                if outcome.answers > 1:
                    self._add("distinct_answers", outcome.distinct / outcome.answers, 1)
                if not math.isnan(outcome.entropy):  # NaN if the engine records no entropy
                    self._add("entropy", outcome.entropy / outcome.tokens, outcome.tokens)
            for name, number in outcome.counts.items():
                total, episodes = self._game_counts.get(name, (0.0, 0))
                self._game_counts[name] = total + number, episodes + 1
        self._scenario_outcomes += [outcome for outcome in played if outcome.scenario and not self._is_shared]
        self._add_groups(played)

    def update_texts(self, episodes: Sequence[Episode]) -> None:
        """Add episodes to ``distinct_2``, which needs the reply tokens."""
        pairs = [
            pair
            for episode in episodes
            if not episode.failed
            for tokens in (turn.reply_tokens.tolist() for turn in episode.turns)
            for pair in zip(tokens, tokens[1:], strict=False)
        ]
        self._add("distinct_2", len(set(pairs)) / max(len(pairs), 1), len(pairs))

    def compute(self) -> dict[str, float]:
        """Return the counts and means by key; a mean of zero weight is left out."""
        result = {name: float(self._get_count(name).compute()) for name in self.counts}
        if not result["lost_characters"]:
            del result["lost_characters"]
        for metric in [*self.means.values(), *self.weights.values()]:
            if not cast(MeanMetric, metric).update_called:  # torchmetrics would warn
                zeros = (0.0, 0.0) if isinstance(metric, MeanMetric) else (0.0,)
                cast(Any, metric).update(*zeros)
        for name in self.means:  # compute() is a collective: every rank must call it, even without episodes
            value, weight = float(self._get_mean(name).compute()), float(self._get_weight(name).compute())
            if weight > 0:
                result[name] = value
        if scenarios := list_solved_scenarios(self._scenario_outcomes):
            result["scenario_success"] = sum(scenarios) / len(scenarios)
        return result | self._compute_game_counts()

    def _compute_game_counts(self) -> dict[str, float]:
        by_rank = gather_objects([self._game_counts]) if self._is_shared else [self._game_counts]
        sums: dict[str, tuple[float, int]] = {}
        for name, (total, episodes) in (entry for counts in by_rank for entry in counts.items()):
            total_before, episodes_before = sums.get(name, (0.0, 0))
            sums[name] = total_before + total, episodes_before + episodes
        return {
            f"{GAME_COUNT_PREFIX}{name}": total / episodes for name, (total, episodes) in sorted(sums.items())
        }

    def _get_mean(self, name: str) -> MeanMetric:
        return cast(MeanMetric, self.means[name])

    def _get_weight(self, name: str) -> SumMetric:
        return cast(SumMetric, self.weights[name])

    def _get_count(self, name: str) -> SumMetric:
        return cast(SumMetric, self.counts[name])

    def _add(self, name: str, value: float, weight: float) -> None:
        if weight > 0:
            self._get_mean(name).update(value, weight)
            self._get_weight(name).update(weight)

    def _add_groups(self, outcomes: Sequence[Outcome]) -> None:
        groups: dict[int, list[float]] = {}
        for outcome in outcomes:
            groups.setdefault(outcome.group, []).append(outcome.total_reward)
        for returns in groups.values():
            if len(returns) > 1:
                mean = math.fsum(returns) / len(returns)
                variance = math.fsum((r - mean) ** 2 for r in returns) / (len(returns) - 1)
                self._add("return_std_within_group", math.sqrt(variance), 1)
                self._add("dead_group_share", float(variance < 1e-12), 1)


def compute_evaluation_row(
    split: str, metrics: Mapping[str, EpisodeMetrics], references: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """Return the metrics row of an evaluation.

    Keys are ``{split}/{key}`` for each key of ``EVALUATION_KEYS`` and each ``count_{name}``, the mean over the games
    that have it.  With several games each game also has its own entries, ``{split}/{game}/{key}``.
    ``{split}/episodes`` (that did not fail), ``{split}/broken_markers`` and ``{split}/lost_characters`` are sums over
    games; the latter two only if not 0.

    Args:
        split: prefix of the keys.
        metrics: episode metrics by game name.
        references: chance and oracle success by game name, where they are known.  ``normalised`` is computed for these
            games, and its mean is over these games.
    """
    results = {name: metric.compute() for name, metric in metrics.items()}
    for name, result in results.items():
        if name in references and "success" in result:  # no success if every episode failed
            chance, oracle = references[name]
            result["normalised"] = (result["success"] - chance) / max(oracle - chance, 1e-9)
    computed: dict[str, float] = {}
    game_counts = sorted(
        {key for result in results.values() for key in result if key.startswith(GAME_COUNT_PREFIX)}
    )
    for key in (*EVALUATION_KEYS, *game_counts):
        values = {name: result[key] for name, result in results.items() if key in result}
        if values:
            computed[f"{split}/{key}"] = sum(values.values()) / len(values)
            if len(values) > 1:
                computed |= {f"{split}/{name}/{key}": value for name, value in values.items()}
    computed[f"{split}/episodes"] = sum(result["episodes"] for result in results.values())
    for name in _PROMPT_COUNTS:
        if count := sum(result.get(name, 0.0) for result in results.values()):
            computed[f"{split}/{name}"] = count
    return computed
