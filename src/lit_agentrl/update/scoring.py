"""Scores of rows: log-probs of a network, values of a critic, and how rows go through them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from lit_agentrl.models.logprobs import recomputed, score_tokens
from lit_agentrl.models.packing import enable_packing
from lit_agentrl.update.critic import Critic
from lit_agentrl.update.microbatches import Form, micro_batched

log = logging.getLogger(__name__)


def form_of_rows(networks: list[Any], packing: bool | str, *, is_cuda: bool) -> Form:
    """The form in which rows go through the networks, which are prepared for it.

    Args:
        networks: all that read rows.
        packing: see `UpdateSettings`.
        is_cuda: where they are; ``auto`` packs on CPUs alone until the packed kernel of CUDA has been run.

    Raises:
        ValueError: packed rows are demanded of a network that cannot take them.
    """
    if packing is False or (packing == "auto" and is_cuda):
        return "padded"
    reasons = [reason for network in networks if (reason := enable_packing(network))]
    if reasons and packing != "auto":
        name = str(packing).lower()
        raise ValueError(f"packing={name} does not fit this model: {reasons[0]}; use update.packing=false")
    if reasons:
        log.info("rows are padded, not packed: %s", reasons[0])
        return "padded"
    return "packed" if packing is True else "shared"


def score_rows(
    network: Any,
    tensors: Mapping[str, Tensor],
    *,
    temperature: float,
    tokens_per_microbatch: int,
    logits_chunk: int | None = None,
    form: Form = "padded",
) -> Tensor:
    """Log-probs (nats) of every action token under ``network``, (B, T), without gradient.

    Args:
        network: causal LM.
        tensors: holds ``tokens_BT``, ``is_action_BT`` and ``is_real_BT``.
        temperature: of the sampling.
        tokens_per_microbatch: tokens of a forward and backward; without backward, twice as many fit.
        logits_chunk: see `score_tokens`.
        form: see `micro_batches`.
    """

    def scored(**rows: Any) -> Tensor:
        return score_tokens(
            network, **rows, temperature=temperature, logits_chunk=logits_chunk, is_checked=True
        ).logp_BT

    return micro_batched(scored, tensors, 2 * tokens_per_microbatch, form)


def value_rows(
    critic: Critic,
    network: Any,
    tensors: Mapping[str, Tensor],
    *,
    tokens_per_microbatch: int,
    form: Form = "padded",
) -> Tensor:
    """Values (points) before every action token, (B, T), without gradient; arguments as of `score_rows`."""

    def scored(**rows: Any) -> Tensor:
        values_BT: Tensor = critic(network, **rows)
        return values_BT

    return micro_batched(scored, tensors, 2 * tokens_per_microbatch, form)


@contextmanager
def memory_saved(is_on: bool, *networks: nn.Module | None) -> Iterator[None]:
    """Layers of the networks are run again in the backward pass, where wanted."""
    with ExitStack() as stack:
        for network in networks if is_on else ():
            if network is not None:
                stack.enter_context(recomputed(network))
        yield
