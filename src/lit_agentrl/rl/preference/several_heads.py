"""Several heads on one trunk: each is trained on labels of its own, by an objective of one score.

Fine-grained reward models, arXiv 2306.01693, have a score for each of several attributes.  A label that is NaN is none:
the trajectory has no part in what that head learns.  Shape suffix ``H``: heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lit_agentrl.rl.binding import tensor_names
from lit_agentrl.rl.objective import SCORES, Objective, Requirements, ScoreKind, Tensors, add_metrics

LABELS = "label_BH"  # what each trajectory is worth to each head; NaN: nobody has said


@dataclass(frozen=True, kw_only=True)
class SeveralHeads(Objective):
    """``1/H sum over heads of L(scores of the head, labels of the head)``, L the loss of ``one`` score.

    Each head has an order of its own: two trajectories may be a pair to one head, turned round to another, and a tie,
    so no pair, to a third.  So each L is divided by the head's own count of what it compares.

    Attributes:
        one: what each head is trained by; it reads ``return_B``, in whose place the labels stand.
        names: of the heads, in the order of ``label_BH`` and of ``score_BTH``.

    Raises:
        ValueError: ``one`` does not go by returns, or its scores have a zero or a reference.
    """

    unit: ClassVar[str | None] = "group_B"
    reads: ClassVar[tuple[str, ...]] = SCORES
    one: Objective
    names: Sequence[str]

    def __post_init__(self) -> None:
        """Checks what is to be repeated."""
        if self.one.score_kind not in ("score", "logit"):
            raise ValueError(
                f"data.score=[{','.join(self.names)}] makes several heads, and algo={self.one.name} trains one: name "
                "one score, or set algo=bradley_terry"
            )
        label: Callable[..., Tensor] | None = getattr(self.one, "label", None)
        if label is not None and "return_B" not in tensor_names(label):
            raise ValueError(
                f"data.score=[{','.join(self.names)}] has a score for each head, and algo/label as it stands reads "
                "none of them: set algo/label=above"
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of ``one``."""
        return self.one.name

    @property
    def heads(self) -> Sequence[str]:
        return self.names

    @property
    def score_kind(self) -> ScoreKind:
        return self.one.score_kind

    @property
    def requirements(self) -> Requirements:
        return self.one.requirements

    def needs(self, tensor: str) -> bool:
        """The labels, and what ``one`` takes."""
        return tensor == LABELS or self.one.needs(tensor)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        self.one.try_out(rows)

    def prepare(self, tensors: Tensors) -> Tensors:
        """What ``one`` makes for each head, under ``headK_``; kept and scored is what any of them needs."""
        found: Tensors = {}
        together: Tensors = {}
        for number, name in enumerate(self.names):
            own = of_head(tensors, number)
            made = self.one.prepare(own)
            keep_B = made.pop("keep_B", torch.ones_like(own["return_B"], dtype=torch.bool))
            # what this head does not keep may stay for another one: here it must not be met again
            made["return_B"] = own["return_B"].masked_fill(~keep_B, math.nan)
            for mask, value in (("keep_B", keep_B), ("is_scored_BT", made["is_scored_BT"])):
                together[mask] = together[mask] | value if mask in together else value
            for column, value in made.items():
                found[f"head{number}_{column}" if value.dim() else f"head_{name}_{column}"] = value
        return found | together

    def count(self, tensors: Tensors) -> Tensors:
        """What ``one`` counts for each head."""
        return {
            f"head{number}_{name}": counted
            for number in range(len(self.names))
            for name, counted in self.one.count(of_head(tensors, number)).items()
        }

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """The mean over heads of their shares; metrics of all of them together, and of each."""
        shares: list[Tensor] = []
        metrics: Tensors = {}
        for number, name in enumerate(self.names):
            share, told = self.one.loss(of_head(tensors, number))
            shares.append(share)
            metrics = add_metrics(metrics, told) | {
                f"head_{name}_{key}": value for key, value in told.items()
            }
        return torch.stack(shares).mean(), metrics


def of_head(tensors: Mapping[str, Tensor], number: int) -> Tensors:
    """The columns as an objective of one score reads them for a head.

    Args:
        tensors: all columns; with ``label_BH`` and, where they are there, ``score_BTH`` and what
            `SeveralHeads.prepare` made.
        number: of the head.

    Returns:
        ``return_B`` is the head's label, NaN where there is none or the trajectory is left out; ``score_BT`` its score,
        through which gradient flows.
    """
    prefix = f"head{number}_"
    found = {name: tensor for name, tensor in tensors.items() if not _is_of_a_head(name)}
    found |= {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    label_B = found["return_B"] if prefix + "return_B" in tensors else tensors[LABELS][:, number]
    found["return_B"] = label_B.masked_fill(tensors["return_B"].isnan(), math.nan)
    if "score_BTH" in tensors:
        found["score_BT"] = tensors["score_BTH"][..., number]
    return found


def _is_of_a_head(name: str) -> bool:
    return name.startswith("head") and name[4 : name.find("_")].isdigit()
