"""Workers started by Ray, on this machine or on a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.facts import ONE_PROCESS
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.rules import ForwardContext, Rules
from lit_agentrl.rollout.workers.actor import PlayingActor, serialize_weights
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.cluster import (
    connect,
    count_resources,
    require_head,
    require_room,
)
from lit_agentrl.rollout.workers.opener import LostWorker, PlayingError
from lit_agentrl.rollout.workers.options import ASK_S, AUTO, check_actors
from lit_agentrl.rollout.workers.pool import Pool
from lit_agentrl.rollout.workers.process import serialize_parts
from lit_agentrl.rollout.workers.settings import PoolSettings
from lit_agentrl.rollout.workers.shares import Share
from lit_agentrl.rollout.workers.weights import differing

_STOP_S = 5.0  # time limit for an actor to close its games


def import_ray() -> ModuleType:
    """Import Ray.

    Raises:
        ValueError: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError("worker=ray needs the library ray: pip install 'lit-agentrl[ray]'") from error
    module: ModuleType = ray
    return module


@dataclass(frozen=True, kw_only=True)
class RaySettings(PoolSettings):
    """Options of Ray actors as workers.

    Args:
        address: Address of a running cluster, such as ``auto`` or ``HOST:6379``; None starts one on this machine alone,
            which ends with the run.
        count: Number of actors; ``auto`` for as many as the cluster has room for, and more when it grows.
        cpus, gpus: CPUs and GPUs that Ray reserves for each actor.

    Raises:
        ValueError: A value is out of range, or Ray is not installed.
    """

    address: str | None = None
    count: int | str = AUTO  # type: ignore[assignment]  # other pools have a number here
    cpus: float = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        check_actors(**{field.name: getattr(self, field.name) for field in fields(self)})
        import_ray()

    def check(self, rules: Rules) -> None:
        """Check the rules and the cluster; see `WorkerSettings`.

        Raises:
            PlayingError: No cluster answers at the address, or this machine alone has no room for a worker.
        """
        rules.require_picklable()
        if self.address is not None:
            require_head(self.address)
        else:
            # with a fixed number of actors, Ray is started with as many cores as they request
            cores = {"cpus": self.cpus} if self.count == AUTO else {}
            require_room({"gpus": self.gpus, **cores}, count_resources())

    @property
    def requires(self) -> list[Requirement]:
        """One training process, or a running cluster and a fixed number of actors for each."""
        if self.address is not None and not isinstance(self.count, str):
            return []
        remedy = "worker.address=auto worker.count=N next to a cluster that runs already (ray start --head)"
        return [Requirement(ONE_PROCESS, remedy=remedy)]

    def open(
        self, rules: Rules, network: PreTrainedModel, forward_context: ForwardContext, *, is_ahead: bool
    ) -> Pool:
        opener = Actors(self, serialize_parts((rules, network, forward_context)), is_ahead=is_ahead)
        return self.make_pool(opener, rules, is_ahead=is_ahead)


class Actors:
    """Opens actors, and stores the weights where all actors can read them.

    Args:
        settings: Options of ``worker=ray``.
        payload: Serialised parts of an actor.
        is_ahead: Whether the trainer trains while the actors play.

    Raises:
        PlayingError: No cluster answers at the address, or none can be started.
    """

    name = "ray"

    def __init__(self, settings: RaySettings, payload: bytes, *, is_ahead: bool) -> None:
        self._settings = settings
        self._ray = ray = import_ray()
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            connect(ray, settings.address, count=settings.count, cpus=settings.cpus, gpus=settings.gpus)
        self._threads = settings.choose_threads(is_ahead=is_ahead)
        options = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "concurrency_groups": {"life": 1}}
        self._actor = ray.remote(**options)(PlayingActor)
        self._payload = ray.put(payload)  # stored once, so that later actors can be made from it too
        self._snapshot: dict[str, Tensor] = {}
        self.weights: Any = None

    @property
    def num_workers(self) -> int:
        if isinstance(self._settings.count, int):
            return self._settings.count
        resources, settings = self._ray.cluster_resources(), self._settings
        room = resources.get("CPU", 0.0) / settings.cpus
        if settings.gpus:
            room = min(room, resources.get("GPU", 0.0) / settings.gpus)
        return max(1, int(room))

    def open(self, number: int) -> Actor:
        device = "cuda" if self._settings.gpus else "cpu"
        return Actor(self._ray, self, self._actor.remote(self._payload, device, self._threads))

    def write(self, weights: Mapping[str, Tensor]) -> None:
        for name, tensor in weights.items():
            if name in self._snapshot:
                self._snapshot[name].copy_(tensor)
            else:
                self._snapshot[name] = tensor.detach().to("cpu", copy=True)
        # drops the reference to the previous weights
        self.weights = self._ray.put(serialize_weights(self._snapshot))

    def differing(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return differing(self._snapshot, weights)

    def close(self) -> None:
        self.weights = self._payload = None
        if self._is_ours:
            self._ray.shutdown()


class Actor:
    """One actor; see `WorkerHandle`.

    Args:
        ray: The library.
        opener: The opener, which holds the weights.
        handle: Ray's handle of the actor.
    """

    def __init__(self, ray: ModuleType, opener: Actors, handle: Any) -> None:
        self._ray, self._opener, self._handle = ray, opener, handle
        self._why = ""
        self._signs = 0
        self._is_dead = False
        self._is_idle = False  # whether it would answer a request to close its games
        self._request: Any = self._request_signs()
        self._requested_at = time.monotonic()

    def _request_signs(self) -> Any:
        return self._handle.get_signs.options(concurrency_group="life").remote()

    @property
    def is_alive(self) -> bool:
        """True if the actor answers a request; Ray itself reports a death late."""
        if self._is_dead:
            return False
        try:
            self._signs = self._ray.get(self._request_signs(), timeout=30.0)
        except self._ray.exceptions.RayError:
            return False
        return True

    @property
    def progress(self) -> int:
        """The number of signs of life in the last answer.

        The next request is sent only after that answer, so an actor that hangs gets only one request.
        """
        if time.monotonic() - self._requested_at < ASK_S:
            return self._signs
        ready, _ = self._ray.wait([self._request], timeout=0)
        if ready:
            with suppress(self._ray.exceptions.RayError):  # `play` raises the error
                self._signs = self._ray.get(self._request)
            self._request, self._requested_at = self._request_signs(), time.monotonic()
        return self._signs

    def is_ready(self, seconds: float) -> bool:
        ready, _ = self._ray.wait([self._request], timeout=seconds)
        if ready:
            try:
                self._signs = self._ray.get(self._request)
            except self._ray.exceptions.RayTaskError as error:
                raise self._make_error(error) from error
            except self._ray.exceptions.RayActorError as error:
                if error.actor_init_failed:  # another actor would fail in the same way
                    raise PlayingError(
                        f"a playing worker (worker=ray) failed: {_find_error_line(str(error))}"
                    ) from error
                raise LostWorker(self._describe_death(error)) from error
            except self._ray.exceptions.RayError as error:
                raise LostWorker(self._describe_death(error)) from error
            self._is_idle = True
        return bool(ready)

    def play(self, share: Share, load: int, version: int) -> Played:
        self._is_idle = False
        answer = self._handle.play.remote(share, load, version, [self._opener.weights], self._ray.get)
        try:
            played = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            self._is_idle = True
            raise self._make_error(error) from error
        except self._ray.exceptions.RayError as error:
            raise LostWorker(self._describe_death(error)) from error
        self._is_idle = True
        assert isinstance(played, Played)
        return played

    def end(self) -> None:
        if not self._is_idle:  # an idle actor first closes its games, see close()
            self.kill("was ended")

    def kill(self, why: str) -> None:
        self._why = self._why or why
        with suppress(Exception):  # an actor that never started, or a cluster that is gone
            self._ray.kill(self._handle)

    def close(self) -> None:
        """Close the actor's games if possible, and end the actor."""
        if self._is_idle and not self._why and not self._is_dead:
            with suppress(Exception):
                self._ray.get(self._handle.close.remote(), timeout=_STOP_S)
        self.kill("was ended")

    def _make_error(self, error: Any) -> PlayingError:
        """Return the error of a share, given Ray's ``RayTaskError``."""
        cause = error.cause
        line = (str(cause).strip().splitlines() or [""])[0]
        return PlayingError(f"a playing worker (worker=ray) failed: {type(cause).__name__}: {line}")

    def _describe_death(self, error: Exception) -> str:
        self._is_dead = True
        return self._why or f"died ({type(error).__name__})"


def _find_error_line(stack: str) -> str:
    """Return the error line of a stack trace: the line after the last indented one."""
    lines = stack.strip().splitlines() or [""]
    indented = [number for number, line in enumerate(lines[:-1]) if line.startswith("  ")]
    return lines[indented[-1] + 1] if indented else lines[-1]
