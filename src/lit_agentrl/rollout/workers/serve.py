"""The program of a process that plays episodes for the trainer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from contextlib import ExitStack
from multiprocessing import connection
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from lit_agentrl.rollout.workers.share_player import SharePlayer
from lit_agentrl.rollout.workers.shares import Share
from lit_agentrl.rollout.workers.weights import SharedWeights


def serve(
    requests: Connection,
    payload: Tensor,
    weights: SharedWeights,
    ticks: Tensor,
    device: torch.device | str,
    threads: int,
) -> None:
    """Answer requests until the parent exits or ends this process; then close the games.

    Args:
        requests: each is ``(number of the load, version of the weights, share)``; the answer is ``("played", Played)``,
            or ``("error", (summary, stack))`` after any failure.
        payload: rules, network and forward context, as written by ``torch.save``.
        weights: shared memory from which weights are loaded.
        ticks: one number, incremented at each sign of life; negative until the process is ready.
        device: device of the network.
        threads: number of torch threads.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches parent and child; the parent decides
    signal.signal(signal.SIGTERM, _end)  # the parent's way to end this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    is_ended = False

    def count_sign() -> None:
        if ticks[0] >= 0:  # negative until ready: an engine may call its network before that
            ticks[0] += 1

    with ExitStack() as games:  # closed after an error was sent to the parent
        try:
            player = SharePlayer(payload.numpy().tobytes(), device, threads, count_sign)
            games.callback(player.close)
            del payload
            ticks[0] = 0
            while (request := _receive_request(requests)) is not None:
                load, version, share = request
                requests.send(("played", player.play(share, load, version, weights.get_views)))
        except _Ended:
            is_ended = True
        except BaseException as error:
            # let the games close, for which the parent waits a while
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            lines = str(error).strip().splitlines() or [""]
            requests.send(("error", (f"{type(error).__name__}: {lines[0]}", traceback.format_exc())))
    if is_ended:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


class _Ended(BaseException):
    """Raised by SIGTERM; not a ``SystemExit``, which a game may raise without ending the process."""


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _receive_request(requests: Connection) -> tuple[int, int, Share] | None:
    try:
        request: tuple[int, int, Share] = requests.recv()
    except (EOFError, ConnectionError):  # the parent has exited
        return None
    return request


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
