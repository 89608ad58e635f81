"""Failures, metrics and evaluation outcomes of an iteration, over all ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from os.path import commonprefix
from typing import Any, NamedTuple

import numpy as np
import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import NotFinite
from lit_agentrl.distributed import (
    gather_objects,
    gather_rows,
    gather_texts,
    get_rank,
    max_over_ranks,
    sum_over_ranks,
)
from lit_agentrl.episode import EndReason, Episode, Outcome
from lit_agentrl.report.episodes import EpisodeMetrics

_TEXTS = ("task_name", "error", "instance_id", "scenario")  # fields of an outcome


def gather_outcomes(episodes: Sequence[Episode]) -> list[Outcome]:
    """Gather the outcomes of one evaluation from all ranks, in single-process order."""
    outcomes = [episode.outcome for episode in episodes]
    names = [field.name for field in fields(Outcome) if field.name not in (*_TEXTS, "counts")]
    rows = [[getattr(outcome, name) for name in names] for outcome in outcomes]
    numbers = torch.tensor([[math.nan if x is None else x for x in row] for row in rows], dtype=torch.float64)
    table, _ = gather_rows({"numbers": numbers.reshape(len(outcomes), len(names))})
    texts = [gather_texts([getattr(outcome, name) for outcome in outcomes]) for name in _TEXTS]
    counts = gather_texts([json.dumps(outcome.counts) for outcome in outcomes])
    gathered = [
        Outcome(
            **_convert_types(dict(zip(names, row, strict=True))),
            **dict(zip(_TEXTS, text_fields, strict=True)),
            counts=json.loads(counts_json),
        )
        for row, counts_json, *text_fields in zip(table["numbers"].tolist(), counts, *texts, strict=True)
    ]
    return sorted(gathered, key=lambda outcome: (outcome.wave, outcome.group, outcome.member))


def _convert_types(numbers: dict[str, float]) -> dict[str, Any]:
    """Convert gathered numbers to the field types of `Outcome`; float64 represents them all exactly."""
    reals: dict[str, Any] = {name: numbers.pop(name) for name in ("total_reward", "entropy", "cost")}
    reals["cost"] = None if math.isnan(reals["cost"]) else reals["cost"]
    integers = {name: int(number) for name, number in numbers.items()}
    return {**reals, **integers, "end": EndReason(integers["end"]), "success": bool(integers["success"])}


def describe_failure(episode: Episode) -> str:
    """Describe a failed episode: game, task seed, turn and error."""
    where = f"turn {len(episode.turns)}" if episode.turns else "reset"
    return f"game {episode.task_name} instance seed {episode.instance_seed}, {where}: {episode.error}"


class _RankReport(NamedTuple):
    """The failures on one rank."""

    rank: int
    num_failed: int
    num_episodes: int
    first_failure: str  # empty if no episode failed
    broken_version: int | None  # oldest weights that gave a log-prob which is not finite


def stop_if_failing(episodes: Sequence[Episode], max_failed_share: float) -> None:
    """Raise on all ranks if too many episodes failed or logits are not finite.

    Raises:
        ValueError: too many episodes failed; the message names the first failure of the first rank that had one.
        NotFinite: the policy sampled from logits that are not finite; the message names the oldest weights that gave
            them.
    """
    failed = [episode for episode in episodes if episode.failed]
    first_failure = describe_failure(failed[0]) if failed else ""
    reports = gather_objects([
        _RankReport(get_rank(), len(failed), len(episodes), first_failure, _find_broken_version(episodes))
    ])  # fmt: skip
    if broken := [report.broken_version for report in reports if report.broken_version is not None]:
        raise NotFinite(
            f"the policy sampled from logits that are not finite, with its weights after {min(broken)} optimizer "
            "steps: lower optim.lr, or choose a temperature nearer to 1", version=min(broken),
        )  # fmt: skip
    num_failed = sum(report.num_failed for report in reports)
    num_episodes = sum(report.num_episodes for report in reports)
    if num_failed > max_failed_share * num_episodes:
        first = next(report for report in reports if report.num_failed)
        where = f"of rank {first.rank}, " if len(reports) > 1 else ""
        raise ValueError(
            f"{num_failed} of {num_episodes} episodes failed, more than rollout.max_failed_share={max_failed_share}; "
            f"the first, {where}{first.first_failure}"
        )


def _find_broken_version(episodes: Sequence[Episode]) -> int | None:
    """Find the oldest weights that gave a log-prob which is not finite, if any."""
    # an engine that returns only text records no version and no log-probs
    turns = [turn for episode in episodes for turn in episode.turns if turn.policy_version >= 0]
    if not turns or np.isfinite(np.concatenate([turn.reply_logps for turn in turns])).all():
        return None
    return min(turn.policy_version for turn in turns if not np.isfinite(turn.reply_logps).all())


def compute_rollout_row(
    batch: StepBatch,
    task_names: Sequence[str],
    *,
    seconds: float,
    device: torch.device,
    playing_seconds: float | None = None,
) -> dict[str, float]:
    """Compute the rollout metrics of an iteration over all ranks.

    The keys are ``rollout/*``, ``speed/*``, ``time/rollout`` and ``time/env``.

    Args:
        batch: this rank's episodes.
        task_names: names of all games, in the order of ``Episode.task``.
        seconds: rollout time of this rank; the slowest rank counts.
        device: device of the collectives.
        playing_seconds: seconds that another process took to play the episodes, if one did; the ``speed/*`` rates then
            use this time.
    """
    metrics = EpisodeMetrics().to(device)
    episodes = batch.own_episodes
    metrics.update([episode.outcome for episode in episodes])
    metrics.update_texts(episodes)
    result = metrics.compute()
    result["return_mean"] = result.pop("return")
    computed = {f"rollout/{name}": value for name, value in result.items()}
    computed |= _compute_success_by_game(episodes, task_names) | _compute_branch_metrics(batch.episodes)
    computed |= _compute_context_cost(batch.episodes)
    played = [*batch.episodes, *batch.greedy_episodes]
    counts = torch.tensor(
        [
            sum(e.num_sampled for e in played),
            sum(e.num_new for e in played),
            sum(e.num_prefilled for e in played),
            sum(e.num_shared for e in played),
            len(played),
            sum(e.total_reward for e in batch.greedy_episodes),
            len(batch.greedy_episodes),
            sum(e.env_seconds for e in played),
        ],
        dtype=torch.float64,
    )
    actions, new, prefilled, shared, num_episodes, greedy, num_greedy, env = sum_over_ranks(counts).tolist()
    if num_greedy:
        computed["rollout/greedy_return"] = greedy / num_greedy
    playing = seconds if playing_seconds is None else playing_seconds
    seconds, playing = max_over_ranks(torch.tensor([seconds, playing], dtype=torch.float64)).tolist()
    return computed | {
        "rollout/action_tokens": actions,
        "rollout/prefilled_tokens": prefilled,
        "time/rollout": seconds,
        "time/env": env,
        "speed/action_tokens_per_s": actions / playing,
        "speed/episodes_per_s": num_episodes / playing,
        "speed/prefill_reuse": new / max(prefilled + shared, 1.0),
        "speed/shared_prefill": shared / max(prefilled + shared, 1.0),
    }


def _compute_branch_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Compute the number of branched episodes, if any, and the share of reused action tokens."""
    counts = [sum(bool(e.branches) for e in episodes), sum(e.num_sampled for e in episodes)]
    counts.append(sum(e.num_action_tokens for e in episodes))
    branches, sampled, tokens = sum_over_ranks(torch.tensor(counts, dtype=torch.float64)).tolist()
    if not branches:
        return {}
    return {"rollout/branches": branches, "rollout/taken_over_share": 1 - sampled / max(tokens, 1.0)}


def _compute_context_cost(episodes: Sequence[Episode]) -> dict[str, float]:
    """Compute the ratio of the tokens in rows to the tokens of messages and replies.

    The result is empty if every episode has one row.  Episodes that branched are left out, since they count their own
    messages only.
    """
    counted = [episode for episode in episodes if not episode.branches and not episode.failed]
    counts = torch.zeros(3, dtype=torch.float64)
    for e in counted:
        has_several_rows = any(turn.starts_row for turn in e.turns[1:])
        conversation = e.num_new + e.num_sampled
        counts += torch.tensor(
            [has_several_rows, count_row_tokens(e) if has_several_rows else conversation, conversation]
        )
    num_split, row_tokens, conversation_tokens = sum_over_ranks(counts).tolist()
    return {"rollout/context_cost": row_tokens / conversation_tokens} if num_split else {}


def count_row_tokens(episode: Episode) -> int:
    """Count the tokens of an episode's rows; a beginning that rows share counts once."""
    rows: list[list[int]] = []
    for turn in episode.turns:
        if turn.starts_row or not rows:
            rows.append([])
        rows[-1] += [*turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist()]
    rows.sort()
    common = (len(commonprefix(pair)) for pair in pairwise(rows))
    return sum(map(len, rows)) - sum(common)


def _compute_success_by_game(episodes: Sequence[Episode], task_names: Sequence[str]) -> dict[str, float]:
    """Compute the success rate of each game, if several were played."""
    counts = torch.zeros(len(task_names), 3, dtype=torch.float64)  # played, not failed, solved
    for e in episodes:
        counts[e.task] += torch.tensor([1.0, float(not e.failed), float(e.success and not e.failed)])
    tally = sum_over_ranks(counts).tolist()
    if sum(played > 0 for played, _, _ in tally) < 2:
        return {}
    return {
        f"rollout/{name}/success": solved / not_failed
        for name, (_, not_failed, solved) in zip(task_names, tally, strict=True)
        if not_failed
    }
