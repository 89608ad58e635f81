"""Scores of rows: log-probs of a network, values of a critic, and how rows go through them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lit_agentrl.models.logprobs import read_hidden_before, recompute_layers, score_tokens
from lit_agentrl.models.packing import Packing, enable_packing
from lit_agentrl.models.routing import NO_EXPERT, Routers
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
    routers: Routers | None = None,
) -> Tensor:
    """Log-probs (nats) of every action token under ``network``, (B, T), without gradient.

    Args:
        network: causal LM.
        tensors: holds ``tokens_BT``, ``is_action_BT`` and ``is_real_BT``.
        temperature: of the sampling.
        tokens_per_microbatch: tokens of a forward and backward; without backward, twice as many fit.
        logits_chunk: see `score_tokens`.
        form: see `micro_batches`.
        routers: of the network; told the ``experts_BK`` of the rows, where these have them.
    """

    def scored(**rows: Any) -> Tensor:
        with told(routers, rows) as plain:
            return score_tokens(
                network, **plain, temperature=temperature, logits_chunk=logits_chunk, is_checked=True
            ).logp_BT

    return micro_batched(scored, tensors, 2 * tokens_per_microbatch, form)


def value_rows(
    critic: Critic,
    network: Any,
    tensors: Mapping[str, Tensor],
    *,
    tokens_per_microbatch: int,
    form: Form = "padded",
    routers: Routers | None = None,
) -> Tensor:
    """Values (points) before every action token, (B, T), without gradient; arguments as of `score_rows`."""

    def scored(**rows: Any) -> Tensor:
        with told(routers, rows) as plain:
            values_BT: Tensor = critic(network, **plain)
            return values_BT

    return micro_batched(scored, tensors, 2 * tokens_per_microbatch, form)


def turn_values(values: Callable[[dict[str, Tensor]], Tensor], tensors: dict[str, Tensor]) -> list[float]:
    """The values before the first sampled token of each turn of one episode, in order, without gradient."""
    value_BT, is_action_BT, turn_BT = values(tensors), tensors["is_action_BT"], tensors["turn_BT"]
    found: dict[int, float] = {}
    for turn, value in zip(turn_BT[is_action_BT].tolist(), value_BT[is_action_BT].tolist(), strict=True):
        found.setdefault(turn, value)
    return list(found.values())


def expert_rows(
    network: Any,
    routers: Routers,
    tensors: Mapping[str, Tensor],
    *,
    tokens_per_microbatch: int,
    form: Form = "padded",
) -> Tensor:
    """What the routers of ``network`` choose for the rows, as `routing.Pass.experts`; arguments as of `score_rows`."""

    def chosen(packing: Packing | None, **rows: Tensor) -> Tensor:
        with routers.trace(rows["tokens_BT"], packing) as seen:
            read_hidden_before(network, **rows, packing=packing)
        experts_BK: Tensor = seen.collect_experts()
        return experts_BK.reshape(len(experts_BK), -1, routers.num_choices)

    bare = {name: tensors[name] for name in ("tokens_BT", "is_action_BT", "is_real_BT")}
    found_BTK = micro_batched(chosen, bare, 2 * tokens_per_microbatch, form).to(torch.int32)
    if found_BTK.dim() == 2:  # a rank without rows
        found_BTK = found_BTK[..., None].expand(-1, -1, routers.num_choices)
    # padding is told nothing: it is no choice that is replayed, and none that would flip
    return found_BTK.masked_fill(~tensors["is_real_BT"][..., None], NO_EXPERT).flatten(1)


@contextmanager
def told(routers: Routers | None, rows: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Inside, routers take the experts that rows bring; gives the rows without them."""
    plain = {name: value for name, value in rows.items() if name != "experts_BK"}
    if routers is None or "experts_BK" not in rows:
        yield plain
        return
    with routers.trace(rows["tokens_BT"], rows["packing"], rows["experts_BK"]):
        yield plain


@contextmanager
def memory_saved(is_on: bool, *networks: nn.Module | None) -> Iterator[None]:
    """Layers of the networks are run again in the backward pass, where wanted."""
    with ExitStack() as stack:
        for network in networks if is_on else ():
            if network is not None:
                stack.enter_context(recompute_layers(network))
        yield
