"""Draw one token per row on the device, with sampling settings that are tensors.

The results equal those of `seeds.draw_uniforms` and `sampling.draw_tokens`.  The host never waits for the device,
because no size depends on data.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lit_agentrl.engines.native.sampling import Draw

_BLOCK = 256  # tokens of a vocabulary that are summed before the float64 sums
_MASK = (1 << 64) - 1


class Settings(NamedTuple):
    """Sampling settings of each row; see `SamplingParams`."""

    temperature_R: Tensor  # float64
    top_p_R: Tensor  # float64
    top_k_R: Tensor  # int64


def draw_uniforms(key_R: Tensor, count_R: Tensor) -> Tensor:
    """Return the float64 draws of `seeds.draw_uniforms` for int64 keys and counts.

    SplitMix64 in two's complement: products and sums wrap as for unsigned numbers, and shifts to the right are masked.
    """
    z = key_R + (count_R + 1) * _make_signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _make_signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _make_signed(0x94D049BB133111EB)
    z = z ^ _shift(z, 31)
    return _shift(z, 11).double() * 2.0**-53


def _make_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & (_MASK >> bits)


def draw_tokens(logits_RV: Tensor, uniform_R: Tensor, settings: Settings, *, truncates: bool) -> Draw:
    """Draw as `sampling.draw_tokens` does, each row with its own settings.

    Args:
        logits_RV: Logits of any float dtype; computed in float32.
        uniform_R: Uniform draws in [0, 1), float64.
        settings: The settings of each row.
        truncates: Whether some row sets top-k or top-p; without, nothing is sorted.
    """
    logits_RV = logits_RV.float()
    is_greedy_R = settings.temperature_R == 0
    # numbers are filled in: torch.where would copy them to the device
    temperature_R1 = settings.temperature_R.masked_fill(is_greedy_R, 1.0).float().unsqueeze(1)
    log_probs_RV = torch.log_softmax(logits_RV / temperature_R1, dim=-1)
    probs_RV = log_probs_RV.exp()
    # a token of probability 0 has a log-prob that may be -inf, and contributes nothing
    entropy_R = -(probs_RV * log_probs_RV.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
    token_R = _invert_cdf(probs_RV, uniform_R)
    if truncates:
        is_truncated_R = (settings.top_p_R < 1) | (settings.top_k_R > 0)
        token_R = torch.where(is_truncated_R, _draw_truncated(probs_RV, uniform_R, settings), token_R)
    token_R = torch.where(is_greedy_R, logits_RV.argmax(-1), token_R)
    return Draw(token_R, log_probs_RV.gather(1, token_R.unsqueeze(1)).squeeze(1), entropy_R)


def _invert_cdf(probs_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Return the token at which the cumulative sum exceeds ``uniform x total``.

    Sums are float64, first over blocks of tokens, then within one: 1/256 of the memory of float64 sums over all.
    """
    rows, vocabulary = probs_RV.shape
    if missing := -vocabulary % _BLOCK:
        probs_RV = pad(probs_RV, (0, missing))
    probs_RCB = probs_RV.view(rows, -1, _BLOCK)
    cdf_RC = probs_RCB.sum(-1, dtype=torch.float64).cumsum(-1)
    target_R1 = (uniform_R * cdf_RC[:, -1]).unsqueeze(1)
    block_R1 = torch.searchsorted(cdf_RC, target_R1, right=True).clamp_(max=cdf_RC.shape[1] - 1)
    before_R1 = pad(cdf_RC, (1, 0)).gather(1, block_R1)
    inner_RB = probs_RCB.gather(1, block_R1.unsqueeze(2).expand(-1, -1, _BLOCK)).squeeze(1)
    inner_RB = inner_RB.double().cumsum(-1)
    # below the block's sum also when rounding says otherwise, so that a token of probability 0 is never drawn
    rest_R1 = torch.minimum(target_R1 - before_R1, inner_RB[:, -1:] * (1 - 2.0**-52))
    index_R1 = torch.searchsorted(inner_RB, rest_R1, right=True)
    return (block_R1 * _BLOCK + index_R1).squeeze(1).clamp_(max=vocabulary - 1)


def _draw_truncated(probs_RV: Tensor, uniform_R: Tensor, settings: Settings) -> Tensor:
    sorted_RV, order_RV = probs_RV.sort(dim=-1, descending=True, stable=True)
    vocabulary = probs_RV.shape[1]
    top_k_R1 = settings.top_k_R.masked_fill(settings.top_k_R == 0, vocabulary).unsqueeze(1)
    kept_RV = sorted_RV.masked_fill(torch.arange(vocabulary, device=probs_RV.device) >= top_k_R1, 0.0)
    kept_RV = kept_RV / kept_RV.sum(-1, keepdim=True)
    before_RV = kept_RV.cumsum(-1) - kept_RV  # mass before a token; the first token always stays
    kept_RV = kept_RV.masked_fill(before_RV >= settings.top_p_R.float().unsqueeze(1), 0.0)
    return order_RV.gather(1, _invert_cdf(kept_RV, uniform_R).unsqueeze(1)).squeeze(1)
