"""Process reward models: the score of a turn is the logit of its label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from lit_agentrl.checks import require
from lit_agentrl.rl.binding import bind, tensor_names, try_out
from lit_agentrl.rl.masked import segment_sum
from lit_agentrl.rl.objective import SCORES, Objective, Requirements, ScoreKind, Tensors
from lit_agentrl.rl.preference.reward_losses import UNITS, is_end, shared
from lit_agentrl.rl.preference.units import trajectory_units

_ROUNDING = 1e-4  # tolerance for labels that are sums of recorded differences


def so_far(*, reward_BT: Tensor, trajectory_B: Tensor, first_turn_B: Tensor) -> Tensor:
    """Sum of the trajectory's rewards up to each token, (B, T), in reward units.

    With ``data=stepwise`` the sum at the end of a turn is the turn's label, which must be in [0, 1].  The rows of a
    trajectory are ordered by ``first_turn_B``, (B,).
    """
    is_before_BB = (trajectory_B[:, None] == trajectory_B) & (first_turn_B[:, None] > first_turn_B)
    before_B = (is_before_BB * reward_BT.sum(1)).sum(1)
    return before_B[:, None] + reward_BT.cumsum(1)


@dataclass(frozen=True, kw_only=True)
class LabelledSteps(Objective):
    """Loss of a process reward model: mean over turns of binary cross-entropies.

    ``r_k``, the score after turn k, is the logit of P(label | the episode up to turn k).  If the label of each turn is
    the outcome of the episode, the model predicts the probability of success of the recorded policy from that turn on.
    Labels from people and shares of successful continuations are allowed too; every label is in [0, 1].

    Attributes:
        name: name in messages.
        label: returns (B,), True for a good trajectory, see ``unpaired.py``; or (B, T), see `so_far`.
        last: whether to score only the last turn of each trajectory, as an outcome reward model does.
    """

    unit: ClassVar[str | None] = "trajectory_B"
    reads: ClassVar[tuple[str, ...]] = SCORES
    name: str
    label: Callable[..., Tensor]
    last: bool = False

    def __post_init__(self) -> None:
        """Check ``last``."""
        require(isinstance(self.last, bool), "last", self.last, "true or false")

    @property
    def score_kind(self) -> ScoreKind:
        return "logit"

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2 if "group_B" in tensor_names(self.label) else 1)

    def needs(self, tensor: str) -> bool:
        """Return True for tensors that the label reads or that define turns."""
        return tensor in (*UNITS, "is_turn_end_BT", *tensor_names(self.label))

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Run the label once on a toy batch."""
        is_per_token = "reward_BT" in tensor_names(self.label)
        try_out("label", self.label, Tensor, rows, "BT" if is_per_token else "B")

    def prepare(self, tensors: Tensors) -> Tensors:
        """Compute labels, and mark the tokens to score.

        Raises:
            ValueError: a label is not in [0, 1].
        """
        good = bind(self.label, tensors).float()
        good_BT = good if good.dim() > 1 else good[:, None].expand_as(tensors["is_action_BT"]).clone()
        is_end_BT = (
            tensors["is_turn_end_BT"] & tensors["is_action_BT"] & ~tensors["return_B"].isnan()[:, None]
        )
        if self.last:
            is_end_BT = is_end_BT & is_end(bind(trajectory_units, tensors), tensors["is_action_BT"])
        good_A = good_BT[is_end_BT]
        if len(wrong := good_A[(good_A < -_ROUNDING) | (good_A > 1 + _ROUNDING)]):
            raise ValueError(
                f"a turn is labelled {float(wrong[0]):g}, and algo={self.name} takes labels in [0, 1]; "
                "algo/label=above computes them from returns"
            )
        return {
            "is_scored_BT": is_end_BT,
            "good_BT": good_BT.clamp(0, 1),
            "good_share": good_A.sum() / is_end_BT.sum().clamp(min=1),
        }

    def count(self, tensors: Tensors) -> Tensors:
        """Count the turns to score."""
        return {"num_compared": (tensors["is_scored_BT"] & tensors["is_action_BT"]).sum()}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return these turns' share of the loss, and metrics."""
        is_scored_BT = tensors["is_scored_BT"] & tensors["is_action_BT"]
        score_A = tensors["score_BT"][is_scored_BT].double()
        good_A = tensors["good_BT"][is_scored_BT].double()
        loss = binary_cross_entropy_with_logits(score_A, good_A, reduction="sum")
        with torch.no_grad():
            probability_A, count = score_A.sigmoid(), score_A.new_tensor(float(len(score_A)))
            metrics = {
                "step_accuracy": torch.stack([((score_A > 0) == (good_A > 0.5)).double().sum(), count]),
                "step_chance": torch.stack([probability_A.sum(), count]),
                "step_brier": torch.stack([(probability_A - good_A).square().sum(), count]),
            }
        return shared(loss, tensors), metrics


def step_metrics(steps: Mapping[str, Tensor]) -> dict[str, float]:
    """Brier scores of the model and of the best constant per turn number.

    A model whose ``step_brier`` is no lower than ``step_brier_of_turn`` has learnt nothing but the turn number.

    Args:
        steps: ``score`` (nats), ``turn`` and ``good`` (1 or 0) of each scored token, (A,).
    """
    good_A = steps["good"].double()
    if not len(good_A):
        return {}
    _, turn_A = torch.unique(steps["turn"], return_inverse=True)
    count_K = torch.bincount(turn_A).double()
    mean_K = segment_sum(good_A, turn_A, len(count_K)) / count_K
    return {
        "step_brier": float((steps["score"].sigmoid() - good_A).square().mean()),
        "step_brier_of_turn": float((mean_K[turn_A] - good_A).square().mean()),
    }
