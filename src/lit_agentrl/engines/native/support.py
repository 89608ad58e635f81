"""Check by configuration and by trial whether slots can hold a network's state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native.attention import NAME, find_autocast_dtype
from lit_agentrl.engines.native.cache import SlotCache
from lit_agentrl.engines.native.inference import Inference
from lit_agentrl.engines.native.ragged import Packed, pack_unread
from lit_agentrl.engines.native.rows import Rows

_LENGTHS = (5, 3)  # initial tokens of the two trial episodes; each then gets two more
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # difference of logits, relative to the largest logit
# nats, see `describe_copy_gap`
_COPY_GAP, _COPY_GAP_IN_HALF = {torch.float32: 1e-3, torch.float64: 1e-6}, 0.1


def find_positions(network: PreTrainedModel | None) -> int | None:
    """Return the number of positions of a network; None if not known."""
    if network is None:
        return None
    positions: int | None = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    return positions


def require_positions(network: PreTrainedModel | None, max_context_tokens: int) -> None:
    """Refuse contexts longer than the model's positions; without a network, check nothing.

    Raises:
        ValueError: If ``max_context_tokens`` exceeds the number of positions.
    """
    longest = find_positions(network)
    if longest is not None and longest < max_context_tokens:
        raise ValueError(
            f"rollout.max_context_tokens={max_context_tokens} is more than the {longest} positions that the model has; "
            "lower it"
        )


def find_obstacle(
    network: PreTrainedModel, max_context_tokens: int, context: Callable[[], AbstractContextManager[object]]
) -> str:
    """Return why slots cannot serve this network exactly, or an empty string.

    Raises:
        ValueError: If contexts are longer than the model's positions.
    """
    require_positions(network, max_context_tokens)
    config = network.config.get_text_config()
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if window is not None and window < max_context_tokens:
        return (
            f"its attention looks back over {window} tokens, fewer than "
            f"rollout.max_context_tokens={max_context_tokens}"
        )
    supported = {"full_attention", "sliding_attention"}
    if unusual := set(getattr(config, "layer_types", None) or supported) - supported:
        return f"it has {', '.join(sorted(unusual))} layers"
    try:
        gap = _measure_gap(network, context)
    except Exception as error:  # a model may raise anything when it is called in an unsupported way
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"packed tokens cannot be read ({cause})"
    return "" if gap <= 1 else "packed tokens have other logits than rows"


def _measure_gap(network: PreTrainedModel, context: Callable[[], AbstractContextManager[object]]) -> float:
    """Read two episodes packed, in two parts each, and compare with reading each whole.

    Returns:
        The largest difference of logits divided by the tolerance.
    """
    inference = Inference(network, NAME)
    with inference(), context():
        rows, logits_AV = _read_trial(inference.read, network)
    largest_gap = 0.0
    with Inference(network, None)(), context():
        for episode, logits_V in enumerate(logits_AV):
            row_1T = torch.from_numpy(rows.tokens_SL[episode : episode + 1, : rows.total_S[episode]])
            whole_V = network(input_ids=row_1T.to(network.device), use_cache=False).logits[0, -1]
            difference, scale = (whole_V - logits_V).abs().max(), whole_V.abs().max()
            largest_gap = max(largest_gap, float(difference) / max(1.0, float(scale)))
    return largest_gap / _TOLERANCE.get(logits_AV.dtype, 5e-2)


def _read_trial(read: Callable[[SlotCache, Packed], Tensor], network: PreTrainedModel) -> tuple[Rows, Tensor]:
    """Read two episodes packed, in two parts each.

    Returns:
        The episodes, and the logits (2, V) after their last tokens.
    """
    rows, cache = Rows(len(_LENGTHS), 16), SlotCache(len(_LENGTHS), 16)
    vocabulary = network.config.get_text_config().vocab_size
    params = SamplingParams(max_reply_tokens=8, max_context_tokens=16)
    slots_A = np.arange(len(_LENGTHS))
    for part in (0, 1):
        for episode, length in enumerate(_LENGTHS):
            slot = rows.slot_of[episode] if part else rows.open(episode)
            size = 2 if part else length
            prefix = [(7 * i + 3 * episode + 11 * part + 1) % vocabulary for i in range(size)]
            rows.start(slot, TurnRequest(episode, prefix, 0, params))
        logits_AV = read(cache, pack_unread(rows, slots_A, [], network.device))
        rows.cached_S[:] = rows.total_S
    return rows, logits_AV


def describe_copy_gap(
    read: Callable[[SlotCache, Packed], Tensor],
    read_copy: Callable[[SlotCache, Packed], Tensor],
    network: PreTrainedModel,
    dtype: torch.dtype,
) -> str:
    """Compare log-probs of a copy of the weights with those of the network.

    Two short texts are read.  The gap is the mean of ``sum p |log p - log q|`` in nats, for the distributions ``p`` of
    the network and ``q`` of the copy, as it is measured for sampled tokens in each update (``train/logp_gap``).  The
    inference context of the network must be open.

    Args:
        read: `Inference.read` of the network.
        read_copy: `PlayCopy.read`.
        network: The network.
        dtype: Precision of the copy.

    Returns:
        The gap and its bound, if the gap exceeds it; else an empty string.
    """
    casts_to, bound = find_autocast_dtype(network.device), _COPY_GAP.get(dtype, _COPY_GAP_IN_HALF)
    # casts that autocast keeps would take the memory of another copy
    uncached = (
        torch.autocast(network.device.type, casts_to, cache_enabled=False) if casts_to else nullcontext()
    )
    with uncached:
        log_p_AV, log_q_AV = (
            _read_trial(each, network)[1].float().log_softmax(-1) for each in (read, read_copy)
        )
    gap = float((log_p_AV.exp() * (log_p_AV - log_q_AV).abs()).sum(-1).mean())
    return "" if gap <= bound else f"its log-probs differ by {gap:.2g} nats in the mean, more than {bound:g}"
