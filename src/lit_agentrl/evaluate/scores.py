"""Scores of an evaluation: one record per game, model, shots and temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import RenderableType

from lit_agentrl import screen
from lit_agentrl.config.errors import UserError
from lit_agentrl.episode import Outcome
from lit_agentrl.report.completion import list_solved_scenarios
from lit_agentrl.report.episodes import GAME_COUNT_PREFIX, WARNING_CUT_SHARE
from lit_agentrl.report.statistics import (
    compute_clustered_mean_interval,
    compute_clustered_share_interval,
    compute_share_interval,
    estimate_pass_at_k,
    normalise,
)
from lit_agentrl.report.summary import Estimate, to_estimate
from lit_agentrl.report.table import Printed


@dataclass(frozen=True, repr=False)
class Scores(Printed):
    """Scores of an evaluation, printed as a table.

    Attributes:
        records: one per game, shots and temperature: success, return and pass@k with 95 % intervals over prompts,
            chance, oracle, normalised success, share of cut replies, tokens of a reply; ``TGC`` and ``SGC`` where tasks
            belong to scenarios, and ``count_{name}`` of what the game counts.
        path: file of the records; None, after a warning, if it could not be written.
        paths: the files of the records, one per model.
        table: the same scores, for people.
        used: a server's usage counts.
    """

    records: list[dict[str, Any]]
    paths: Sequence[Path]
    table: RenderableType
    used: Mapping[str, float] = field(default_factory=dict)

    @property
    def path(self) -> Path | None:
        return self.paths[0] if self.paths else None

    def __rich__(self) -> RenderableType:
        return self.table


def make_record(
    cfg: DictConfig,
    env: str,
    temperature: float,
    outcomes: Sequence[Outcome],
    levels: dict[str, float | None],
    *,
    model: str = "",
    shots: int = 0,
    tokens: float | None = None,
) -> dict[str, Any]:
    """Compute the record of one game at one temperature.

    Args:
        cfg: the options of ``conf/evaluate.yaml``.
        env: name of the game.
        temperature: of the replies.
        outcomes: the episodes.
        levels: chance and oracle.
        model: name of what plays.
        shots: number of solved episodes in the prompt.
        tokens: tokens of all replies by the count of a server; None: those of the outcomes.

    Raises:
        UserError: all episodes failed.
    """
    played = [outcome for outcome in outcomes if not outcome.failed]
    if not played:
        raise UserError(f"every episode of {env} failed; the first: {outcomes[0].error}")
    groups = [e.group for e in played]
    success = compute_clustered_share_interval([e.success for e in played], groups)
    returns = compute_clustered_mean_interval([e.total_reward for e in played], groups)
    replies = sum(e.taken for e in played)
    tokens = sum(e.tokens for e in played) if tokens is None else tokens
    record = {
        "env": env,
        "model": model,
        "split": cfg.split,
        "shots": shots,
        "temperature": temperature,
        "episodes": len(played),
        "failed": len(outcomes) - len(played),
        "success": to_estimate(success),
        "return": to_estimate(returns),
        "normalised": _normalise(success.mean, levels),
        "invalid_share": sum(e.invalid for e in played) / max(replies, 1),
        "cut_share": sum(e.cut for e in played) / max(replies, 1),
        # None if a server counts no tokens
        "reply_tokens": tokens / replies if replies and tokens else None,
        "levels": levels,
        # in the order of prompts, for paired comparisons; null if the episode failed
        "solved": [None if e.failed else e.success for e in outcomes],
    }
    if answers := [(e.distinct / e.answers, e.group) for e in played if e.answers > 1]:
        record["distinct_answers"] = _estimate_mean(answers)
    if any(e.scenario for e in played):
        scenarios = [float(is_solved) for is_solved in list_solved_scenarios(played)]
        record["TGC"] = record["success"]
        record["SGC"] = to_estimate(compute_share_interval(scenarios, len(scenarios))) if scenarios else None
    for name in sorted({name for e in played for name in e.counts}):
        record[f"{GAME_COUNT_PREFIX}{name}"] = _estimate_mean(
            [(e.counts[name], e.group) for e in played if name in e.counts]
        )
    counts: dict[int, list[bool]] = {}
    for episode in played:
        counts.setdefault(episode.group, []).append(episode.success)
    for k in cfg.pass_k:
        # failed episodes may leave a prompt with too few others
        enough = [solved for solved in counts.values() if len(solved) >= k]
        shares = [estimate_pass_at_k(len(solved), sum(solved), k) for solved in enough]
        record[f"pass@{k}"] = (
            to_estimate(compute_share_interval(shares, sum(map(len, enough)))) if shares else None
        )
    return record


def _estimate_mean(values: Sequence[tuple[float, int]]) -> Estimate:
    """Estimate a mean over episodes, each with its prompt."""
    return to_estimate(
        compute_clustered_mean_interval([v for v, _ in values], [group for _, group in values])
    )


def warn_of_cut_replies(records: Sequence[Mapping[str, Any]], limit: int) -> None:
    """Print a line where most replies of a record were cut at their limit."""
    cut = [record for record in records if record["cut_share"] >= WARNING_CUT_SHARE]
    if cut:
        worst = max(cut, key=lambda record: record["cut_share"])
        screen.note(
            f"{worst['cut_share']:.0%} of the replies of {worst['env']} were cut at rollout.max_reply_tokens={limit}, "
            "and a cut reply is rarely valid: raise the limit, or imitate short replies first (algo=sft)"
        )


def _normalise(success: float, levels: dict[str, float | None]) -> float | None:
    """Normalise success: 0 is chance, 1 the oracle.

    Return None if a level is unknown, or chance is not below the oracle.
    """
    chance, oracle = levels["chance_success"], levels["oracle_success"]
    if chance is None or oracle is None or oracle <= chance:
        return None
    return normalise(success, chance, oracle)
