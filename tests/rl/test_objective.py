"""An objective of one's own is tried on small rows before anything is played, and what is wrong with it is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.binding import with_computed
from lit_agentrl.rl.objective import Objective, try_loss

ROWS = with_computed(TrajectoryBatch.make_toy().to_dict())
NOTHING: dict[str, Any] = {}


@dataclass(frozen=True)
class Own(Objective):
    """Its parts are given as functions."""

    name: str = "own"
    gives: Any = lambda t: (t["logp_BT"].sum(), NOTHING)
    asks: str = ""

    def needs(self, tensor: str) -> bool:
        return tensor == self.asks

    def loss(self, tensors: Any) -> Any:
        return self.gives(tensors)


class Unasked(Own):
    """Its preparation reads a column that it does not ask for."""

    def prepare(self, tensors: Any) -> Any:
        return {"advantage_BT": tensors["success_B"]}


class Misspelt(Own):
    unit = "grup_B"


def test_what_an_update_can_use_passes():
    try_loss(Own(), ROWS)
    try_loss(
        Own(asks="ref_logp_BT", gives=lambda t: ((t["logp_BT"] - t["ref_logp_BT"]).sum(), NOTHING)), ROWS
    )
    pair = {"right": torch.ones(2), "gap_max": torch.tensor(1.0)}
    try_loss(Own(gives=lambda t: (t["entropy_BT"].sum(), pair)), ROWS)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (Unasked(), "prepare failed on small rows: KeyError: 'success_B'"),
        (Misspelt(), "unit=grup_B must be a column"),
        (
            Own(gives=lambda t: (t["ref_logp_BT"].sum(), NOTHING)),
            "loss failed on small rows: KeyError: 'ref_logp_BT'",
        ),
        (
            Own(gives=lambda t: t["logp_BT"].sum()),
            "loss must return a scalar and its metrics, and returned a Tensor",
        ),
        (Own(gives=lambda t: (t["logp_BT"], NOTHING)), "loss must return a finite scalar"),
        (Own(gives=lambda t: (t["logp_BT"].sum() / 0, NOTHING)), "loss must return a finite scalar"),
        (Own(gives=lambda t: (t["old_logp_BT"].sum(), NOTHING)), "through which gradient flows"),
        (
            Own(gives=lambda t: (t["logp_BT"].sum(), {"right": torch.ones(3)})),
            r"metric right must be \[sum, weight\]",
        ),
    ],
)
def test_what_is_wrong_is_named(objective, message):
    with pytest.raises(ValueError, match=message):
        try_loss(objective, ROWS)
