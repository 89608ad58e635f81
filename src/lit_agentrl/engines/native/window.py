"""Windows of decode steps: rows go to the device once, their draws come back once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_agentrl.engines.native.decode import Read, decode
from lit_agentrl.engines.native.ragged import send
from lit_agentrl.engines.native.rows import Rows
from lit_agentrl.engines.options import AUTO

_log = logging.getLogger(__name__)

_STEPS_ON_GPU = 8
_LEAST_ROWS, _LEAST_LENGTH = 8, 64
_WARM_UPS = 1


def choose_steps(window: int | str, device: torch.device) -> int:
    """Return the steps of a window; auto is 8 on CUDA, and 0 elsewhere."""
    return int(window) if window != AUTO else _STEPS_ON_GPU if device.type == "cuda" else 0


class Window:
    """Decodes a fixed number of steps for all rows of an engine at once.

    The host applies stop rules to the returned draws.  Draws are keyed, so tokens beyond a stop are dropped without
    effect on other tokens.  Shapes are rounded up to a few sizes, so that few CUDA graphs occur.

    Args:
        read: Computes logits of packed tokens; see `decode.step`.
        steps: Number of steps.
        num_slots: Number of slots of the store.
        max_length: Length of a slot.
        device: Device of the network.

    Attributes:
        capture: Whether windows are captured as graphs, on CUDA only.
    """

    def __init__(
        self, read: Read, *, steps: int, num_slots: int, max_length: int, device: torch.device
    ) -> None:
        self.steps, self._num_slots, self._max_length, self._device = steps, num_slots, max_length, device
        self._run = partial(decode, read, steps=steps, num_slots=num_slots)
        self._graphs = Graphs(self._run)
        self.capture = device.type == "cuda"

    def draw(
        self, rows: Rows
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return tokens, log-probs and entropies (steps, R) of the first R slots.

        The values of idle rows have no meaning.
        """
        slots_A = np.flatnonzero(rows.is_writing_S)
        num_rows = round_up(rows.num_live, _LEAST_ROWS, self._num_slots)
        longest = np.minimum(rows.total_S + self.steps, rows.limit_S)[slots_A].max() - 1
        length = round_up(int(longest), _LEAST_LENGTH, self._max_length)
        params = [rows.params[index] for index in set(rows.params_S[slots_A].tolist())]
        truncates = any(each.top_p < 1 or each.top_k > 0 for each in params)
        run = self._graphs if self.capture else self._run
        drawn = run(send(pack_rows(rows, num_rows), self._device), length=length, truncates=truncates)
        token_KR, logp_KR, entropy_KR = drawn.cpu().numpy()  # the only wait
        return token_KR.astype(np.int64), logp_KR.astype(np.float32), entropy_KR.astype(np.float32)


def pack_rows(rows: Rows, num_rows: int) -> npt.NDArray[np.int64]:
    """Return the fields (F, R) that `decode` reads; floats are stored as their bits."""
    first_slots, slots_R = slice(num_rows), np.arange(num_rows)
    is_writing_R = rows.is_writing_S[first_slots]
    last_R = np.maximum(rows.total_S[first_slots] - 1, 0)
    floats = np.array(
        [(params.temperature, params.top_p) for params in rows.params], dtype=np.float64
    ).reshape(-1, 2)
    top_k = np.array([params.top_k for params in rows.params], dtype=np.int64)
    index_R = np.where(is_writing_R, rows.params_S[first_slots], 0)
    return np.stack(
        [
            rows.tokens_SL[slots_R, last_R],
            last_R,
            np.where(is_writing_R, rows.limit_S[first_slots], 0),
            rows.key_S[first_slots].view(np.int64),
            rows.total_S[first_slots] - rows.begin_S[first_slots],
            top_k[index_R],
            *floats[index_R].T.copy().view(np.int64),
        ]
    )


def round_up(number: int, least: int, most: int) -> int:
    """Round up to 1, 1.5, 2, 3, 4, 6, ... times ``least``, at most ``most``.

    >>> [round_up(n, 64, 1000) for n in (1, 65, 100, 129, 600, 900)]
    [64, 96, 128, 192, 768, 1000]
    """
    size = least
    while size < number:
        middle = size + size // 2
        size = middle if middle >= number and middle > size else 2 * size
    return min(size, most)


class Graphs:
    """Runs a function as CUDA graphs, one for each shape and set of options.

    A call has the arguments and the result of the function.  **No GPU has run this class yet**; it follows the rules of
    ``torch.cuda.graph``.  If a capture fails, a warning is logged once and the function itself is called.  A result
    is overwritten by the next call with the same shapes.

    Args:
        run: A function of one tensor that only launches work.  Before a capture it is called several times more, which
            must not change its result.
    """

    def __init__(self, run: Callable[..., Tensor]) -> None:
        self._run = run
        self._is_failed = False
        self._pool: Any = None  # memory that all graphs share, since only one runs at a time
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __call__(self, rows: Tensor, **options: Any) -> Tensor:
        key = tuple(rows.shape), tuple(sorted(options.items()))
        if key not in self._graphs and not self._is_failed:
            try:
                # streams are those of the current device
                with torch.cuda.device(rows.device):
                    self._graphs[key] = self._capture(rows.clone(), options)
            except RuntimeError as error:
                self._is_failed = True
                cause = (str(error).strip() or type(error).__name__).splitlines()[0]
                _log.warning(
                    "decode steps are launched one by one: a window could not be captured (%s)", cause
                )
        if key not in self._graphs:
            return self._run(rows, **options)
        graph, graph_input, result = self._graphs[key]
        graph_input.copy_(rows)
        graph.replay()
        return result

    def _capture(self, graph_input: Tensor, options: Any) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(_WARM_UPS):
                self._run(graph_input, **options)
            _run_without_waits(partial(self._run, graph_input, **options))
        current = torch.cuda.current_stream()
        current.wait_stream(side_stream)
        # autocast keeps casts of weights: the graph must not use casts made outside, nor other code those of the graph
        torch.clear_autocast_cache()
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads, such as the one that writes checkpoints, may use the device meanwhile
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = self._run(graph_input, **options)
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # a capture that fails at its end does not restore the stream
            raise (error.__context__ or error) from None
        finally:
            torch.clear_autocast_cache()
        self._pool = graph.pool()
        return graph, graph_input, result


def _run_without_waits(run: Callable[[], object]) -> None:
    """Run a function, and refuse a wait for the device, which would break a capture.

    Raises:
        RuntimeError: If the function waits.
    """
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
