"""Demonstrations mixed with rollouts in each iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lit_agentrl.checks import require_number
from lit_agentrl.data.demonstrations import Demonstrations


@dataclass(frozen=True, kw_only=True)
class Beside(Demonstrations):
    """Rows as in `Demonstrations`, imitated in addition to each iteration's rollouts.

    Attributes:
        coef: weight of the mean NLL (nats) of the imitated tokens in the loss, > 0.
    """

    is_mixed: ClassVar[bool] = True
    coef: float = 1.0

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        require_number("coef", self.coef, "finite and > 0", lambda value: 0 < value < math.inf)
        if self.held_out or self.cache_reference or self.score != "return":
            raise ValueError(
                "held_out, cache_reference and score have no effect under data=beside, which imitates its rows: "
                "leave them out"
            )
