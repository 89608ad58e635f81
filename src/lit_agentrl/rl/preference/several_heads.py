"""Reward models with several heads, each trained on its own labels.

Fine-grained reward models, arXiv 2306.01693, have one score for each of several attributes.  A NaN label is missing:
the head does not learn from that trajectory.  Shape suffix ``H``: heads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lit_agentrl.rl.binding import tensor_names
from lit_agentrl.rl.objective import SCORES, Objective, Requirements, ScoreKind, Tensors, add_metrics

LABELS = "label_BH"  # label of each trajectory for each head; NaN if missing


@dataclass(frozen=True, kw_only=True)
class SeveralHeads(Objective):
    """Mean over heads of the loss of one score.

    ``1/H sum over heads of L(scores of the head, labels of the head)``, where L is the loss of ``objective``.  Two
    trajectories can be a pair for one head and a tie, which is not a pair, for another, so each L is divided by the
    count of its head.

    Attributes:
        objective: the objective of each head; it reads the labels of the head as ``return_B``.
        names: names of the heads, in the order of ``label_BH`` and of ``score_BTH``.

    Raises:
        ValueError: ``objective`` trains a cost model, reads a reference answer, or has a label that reads no returns.
    """

    unit: ClassVar[str | None] = "group_B"
    reads: ClassVar[tuple[str, ...]] = SCORES
    objective: Objective
    names: Sequence[str]

    def __post_init__(self) -> None:
        """Check that the objective can be used for several heads."""
        if self.objective.score_kind not in ("score", "logit"):
            raise ValueError(
                f"data.score=[{','.join(self.names)}] makes several heads, and algo={self.objective.name} trains one: "
                "name one score, or set algo=bradley_terry"
            )
        label: Callable[..., Tensor] | None = getattr(self.objective, "label", None)
        if label is not None and "return_B" not in tensor_names(label):
            raise ValueError(
                f"data.score=[{','.join(self.names)}] has a score for each head, and algo/label as it stands reads "
                "none of them: set algo/label=above"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of ``objective``."""
        return self.objective.name

    @property
    def heads(self) -> Sequence[str]:
        return self.names

    @property
    def score_kind(self) -> ScoreKind:
        return self.objective.score_kind

    @property
    def requirements(self) -> Requirements:
        return self.objective.requirements

    def needs(self, tensor: str) -> bool:
        """Return True for the labels and the tensors of ``objective``."""
        return tensor == LABELS or self.objective.needs(tensor)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        self.objective.try_out(rows)

    def prepare(self, tensors: Tensors) -> Tensors:
        """Prepare the columns ``headK_…`` of each head, and its scalars ``head_NAME_…``.

        Rows are kept, and tokens scored, if any head needs them.
        """
        columns: Tensors = {}
        keep_masks: list[Tensor] = []
        scored_masks: list[Tensor] = []
        for head, name in enumerate(self.names):
            head_rows = of_head(tensors, head)
            prepared = self.objective.prepare(head_rows)
            keep_B = prepared.pop("keep_B", torch.ones_like(head_rows["return_B"], dtype=torch.bool))
            # another head may keep rows that this head drops, so mask their returns for this head
            prepared["return_B"] = head_rows["return_B"].masked_fill(~keep_B, math.nan)
            keep_masks.append(keep_B)
            scored_masks.append(prepared["is_scored_BT"])
            for column, value in prepared.items():
                columns[f"head{head}_{column}" if value.dim() else f"head_{name}_{column}"] = value
        return columns | {
            "keep_B": torch.stack(keep_masks).any(0), "is_scored_BT": torch.stack(scored_masks).any(0)
        }  # fmt: skip

    def count(self, tensors: Tensors) -> Tensors:
        """Return the counts of ``objective`` for each head."""
        return {
            f"head{head}_{name}": count
            for head in range(len(self.names))
            for name, count in self.objective.count(of_head(tensors, head)).items()
        }

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return the mean loss of the heads, and metrics of all heads and each head."""
        losses: list[Tensor] = []
        metrics: Tensors = {}
        for head, name in enumerate(self.names):
            head_loss, own_metrics = self.objective.loss(of_head(tensors, head))
            losses.append(head_loss)
            metrics = add_metrics(metrics, own_metrics) | {
                f"head_{name}_{key}": value for key, value in own_metrics.items()
            }
        return torch.stack(losses).mean(), metrics


def of_head(tensors: Mapping[str, Tensor], head: int) -> Tensors:
    """Select the columns of one head, for an objective of one score.

    Args:
        tensors: all columns, with ``label_BH`` and optionally ``score_BTH`` and the columns of `SeveralHeads.prepare`.
        head: index of the head.

    Returns:
        The columns; ``return_B`` is the label of the head, NaN where it is missing or the trajectory is left out, and
        ``score_BT`` is its score, through which gradient flows.
    """
    prefix = f"head{head}_"
    columns = {name: tensor for name, tensor in tensors.items() if not _is_head_column(name)}
    columns |= {
        name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
    }
    # prepared columns have the head's own returns; NaN in the common ones leaves a trajectory out of all heads
    label_B = columns["return_B"] if prefix + "return_B" in tensors else tensors[LABELS][:, head]
    columns["return_B"] = label_B.masked_fill(tensors["return_B"].isnan(), math.nan)
    if "score_BTH" in tensors:
        columns["score_BT"] = tensors["score_BTH"][..., head]
    return columns


def _is_head_column(name: str) -> bool:
    return re.match(r"head\d+_", name) is not None
