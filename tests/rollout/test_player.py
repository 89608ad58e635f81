"""Who plays, and when ranks wait for each other."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch

from lit_agentrl.distributed import StrategyHooks
from lit_agentrl.rollout.player import Player
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.rollout.workers.inline import Here
from tests.rollout.test_collector import Player as Collected
from tests.rollout.test_schedules import FakeWorker, Network, wave

NOTHING = replace(wave(0), specs=())


class Told(FakeWorker):
    """Also tells when its episodes are taken."""

    def take(self) -> Any:
        self.log.append(("take",))
        return super().take()


class Settings(WorkerSettings):
    def open(self, rules: Any, network: Any, forward_context: Any, *, is_ahead: bool) -> Any:
        self.worker = Told(network, threads=1)
        return self.worker


def players(worker: WorkerSettings, log: list[Any], *, is_ahead: bool = False) -> Player:
    """With the barrier of a strategy that writes down when it is called."""
    made = Player(Collected(lambda spec, k: "").rules, worker, wave if is_ahead else None)
    made.open(Network(), torch.no_grad, StrategyHooks(barrier=lambda name: log.append((name,))))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_rank_whose_worker_hangs_is_named_by_a_barrier(is_ahead: bool) -> None:
    """It is the first collective after what a worker plays, as it is after what this process plays."""
    settings = Settings()
    log: list[Any] = []
    made = players(settings, log, is_ahead=is_ahead)
    made.start(last=3, iteration=0, state=None)
    settings.worker.log = log
    if is_ahead:
        made.begin_update(None, 0, 0, torch.device("cpu"))
        log.clear()
    made.play_training(wave(1), 0)
    assert log == [*([] if is_ahead else [("submit", 1)]), ("take",), ("played",)]
    made.close()


def test_what_an_own_worker_or_engine_lacks_is_named_before_it_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeWorker, "differing")
    made = players(Settings(), [])
    with pytest.raises(
        ValueError, match="worker=Settings makes a Told without differing, which .*base.Worker"
    ):
        made.start(last=3, iteration=0, state=None)
    made.close()
    rules = replace(Collected(lambda spec, k: "").rules, engine=lambda **options: object())
    with pytest.raises(ValueError, match="engine makes a object without capabilities, which .*base.Engine"):
        rules.open_engine(Network())  # type: ignore[arg-type]


def test_ranks_are_awaited_after_episodes_of_this_process() -> None:
    log: list[Any] = []
    made = players(Here(), log)
    assert made.play_evaluation(NOTHING, 0).episodes == made.play_training(NOTHING, 0).episodes == []
    assert log == [("played",)] * 2


def test_sigterm_interrupts_what_is_played_and_is_lightnings_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    made = players(Here(), [])
    made.open(
        Network(), torch.no_grad, StrategyHooks(barrier=lambda name: os.kill(os.getpid(), signal.SIGTERM))
    )  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        made.play_evaluation(NOTHING, 0)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_worker_is_given_whole_weights(is_ahead: bool) -> None:
    """Of a strategy that shards them, by a door that all ranks go through."""
    settings, whole = Settings(), Network()
    made = Player(Collected(lambda spec, k: "").rules, settings, wave if is_ahead else None)
    hooks = StrategyHooks(is_sharded=True, unshard_on_every_rank=lambda network: whole)
    made.open(Network(), torch.no_grad, hooks)  # type: ignore[arg-type]
    made.start(last=3, iteration=0, state=None)
    for value in (3.0, 4.0):
        whole.moving.data.fill_(value)
        if is_ahead:
            made.begin_update(None, int(value), 0, torch.device("cpu"))
        found: Any = made.play_training(wave(1), int(value)).episodes
        assert found == [(1, value, int(value))]
    made.close()
