"""Recorded rows beside those that are played: an objective of the played ones, and imitation of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.checks import require_number
from lit_agentrl.rl.objective import Objective, Requirements, Tensors, Term, token_mean_metric

_RECORDED = 4  # `Source.RECORDED`; this room knows tensors alone


@dataclass(frozen=True, kw_only=True)
class Imitating(Objective):
    """``L(played rows) - coef * mean of log p over the sampled tokens of recorded rows``: PPO-ptx, arXiv 2203.02155.

    A row is recorded where its ``source_B`` is ``Source.RECORDED``.  To ``of_played`` it is a row that is there only to
    take part: nothing that it measures, compares or learns sees one.  Gradient flows through ``logp_BT`` of both.

    Attributes:
        of_played: the objective of the others; a loss by log-probs.
        coef: of the mean NLL (nats) of recorded tokens, > 0.  A minibatch without one has no such term.

    Raises:
        ValueError: a coefficient that is not positive.
    """

    of_played: Objective
    coef: float

    def __post_init__(self) -> None:
        """Checks the coefficient."""
        require_number("coef", self.coef, "finite and > 0", lambda value: 0 < value < math.inf)

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of the objective of played rows."""
        return self.of_played.name

    @property
    def unit(self) -> str | None:  # type: ignore[override]
        """That of the objective of played rows."""
        return self.of_played.unit

    @property
    def requirements(self) -> Requirements:
        return self.of_played.requirements

    def needs(self, tensor: str) -> bool:
        """What says which rows are recorded, and what ``of_played`` takes."""
        return tensor == "source_B" or self.of_played.needs(tensor)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        self.of_played.try_out(rows)

    def ratio_bounds(self, rows: Mapping[str, Tensor]) -> tuple[str, ...]:
        return self.of_played.ratio_bounds(rows)

    def terms(self) -> Sequence[Term]:
        return self.of_played.terms()

    def prepare(self, tensors: Tensors) -> Tensors:
        """What ``of_played`` makes of the played rows alone; recorded rows are kept, with zeros in its columns."""
        played_B = ~_is_recorded(tensors)
        found = self.of_played.prepare({name: tensor[played_B] for name, tensor in tensors.items()})
        for name, made in found.items():
            if made.dim():
                whole = made.new_zeros((len(played_B), *made.shape[1:]))
                whole[played_B] = made
                found[name] = whole
        if "keep_B" in found:
            found["keep_B"] |= ~played_B
        return found

    def count(self, tensors: Tensors) -> Tensors:
        """What ``of_played`` counts, and the recorded tokens."""
        number = (tensors["is_action_BT"] & _is_recorded(tensors)[:, None]).sum()
        return self.of_played.count(self.measured(tensors)) | {"num_imitated": number}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """The share of ``of_played``, and that of the mean NLL."""
        loss, metrics = self.of_played.loss(self.measured(tensors))
        is_imitated_BT = tensors["is_action_BT"] & _is_recorded(tensors)[:, None]
        nll_BT = torch.where(is_imitated_BT, -tensors["logp_BT"], 0.0)
        share = self.coef * nll_BT.sum() / tensors["num_imitated"].clamp(min=1)
        return loss + share, metrics | {"imitation_nll": token_mean_metric(nll_BT, is_imitated_BT)}

    def value_loss(self, tensors: Tensors) -> tuple[Tensor, Tensors] | None:
        return self.of_played.value_loss(self.measured(tensors))

    def measured(self, tensors: Tensors) -> Tensors:
        """The rows with the recorded ones without a sampled token and without a return."""
        is_recorded_B = _is_recorded(tensors)
        found = {"return_B": tensors["return_B"].masked_fill(is_recorded_B, math.nan)}
        for mask in ("is_action_BT", "is_turn_end_BT"):
            if mask in tensors:
                found[mask] = tensors[mask] & ~is_recorded_B[:, None]
        return tensors | found


def _is_recorded(tensors: Mapping[str, Tensor]) -> Tensor:
    return tensors["source_B"] == _RECORDED
