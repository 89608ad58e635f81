"""Ratings of the players of an evaluation against each other (``ratings=true``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig

from lit_agentrl.config.errors import UserError
from lit_agentrl.evaluate.options import as_list, list_shots
from lit_agentrl.report.ratings import compute_ratings


def require_rivals(cfg: DictConfig, compared: Sequence[dict[str, Any]], *, num_models: int = 1) -> None:
    """Refuse ``ratings=true`` where a single player plays.

    Raises:
        UserError: there is only one player; the message names what adds another.
    """
    players = num_models * len(as_list(cfg.temperature)) * len(list_shots(cfg)) + len(compared)
    if cfg.ratings and players < 2:
        raise UserError(
            "ratings=true rates players against each other, and there is only one; add the file of another "
            "evaluation (compare=[FILE]), a temperature or a model"
        )


def add_ratings(records: Sequence[dict[str, Any]]) -> None:
    """Add the Glicko-2 rating of each record among those of its game, in place.

    Each two records play a match on each task: solving the task beats not solving it, and all else is a draw.  The
    interval is r ± 1.96 RD.

    Raises:
        UserError: two records of a game have different numbers of tasks.
    """
    for env in dict.fromkeys(record["env"] for record in records):
        players = [record for record in records if record["env"] == env]
        scores = {str(index): record.get("solved") or [] for index, record in enumerate(players)}
        if len(players) < 2:
            continue
        try:
            rated = compute_ratings(scores)
        except ValueError as error:
            raise UserError(
                f"ratings=true, game {env}: {error}; evaluate all with the same episodes and members"
            ) from error
        for record, rating in zip(players, rated.values(), strict=True):
            half = 1.96 * rating.deviation
            record["rating"] = {
                "mean": rating.rating, "low": rating.rating - half, "high": rating.rating + half,
                "n": len(record["solved"]),
            }  # fmt: skip
