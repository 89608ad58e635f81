"""Pairs of SPIN and XPO: who is compared with whom."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from lit_agentrl.experimental.exploring import opposed
from lit_agentrl.experimental.spin import demonstrated
from tests.rl.test_pairing import found, group

pytestmark = pytest.mark.usefixtures("in_float64")


def test_what_others_have_played_is_chosen():
    tensors = group([1.0, 0.8, 0.0, 0.0])
    tensors["source_B"] = torch.tensor([0, 1, 0, 0])
    assert found(demonstrated, tensors) == [(1, 2), (1, 3)]


def test_the_policy_is_compared_with_its_opponent_alone():
    tensors = group([1.0, 0.8, 0.0, 0.8])
    tensors["is_opponent_B"] = torch.tensor([False, True, False, True])
    assert found(opposed, tensors) == [(0, 1), (0, 3), (1, 2), (3, 2)]
    assert found(partial(opposed, min_gap=0.5), tensors) == [(1, 2), (3, 2)]
    tensors["is_opponent_B"] = torch.tensor([True] * 4)
    assert found(opposed, tensors) == []
