"""A second player beside the policy: the reference, or a mixture of both, behind the methods of one engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.checks import require
from lit_agentrl.engines.base import Engine, TurnRequest, TurnResult
from lit_agentrl.engines.native.attention import NAME
from lit_agentrl.engines.native.inference import Inference, Reader
from lit_agentrl.engines.native.ragged import Packed
from lit_agentrl.engines.native.support import why_not
from lit_agentrl.models.lora import adapter_layers, adapters_off

Around = Callable[[], AbstractContextManager[object]]


class Mixture:
    """Reads with both networks: ``(1 - mix) logits + mix reference logits``, so ``policy^(1 - mix) reference^mix``.

    A softmax makes it a distribution, at each token: Nash-MD, arXiv 2312.00886.  A network whose share is 0 is not
    asked, so that 0 is the policy and 1 the reference to the bit.

    Args:
        network: the policy's.
        reference: its tokens are the policy's; the policy's own network with adapters is the base.
        mix: share of the reference, from 0 to 1.

    Raises:
        ValueError: ``mix`` is out of range.
    """

    def __init__(self, network: PreTrainedModel, reference: PreTrainedModel, mix: float) -> None:
        require(0 <= mix <= 1, "mix", mix, "from 0, the policy, to 1, the reference")
        off: Around = nullcontext
        if adapter_layers(reference):  # which would be looked for at every token

            def off() -> AbstractContextManager[object]:
                return adapters_off(reference)

        shared = ((network, nullcontext, 1 - mix), (reference, off, mix))
        self._players = [
            (Inference(player, NAME), around, share) for player, around, share in shared if share
        ]
        self._vocabulary = network.config.get_text_config().vocab_size

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with ExitStack() as stack:
            for inference, _, _ in self._players:
                stack.enter_context(inference())
            yield

    def cache(self, num_slots: int, max_length: int) -> _Caches:
        """See `Reader`."""
        return _Caches(inference.cache(num_slots, max_length) for inference, _, _ in self._players)

    def read(self, cache: _Caches, packed: Packed) -> Tensor:
        """See `Inference.read`."""
        found = []
        for (inference, around, _), own in zip(self._players, cache, strict=True):
            with around():
                found.append(_as_wide(inference.read(own, packed), self._vocabulary))
        if len(found) == 1:
            return found[0]
        return torch.stack(
            [share * x_AV.float() for (*_, share), x_AV in zip(self._players, found, strict=True)]
        ).sum(0)


class _Caches(list[Any]):
    """The state that each network has of the slots."""

    def move(self, source: int, target: int, length: int) -> None:
        for cache in self:
            cache.move(source, target, length)


def _as_wide(logits_AV: Tensor, vocabulary: int) -> Tensor:
    """Cut to the ids of the policy, or filled up with what is never drawn."""
    missing = vocabulary - logits_AV.shape[-1]
    return torch.nn.functional.pad(logits_AV, (0, missing), value=-math.inf) if missing else logits_AV


class OpponentEngine:
    """Two engines of one kind, of which each episode is in one: the policy's, and the opponent's.

    The policy's plays as it would alone.  Both decode in turns, on one clock.

    Args:
        make: an engine that takes a ``reader``.
        network: the policy's.
        forward_context: the strategy's precision context.
        mix: see `Mixture`.
        reference: None: no opponent will be asked to play.
        given: handed to ``make``.

    Raises:
        ValueError: as of ``make`` and `Mixture`, or slots cannot hold the state of the reference.
    """

    def __init__(
        self,
        make: Callable[..., Engine],
        network: PreTrainedModel,
        forward_context: Around = nullcontext,
        *,
        mix: float,
        reference: PreTrainedModel | None = None,
        **given: Any,
    ) -> None:
        given |= {"network": network, "forward_context": forward_context}
        self._engines = [make(**given)]
        if reference is not None:
            reader: Reader = Mixture(network, reference, mix)
            if reason := why_not(reference, given["max_context_tokens"], forward_context):
                raise ValueError(
                    f"slots cannot hold the state of the reference ({reason}); use another reference"
                )
            self._engines.append(make(**given, reader=reader))
        self.capabilities = replace(self._engines[0].capabilities, fork=False)

    @property
    def capacity(self) -> int:
        return self._engines[0].capacity

    @property
    def num_steps(self) -> int:
        return sum(engine.num_steps for engine in self._engines)

    @property
    def num_pending(self) -> int:
        return sum(engine.num_pending for engine in self._engines)

    def submit(self, request: TurnRequest) -> None:
        """See :class:`Engine`.

        Raises:
            ValueError: the reply is to be an opponent's, and there is none.
        """
        if request.is_opponent and len(self._engines) == 1:
            raise ValueError("an opponent plays with the reference, and this run has none")
        self._engines[request.is_opponent].submit(request)

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """See :class:`Engine`; the policy's first."""
        return [
            result
            for engine in self._engines
            if engine.num_pending
            for result in engine.poll(timeout, steps=steps)
        ]

    def fork(self, parent: int, child: int, at: int) -> None:
        raise ValueError("episodes are not forked beside an opponent")

    def close(self, episode: int) -> None:
        for engine in self._engines:
            engine.close(episode)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        for engine in self._engines:  # the policy's network is one: it is written once
            engine.load(weights, version)
            weights = None

    def stop(self) -> None:
        for engine in self._engines:
            engine.stop()
