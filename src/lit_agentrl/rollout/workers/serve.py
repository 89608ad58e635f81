"""What runs in the process that plays episodes for another one."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import time
import traceback
from contextlib import AbstractContextManager, ExitStack, closing
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

import lit_agentrl.models.packing  # noqa: F401  (registers the attention that a network sent over may name)
from lit_agentrl import seeds
from lit_agentrl.rollout.scheduler import Scheduler, Wave
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.rollout.workers.weights import SharedWeights


def serve(
    requests: Connection,
    payload: Tensor,
    weights: SharedWeights,
    ticks: Tensor,
    device: torch.device | str,
    threads: int,
) -> None:
    """Answer requests until the parent is gone or ends this process; games are closed then.

    Args:
        requests: ``("load", version)`` and ``("play", wave)``; a wave is answered by ``("played", Played)``, and
            whatever goes wrong by ``("error", (summary, stack))``.
        payload: rules, network and forward context, as written by ``torch.save``.
        weights: what is loaded.
        ticks: one number, which is counted up at each forward: a sign of life.
        device: of the network.
        threads: of torch.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the parent decides
    signal.signal(signal.SIGTERM, _end)  # which is how it does
    threading.Thread(target=_end_with_parent, daemon=True).start()
    is_ended = False
    with ExitStack() as games:  # closed after the parent was told
        try:
            torch.set_num_threads(threads)
            # weights_only is for files from elsewhere: these are the parent's own objects
            rules, network, forward_context = torch.load(
                io.BytesIO(payload.numpy().tobytes()), map_location=device, weights_only=False
            )
            del payload

            def ticking() -> AbstractContextManager[object]:
                ticks[0] += 1
                context: AbstractContextManager[object] = forward_context()
                return context

            engine = rules.open_engine(network, ticking)
            sync = WeightSync(engine, network, rules, forward_context)
            scheduler = games.enter_context(closing(Scheduler(rules, engine)))
            while (request := _next(requests)) is not None:
                kind, value = request
                if kind == "load":
                    sync.load(weights.views(), value)
                else:
                    requests.send(("played", _played(rules.seed, sync, scheduler, value)))
        except _Ended:
            is_ended = True
        except BaseException as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the parent, told, gives games some time to close
            lines = str(error).strip().splitlines() or [""]
            requests.send(("error", (f"{type(error).__name__}: {lines[0]}", traceback.format_exc())))
    if is_ended:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


class _Ended(BaseException):
    """SIGTERM has come; no ``SystemExit``, which a game that raises it is forgiven."""


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _next(requests: Connection) -> tuple[str, Any] | None:
    try:
        request: tuple[str, Any] = requests.recv()
    except (EOFError, ConnectionError):  # the parent is gone
        return None
    return request


def _played(seed: int, sync: WeightSync, scheduler: Scheduler, wave: Wave) -> Played:
    started = time.perf_counter()
    # a game should draw from its keyed generator; one that draws from torch's does so repeatably
    torch.manual_seed(seeds.key(seed, "ahead", wave.iteration, wave.number))
    row = sync.probed(wave.params)
    return Played(scheduler.play(wave), time.perf_counter() - started, row)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
