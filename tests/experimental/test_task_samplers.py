"""Task samplers: which tasks are drawn more often, that draws are keyed, and what a resumed run remembers."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lit_agentrl import seeds
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.data.prompts import PromptStream
from lit_agentrl.episode import EndReason, Episode, Source
from lit_agentrl.experimental.task_samplers import difficulty, success_rates
from lit_agentrl.experimental.task_samplers.difficulty import Difficulty
from lit_agentrl.experimental.task_samplers.success_band import SuccessBand
from lit_agentrl.experimental.task_samplers.success_rates import MeasuredSampler, draw_by_weight
from lit_agentrl.task_sampler import Draw, TaskSampler, Uniform
from tests.commands import Refused
from tests.integration.conftest import TINY, assert_equal_runs

POOL, MEMBERS = 30, 4
NUMBER = {seeds.make_key(0, "instance", number): number for number in range(POOL)}


def stream(sampler: TaskSampler, **given: Any) -> PromptStream:
    return PromptStream(
        **{"prompts": 6, "task_weights": (1.0,), "seed": 0, "val": (), "instances": POOL, "sampler": sampler}
        | given
    )


def draw(sampler: TaskSampler, iteration: int = 0, wave: int = 0, prompts: int = 6) -> list[int]:
    """Return the numbers of the tasks of a wave."""
    return [number for (number,) in sampler.choose(Draw(0, iteration, wave, prompts, POOL))]


def play(numbers: Sequence[int], solved: Callable[[int], int], **given: Any) -> list[Episode]:
    """Make episodes of groups, of which ``solved(number)`` members succeed."""
    keys = {number: key for key, number in NUMBER.items()}
    return [
        Episode(
            0, group, member, 0, "count", keys[number], success=member < solved(number),
            **{"end": EndReason.FAILURE} | given,
        )
        for group, number in enumerate(numbers)
        for member in range(MEMBERS)
    ]  # fmt: skip


def train(sampler: TaskSampler, solved: Callable[[int], int], iterations: range) -> list[list[int]]:
    """Return the numbers of the tasks of each iteration."""
    prompts, drawn = stream(sampler), []
    for iteration in iterations:
        drawn.append([NUMBER[key] for key in prompts.make_batch(iteration).seed_P])
        sampler.learn(play(drawn[-1], solved))
    return drawn


def by_thirds(number: int) -> int:
    """Return how many members solve the task: none, half of them or all."""
    return (0, MEMBERS // 2, MEMBERS)[number % 3]


def test_worked_draws() -> None:
    """The task whose -ln(1 - u)/w is smallest comes first; u is the splitmix number of the wave's key."""
    key = seeds.make_key(3, "task_sampler", 7, 1)
    state, uniforms = key, []
    for _ in range(4):  # SplitMix64 in Python's integers
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        uniforms.append(((z ^ (z >> 31)) >> 11) / 2**53)
    weights = [0.1, 0.5, 0.1, 0.3]
    times = [-math.log(1 - u) / w for u, w in zip(uniforms, weights, strict=True)]
    expected = sorted(range(4), key=times.__getitem__)
    assert draw_by_weight(np.array(weights), 4, seed=3, address=(7, 1)) == expected
    assert draw_by_weight(np.array(weights), 2, seed=3, address=(7, 1)) == expected[:2]


def test_draws_follow_the_weights_without_repetition() -> None:
    weights = np.array([1.0, 2.0, 0.0, 5.0])
    first = Counter(draw_by_weight(weights, 1, seed=0, address=(i, 0))[0] for i in range(4000))
    assert first[2] == 0
    assert [first[i] / 4000 for i in (0, 1, 3)] == pytest.approx([0.125, 0.25, 0.625], abs=0.03)
    three = draw_by_weight(weights, 5, seed=0, address=(7, 0))
    assert sorted(three[:3]) == [0, 1, 3] and three[3:] == three[:2]  # then again, in the same order
    with pytest.raises(ValueError, match="^no task has a weight above 0"):
        draw_by_weight(np.zeros(3), 1, seed=0, address=(0, 0))


def test_the_second_draw_is_in_proportion_too() -> None:
    """Against P(a, then b) = w_a w_b / (1 - w_a), the definition of drawing without replacement."""
    weights = np.array([0.5, 0.3, 0.2])
    pairs = Counter(tuple(draw_by_weight(weights, 2, seed=1, address=(i, 0))) for i in range(6000))
    for a, b in ((0, 1), (1, 0), (2, 1)):
        assert pairs[a, b] / 6000 == pytest.approx(weights[a] * weights[b] / (1 - weights[a]), abs=0.025)


def test_a_floor_is_the_share_that_all_tasks_have_alike() -> None:
    """Rates 0.1, 0.2, 0.5, 0.8 and 0.9: three lie in the band, whose bounds belong to it."""
    rates = np.array([0.1, 0.2, 0.5, 0.8, 0.9])
    for floor, outside, inside in ((0.2, 0.04, 0.04 + 0.8 / 3), (0.0, 0.0, 1 / 3), (1.0, 0.2, 0.2)):
        sampler = SuccessBand(floor=floor)
        expected = [outside, inside, inside, inside, outside]
        assert sampler.weigh(sampler.prefer(rates)).tolist() == pytest.approx(expected, abs=1e-12)
    nobody = SuccessBand(low=0.6, high=0.7, floor=0.0)
    assert nobody.weigh(nobody.prefer(rates)).tolist() == pytest.approx([0.2] * 5)


def test_a_stage_prefers_the_easiest_tasks() -> None:
    rates = np.array([0.1, 0.7, 0.5, 0.7, 0.9])
    sampler = Difficulty(shares=[0.5, 1.0], after=1)
    assert sampler.prefer(rates).tolist() == [False, True, False, True, True]  # the first of equals
    sampler.learn([])
    assert sampler.prefer(rates).all()


def test_tasks_that_are_solved_sometimes_are_drawn_more_often() -> None:
    band, uniform = (
        Counter(number % 3 for numbers in train(sampler, by_thirds, range(60))[20:] for number in numbers)
        for sampler in (SuccessBand(), Uniform())
    )
    assert uniform == {0: 80, 1: 80, 2: 80}  # passes over all tasks
    assert band[1] > 3 * band[0] and band[1] > 3 * band[2] and min(band[0], band[2]) > 0


def test_rates_and_curves_are_those_of_the_formulas() -> None:
    sampler = SuccessBand(prior=0.25, prior_episodes=4.0, keep=0.5)
    numbers = draw(sampler)
    assert sampler.estimate(numbers[0]) == 0.25
    first = (3 + 0.25 * 4) / (4 + 4)
    assert sampler.learn(play(numbers, lambda n: 3)) == {
        "seen_tasks": 6.0,
        "preferred_share": 1.0,
        "mean_rate": first,
    }
    assert sampler.estimate(numbers[0]) == first
    second = (0.5 * 3 + 1) / (0.5 * 4 + 4 + 4)
    curves = sampler.learn(play(numbers[:1], lambda n: 0))
    assert sampler.estimate(numbers[0]) == second
    assert curves["mean_rate"] == pytest.approx((second + 5 * first) / 6)
    before = sampler.state_dict()
    sampler.learn(play(numbers, lambda n: 4, end=EndReason.ERROR))
    sampler.learn(play(numbers, lambda n: 4, source=Source.HINT))
    sampler.learn(play([next(n for n in range(POOL) if n not in numbers)], lambda n: 4))
    assert sampler.state_dict() == before


def test_the_share_of_preferred_draws_counts_all_waves() -> None:
    """Tasks that were played are solved always, so that the band has the others alone."""
    sampler = SuccessBand(floor=1.0, prior_episodes=0.5)
    seen = set(draw(sampler, prompts=15))
    sampler.learn(play(sorted(seen), lambda n: 4))
    assert all(sampler.estimate(number) == 4.25 / 4.5 for number in seen)
    drawn = draw(sampler, 1) + draw(sampler, 1, wave=1)
    share = sum(number not in seen for number in drawn) / len(drawn)
    assert 0 < share < 1 and sampler.learn([])["preferred_share"] == share


def test_numbers_that_show_the_same_row_share_their_rate() -> None:
    sampler = SuccessBand()
    numbers = draw(sampler)
    sampler.learn(play(numbers[:2], lambda n: 4 if n == numbers[0] else 0, instance_id="row-3"))
    assert sampler.estimate(numbers[0]) == sampler.estimate(numbers[1]) == (4 + 1) / (8 + 2)
    assert sampler.estimate(numbers[2]) == 0.5


@pytest.mark.parametrize("make", [SuccessBand, lambda: Difficulty(after=3)])
def test_draws_depend_neither_on_processes_nor_on_an_interruption(
    make: Callable[[], MeasuredSampler], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, first, second = make(), make(), make()
    expected = train(straight, by_thirds, range(12))
    train(first, by_thirds, range(5))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert train(second, by_thirds, range(5, 12)) == expected[5:]
    assert second.state_dict() == straight.state_dict()
    # two processes: each learns from its own episodes, and gathers those of the other
    ranks, gathered = (make(), make()), list[Any]()
    for module in (success_rates, difficulty):
        monkeypatch.setattr(module, "gather_objects", lambda own: gathered.pop(0))
    for iteration, numbers in enumerate(expected):
        assert [draw(rank, iteration) for rank in ranks] == [numbers, numbers]
        episodes = play(numbers, by_thirds)
        shares = [[e for e in episodes if (e.group + e.member) % 2 == rank] for rank in range(2)]
        both = [e for share in reversed(shares) for e in share]
        for rank, share in zip(ranks, shares, strict=True):
            visits = [(NUMBER[e.instance_seed], f"count/{NUMBER[e.instance_seed]}", e.success) for e in both]
            gathered[:] = [visits, [e.success for e in both]]
            rank.learn(share)
    assert [rank.state_dict() for rank in ranks] == [straight.state_dict()] * 2


def test_a_further_wave_has_draws_of_its_own() -> None:
    prompts = stream(SuccessBand())
    assert prompts.make_batch(3, 1).seed_P == prompts.make_batch(3, 1).seed_P != prompts.make_batch(3).seed_P


def test_stages_begin_by_iterations_and_by_success() -> None:
    slow, quick = (
        Difficulty(shares=(0.5, 1.0), after=3),
        Difficulty(shares=(0.5, 1.0), after=None, success=0.5),
    )
    stages = {}
    for name, sampler, solved in (("slow", slow, 1), ("quick", quick, 2)):
        stages[name] = [
            sampler.learn(play(draw(sampler, iteration), lambda n, solved=solved: solved))["stage"]
            for iteration in range(5)
        ]
    assert stages == {"slow": [0, 0, 0, 1, 1], "quick": [0, 1, 1, 1, 1]}


def test_the_first_stage_turns_to_tasks_that_are_solved() -> None:
    """A third can be solved; a stage of a tenth finds such tasks, since what fails ranks behind what is unknown."""
    sampler = Difficulty(shares=(0.1, 1.0), after=100)
    late = [
        n for numbers in train(sampler, lambda n: 4 if n % 3 == 0 else 0, range(20))[-3:] for n in numbers
    ]
    assert late and all(number % 3 == 0 for number in late)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SuccessBand(low=0.9), "low=0.9 must be at most high=0.8"),
        (lambda: SuccessBand(high=1.5), r"high=1.5 must be in \[0, 1\]"),
        (lambda: SuccessBand(floor=2), r"floor=2 must be in \[0, 1\]"),
        (lambda: SuccessBand(prior=2), "prior=2 must be"),
        (lambda: SuccessBand(prior_episodes=0), "prior_episodes=0 must be > 0"),
        (lambda: SuccessBand(keep=-1), "keep=-1 must be"),
        (lambda: Difficulty(shares=[0.5, 0.9]), "shares=.* must be growing numbers"),
        (lambda: Difficulty(shares=["a", 1]), "shares=.* must be growing numbers"),
        (lambda: Difficulty(after=None), "after=null never begins the next stage"),
        (lambda: Difficulty(success=2.0), "success=2.0 must be"),
    ],
)
def test_wrong_values(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_wrong_combinations_are_told_early(refused: Refused, in_empty_folder: Path) -> None:
    Path("rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
    error = refused("task_sampler=success_band")
    assert "needs tasks that are played again" in error and "set rollout.instances=128" in error
    ahead = "task_sampler=difficulty rollout.instances=8 rollout.overlap=true"
    assert "needs episodes that are played only after the previous update" in refused(ahead)
    data = "algo=sft data=demonstrations data.path=rows.jsonl"
    assert "needs episodes that are played in training" in refused(f"{data} task_sampler=difficulty")
    assert "task_sampler=uniform has no effect: nothing is played" in refused(f"{data} task_sampler=uniform")
    assert "low=0.9 must be at most high=0.8" in refused(
        "task_sampler=success_band rollout.instances=8 task_sampler.low=0.9"
    )
    assert not Path("outputs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["success_band", "difficulty task_sampler.after=1"])
def test_a_resumed_run_equals_an_uninterrupted_one(sampler: str, tmp_path: Path) -> None:
    straight, extended = tmp_path / "straight", tmp_path / "extended"
    tiny = ["val.every=1" if each.startswith("val.every=") else each for each in TINY]
    options = [*tiny, *f"task_sampler={sampler} rollout.instances=6".split()]
    for folder, iterations in ((straight, 3), (extended, 1)):
        main_train([*options, f"trainer.max_epochs={iterations}", f"hydra.run.dir={folder}"])
    main_train([f"resume={extended}", "trainer.max_epochs=3"])
    assert_equal_runs(straight, extended)
