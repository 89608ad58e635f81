"""Process reward models: every turn has a label, and its score is the logit of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from lit_agentrl.checks import require
from lit_agentrl.rl.binding import bind, tensor_names, try_out
from lit_agentrl.rl.masked import check_shapes
from lit_agentrl.rl.objective import SCORES, Objective, Requirements, Tensors
from lit_agentrl.rl.reward_losses import UNITS, is_end, shared
from lit_agentrl.rl.units import trajectory_units


@dataclass(frozen=True, kw_only=True)
class LabelledSteps(Objective):
    """``mean over turns of the binary cross-entropy of r_k and the label``: a process reward model.

    ``r_k``, the score after turn k, is the logit of P(label | the episode up to turn k).  With the outcome of the
    episode as label of each of its turns it learns how likely success is from there on, by whoever was recorded.

    Attributes:
        name: for messages.
        label: returns (B,), True where the trajectory came to something; see ``unpaired.py``.
        last: the last turn of each trajectory alone: an outcome reward model.
    """

    unit: ClassVar[str | None] = "trajectory_B"
    reads: ClassVar[tuple[str, ...]] = SCORES
    is_chance: ClassVar[bool] = True
    name: str
    label: Callable[..., Tensor]
    last: bool = False

    def __post_init__(self) -> None:
        """Checks the switch."""
        require(isinstance(self.last, bool), "last", self.last, "true or false")

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2 if "group_B" in tensor_names(self.label) else 1)

    def needs(self, tensor: str) -> bool:
        """What the label takes, and what tells where turns end."""
        return tensor in (*UNITS, "is_turn_end_BT", *tensor_names(self.label))

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Runs the label once."""
        try_out("label", self.label, Tensor, rows, "B")

    def prepare(self, tensors: Tensors) -> Tensors:
        """Labels, and the tokens that are scored."""
        is_good_B = bind(self.label, tensors)
        check_shapes(is_good_B=is_good_B, return_B=tensors["return_B"])
        is_end_BT = (
            tensors["is_turn_end_BT"] & tensors["is_action_BT"] & ~tensors["return_B"].isnan()[:, None]
        )
        if self.last:
            is_end_BT = is_end_BT & is_end(bind(trajectory_units, tensors), tensors["is_action_BT"])
        return {
            "is_scored_BT": is_end_BT,
            "is_good_B": is_good_B,
            "good_share": (is_good_B[:, None] & is_end_BT).sum() / is_end_BT.sum().clamp(min=1),
        }

    def count(self, tensors: Tensors) -> Tensors:
        """Turns that are scored."""
        return {"num_compared": (tensors["is_scored_BT"] & tensors["is_action_BT"]).sum()}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """The share of these turns."""
        is_scored_BT = tensors["is_scored_BT"] & tensors["is_action_BT"]
        score_A = tensors["score_BT"][is_scored_BT].double()
        good_A = tensors["is_good_B"][:, None].expand_as(is_scored_BT)[is_scored_BT].double()
        loss = binary_cross_entropy_with_logits(score_A, good_A, reduction="sum")
        with torch.no_grad():
            chance_A, count = score_A.sigmoid(), score_A.new_tensor(float(len(score_A)))
            metrics = {
                "step_accuracy": torch.stack([((score_A > 0) == (good_A > 0)).double().sum(), count]),
                "step_chance": torch.stack([chance_A.sum(), count]),
                "step_brier": torch.stack([(chance_A - good_A).square().sum(), count]),
            }
        return shared(loss, tensors), metrics


def step_metrics(steps: Mapping[str, Tensor]) -> dict[str, float]:
    """Squared error of ``sigmoid(score)`` at turn ends, beside that of the best number for each number of turns.

    A model that is no better than the second has learnt what turn it is, and nothing else.

    Args:
        steps: ``score``, ``turn`` and ``good`` (1 or 0) of each scored token, (A,).
    """
    good_A = steps["good"].double()
    if not len(good_A):
        return {}
    _, turn_A = torch.unique(steps["turn"], return_inverse=True)
    count_K = torch.bincount(turn_A).double()
    mean_K = good_A.new_zeros(len(count_K)).index_add_(0, turn_A, good_A) / count_K
    return {
        "step_brier": float((steps["score"].sigmoid() - good_A).square().mean()),
        "step_brier_of_turn": float((mean_K[turn_A] - good_A).square().mean()),
    }
