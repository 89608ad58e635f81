"""The schedule of playing ahead: which weights play which iteration, what a checkpoint keeps, who gets which cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.models.policy import get_named_weights
from lit_agentrl.rollout.scheduler import EpisodeSpec, Wave
from lit_agentrl.rollout.schedules import PlayAhead, PlayNow, SyncedWorker
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.weights import SharedWeights


class FakeWorker:
    """Plays at once: an "episode" is (iteration, weight that it was played with, version)."""

    def __init__(self, network: nn.Module, threads: int) -> None:
        self.weights = SharedWeights(network)
        self.threads = threads
        self.log: list[tuple[Any, ...]] = []
        self.played: Any = None

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.weights.write(weights)
        self.version = version

    def differing(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.weights.differing(weights)

    def submit(self, wave: Wave) -> None:
        self.log.append(("submit", wave.iteration))
        value = float(self.weights.get_views()["moving"])
        self.played = Played([(wave.iteration, value, self.version)], 1.0)  # type: ignore[list-item]

    def take(self) -> Played:
        played, self.played = self.played, None
        return played

    def stop(self) -> None:
        self.log.append(("stop",))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.moving = nn.Parameter(torch.zeros(()))
        self.frozen = nn.Parameter(torch.ones(1000), requires_grad=False)


class Fit:
    """What a run does around the schedule; an update adds 1 to the weight and 2 to the version."""

    def __init__(self, last: int, checkpoint: dict[str, Any] | None = None, *, threads: int = 2) -> None:
        self.network, self.version, self.iteration = Network(), 0, 0
        self.worker = FakeWorker(self.network, threads)
        self.ahead = PlayAhead(
            self.worker, lambda: get_named_weights(self.network), wave, play_first, last=last
        )
        self.played: list[Any] = []
        self.checkpoint: dict[str, Any] = {}
        self.threads: list[int] = []
        if checkpoint is not None:
            self.iteration, self.version = checkpoint["iteration"], checkpoint["version"]
            self.network.moving.data.fill_(checkpoint["weight"])
            self.ahead.resume(checkpoint["ahead"], self.iteration)
        while self.iteration < last:
            self.iterate()
        self.ahead.stop()

    def iterate(self) -> None:
        found = self.ahead.play(wave(self.iteration), self.version)
        self.played.append(found.episodes[0])
        self.ahead.begin_update(self.version, self.iteration)
        self.threads.append(torch.get_num_threads())
        self.network.moving.data.add_(1.0)
        self.version += 2
        self.ahead.end_update()
        self.threads.append(torch.get_num_threads())
        self.iteration += 1
        self.checkpoint = {
            "iteration": self.iteration, "weight": self.network.moving.item(), "version": self.version,
            "ahead": self.ahead.state_dict(),
        }  # fmt: skip


def wave(iteration: int) -> Wave:
    specs = tuple(EpisodeSpec(iteration, iteration, member, 0, 7) for member in range(2))
    return Wave("train", iteration, SamplingParams(), specs)


def play_first(wave: Wave, version: int) -> Played:
    return Played(["first"])  # type: ignore[list-item]


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(threads)


def test_the_lag_is_one_update() -> None:
    done = Fit(4)
    # (iteration, weight, version): the first is the caller's own, later ones are one update old
    assert done.played == ["first", (1, 0.0, 0), (2, 1.0, 2), (3, 2.0, 4)]
    # nothing beyond the end
    assert done.worker.log == [("submit", 1), ("submit", 2), ("submit", 3), ("stop",)]


def test_further_waves_are_played_with_the_same_weights() -> None:
    done = Fit(2)
    done.ahead.begin_update(done.version, 0)
    with pytest.raises(RuntimeError, match="played ahead"):
        done.ahead.play(wave(2), done.version)
    assert done.ahead.play(wave(1), done.version).episodes == [(1, 2.0, 4)]
    assert done.ahead.play(wave(5), done.version).episodes == [(5, 2.0, 4)]


def test_a_resumed_run_plays_with_the_weights_before_the_last_update() -> None:
    straight, part = Fit(5), Fit(3)
    rest = Fit(5, part.checkpoint)
    assert part.played + rest.played == straight.played
    saved = part.checkpoint["ahead"]
    # what training does not move is left out
    assert saved["version"] == 4 and set(saved["weights"]) == {"moving"}
    assert saved["weights"]["moving"] == 2.0
    assert Fit(1).checkpoint["ahead"]["weights"]["moving"] == 0.0


def test_nothing_is_kept_before_the_first_iteration() -> None:
    network = Network()
    ahead = PlayAhead(FakeWorker(network, 2), lambda: get_named_weights(network), wave, play_first, last=None)
    assert ahead.state_dict() is None


def test_cores_are_shared_while_the_trainer_trains() -> None:
    assert Fit(2).threads == [2, 4, 2, 4]  # also in the last iteration, when nothing is played: equal bits
    assert Fit(2, threads=3).threads == [1, 4, 1, 4]
    assert Fit(1, threads=9).threads == [1, 4]
    assert torch.get_num_threads() == 4


def test_now_is_with_the_weights_of_now_sent_once_a_version() -> None:
    network = Network()
    worker = FakeWorker(network, threads=4)
    sent: list[int] = []
    load = worker.load
    worker.load = lambda weights, version: (sent.append(version), load(weights, version))  # type: ignore[method-assign,func-returns-value]
    now = PlayNow(SyncedWorker(worker, lambda: get_named_weights(network)).play, worker.stop)
    played: list[Any] = []
    for iteration, version in ((0, 0), (1, 2), (1, 2), (2, 2)):
        network.moving.data.fill_(float(version))
        played += now.play(wave(iteration), version).episodes
    now.stop()
    assert played == [(0, 0.0, 0), (1, 2.0, 2), (1, 2.0, 2), (2, 2.0, 2)] and sent == [0, 2]
    assert worker.log[-1] == ("stop",) and torch.get_num_threads() == 4
