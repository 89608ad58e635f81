"""The update that an objective makes of a batch, with its mean and variance.

The objective's own `prepare`, `count` and `loss` make the update, with the row selection of a run's update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lit_agentrl.certificates.exact import (
    Table,
    compute_entropies,
    compute_jacobian,
    compute_log_probs,
    compute_reference_kls,
    make_table,
)
from lit_agentrl.certificates.games import TableGame
from lit_agentrl.certificates.groups import MOST_BATCHES, SAMPLES, Batch, Batches, list_batches
from lit_agentrl.certificates.rows import PATH, RowMaker, Tensors
from lit_agentrl.rl.objective import LOGPS, REF_KL, Objective
from lit_agentrl.update.minibatches import prepare_rows

_OUTPUTS = dict(
    zip((*LOGPS, REF_KL), (compute_log_probs, compute_entropies, compute_reference_kls), strict=True)
)


@contextmanager
def use_float64() -> Iterator[None]:
    """Make float64 torch's default dtype, in which objectives count tokens."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)


def compute_loss_gradients(objective: Objective, tensors: Tensors) -> tuple[Tensors, Tensors] | None:
    """Return the rows that an objective trains on, and the gradients of its loss.

    Args:
        objective: an objective that reads log-probs.
        tensors: all columns of a minibatch, with the outputs of the policy.

    Returns:
        None if no row is left.
    """
    scores = {name: tensors[name] for name in _OUTPUTS if name in tensors}
    rows, _ = prepare_rows(objective, {name: t for name, t in tensors.items() if name not in scores}
                           | {f"now_{name}": t for name, t in scores.items()}, at_least=1)  # fmt: skip
    if rows is None:
        return None
    rows |= objective.count(rows)
    leaves = {name: rows.pop(f"now_{name}").detach().clone().requires_grad_() for name in scores}
    with torch.enable_grad():
        loss, _ = objective.loss(rows | leaves)
        leaf_gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    gradients = {
        name: torch.zeros_like(leaf) if each is None else each
        for (name, leaf), each in zip(leaves.items(), leaf_gradients, strict=True)
    }
    return rows, gradients


@dataclass(frozen=True)
class Moments:
    """Expectation of the update and the trace of its covariance.

    Attributes:
        mean: expected update, (L,).
        variance: trace of the covariance.
        half_width: half of the 95 % interval of the mean's length, 0 where all batches were listed.
    """

    mean: Tensor
    variance: float
    half_width: float


class Estimator:
    """An objective in a game, with methods that compute its update of a batch.

    Args:
        objective: the objective of a run.
        game: the game in which it is trained.
    """

    def __init__(self, objective: Objective, game: TableGame) -> None:
        self.objective = objective
        self.table: Table = make_table(game)
        self._rows = RowMaker(self.table)
        table = self.table
        outputs = {
            name: compute for name, compute in _OUTPUTS.items() if name in LOGPS or objective.needs(name)
        }
        self._current_values = {
            name: self._rows.place(compute(table, table.theta)) for name, compute in outputs.items()
        }
        self._jacobians = {
            name: self._rows.place(compute_jacobian(partial(compute, table), table.theta))
            for name, compute in outputs.items()
        }

    def compute_update(self, batch: Batch) -> Tensor:
        """Return the negative gradient of the loss of a batch by the logits, (L,)."""
        tensors = self._rows.make(batch)
        tensors |= {name: value_MT[tensors[PATH]] for name, value_MT in self._current_values.items()}
        if self.objective.needs("sampler_logp_BT"):  # a run then recomputes old log-probs before the update
            tensors["old_logp_BT"] = tensors["logp_BT"]
        rows_and_gradients = compute_loss_gradients(self.objective, tensors)
        update = torch.zeros_like(self.table.theta)
        if rows_and_gradients is None:
            return update
        rows, gradients = rows_and_gradients
        for name, gradient_BT in gradients.items():
            update -= torch.einsum("bt,btl->l", gradient_BT.double(), self._jacobians[name][rows[PATH]])
        return update

    def compute_updates(self, batches: Batches) -> Tensor:
        """Return the update of each batch, (batches, L)."""
        with use_float64():
            return torch.stack([self.compute_update(batch) for batch in batches.batches])

    def compute_moments(self, members: int, *, is_ordered: bool = False, most: int = MOST_BATCHES) -> Moments:
        """Return mean and variance of the update over all batches, or a sample."""
        batches = list_batches(self.table, members, is_ordered=is_ordered, most=most)
        return summarise(self.compute_updates(batches), batches)

    def is_ordered(self, members: int) -> bool:
        """Return whether the update depends on the order of the members of a group."""
        batches = list_batches(self.table, members).batches
        mixed = [batch for batch in batches if any(len(set(group)) > 1 for group in batch)][:4]
        with use_float64():
            for batch in mixed:
                rotated = tuple((*group[1:], group[0]) for group in batch)
                gap = self.compute_update(batch) - self.compute_update(rotated)
                if float(gap.abs().max()) > 1e-9:
                    return True
        return False


def summarise(updates: Tensor, batches: Batches) -> Moments:
    """Return the moments of updates with their weights."""
    weights = batches.weights
    mean = weights @ updates
    variance = float(weights @ (updates - mean).square().sum(1))
    half_width = 0.0 if batches.is_exact else 1.96 * math.sqrt(max(variance, 0.0) / SAMPLES)
    return Moments(mean, variance, half_width)
