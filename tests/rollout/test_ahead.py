"""The schedule of playing ahead: which weights play which iteration, what a checkpoint keeps, who gets which cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.rollout import ahead
from lit_agentrl.rollout.ahead import PlayAhead
from lit_agentrl.rollout.scheduler import EpisodeSpec, Wave
from lit_agentrl.rollout.workers.process import Played
from lit_agentrl.rollout.workers.weights import SharedWeights


class FakeProcess:
    """Plays at once: an "episode" is (iteration, weight that it was played with, version)."""

    def __init__(self, rules: Any, network: nn.Module, *args: Any, threads: int, **options: Any) -> None:
        self.weights = SharedWeights(network)
        self.threads, self.options = threads, options
        self.log: list[tuple[Any, ...]] = []
        self.played: Any = None

    def load(self, weights: dict[str, torch.Tensor], version: int) -> None:
        self.weights.write(weights)
        self.version = version

    def submit(self, wave: Wave) -> None:
        self.log.append(("submit", wave.iteration))
        value = float(self.weights.views()["moving"])
        self.played = Played([(wave.iteration, value, self.version)], 1.0)  # type: ignore[list-item]

    def take(self, wave: Wave) -> Played:
        if self.played is None:
            self.submit(wave)
        played, self.played = self.played, None
        return played

    def stop(self) -> None:
        self.log.append(("stop",))


class Network(nn.Module):
    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.moving = nn.Parameter(torch.zeros(()))
        self.frozen = nn.Parameter(torch.ones(1000), requires_grad=False)


class Fit:
    """What a run does around the schedule; an update adds 1 to the weight and 2 to the version."""

    def __init__(self, max_epochs: int, checkpoint: dict[str, Any] | None = None, **options: Any) -> None:
        plugin = SimpleNamespace(forward_context=nullcontext)
        self.trainer: Any = SimpleNamespace(max_epochs=max_epochs, current_epoch=0, precision_plugin=plugin)
        self.module: Any = SimpleNamespace(network=Network(), version=0)
        rules: Any = SimpleNamespace(require_picklable=lambda: None)
        self.ahead = PlayAhead(rules, wave, **options)
        self.played: list[Any] = []
        self.checkpoint: dict[str, Any] = {}
        self.threads: list[int] = []
        if checkpoint is not None:
            self.trainer.current_epoch = checkpoint["epoch"]
            self.module.network.moving.data.fill_(checkpoint["weight"])
            self.module.version = checkpoint["version"]
            self.ahead.load(checkpoint)
        self.ahead.begin(self.trainer, self.module)
        self.process: Any = self.ahead._process
        while self.trainer.current_epoch < max_epochs:
            self.iterate()
        self.ahead.end()

    def iterate(self) -> None:
        iteration = self.trainer.current_epoch
        found = self.ahead.take(wave(iteration))
        self.played.append(None if found is None else found.episodes[0])
        self.ahead.go_on(self.trainer, self.module)
        self.threads.append(torch.get_num_threads())
        self.module.network.moving.data.add_(1.0)
        self.module.version += 2
        self.ahead.update_is_over()
        self.threads.append(torch.get_num_threads())
        self.trainer.current_epoch += 1
        self.checkpoint = {
            "epoch": iteration + 1, "weight": self.module.network.moving.item(), "version": self.module.version,
        }  # fmt: skip
        self.ahead.save(self.module, self.checkpoint)


def wave(iteration: int) -> Wave:
    specs = tuple(EpisodeSpec(iteration, iteration, member, 0, 7) for member in range(2))
    return Wave("train", iteration, SamplingParams(), specs)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ahead, "PlayingProcess", FakeProcess)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(threads)


def test_the_lag_is_one_update() -> None:
    done = Fit(4)
    # (iteration, weight, version): the first is the caller's own, later ones are one update old
    assert done.played == [None, (1, 0.0, 0), (2, 1.0, 2), (3, 2.0, 4)]
    assert done.process.log == [
        ("submit", 1),
        ("submit", 2),
        ("submit", 3),
        ("stop",),
    ]  # nothing beyond the end


def test_a_resumed_run_plays_with_the_weights_before_the_last_update() -> None:
    straight, part = Fit(5), Fit(3)
    rest = Fit(5, part.checkpoint)
    assert part.played + rest.played == straight.played
    saved = part.checkpoint["played_ahead"]
    assert saved["version"] == 4 and set(saved["weights"]) == {
        "moving"
    }  # what training does not move is left out
    assert saved["weights"]["moving"] == 2.0
    assert Fit(1).checkpoint["played_ahead"]["weights"]["moving"] == 0.0


def test_a_checkpoint_of_before_the_first_iteration_restores_nothing() -> None:
    assert Fit(2, {"epoch": 0, "weight": 0.0, "version": 0, "played_ahead": None}).played == [
        None,
        (1, 0.0, 0),
    ]


def test_cores_are_shared_while_the_trainer_trains() -> None:
    assert Fit(2).threads == [2, 4, 2, 4]  # also in the last iteration, when nothing is played: equal bits
    done = Fit(2, threads=3)
    assert done.threads == [1, 4, 1, 4] and done.process.threads == 3
    assert Fit(1, threads=9).threads == [1, 4]
    assert torch.get_num_threads() == 4


def test_device_and_patience_are_handed_on() -> None:
    assert Fit(1).process.options == {"device": torch.device("cpu"), "patience": 600.0}
    assert Fit(1, device="cuda:1", patience=5.0).process.options == {
        "device": torch.device("cuda:1"), "patience": 5.0,
    }  # fmt: skip
