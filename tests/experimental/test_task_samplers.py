"""Task samplers: which tasks are drawn more often, that draws are keyed, and what a resumed run remembers."""

from __future__ import annotations

import io
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
from lit_agentrl.experimental import difficulty, success_rates
from lit_agentrl.experimental.difficulty import Difficulty
from lit_agentrl.experimental.success_band import SuccessBand
from lit_agentrl.experimental.success_rates import MeasuredSampler, draw_by_weight
from lit_agentrl.rollout.task_sampler import TaskSampler, Uniform
from tests.commands import Refused
from tests.integration.conftest import TINY, assert_equal_runs

POOL, MEMBERS = 30, 4
NUMBER = {seeds.make_key(0, "instance", number): number for number in range(POOL)}


def stream(sampler: TaskSampler, **given: Any) -> PromptStream:
    weights = given.pop("task_weights", (1.0,))
    names = [f"game{task}" for task in range(len(weights))]
    return PromptStream(
        prompts=6, task_weights=weights, seed=0, val=(), instances=POOL, sampler=sampler, names=names, **given
    )


def play(numbers: Sequence[int], solved: Callable[[int], int], **given: Any) -> list[Episode]:
    """Episodes of groups, of which ``solved(number)`` members succeed."""
    keys = {number: key for key, number in NUMBER.items()}
    return [
        Episode(
            0, group, member, 0, "count", keys[number], success=member < solved(number), **{"end": EndReason.FAILURE} | given
        )
        for group, number in enumerate(numbers)
        for member in range(MEMBERS)
    ]  # fmt: skip


def train(sampler: TaskSampler, solved: Callable[[int], int], iterations: range) -> list[list[int]]:
    """Numbers of the tasks of each iteration."""
    prompts, drawn = stream(sampler), []
    for iteration in iterations:
        drawn.append([NUMBER[key] for key in prompts.make_batch(iteration).seed_P])
        sampler.learn(play(drawn[-1], solved))
    return drawn


def by_thirds(number: int) -> int:
    """Of the members, those that solve the task: none, half of them or all."""
    return (0, MEMBERS // 2, MEMBERS)[number % 3]


def test_draws_follow_the_weights_without_repetition() -> None:
    weights = np.array([1.0, 2.0, 0.0, 5.0])
    first = Counter(draw_by_weight(weights, 1, seed=0, address=(i, 0))[0] for i in range(4000))
    assert first[2] == 0
    assert [first[i] / 4000 for i in (0, 1, 3)] == pytest.approx([0.125, 0.25, 0.625], abs=0.03)
    three = draw_by_weight(weights, 5, seed=0, address=(7, 0))
    assert sorted(three[:3]) == [0, 1, 3] and three[3:] == three[:2]  # then again, in the same order
    assert draw_by_weight(weights, 2, seed=0, address=(7, 0)) == three[:2]
    with pytest.raises(ValueError, match="^no task has a weight above 0"):
        draw_by_weight(np.zeros(3), 1, seed=0, address=(0, 0))


def test_the_second_draw_is_in_proportion_too() -> None:
    """Against P(a, then b) = w_a w_b / (1 - w_a), the definition of drawing without replacement."""
    weights = np.array([0.5, 0.3, 0.2])
    pairs = Counter(tuple(draw_by_weight(weights, 2, seed=1, address=(i, 0))) for i in range(6000))
    for a, b in ((0, 1), (1, 0), (2, 1)):
        assert pairs[a, b] / 6000 == pytest.approx(weights[a] * weights[b] / (1 - weights[a]), abs=0.025)


def test_tasks_that_are_solved_sometimes_are_drawn_more_often() -> None:
    band, uniform = (
        Counter(number % 3 for numbers in train(sampler, by_thirds, range(60))[20:] for number in numbers)
        for sampler in (SuccessBand(), Uniform())
    )
    assert uniform == {0: 80, 1: 80, 2: 80}  # passes over all tasks
    assert band[1] > 3 * band[0] and band[1] > 3 * band[2] and min(band[0], band[2]) > 0


def test_rates_are_those_of_the_formula() -> None:
    sampler = SuccessBand(prior=0.25, prior_episodes=4.0, keep=0.5)
    numbers = [NUMBER[key] for key in stream(sampler).make_batch(0).seed_P]
    assert sampler.estimate(numbers[0]) == 0.25
    assert sampler.learn(play(numbers, lambda n: 3)) == {"seen_tasks": 6.0, "band_share": 1.0}
    assert sampler.estimate(numbers[0]) == (3 + 0.25 * 4) / (4 + 4)
    sampler.learn(play(numbers[:1], lambda n: 0))
    assert sampler.estimate(numbers[0]) == (0.5 * 3 + 1) / (0.5 * 4 + 4 + 4)
    before = sampler.state_dict()
    sampler.learn(play(numbers, lambda n: 4, end=EndReason.ERROR))
    sampler.learn(play(numbers, lambda n: 4, source=Source.HINT))
    assert sampler.state_dict() == before


def test_numbers_that_show_the_same_row_share_their_rate() -> None:
    sampler = SuccessBand()
    numbers = [NUMBER[key] for key in stream(sampler).make_batch(0).seed_P]
    sampler.learn(play(numbers[:2], lambda n: 4 if n == numbers[0] else 0, instance_id="row-3"))
    assert sampler.estimate(numbers[0]) == sampler.estimate(numbers[1]) != sampler.estimate(numbers[2])


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
    # two processes: each learns from its own groups, and gathers those of the other
    ranks, gathered = (make(), make()), list[Any]()
    for module in (success_rates, difficulty):
        monkeypatch.setattr(module, "gather_objects", lambda own: gathered.pop(0) or own)
    for iteration, numbers in enumerate(expected):
        batches = [stream(rank).make_batch(iteration) for rank in ranks]
        assert [[NUMBER[key] for key in batch.seed_P] for batch in batches] == [numbers, numbers]
        shares = [[e for e in play(numbers, by_thirds) if e.group % 2 == rank] for rank in reversed(range(2))]
        visits = [[(n, f"count/{n}", 4, by_thirds(n)) for n in numbers[rank::2]] for rank in (1, 0)]
        solved = [e.success for share in shares for e in share]
        for rank, share in zip(ranks, shares, strict=True):
            gathered[:] = [sum(visits, []), solved]
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
        prompts, stages[name] = stream(sampler), []
        for iteration in range(5):
            numbers = [NUMBER[key] for key in prompts.make_batch(iteration).seed_P]
            stages[name].append(sampler.learn(play(numbers, lambda n, solved=solved: solved))["stage"])
    assert stages == {"slow": [0, 0, 0, 1, 1], "quick": [0, 1, 1, 1, 1]}


def test_the_first_stage_turns_to_tasks_that_are_solved() -> None:
    """A third can be solved; a stage of a tenth finds such tasks, since what fails ranks behind what is unknown."""
    sampler = Difficulty(shares=(0.1, 1.0), after=100)
    late = [
        n for numbers in train(sampler, lambda n: 4 if n % 3 == 0 else 0, range(20))[-3:] for n in numbers
    ]
    assert late and all(number % 3 == 0 for number in late)


def test_games_of_a_mixture_come_in_their_order() -> None:
    sampler = Difficulty(shares=(0.5, 1.0), after=1, order=["game1", "game0"])
    sampler.check_games(["game0", "game1"])
    prompts = stream(sampler, task_weights=(1.0, 1.0))
    assert set(prompts.make_batch(0).task_P) == {1}
    sampler.learn([])
    assert {task for i in range(1, 5) for task in prompts.make_batch(i).task_P} == {0, 1}
    with pytest.raises(ValueError, match=r"^order=\[.*\] must be the games that are trained on.*: game0"):
        sampler.check_games(["game0"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SuccessBand(low=0.9), "low=0.9 must be at most high=0.8"),
        (lambda: SuccessBand(outside=0), r"outside=0 must be in \(0, 1\]"),
        (lambda: SuccessBand(prior=2), "prior=2 must be"),
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


def test_wrong_combinations_are_told_early(refused: Refused, in_empty_folder: Path) -> None:
    Path("rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8)
    assert "needs tasks that are played again" in refused("task_sampler=success_band")
    data = "algo=sft data=demonstrations data.path=rows.jsonl"
    assert "needs episodes that are played in training" in refused(f"{data} task_sampler=difficulty")
    assert "task_sampler=uniform has no effect: nothing is played" in refused(f"{data} task_sampler=uniform")
    order = "task_sampler=difficulty rollout.instances=8 task_sampler.order=[bandit]"
    assert "task_sampler.order=[bandit] must be the games that are trained on" in refused(order)
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
