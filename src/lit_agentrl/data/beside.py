"""Demonstrations beside what is played: the same iteration trains on both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.checks import require_number
from lit_agentrl.data.demonstrations import Demonstrations


@dataclass(frozen=True, kw_only=True)
class Beside(Demonstrations):
    """Rows as of `Demonstrations`; each iteration plays its episodes too, and imitates so many of these.

    Attributes:
        coef: of the mean NLL (nats) of the imitated tokens in the loss, > 0.
    """

    is_beside: ClassVar[bool] = True
    coef: float = 1.0

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        require_number("coef", self.coef, "finite and > 0", lambda value: 0 < value < math.inf)
        if self.held_out or self.cache_reference or self.score != "return":
            raise ValueError(
                "held_out, cache_reference and score are for data that is compared, and data=beside is imitated: "
                "leave them out"
            )
