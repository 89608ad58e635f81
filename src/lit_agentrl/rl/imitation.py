"""An objective of sampled rows combined with imitation of recorded rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require_number
from lit_agentrl.rl.objective import Objective, Requirements, Tensors, Term, token_mean_metric

_RECORDED = 4  # `Source.RECORDED`; rl/ imports no batch types


@dataclass(frozen=True, kw_only=True)
class Imitating(Objective):
    """A policy loss with an imitation term on recorded rows: PPO-ptx, arXiv 2203.02155.

    ``L(sampled rows) - coef * mean of log p over the tokens of recorded rows``.  A row is recorded if its ``source_B``
    is ``Source.RECORDED``.  ``played_objective`` sees recorded rows without sampled tokens and without returns, so they
    affect none of its statistics.  Gradient flows through ``logp_BT`` of both kinds of rows.

    Attributes:
        played_objective: objective of the sampled rows, which reads log-probs.
        coef: weight of the mean NLL (nats) of recorded tokens, > 0; a minibatch without recorded tokens has no NLL
            term.

    Raises:
        ValueError: the coefficient is not positive.
    """

    played_objective: Objective
    coef: float

    def __post_init__(self) -> None:
        """Check the coefficient."""
        require_number("coef", self.coef, "finite and > 0", lambda value: 0 < value < math.inf)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the objective of sampled rows."""
        return self.played_objective.name

    @property
    def unit(self) -> str | None:  # type: ignore[override]
        """Unit of the objective of sampled rows."""
        return self.played_objective.unit

    @property
    def requirements(self) -> Requirements:
        return self.played_objective.requirements

    def needs(self, tensor: str) -> bool:
        """Return True for ``source_B`` and the tensors of ``played_objective``."""
        return tensor == "source_B" or self.played_objective.needs(tensor)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        self.played_objective.try_out(rows)

    def ratio_bounds(self, rows: Mapping[str, Tensor]) -> tuple[str, ...]:
        return self.played_objective.ratio_bounds(rows)

    def terms(self) -> Sequence[Term]:
        return self.played_objective.terms()

    def prepare(self, tensors: Tensors) -> Tensors:
        """Prepare the sampled rows by ``played_objective``; recorded rows get zeros."""
        played_B = ~_is_recorded(tensors)
        columns = self.played_objective.prepare({name: tensor[played_B] for name, tensor in tensors.items()})
        for name, column in columns.items():
            if column.dim():
                padded = column.new_zeros((len(played_B), *column.shape[1:]))
                padded[played_B] = column
                columns[name] = padded
        if "keep_B" in columns:
            columns["keep_B"] |= ~played_B
        return columns

    def count(self, tensors: Tensors) -> Tensors:
        """Return the counts of ``played_objective``, and the number of recorded tokens."""
        num_tokens = (tensors["is_action_BT"] & _is_recorded(tensors)[:, None]).sum()
        return self.played_objective.count(self.measured(tensors)) | {"num_imitated": num_tokens}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return the loss of ``played_objective`` plus the weighted NLL, and metrics."""
        loss, metrics = self.played_objective.loss(self.measured(tensors))
        is_imitated_BT = tensors["is_action_BT"] & _is_recorded(tensors)[:, None]
        nll_BT = torch.where(is_imitated_BT, -tensors["logp_BT"], 0.0)
        weighted_nll = self.coef * nll_BT.sum() / tensors["num_imitated"].clamp(min=1)
        return loss + weighted_nll, metrics | {"imitation_nll": token_mean_metric(nll_BT, is_imitated_BT)}

    def value_loss(self, tensors: Tensors) -> tuple[Tensor, Tensors] | None:
        return self.played_objective.value_loss(self.measured(tensors))

    def measured(self, tensors: Tensors) -> Tensors:
        """Return all rows; the recorded ones lose their sampled tokens and returns."""
        is_recorded_B = _is_recorded(tensors)
        masked = {"return_B": tensors["return_B"].masked_fill(is_recorded_B, math.nan)}
        for mask in ("is_action_BT", "is_turn_end_BT"):
            if mask in tensors:
                masked[mask] = tensors[mask] & ~is_recorded_B[:, None]
        return tensors | masked


def _is_recorded(tensors: Mapping[str, Tensor]) -> Tensor:
    return tensors["source_B"] == _RECORDED
