"""DPO between the best and the worst episode of each prompt: an objective of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lit_agentrl.rl.objective import Objective, Requirements, Tensors


@dataclass(frozen=True, kw_only=True)
class BestWorst(Objective):
    """``mean over pairs of -log sigmoid(beta * (S_best - S_worst))``, arXiv 2305.18290, equation 7.

    ``S_i`` is the sum over an episode's sampled tokens of ``logp - ref_logp`` (nats).  A group whose returns are all
    equal has no pair.
    """

    unit: ClassVar[str | None] = "group_B"  # both episodes of a pair in the same micro-batch
    name: str
    beta: float = 0.1

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ValueError(f"beta={self.beta} must be > 0")

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2)

    def needs(self, tensor: str) -> bool:
        return tensor == "ref_logp_BT"

    def count(self, tensors: Tensors) -> Tensors:
        return {"num_pairs": torch.tensor(len(_pairs(tensors)), device=tensors["group_B"].device)}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        gap_BT = tensors["logp_BT"] - tensors["ref_logp_BT"]
        total = gap_BT.sum() * 0  # of a micro-batch without pairs
        right, pairs = 0, _pairs(tensors)
        for best, worst in pairs:
            score = [gap_BT[rows][tensors["is_action_BT"][rows]].sum() for rows in (best, worst)]
            total = total - logsigmoid(self.beta * (score[0] - score[1]))
            right += int(score[0] > score[1])
        return total / tensors["num_pairs"].clamp(min=1), {
            "pair_right": gap_BT.new_tensor([right, len(pairs)])
        }


def _pairs(tensors: Tensors) -> list[tuple[Tensor, Tensor]]:
    """The rows of the best and of the worst episode of each group; failed ones, whose return is NaN, are left out."""
    group_B, return_B, trajectory_B = (tensors[name] for name in ("group_B", "return_B", "trajectory_B"))
    found = []
    for group in group_B[~return_B.isnan()].unique():
        rows = ((group_B == group) & ~return_B.isnan()).nonzero().squeeze(1)
        best, worst = rows[return_B[rows].argmax()], rows[return_B[rows].argmin()]
        if return_B[best] > return_B[worst]:
            found.append((trajectory_B == trajectory_B[best], trajectory_B == trajectory_B[worst]))
    return found
