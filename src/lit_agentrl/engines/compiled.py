"""The decode step as compiled graphs of static shapes, for ``engine.compile=true``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch._dynamo import mark_static_address
from torch._dynamo.exc import TorchDynamoException
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from lit_agentrl.engines.attention import Reading, Visible
from lit_agentrl.engines.cache import SlotCache
from lit_agentrl.engines.rows import Rows

LENGTH_STEP = 128  # positions that are read are rounded up to a multiple of it
ROW_FACTOR = 4  # rows are rounded up to num_slots over a power of it
MIN_ROWS = 16
_MAX_GRAPHS = 256


def row_bucket(num_rows: int, num_slots: int) -> int:
    """The least of num_slots, num_slots / 4, num_slots / 16, ... that holds the rows and is not below 16."""
    size = num_slots
    while (smaller := -(-size // ROW_FACTOR)) >= max(num_rows, MIN_ROWS) and smaller < size:
        size = smaller
    return size


class CompiledDecode:
    """Reads the last token of every writing slot through ``torch.compile``.

    Each pair of (rows, positions) has a graph of its own, compiled when it is first met; which one runs is a
    function of the requests, so equal requests still give equal bits.  Rows that do not write compute
    something that nobody looks at, and store it where the next token of their slot goes.  On CUDA the graphs
    are captured (``mode="reduce-overhead"``).

    Args:
        network: causal LM; its weights are read in place at every call.
        cache: what is read and written.
    """

    def __init__(self, network: PreTrainedModel, cache: SlotCache) -> None:
        self._network = network
        self._cache = cache
        self._linears = [m for m in network.modules() if isinstance(m, nn.Linear)]
        self._compiled: Callable[[Tensor, Tensor, Reading], Tensor] | None = None

    def __call__(self, rows: Rows, slots_A: npt.NDArray[np.int64]) -> Tensor:
        """Logits (A, V) after the last token of these slots, all else of which has been read.

        They are overwritten by the next call.

        Raises:
            ValueError: the step cannot be compiled here; names the option and the remedy.
        """
        device = self._network.device
        num_rows = row_bucket(rows.num_live, rows.num_slots)
        known_R = np.where(rows.is_live_S, rows.known_S, 0)[:num_rows]
        longest = int(known_R[slots_A].max()) + 1
        filled = min(-(-longest // LENGTH_STEP) * LENGTH_STEP, rows.max_context)
        ids_R = np.zeros(num_rows, dtype=np.int64)
        ids_R[slots_A] = rows.tokens_SL[slots_A, known_R[slots_A]]
        token_R, position_R = torch.from_numpy(np.stack([ids_R, known_R])).to(device)
        sees_RL = torch.arange(filled, device=device) <= position_R.unsqueeze(1)
        reading = Reading(
            slot_N=torch.arange(num_rows, device=device), position_N=position_R, num_last=num_rows,
            num_rows=num_rows, filled=filled, last_sees_R=Visible(sees_RL[:, None, None]),
        )  # fmt: skip
        logits_RV = self._run(token_R.unsqueeze(0), position_R.unsqueeze(0), reading)
        return logits_RV if len(slots_A) == num_rows else logits_RV[torch.from_numpy(slots_A).to(device)]

    def _run(self, token_1R: Tensor, position_1R: Tensor, reading: Reading) -> Tensor:
        self._cache.reading = reading
        if not self._cache.buffers():
            self._decode(token_1R, position_1R, reading)  # allocates them; what it writes is written again
        if self._compiled is None:
            self._compiled = self._prepare()
        try:
            with self._own_linears(), dynamo_config.patch(recompile_limit=_MAX_GRAPHS):
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                return self._compiled(token_1R, position_1R, reading)
        except TorchDynamoException as error:
            raise ValueError(
                f"engine.compile=true: the decode step of {type(self._network).__name__} cannot be compiled here "
                f"({_cause(error)}); install a C++ compiler if there is none (the variable CXX names it), or set "
                "engine.compile=false"
            ) from error
        finally:
            self._cache.reading = None  # what it keeps may lie in the memory of a captured graph

    def _prepare(self) -> Callable[[Tensor, Tensor, Reading], Tensor]:
        if any(isinstance(module, FSDPModule) for module in self._network.modules()):
            raise ValueError(
                "engine.compile=true needs whole weights, but strategy shards them; set it to false"
            )
        is_cuda = self._network.device.type == "cuda"
        if is_cuda:
            for buffer in self._cache.buffers():
                mark_static_address(buffer)
        mode = "reduce-overhead" if is_cuda else "default"
        return torch.compile(self._decode, fullgraph=True, dynamic=False, mode=mode)

    @contextmanager
    def _own_linears(self) -> Iterator[None]:
        """Within, linear layers are the compiler's to choose; `Serving` puts other products in their place.

        Those are new objects at every poll, which would each time be compiled anew, and oneDNN's product is
        compiled with constant weights only.
        """
        served = [(m, m.__dict__.pop("forward")) for m in self._linears if "forward" in m.__dict__]
        try:
            yield
        finally:
            for module, forward in served:
                module.__dict__["forward"] = forward

    def _decode(self, token_1R: Tensor, position_1R: Tensor, reading: Reading) -> Tensor:
        output = self._network(
            input_ids=token_1R, position_ids=position_1R, past_key_values=self._cache, use_cache=True,
            reading=reading,
        )  # fmt: skip
        logits: Tensor = output.logits[0]
        return logits


def _cause(error: BaseException) -> str:
    """The first line of the innermost exception that says something."""
    chain = [error]
    while (inner := chain[-1].__cause__ or getattr(chain[-1], "inner_exception", None)) is not None:
        chain.append(inner)
    lines = [str(e).strip().splitlines()[0] for e in chain if str(e).strip()]
    return lines[-1][:200] if lines else type(error).__name__
