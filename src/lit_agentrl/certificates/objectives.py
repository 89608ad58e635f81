"""Candidates for the objective that an estimator maximises, with exact gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lit_agentrl.certificates.exact import (
    Table,
    compute_gradient,
    compute_mean_return,
    compute_path_log_probs,
    compute_prompt_means,
)

RETURN = "return"


def list_gradients(table: Table, kl_coef: float) -> dict[str, Tensor]:
    """Return the exact gradient of every candidate; the first is the one meant.

    Args:
        table: the game, with the policy at which gradients are taken.
        kl_coef: weight of the KL to the reference in the objective that is meant.
    """
    return_less_kl = {
        "return - KL": lambda x: compute_mean_return(table, x) - kl_coef * _compute_kl(table, x)
    }
    candidates: dict[str, Callable[[Tensor], Tensor]] = {
        **(return_less_kl if kl_coef and table.game.reference else {}),
        RETURN: lambda x: compute_mean_return(table, x),
        "return / std": lambda x: _compute_standardised(table, x),
        "return / tokens": lambda x: _compute_average(table, x, table.length_M),
        "return / turns": lambda x: _compute_average(table, x, _count_turns(table)),
        "wins": lambda x: _compute_wins(table, x),
        "best return": lambda x: _compute_best(table, x),
        "likelihood": lambda x: _compute_likelihood(table, x),
    }
    return {name: compute_gradient(objective, table.theta) for name, objective in candidates.items()}


def _count_turns(table: Table) -> Tensor:
    return torch.tensor([path.tokens[-1].turn + 1 for path in table.paths])


def _compute_kl(table: Table, theta: Tensor) -> Tensor:
    """Return the KL of whole episodes to the reference."""
    log_prob_M = compute_path_log_probs(table, theta)
    gap_M = log_prob_M - compute_path_log_probs(table, table.reference)
    return (log_prob_M.exp() * gap_M).sum() / table.num_prompts


def _compute_standardised(table: Table, theta: Tensor) -> Tensor:
    """Return the mean return over its standard deviation, which carries no gradient."""
    prob_M = compute_path_log_probs(table, theta).exp()
    centred_M = table.return_M - compute_prompt_means(table, table.theta, table.return_M)
    std_M = compute_prompt_means(table, table.theta, centred_M.square()).sqrt()
    return (prob_M * table.return_M / std_M.clamp(min=1e-12)).sum() / table.num_prompts


def _compute_average(table: Table, theta: Tensor, divisor_M: Tensor) -> Tensor:
    """Return the expectation of ``(R - mean) / divisor``; the mean has no gradient."""
    prob_M = compute_path_log_probs(table, theta).exp()
    centred_M = table.return_M - compute_prompt_means(table, table.old, table.return_M)
    return (prob_M * centred_M / divisor_M).sum() / table.num_prompts


def _compute_wins(table: Table, theta: Tensor) -> Tensor:
    """Return the chance to beat the policy that played, a tie counting a half."""
    prob_M = compute_path_log_probs(table, theta).exp()
    old_M = compute_path_log_probs(table, table.old).exp()
    is_equal_MM = table.prompt_M[:, None] == table.prompt_M
    gap_MM = table.return_M[:, None] - table.return_M
    score_MM = is_equal_MM * ((gap_MM > 1e-12).double() + 0.5 * (gap_MM.abs() <= 1e-12))
    return (prob_M[:, None] * score_MM * old_M).sum() / table.num_prompts


def _compute_best(table: Table, theta: Tensor) -> Tensor:
    """Return the chance of the highest return of the prompt."""
    prob_M = compute_path_log_probs(table, theta).exp()
    highest = torch.stack([table.return_M[table.prompt_M == p].max() for p in range(table.num_prompts)])
    return (prob_M * (table.return_M >= highest[table.prompt_M] - 1e-12)).sum() / table.num_prompts


def _compute_likelihood(table: Table, theta: Tensor) -> Tensor:
    """Return the expected log-prob of what was played."""
    old_M = compute_path_log_probs(table, table.old).exp()
    return (old_M * compute_path_log_probs(table, theta)).sum() / table.num_prompts
