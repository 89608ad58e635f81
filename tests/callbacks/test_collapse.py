"""A policy whose draws are uniform is told once, whichever episodes show it."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.trainer.states import TrainerFn

from lit_agentrl.callbacks.collapse import CollapseWatch

UNIFORM = math.log(100)


def module(**row: float) -> Any:
    config = SimpleNamespace(vocab_size=100)
    config.get_text_config = lambda: config
    return SimpleNamespace(row=row, last_row={}, eval_metrics={}, network=SimpleNamespace(config=config))


def evaluated(entropy: float) -> Any:
    found = module()
    found.eval_metrics = {"bandit": SimpleNamespace(compute=lambda: {"entropy": entropy})}
    return found


def trainer(fn: TrainerFn = TrainerFn.FITTING, *, is_first: bool = True) -> Any:
    return SimpleNamespace(current_epoch=4, is_global_zero=is_first, state=SimpleNamespace(fn=fn))


def test_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = CollapseWatch()
    watch.on_train_epoch_end(trainer(), module(**{"rollout/entropy": 0.9 * UNIFORM}))
    watch.on_train_epoch_end(trainer(), module())
    watch.on_validation_end(trainer(), evaluated(0.5))
    assert not watch.warnings and not caplog.records
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            watch.on_train_epoch_end(trainer(), module(**{"rollout/entropy": UNIFORM}))
        watch.on_test_end(trainer(), evaluated(UNIFORM))
    (record,) = caplog.records
    assert record.getMessage() == f"warning: {watch.warnings[0]}" and len(watch.warnings) == 1
    assert (
        "after 4 iterations the policy draws all tokens almost alike (entropy 4.605 of" in watch.warnings[0]
    )


@pytest.mark.parametrize(("fn", "iterations"), [(TrainerFn.FITTING, 5), (TrainerFn.VALIDATING, 4)])
def test_validation_shows_the_weights_after_the_update(fn: TrainerFn, iterations: int) -> None:
    watch = CollapseWatch()
    watch.on_validation_end(trainer(fn, is_first=False), evaluated(UNIFORM))
    assert watch.warnings[0].startswith(f"after {iterations} iterations the policy")


def test_a_resumed_run_knows_what_was_told() -> None:
    before, after = CollapseWatch(), CollapseWatch()
    before.on_validation_end(trainer(), evaluated(UNIFORM))
    summary = after.warnings
    for _ in range(2):
        after.load_state_dict(before.state_dict())
    after.on_validation_end(trainer(), evaluated(UNIFORM))
    assert summary == before.warnings and len(summary) == 1


def test_both_sides_of_a_pair_that_fall_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = CollapseWatch()
    for chosen, rejected in ((0.2, -3.0), (-3.0, 0.0), (-0.9, -1.1)):
        watch.on_train_epoch_end(
            trainer(), module(**{"train/moved_chosen": chosen, "train/moved_rejected": rejected})
        )
    assert not watch.warnings
    fallen = module(**{"train/moved_chosen": -1.1, "train/moved_rejected": -1.3})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            watch.on_train_epoch_end(trainer(), fallen)
        watch.on_train_epoch_end(trainer(), module(**{"rollout/entropy": UNIFORM}))
    assert len(caplog.records) == 2
    assert (
        "after 5 iterations the log-probs of both sides of a pair have fallen, by 1.1 nats (chosen) and 1.3"
        in (watch.warnings[0])
    )
    resumed = CollapseWatch()
    resumed.load_state_dict(watch.state_dict())
    resumed.on_train_epoch_end(trainer(), fallen)
    assert len(resumed.warnings) == 2
