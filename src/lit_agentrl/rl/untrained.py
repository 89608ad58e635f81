"""An objective without a loss: the policy stays fixed while a structure learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lit_agentrl.rl.objective import Objective, Requirements, Tensors


@dataclass(frozen=True, kw_only=True)
class Untrained(Objective):
    """An objective that trains nothing: no optimizer, no step, no row is read.

    Args:
        name: name in messages.
    """

    trains: ClassVar[bool] = False
    name: str

    @property
    def requirements(self) -> Requirements:
        return Requirements(min_members=2)  # structures learn from differences within a group

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        raise NotImplementedError("nothing is trained")
