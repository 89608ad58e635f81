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
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.connection import Connection

import torch
from torch import Tensor

import lit_agentrl.models.packing  # noqa: F401  (registers the attention that a network sent over may name)
from lit_agentrl.rollout.scheduler import Scheduler
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.rollout.workers.shares import Share, play_share
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
        requests: ``(number of the loading, version of the weights, share)``, answered by
            ``("played", Played)``; whatever goes wrong by ``("error", (summary, stack))``.
        payload: rules, network and forward context, as written by ``torch.save``.
        weights: what is loaded.
        ticks: one number, which is counted up at each forward: a sign of life; negative until all is ready.
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
            loaded, ticks[0] = None, 0
            while (request := _next(requests)) is not None:
                load, version, share = request
                started = time.perf_counter()
                if load != loaded:
                    sync.load(weights.views(), version)
                    loaded = load
                played = play_share(share, sync, scheduler, version)
                requests.send(("played", replace(played, seconds=time.perf_counter() - started)))
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


def _next(requests: Connection) -> tuple[int, int, Share] | None:
    try:
        request: tuple[int, int, Share] = requests.recv()
    except (EOFError, ConnectionError):  # the parent is gone
        return None
    return request


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
