"""Reading signatures and calling parts by tensor name."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch, list_columns
from lit_agentrl.rl.binding import bind, tensor_names, try_out, with_computed
from lit_agentrl.rl.policy import clipping, filters, kl


def part(*, return_B: Tensor, state_key_BK: Tensor, value_BT: Tensor | None = None, eps: float) -> Tensor:
    """A part with an optional tensor and a constant without default."""
    return return_B * eps + (0 if value_BT is None else value_BT.sum())


class Controller(torch.nn.Module):
    """A part with state."""

    def forward(self, *, logp_BT: Tensor, scale: float = 2.0) -> Tensor:
        return logp_BT * scale


def test_names_are_seen_through_partials_and_modules():
    names = {"return_B": True, "state_key_BK": True, "value_BT": False}
    assert tensor_names(part) == names
    assert tensor_names(partial(partial(part, eps=1.0), eps=2.0)) == names
    assert tensor_names(Controller()) == {"logp_BT": True}
    assert tensor_names(kl.KLInReward(estimator=kl.k1, coef=1.0)).keys() == {
        "old_logp_BT",
        "ref_logp_BT",
        "is_action_BT",
    }


def test_bind_gives_exactly_what_is_named():
    tensors = {"return_B": torch.ones(2), "state_key_BK": torch.ones(2, 1), "entropy_BT": torch.ones(2, 2)}
    assert bind(partial(part, eps=3.0), tensors).tolist() == [3, 3]
    assert bind(partial(part, eps=3.0), tensors | {"value_BT": torch.ones(2, 2)}).tolist() == [7, 7]
    assert bind(Controller(), {"logp_BT": torch.ones(1, 1)}) == 2
    with pytest.raises(ValueError, match="part needs state_key_BK, which this run does not provide"):
        bind(partial(part, eps=3.0), {"return_B": torch.ones(2)})


@pytest.mark.parametrize(
    ("option", "fn", "message"),
    [
        ("filter", partial(filters.top_std, ratio=1.3), r"ratio=1\.3 must be in"),
        ("filter", filters.top_std, r"filter\.ratio is not set; top_std needs a value"),
        ("filter", partial(filters.keep_all, ratio=0.5), r"filter: keep_all does not take these constants"),
        ("filter", partial(filters.top_std, ratio="half"), r"filter: top_std does not accept ratio=half:"),
        ("filter", clipping.none, r"filter: none returned Clipped, expected Selection"),
    ],
)
def test_trying_out_names_what_is_wrong(option, fn, message):
    with pytest.raises(ValueError, match=message):
        try_out(option, fn, filters.Selection, TrajectoryBatch.make_toy().to_dict())


def test_unknown_tensors_are_refused():
    def reads_minds(*, intention_BT: Tensor) -> Tensor:
        return intention_BT

    with pytest.raises(ValueError, match=r"algo\.ratio: .*reads_minds asks for intention_BT; tensors are"):
        try_out("algo.ratio", reads_minds, Tensor, TrajectoryBatch.make_toy().to_dict())


def test_the_vocabulary_covers_the_batch():
    policy = {"logp_BT", "old_logp_BT", "ref_logp_BT", "advantage_BT", "entropy_BT", "ratio_BT"}
    policy |= {"ref_kl_BT", "ref_quantile_B", "ref_count_B", "rank_BT"}
    critic = {
        "value_BT",
        "target_value_BT",
        "q_BT",
        "spread_BT",
        "implicit_q_BT",
        "old_implicit_q_BT",
        "target_implicit_q_BT",
        "old_value_BT",
        "return_BT",
        "is_value_target_BT",
        "cost_value_BT",
        "old_cost_value_BT",
        "cost_return_BT",
    }
    assert (
        with_computed(TrajectoryBatch.make_toy().to_dict()).keys() == list_columns().keys() | policy | critic
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda loss, low: (loss.sum(), low), r"loss_BT of shape \(\), expected \(4, 3\)"),
        (lambda loss, low: (loss, low.float()), "is_clipped_low_BT of torch.float32, expected torch.bool"),
        (lambda loss, low: (loss / 0 * 0, low), "loss_BT that is not finite"),
    ],
)
def test_what_would_be_broadcast_or_spread_is_refused(change, message):
    def rule(*, ratio_BT: Tensor, advantage_BT: Tensor) -> clipping.Clipped:
        right = clipping.none(ratio_BT=ratio_BT, advantage_BT=advantage_BT)
        return clipping.Clipped(*change(right.loss_BT, right.is_clipped_low_BT), right.is_clipped_high_BT)

    with pytest.raises(ValueError, match=message):
        try_out("clip", rule, clipping.Clipped, TrajectoryBatch.make_toy().to_dict())
