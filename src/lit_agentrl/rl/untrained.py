"""An objective without a loss: the policy plays and stays as it is, and a structure learns in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lit_agentrl.rl.objective import Objective, Requirements, Tensors


@dataclass(frozen=True, kw_only=True)
class Untrained(Objective):
    """Nothing is trained: no optimizer is made, no step is taken, and no row is read.

    Args:
        name: for messages.
    """

    trains: ClassVar[bool] = False
    name: str

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2)  # what is learnt comes from the differences within a group

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        raise NotImplementedError("nothing is trained")
