"""Schedules of a worker: it plays an iteration when needed, or during the update before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.distributed import sum_over_ranks
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.rollout.workers.base import Play, Played, Worker, play_wave


class SyncedWorker:
    """A worker that plays with the trainer's current weights, which are sent once per version.

    Args:
        worker: The worker.
        weights: Returns the whole weights of the trainer's network; all ranks call it.
    """

    def __init__(self, worker: Worker, weights: Callable[[], Mapping[str, Tensor]]) -> None:
        self._worker = worker
        self._weights = weights
        self._version: int | None = None  # version of the weights that the worker has

    def play(self, wave: Wave, version: int) -> Played:
        """Play a wave; ``version`` is that of the network's weights."""
        if version != self._version:
            self._worker.load(self._weights(), version)
            self._version = version
        return play_wave(self._worker, wave)


class PlayNow:
    """A schedule that plays each iteration at its beginning, with the current weights.

    Args:
        play: Plays a wave with the weights of a version, in this process or in a `SyncedWorker`.
        stop: Stops the worker, if any.
    """

    is_ahead = False

    def __init__(self, play: Play, stop: Callable[[], None] = lambda: None) -> None:
        self.play = play
        self.stop = stop

    def begin_update(self, version: int, iteration: int) -> None:
        """Play nothing while the trainer trains."""

    def end_update(self) -> None:
        """Leave the CPU cores as they are."""

    def state_dict(self) -> None:
        """Return None: a checkpoint holds the weights that play the next iteration."""


class PlayAhead:
    """A schedule that plays iteration i + 1 during the update of iteration i.

    It plays with the weights before that update, so the lag is always one update.  This process plays the first
    iteration of a run, with the initial weights.  A checkpoint written after iteration i also holds the weights from
    the start of i that training has changed since: a resumed run plays i + 1 again with them and gets the same
    episodes.

    Args:
        worker: The worker, which plays in the background.
        weights: Returns the whole weights of the trainer's network; all ranks call it.
        plan_wave: Returns the first wave of an iteration.
        play_first: Plays the waves of the run's first iteration.
        last: Number of iterations of the run; None for no end.
        shares_cores: Whether the trainer computes on CPU cores, which the worker needs too.
    """

    is_ahead = True

    def __init__(
        self,
        worker: Worker,
        weights: Callable[[], Mapping[str, Tensor]],
        plan_wave: Callable[[int], Wave],
        play_first: Play,
        *,
        last: int | None,
        shares_cores: bool = True,
    ) -> None:
        self._worker = worker
        self._weights = weights
        self._plan_wave = plan_wave
        self._play_first = play_first
        self._last = last
        self._version: int | None = None  # version of the weights in use; None before there are any
        self._submitted: Wave | None = None
        self._threads_at_start = self._threads_of_training = torch.get_num_threads()
        if shares_cores:
            self._threads_of_training = max(1, self._threads_at_start - worker.threads)

    def play(self, wave: Wave, version: int) -> Played:
        """Return the episodes of a wave, played with the weights before the last update.

        The first iteration is played with the weights of ``version``.

        Raises:
            RuntimeError: Another wave is being played.
        """
        if self._version is None:
            return self._play_first(wave, version)
        if self._submitted is None:
            self._worker.submit(wave)
        elif self._submitted != wave:
            raise RuntimeError(f"played ahead: {self._submitted}; wanted: {wave}")
        self._submitted = None
        return self._worker.take()

    def begin_update(self, version: int, iteration: int) -> None:
        """Start playing the next iteration, and leave CPU cores to the worker."""
        self._submit(self._weights(), version, iteration + 1)
        # also without a next iteration, since the bits of training depend on the number of threads
        torch.set_num_threads(self._threads_of_training)

    def end_update(self) -> None:
        """Give the trainer its CPU cores back, for validation."""
        torch.set_num_threads(self._threads_at_start)

    def stop(self) -> None:
        """Stop the worker."""
        self._worker.stop()
        torch.set_num_threads(self._threads_at_start)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the weights that the next iteration is played with; None before there are any."""
        if self._version is None:
            return None
        changed = self._worker.differing(self._weights())
        return {"version": self._version, "weights": changed}

    def resume(self, state: dict[str, Any], iteration: int) -> None:
        """Play the iteration that the interrupted run was playing, which is trained on next."""
        weights = {**self._weights(), **state["weights"]}
        self._submit(weights, state["version"], iteration)

    def _submit(self, weights: Mapping[str, Tensor], version: int, iteration: int) -> None:
        self._worker.load(weights, version)
        self._version = version
        if self._last is None or iteration < self._last:
            self._submitted = self._plan_wave(iteration)
            self._worker.submit(self._submitted)


def measure_staleness(trajectories: TrajectoryBatch | None, version: int, device: torch.device) -> float:
    """Return the age of the sampling weights in optimizer steps.

    It is the mean over the tokens trained on, of all ranks.
    """
    if trajectories is None:
        pair = torch.zeros(2)
    else:
        lag_BT = version - trajectories.policy_version_BT
        is_action_BT = trajectories.is_action_BT
        pair = torch.stack([(lag_BT * is_action_BT).sum(), is_action_BT.sum()]).float()
    total, count = sum_over_ranks(pair.to(device)).tolist()
    return float(total / max(count, 1.0))
