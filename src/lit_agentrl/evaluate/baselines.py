"""Baselines of an evaluation (``baselines=true``), and the policy's lead over them.

All of them play the same prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig

from lit_agentrl.batch import StepBatch
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.levels import find_levels, play_agents
from lit_agentrl.episode import Outcome
from lit_agentrl.evaluate.scores import make_record
from lit_agentrl.report.statistics import (
    compute_clustered_share_interval,
    compute_group_means,
    compute_mean_interval,
)
from lit_agentrl.report.summary import Estimate, to_estimate

START = "start"  # the weights before training, with the same sampling
GREEDY = "greedy"  # the evaluated policy at temperature 0
FEW_SHOT = "few-shot"  # the evaluated policy with the same sampling, and solved episodes in its prompt
SHOWN = {  # how tables call a player
    START: "start weights", GREEDY: "same weights, T 0", "random": "random play", "oracle": "best play",
}  # fmt: skip


def make_records(
    cfg: DictConfig,
    task: Task,
    batch: StepBatch,
    played: Mapping[int, tuple[Sequence[Outcome], float | None]],
    *,
    model: str,
    temperature: float,
    others: Mapping[str, Sequence[Outcome] | None],
) -> list[dict[str, Any]]:
    """Compute the records of one game at one temperature, one for each number of shots.

    With ``baselines=true``, the baselines of each record are random and best play; the record without shots also has
    those of ``others`` and the policy after shots.

    Args:
        cfg: the options of ``conf/evaluate.yaml``.
        task: the game and its limits.
        batch: its prompts.
        played: outcomes by number of shots, and the server's count of their tokens, if it has one.
        model: name of what plays.
        temperature: of its replies.
        others: outcomes of other players on the same prompts, by name; None: that player is absent.

    Raises:
        UserError: all episodes of a record failed.
    """
    levels = asdict(find_levels(task, cfg.split))
    shot_numbers = [shots for shots in played if shots]
    few_shot_outcomes = {
        FEW_SHOT if len(shot_numbers) == 1 else f"{FEW_SHOT} {shots}": played[shots][0]
        for shots in shot_numbers
    }
    records = []
    for shots, (outcomes, tokens) in played.items():
        record = make_record(
            cfg, task.name, temperature, outcomes, levels, model=model, shots=shots, tokens=tokens
        )
        if cfg.baselines:
            rivals = {} if shots else {**others, **few_shot_outcomes}
            record["baselines"] = compute_baselines(
                task, cfg.split, batch, outcomes, others=rivals, seed=cfg.seed
            )
        records.append(record)
    return records


def compute_baselines(
    task: Task,
    split: str,
    batch: StepBatch,
    outcomes: Sequence[Outcome],
    *,
    others: Mapping[str, Sequence[Outcome] | None],
    seed: int,
) -> dict[str, Any]:
    """Compute each baseline's success, and the policy's lead over it, paired by prompt.

    Args:
        task: the game and its limits.
        split: the split that was played.
        batch: the prompts of the game.
        outcomes: outcomes of the policy on these prompts.
        others: outcomes of other players on them, by name; None: that player is absent.
        seed: seed of random play.
    """
    results: dict[str, Any] = {}
    for name, other_outcomes in others.items():
        if other_outcomes is not None:
            game_outcomes = [outcome for outcome in other_outcomes if outcome.task_name == task.name]
            results[name] = _estimate_lead(
                _average_by_prompt(game_outcomes), outcomes, [o for o in game_outcomes if not o.failed]
            )
    groups = [int(group) for group in batch.group_P]
    played = play_agents(task, split, [int(instance_seed) for instance_seed in batch.seed_P], seed)
    for agent, scores in played.items():
        by_prompt = {group: success for group, (success, _) in zip(groups, scores, strict=True)}
        results[agent] = _estimate_lead(by_prompt, outcomes)
    return results


def _average_by_prompt(outcomes: Sequence[Outcome]) -> dict[int, float]:
    played = [outcome for outcome in outcomes if not outcome.failed]
    groups = [outcome.group for outcome in played]
    means = compute_group_means([float(outcome.success) for outcome in played], groups)
    return dict(zip(dict.fromkeys(groups), means, strict=True))


def _estimate_lead(
    baseline_means: Mapping[int, float],
    outcomes: Sequence[Outcome],
    episodes: Sequence[Outcome] | None = None,
) -> dict[str, Estimate]:
    policy_means = _average_by_prompt(outcomes)
    both = [group for group in policy_means if group in baseline_means]
    played = [(outcome.success, outcome.group) for outcome in episodes or ()] or [
        (v > 0, g) for g, v in baseline_means.items()
    ]
    success, groups = zip(*played, strict=True)
    return {
        "success": to_estimate(compute_clustered_share_interval(list(success), list(groups))),
        "difference": to_estimate(
            compute_mean_interval([policy_means[group] - baseline_means[group] for group in both])
        ),
    }
