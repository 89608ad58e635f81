"""Planted errors: each calculation computed anew, worked rewards against all answers, and the contract of worlds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from lit_agentrl.envs.checker import check_env
from lit_agentrl.experimental.planted.world import PlantedErrors, compute_reward, draw_steps


def find_wrong(lines: list[str]) -> list[int]:
    """Evaluate each line by itself, and each against the one before."""
    wrong, last = [], None
    for line in lines:
        number, rest = line.split(". ")
        left, result = rest.split(" = ")
        first, sign, second = left.split()
        assert last is None or int(first) == last
        last = int(result)
        if {"+": int(first) + int(second), "-": int(first) - int(second)}[sign] != last:
            wrong.append(int(number))
    return wrong


def test_exactly_the_planted_step_is_wrong() -> None:
    places, signs = list[int](), set[str]()
    for seed in range(400):
        lines, planted = draw_steps(np.random.default_rng(seed), 4, 0.25)
        assert find_wrong(lines) == planted and len(lines) == 4
        assert all(
            int(line.split()[1]) > 0 and int(line.split()[3]) > 0 and int(line.split()[5]) > 0
            for line in lines
        )
        places += planted or [0]
        signs |= {line.split()[2] for line in lines}
    counts = np.bincount(places, minlength=5) / 400
    assert signs == {"+", "-"}
    assert counts == pytest.approx([0.25, *[0.1875] * 4], abs=0.07)
    assert all(draw_steps(np.random.default_rng(seed), 3, 0.0)[1] for seed in range(30))


def test_worked_rewards_of_every_answer() -> None:
    assert compute_reward([2], [2], 0.25) == 1.0 and compute_reward([2, 3], [2], 0.25) == 0.75
    assert compute_reward([1], [2], 0.25) == -0.25 and compute_reward([], [2], 0.25) == 0.0
    assert compute_reward([], [], 0.25) == 1.0 and compute_reward([1, 3], [], 0.25) == -0.5
    assert compute_reward([1, 3, 4], [2], 1.0) == -1.0  # not below
    for named in itertools.chain.from_iterable(itertools.combinations(range(1, 5), k) for k in range(5)):
        for planted in ([], [1], [4]):
            found = all(p in named for p in planted) if planted else len(named) == 0
            false = sum(n not in planted for n in named)
            assert compute_reward(list(named), planted, 0.1) == pytest.approx(float(found) - 0.1 * false)


def test_answers_are_read_and_everything_else_is_worth_nothing() -> None:
    world = PlantedErrors(clean_share=0.0)
    observation, _ = world.reset(seed=3)
    [wrong] = find_wrong(observation.splitlines())
    other = wrong % 4 + 1
    expected: list[tuple[str, float, bool]] = [
        (f" {wrong} ", 1.0, True), (f"{wrong},{wrong}", 1.0, True), (f"{other}, {wrong}", 0.75, False),
        (str(other), -0.25, False), ("None", 0.0, False), ("", 0.0, False), ("1,2,", 0.0, False),
        (f"step {wrong}", 0.0, False), ("9" * 500, 0.0, False),
    ]  # fmt: skip
    for answer, reward, success in expected:
        world.reset(seed=3)
        _, given, terminated, _, info = world.step(answer)
        assert (given, terminated, info["success"]) == (pytest.approx(reward), True, success), answer


def test_it_keeps_the_contract() -> None:
    check_env(lambda split: PlantedErrors(split=split), episodes=4)
    check_env(lambda split: PlantedErrors(split=split, clean_share=0.9, steps=2), episodes=2)


def test_wrong_options_are_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"steps": 1}, "steps=1 must be"), ({"clean_share": 1.0}, "clean_share=1.0 must be from 0 to below 1"),
        ({"cost": -1.0}, "cost=-1.0 must be finite and >= 0"),
    ]  # fmt: skip
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            PlantedErrors(**options)
