"""Bounds that never act are told; those that can act are not."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from lit_agentrl.build.unused_options import (
    _refuse_long_warmup,
    describe_idle_processes,
    describe_inactive_bounds,
)
from lit_agentrl.config.errors import UserError
from tests.rl.ragged import fresh
from tests.update.bare import build

TYPED = ["algo/clip=symmetric"]
ONE_STEP = "an iteration has one step, in which every ratio is 1 up to rounding"


@pytest.mark.parametrize(
    ("mixed", "update", "typed", "told"),
    [
        (
            ("grpo",),
            {},
            ["algo.clip.epsilon=0.3"],
            f"algo.clip.epsilon never acts: {ONE_STEP}; update=four_minibatches makes it act",
        ),
        (
            ("grpo",),
            {},
            ["algo=grpo", "optim.lr=1e-4", "critic=separate"],
            "",
        ),  # what the user has not chosen
        (
            ("starpo_s",),
            {},
            ["algo/clip=clip_higher", "critic.loss.clip=0.3"],
            f"algo.clip.low and algo.clip.high and critic.loss.clip never act: {ONE_STEP} and no value has changed; "
            "update=four_minibatches makes them act",
        ),
        (
            ("starpo_s",),
            {},
            ["critic.loss.clip=0.3"],
            "critic.loss.clip never acts: an iteration has one step, in which no value has changed; "
            "update=four_minibatches makes it act",
        ),
        (("grpo",), {"minibatches": 4}, TYPED, ""),
        (("grpo",), {"epochs": 2}, TYPED, ""),
        (("reinforce",), {}, TYPED, ""),
        (("gvpo",), {}, TYPED, ""),
    ],
)
def test_bounds(mixed: tuple[str, ...], update: dict[str, int], typed: list[str], told: str) -> None:
    assert describe_inactive_bounds(build(fresh(*mixed), **update), is_older=False, overrides=typed) == told


def test_older_episodes_without_a_correction_have_other_ratios() -> None:
    assert not describe_inactive_bounds(build(fresh("grpo")), is_older=True, overrides=TYPED)
    corrected = build(fresh("grpo", "correction=truncated"))
    assert describe_inactive_bounds(corrected, is_older=True, overrides=TYPED)


def test_a_warm_up_that_is_never_left_is_refused_where_it_was_typed() -> None:
    run = {"optim": {"warmup_iterations": 9}, "trainer": {"max_epochs": 9}}
    jobs: list[Any] = [(OmegaConf.create(run), None)]
    told = r"^optim.warmup_iterations=9 of trainer.max_epochs=9: optim.lr would never be reached; lower"
    with pytest.raises(UserError, match=told):
        _refuse_long_warmup({"optim.warmup_iterations"}, jobs)
    longer = [(OmegaConf.create(run | {"trainer": {"max_epochs": 10}}), None)]
    _refuse_long_warmup({"optim.warmup_iterations"}, [*jobs, *longer])  # a sweep, of which one run leaves it
    _refuse_long_warmup({"optim.warmup_iterations", "debug"}, jobs)
    _refuse_long_warmup({"trainer.max_epochs"}, jobs)


def test_processes_that_have_nothing_to_play_are_told() -> None:
    assert not describe_idle_processes(4, 4)
    assert describe_idle_processes(4, 8).startswith(
        "rollout.prompts=4 gives 4 of 8 processes nothing to play"
    )
