"""The stream of prompts is a function of (seed, iteration), and splits never share a group id or instance."""

from __future__ import annotations

import pytest

from lit_agentrl import seeds
from lit_agentrl.data.prompts import EvalSpec, OneBatch, PromptStream


def stream(seed: int = 0, weights: tuple[float, ...] = (1.0,), prompts: int = 6) -> PromptStream:
    return PromptStream(
        prompts=prompts,
        task_weights=weights,
        seed=seed,
        val=[EvalSpec(0, 4)],
        test=[EvalSpec(0, 5), EvalSpec(1, 3)],
    )


def test_batches_are_addressed() -> None:
    assert stream().make_batch(3) == stream().make_batch(3)
    assert stream().make_batch(3).seed_P != stream().make_batch(4).seed_P != stream(1).make_batch(4).seed_P
    ids = [group for iteration in range(10) for group in stream().make_batch(iteration).group_P]
    assert ids == list(range(60))


def test_mixture_follows_the_weights() -> None:
    tasks = [t for i in range(200) for t in stream(weights=(3.0, 1.0)).make_batch(i).task_P]
    assert sum(t == 0 for t in tasks) / len(tasks) == pytest.approx(0.75, abs=0.04)


def test_evaluation_instances_do_not_depend_on_the_run_seed() -> None:
    [val] = [next(iter(loader)) for loader in stream(0).val_dataloader()]
    [other] = [next(iter(loader)) for loader in stream(7).val_dataloader()]
    assert val.seed_P == other.seed_P and len(val.seed_P) == 4
    first, second = (next(iter(loader)) for loader in stream().test_dataloader())
    assert (len(first.seed_P), second.task_P) == (5, [1, 1, 1])
    assert not set(val.seed_P) & set(first.seed_P)


def test_evaluation_instances_do_not_depend_on_the_place_of_a_game() -> None:
    """Else a game evaluated beside others would meet other instances than alone."""

    def instances(*specs: EvalSpec) -> list[list[int]]:
        made = PromptStream(prompts=1, task_weights=[1.0], seed=0, val=specs, test=specs)
        return [next(iter(loader)).seed_P for loader in [*made.val_dataloader(), *made.test_dataloader()]]

    first_val, second_val, first_test, second_test = instances(EvalSpec(0, 5), EvalSpec(3, 4))
    assert first_val[:4] == second_val and first_test[:4] == second_test
    recorded = [seeds.make_key(0, "val-instance", 0, p) for p in range(5)]  # of runs of one game
    assert first_val == recorded
    assert not set(first_val) & set(first_test)


def test_the_training_instances_of_a_run_can_be_played_by_others() -> None:
    """All that `instances=8` trains on with seed 5, in two passes of an order of its own."""
    trained = PromptStream(prompts=4, task_weights=(1.0,), seed=5, val=(), instances=8)
    passes = [[key for i in range(2) for key in trained.make_batch(2 * k + i).seed_P] for k in range(2)]
    other = PromptStream(prompts=1, task_weights=(1.0,), seed=0, val=(), test=[EvalSpec(0, 8, trained_in=5)])
    [batch] = other.test_dataloader()[0]
    assert sorted(batch.seed_P) == sorted(passes[0]) == sorted(passes[1]) and passes[0] != passes[1]
    other.test = [EvalSpec(0, 3, first=2, trained_in=5)]
    [part] = other.test_dataloader()[0]
    assert part.seed_P == batch.seed_P[2:5]


def test_instances_from_a_number_on_are_those_of_the_whole_evaluation() -> None:
    made = PromptStream(
        prompts=1, task_weights=[1.0], seed=0, val=[], test=[EvalSpec(0, 9), EvalSpec(0, 2, first=6)]
    )
    whole, part = (next(iter(loader)) for loader in made.test_dataloader())
    assert (part.seed_P, part.group_P) == (whole.seed_P[6:8], [6, 7])


def test_one_batch_has_a_length() -> None:
    [batch] = list(stream().train_dataloader())
    assert len(OneBatch(lambda: batch)) == 1 and batch.iteration == 0


def test_no_prompts_is_an_error() -> None:
    with pytest.raises(ValueError, match="^prompts=0 must be"):
        stream(prompts=0)
