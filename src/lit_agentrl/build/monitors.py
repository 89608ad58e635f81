"""Check the metric names that callbacks monitor against those that a run measures.

`docs/metrics.md` lists the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from lit_agentrl.build.games import Games, has_world
from lit_agentrl.callbacks.checkpoints import AUTO, choose_mode
from lit_agentrl.config.errors import find_nearest, suggest
from lit_agentrl.report.episodes import EVALUATION_KEYS
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rl.objective import SCORES, Objective
from lit_agentrl.rollout.structures.base import Structure

_LOGGED = ("val/success",)  # the metrics that Lightning's own callbacks can see
_SHIPPED_PREFIXES = ("lit_agentrl.", "lightning.")
# metrics that no part of the run lists itself
_ITERATION_METRICS = {
    "rollout": (
        "success", "return_mean", "return_std_within_group", "dead_group_share", "turns", "actions", "reply_tokens",
        "invalid_share", "surplus_actions", "truncated_share", "entropy", "distinct_2", "waves", "greedy_return",
        "branches", "taken_over_share", "cost", "episodes", "failed", "broken_markers", "lost_characters",
        "action_tokens", "prefilled_tokens", "cut_share", "distinct_answers", "context_cost", "count_*",
    ),
    "train": (
        "loss", "grad_norm", "lr", "kept_group_share", "staleness", "logp_gap", "logp_gap_max", "padding_share",
        "shared_token_share", "kept_row_share", "kept_token_share", "kl_coef", "entropy_coef", "skipped_steps",
        "steps", "stop_kl_max", "router_loss", "routing_flips", "pairless_share", "cost", "cost_multiplier",
        "advantage_skewness",
    ),
    "data": (
        "pass", "episodes", "turns", "return_mean", "success", "action_tokens", "dropped_share", "truncated_share",
    ),
    "gradients": ("*",),
    "val": ("episodes", "broken_markers", "lost_characters", "start_kl", "count_*"),
    "engine": ("*",),
    "collapse": (
        "entropy_think", "entropy_answer", "distinct_within", "similarity_within", "similarity_across",
        "template_share", "uniformity", "alarms", "rollbacks",
        "filter_ratio",
    ),
    "worker": ("shares", "attempts", "restarts"),
    "time": ("rollout", "update", "validate", "env", "ahead"),
    "speed": ("action_tokens_per_s", "episodes_per_s", "prefill_reuse", "shared_prefill"),
}  # fmt: skip
PAIR_METRICS = (
    "success", "margin", "shorter_wins", "calibration_error", "pairs", "equal_length_pairs", "equal_length_success",
    "equal_length_shorter_wins", "score_mean", "score_std", "step_brier", "step_brier_of_turn", "sign_accuracy",
    "costly_share",
)  # fmt: skip
_CRITIC_METRICS = (
    "loss", "grad_norm", "value", "clip_share", "explained_variance", "cost_explained_variance", "ranking",
    "ranked_rightly",
)  # fmt: skip


_BEST = "lit_agentrl.callbacks.checkpoints.BestCheckpoint"


def choose_monitors(callbacks: DictConfig | None, *, judged_by: str) -> None:
    """Replace ``auto`` in the callbacks that save the best checkpoint, in place.

    Args:
        callbacks: the entries by name.
        judged_by: the metric that judges the run.
    """
    for entry in (callbacks or {}).values():
        if not isinstance(entry, DictConfig) or entry.get("_target_") != _BEST:
            continue
        if entry.get("monitor") == AUTO:
            entry.monitor = judged_by
        if entry.get("mode") == AUTO:
            entry.mode = choose_mode(str(entry.get("monitor")))


def find_judging_metric(cfg: DictConfig, algorithm: Objective) -> str:
    """Return the metric that judges a run: without a world, the held-out loss."""
    is_judged_by_loss = not has_world(cfg) and algorithm.reads != SCORES
    return "val/data_loss" if is_judged_by_loss else "val/success"


def check_monitors(callbacks: DictConfig | None, metrics: Sequence[str], *, has_world: bool = True) -> None:
    """Refuse a callback whose ``monitor``, or whose rule's ``signal``, is not measured.

    Nothing is refused if there is a user's own callback, which may add any metric.

    Args:
        callbacks: the entries by name.
        metrics: the names of the run's metrics; one that ends in ``*`` is a prefix.
        has_world: whether the run has a world.  Without one, rules on the scores of a world are accepted and stay idle.

    Raises:
        ValueError: a metric is not measured; the message names the option and similar metrics.
    """
    entries = {
        str(name): entry
        for name, entry in (callbacks or {}).items()
        if isinstance(entry, DictConfig) and "_target_" in entry
    }
    if any(not str(entry._target_).startswith(_SHIPPED_PREFIXES) for entry in entries.values()):
        return
    for name, entry in entries.items():
        names = _LOGGED if str(entry._target_).startswith("lightning.") else metrics
        for key, metric in _list_monitored(entry):
            if any(_is_matched(metric, known) for known in names):
                continue
            if not has_world and key.startswith("rules.") and metric.removeprefix("val/") in EVALUATION_KEYS:
                continue
            group = metric.partition("/")[0] + "/"
            valid = [known for known in names if known.startswith(group)]
            valid = valid or [known for known in names if known.startswith("val/")]
            hint = suggest(find_nearest(metric, names)) or f"valid: {', '.join(valid)}"
            raise ValueError(f"callbacks.{name}.{key}={metric} is not measured; {hint}")


def _list_monitored(entry: DictConfig) -> list[tuple[str, str]]:
    """Return pairs of key and metric for each metric that a callback monitors."""
    metrics: list[tuple[str, object]] = [("monitor", entry.get("monitor"))]
    rules = entry.get("rules")
    if isinstance(rules, DictConfig):
        metrics += [(f"rules.{str(name)}.signal", rule.get("signal")) for name, rule in rules.items() if rule]
    return [(key, metric) for key, metric in metrics if isinstance(metric, str)]


def _is_matched(monitor: str, known: str) -> bool:
    return monitor.startswith(known[:-1]) if known.endswith("*") else monitor == known


def list_metrics(
    games: Games,
    rewards: RewardPipeline,
    algorithm: Objective,
    structure: Structure,
    loss_metrics: Sequence[str],
    *,
    has_critic: bool,
) -> list[str]:
    """Return the names of a run's metrics; one that ends in ``*`` is a prefix.

    Args:
        games: the games that are played.
        rewards: the reward parts.
        algorithm: the objective with its adaptive coefficients.
        structure: the structure with its curves.
        loss_metrics: names of the metrics that the loss returns.
        has_critic: whether there is a critic.
    """
    names = [
        *_list_validation_metrics(games),
        *(f"{group}/{name}" for group, metrics in _ITERATION_METRICS.items() for name in metrics),
    ]
    if len(games.weights) > 1:
        names += [f"rollout/{task.name}/success" for task in games.tasks[: len(games.weights)]]
    names += [f"train/{name}" for name in (*loss_metrics, *(term.measure for term in algorithm.terms()))]
    if algorithm.reads == SCORES:
        names += [f"val/{name}" for name in PAIR_METRICS]
        head_metrics = [f"train/{name}" for name in (*loss_metrics, "pairless_share", "good_share")]
        head_metrics += [f"val/{name}" for name in PAIR_METRICS]
        names += [name.replace("/", f"/head_{head}_") for head in algorithm.heads for name in head_metrics]
    names += [f"critic/{name}" for name in _CRITIC_METRICS] if has_critic else []
    names += [f"reward/{part}{end}" for part in rewards.parts for end in ("", "_*")]
    names += ["reward/total"] if rewards.parts else []
    names += [f"structure/{name}" for name in structure.curves]
    return list(dict.fromkeys(names))


def _list_validation_metrics(games: Games) -> list[str]:
    """Return the names of the metrics of a validation."""
    levels = games.get_levels("val")
    keys_by_game = {
        name: EVALUATION_KEYS
        if None not in (level.chance_success, level.oracle_success)
        else _exclude_normalised()
        for name, level in levels.items()
    }
    names = dict.fromkeys(f"val/{key}" for keys in keys_by_game.values() for key in keys)
    if len(keys_by_game) > 1:
        names |= dict.fromkeys(f"val/{name}/{key}" for name, keys in keys_by_game.items() for key in keys)
    return list(names)


def _exclude_normalised() -> tuple[str, ...]:
    return tuple(key for key in EVALUATION_KEYS if key != "normalised")
