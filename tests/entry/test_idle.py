"""Bounds that never act are told; those that can act are not."""

from __future__ import annotations

import pytest

from lit_agentrl.entry.idle import bounds_that_never_act
from tests.rl.ragged import fresh
from tests.update.bare import build

ONE_STEP = "an iteration has one step, in which every ratio is 1 but for rounding"


@pytest.mark.parametrize(
    ("mixed", "update", "told"),
    [
        (("grpo",), {}, f"algo.clip.epsilon never acts: {ONE_STEP}; update=four_minibatches makes it act"),
        (
            ("starpo_s",),
            {},
            f"algo.clip.low and algo.clip.high and critic.loss.clip never act: {ONE_STEP} and no value has moved; "
            "update=four_minibatches makes them act",
        ),
        (("grpo",), {"minibatches": 4}, ""),
        (("grpo",), {"epochs": 2}, ""),
        (("reinforce",), {}, ""),
        (("gvpo",), {}, ""),
    ],
)
def test_bounds(mixed: tuple[str, ...], update: dict[str, int], told: str) -> None:
    assert bounds_that_never_act(build(fresh(*mixed), **update), is_ahead=False) == told


def test_older_episodes_without_a_correction_have_other_ratios() -> None:
    assert not bounds_that_never_act(build(fresh("grpo")), is_ahead=True)
    assert bounds_that_never_act(build(fresh("grpo", "correction=truncated")), is_ahead=True)
