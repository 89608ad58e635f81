"""Scores of an evaluation: one record per game and temperature, and a table of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.table import Table

from lit_agentrl.config.errors import UserError
from lit_agentrl.episode import Outcome
from lit_agentrl.report.statistics import (
    compute_clustered_mean_interval,
    compute_clustered_share_interval,
    compute_share_interval,
    estimate_pass_at_k,
    normalise,
)
from lit_agentrl.report.summary import estimate
from lit_agentrl.report.table import as_text


@dataclass(frozen=True, repr=False)
class Scores:
    """Scores of an evaluation, printed as a table.

    Attributes:
        records: one per game and temperature: success, return and pass@k with 95 % intervals over prompts,
            chance, oracle, normalised success.
        path: file of the records; None, after a warning, if it could not be written.
        table: the same scores, for people.
    """

    records: list[dict[str, Any]]
    path: Path | None
    table: Table

    def __rich__(self) -> Table:
        return self.table

    def __repr__(self) -> str:
        return as_text(self.table)


def make_record(
    cfg: DictConfig,
    env: str,
    temperature: float,
    outcomes: Sequence[Outcome],
    levels: dict[str, float | None],
) -> dict[str, Any]:
    """Compute the record of one game at one temperature.

    Raises:
        UserError: all episodes failed.
    """
    played = [outcome for outcome in outcomes if not outcome.failed]
    if not played:
        raise UserError(f"every episode of {env} failed; the first: {outcomes[0].error}")
    groups = [e.group for e in played]
    success = compute_clustered_share_interval([e.success for e in played], groups)
    returns = compute_clustered_mean_interval([e.total_reward for e in played], groups)
    record = {
        "env": env,
        "split": cfg.split,
        "temperature": temperature,
        "episodes": len(played),
        "failed": len(outcomes) - len(played),
        "success": estimate(success),
        "return": estimate(returns),
        "normalised": _normalise(success.mean, levels),
        "invalid_share": sum(e.invalid for e in played) / max(sum(e.taken for e in played), 1),
        "levels": levels,
        # in the order of prompts, for paired comparisons; null if the episode failed
        "solved": [None if e.failed else e.success for e in outcomes],
    }
    counts: dict[int, list[bool]] = {}
    for episode in played:
        counts.setdefault(episode.group, []).append(episode.success)
    for k in cfg.pass_k:
        # failed episodes may leave too few
        enough = [solved for solved in counts.values() if len(solved) >= k]
        shares = [estimate_pass_at_k(len(solved), sum(solved), k) for solved in enough]
        record[f"pass@{k}"] = (
            estimate(compute_share_interval(shares, sum(map(len, enough)))) if shares else None
        )
    return record


def _normalise(success: float, levels: dict[str, float | None]) -> float | None:
    """Normalise success: 0 is chance, 1 the oracle.

    Return None if a level is unknown, or chance is not below the oracle.
    """
    chance, oracle = levels["chance_success"], levels["oracle_success"]
    if chance is None or oracle is None or oracle <= chance:
        return None
    return normalise(success, chance, oracle)
