"""The NLL beside a loss of pairs: which units are imitated, and what their mean is over."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.pairing import Pairs


@dataclass(frozen=True, kw_only=True)
class NLL:
    """``coef * (-log p)`` of what was chosen: it holds its log-prob up.

    Attributes:
        coef: weight, > 0.
        of: ``best``: the best unit of each group that has a pair; ``pairs``: the chosen side of each pair, as often as
            it is chosen.  Of recorded pairs, and of one pair a group, the two are the same.
        per: ``unit``: the mean over units of the mean over their tokens, as in Llama 3 (arXiv 2407.21783, 0.2) and
            iterative RPO (arXiv 2404.19733, 1.0); ``token``: the mean over all their tokens, as in trl and CPO.
    """

    coef: float
    of: Literal["best", "pairs"] = "best"
    per: Literal["unit", "token"] = "unit"

    def __post_init__(self) -> None:
        """Checks the constants."""
        is_valid = 0 < self.coef < math.inf
        require(is_valid, "coef", self.coef, "finite and > 0; algo/nll=none switches the term off")
        require(self.of in ("best", "pairs"), "of", self.of, "best or pairs")
        require(self.per in ("unit", "token"), "per", self.per, "unit or token")

    def imitated(self, pairs: Pairs) -> Tensor:
        """The units whose log-prob is held up, int64."""
        return pairs.best() if self.of == "best" else pairs.chosen_P

    def divisor(self, pairs: Pairs) -> Tensor:
        """How many units are imitated, or tokens of them."""
        length_U = pairs.units.length_N[self.imitated(pairs)]
        return length_U.sum() if self.per == "token" else length_U.new_tensor(len(length_U))

    def summed(self, pairs: Pairs, logp_BT: Tensor) -> Tensor:
        """What is to be divided by the `divisor` of a minibatch; gradient through ``logp_BT`` (nats)."""
        units, imitated_U = pairs.units, self.imitated(pairs)
        nll_U = -units.sum(units.read(logp_BT))[imitated_U]
        return (nll_U / units.length_N[imitated_U] if self.per == "unit" else nll_U).sum()
