"""Scores of rows without gradient: log-probs, critic values and router choices."""

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
from lit_agentrl.update.microbatches import Form, run_micro_batches

_log = logging.getLogger(__name__)


def choose_form(networks: list[Any], packing: bool | str, *, is_cuda: bool) -> Form:
    """Choose the form in which rows go through networks, and prepare the networks for it.

    Args:
        networks: all networks that read rows.
        packing: see `UpdateSettings`.
        is_cuda: whether the networks are on a GPU, where ``auto`` packs rows if one kernel can read them.

    Raises:
        ValueError: packed rows are requested and a network does not support them.
    """
    if packing is False:
        return "padded"
    by_kernel = is_cuda and packing == "auto"
    reasons = [reason for network in networks if (reason := enable_packing(network, by_kernel=by_kernel))]
    if reasons and packing != "auto":
        name = str(packing).lower()
        raise ValueError(f"packing={name} does not fit this model: {reasons[0]}; use update.packing=false")
    if reasons:
        _log.info("rows are padded, not packed: %s", reasons[0])
        return "padded"
    return "packed" if packing is True or by_kernel else "shared"


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
    """Compute the log-probs of all action tokens, (B, T) in nats, without gradient.

    Args:
        network: a causal LM.
        tensors: holds ``tokens_BT``, ``is_action_BT`` and ``is_real_BT``.
        temperature: sampling temperature.
        tokens_per_microbatch: tokens of a forward and backward pass; the forward pass here takes twice as many.
        logits_chunk: see `score_tokens`.
        form: see `split_micro_batches`.
        routers: routers of the network; they use the ``experts_BK`` of the rows if these have them.
    """

    def score(**rows: Any) -> Tensor:
        with route_rows(routers, rows) as columns:
            return score_tokens(
                network, **columns, temperature=temperature, logits_chunk=logits_chunk, is_checked=True
            ).logp_BT

    return run_micro_batches(score, tensors, 2 * tokens_per_microbatch, form)


def evaluate_rows(
    critic: Critic,
    network: Any,
    tensors: Mapping[str, Tensor],
    *,
    tokens_per_microbatch: int,
    form: Form = "padded",
    routers: Routers | None = None,
) -> Tensor:
    """Evaluate the critic before every action token, (B, T) in reward units, without gradient.

    The arguments are those of `score_rows`.
    """

    def score(**rows: Any) -> Tensor:
        with route_rows(routers, rows) as columns:
            values_BT: Tensor = critic(network, **columns)
            return values_BT

    return run_micro_batches(score, tensors, 2 * tokens_per_microbatch, form)


def list_turn_values(
    compute_values: Callable[[dict[str, Tensor]], Tensor], tensors: dict[str, Tensor]
) -> list[float]:
    """List the values before the first sampled token of each turn of one episode."""
    value_BT, is_action_BT, turn_BT = compute_values(tensors), tensors["is_action_BT"], tensors["turn_BT"]
    value_of: dict[int, float] = {}
    for turn, value in zip(turn_BT[is_action_BT].tolist(), value_BT[is_action_BT].tolist(), strict=True):
        value_of.setdefault(turn, value)
    return list(value_of.values())


def choose_experts(
    network: Any,
    routers: Routers,
    tensors: Mapping[str, Tensor],
    *,
    tokens_per_microbatch: int,
    form: Form = "padded",
) -> Tensor:
    """Return the experts that the routers of ``network`` choose for the rows, int32.

    The format is that of `routing.Pass.collect_experts`; the arguments are those of `score_rows`.
    """

    def choose(packing: Packing | None, **rows: Tensor) -> Tensor:
        with routers.trace(rows["tokens_BT"], packing) as trace:
            read_hidden_before(network, **rows, packing=packing)
        experts_BK: Tensor = trace.collect_experts()
        return experts_BK.reshape(len(experts_BK), -1, routers.num_choices)

    columns = {name: tensors[name] for name in ("tokens_BT", "is_action_BT", "is_real_BT")}
    experts_BTK = run_micro_batches(choose, columns, 2 * tokens_per_microbatch, form).to(torch.int32)
    if experts_BTK.dim() == 2:  # a rank without rows
        experts_BTK = experts_BTK[..., None].expand(-1, -1, routers.num_choices)
    # padding has no choices to replay or to count
    return experts_BTK.masked_fill(~tensors["is_real_BT"][..., None], NO_EXPERT).flatten(1)


@contextmanager
def route_rows(routers: Routers | None, rows: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Make routers use the experts of the rows inside; yield the other columns."""
    other_columns = {name: value for name, value in rows.items() if name != "experts_BK"}
    if routers is None or "experts_BK" not in rows:
        yield other_columns
        return
    with routers.trace(rows["tokens_BT"], rows["packing"], rows["experts_BK"]):
        yield other_columns


@contextmanager
def save_memory(is_on: bool, *networks: nn.Module | None) -> Iterator[None]:
    """Recompute layers of the networks in the backward pass if ``is_on``."""
    with ExitStack() as stack:
        for network in networks if is_on else ():
            if network is not None:
                stack.enter_context(recompute_layers(network))
        yield
