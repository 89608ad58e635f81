"""Critic targets and the ranking loss of values for objectives of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from lit_agentrl.rl.preference.pairing import Pairs


@dataclass(frozen=True)
class Targets:
    """Targets of a critic, in reward units, and their mask; both (B, T)."""

    return_BT: Tensor
    is_value_target_BT: Tensor


class Ranking(Protocol):
    """Loss on the critic's values of pairs.

    Attributes:
        coef: weight relative to the squared errors.
    """

    @property
    def coef(self) -> float: ...

    def value_differences(self, pairs: Pairs, value_BT: Tensor) -> Tensor:
        """Return ``Q(chosen) - Q(rejected)`` of the pairs that have both, in reward units."""

    def losses(self, difference_P: Tensor) -> Tensor:
        """Return the loss of each pair, without ``coef``."""


def no_targets() -> None:
    """Use no critic."""


def no_ranking() -> None:
    """Use no ranking loss on the critic's values."""
