"""Draw one token per row from logits and one uniform number per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lit_agentrl.engines.base import SamplingParams


class Draw(NamedTuple):
    """One drawn token per row."""

    token_A: Tensor  # int64
    logp_A: Tensor  # float32 nats, full-vocabulary log-softmax at the row's temperature
    entropy_A: Tensor  # float32 nats, of the same untruncated distribution


def draw_tokens(
    logits_AV: Tensor, *, uniform_A: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> Draw:
    """Sample by inverse CDF, with optional top-k and then top-p truncation.

    The recorded log-prob is that of the untruncated distribution at ``temperature`` (at 1 if greedy), so
    that training can recompute it; truncated sampling is therefore off-policy by the discarded mass.

    Args:
        logits_AV: Logits of any float dtype; computed in float32.
        uniform_A: Uniform draws in [0, 1), float64.
        temperature: 0 takes the most likely token and ignores ``uniform_A``.
        top_p: Probability mass kept, most likely tokens first; 1 keeps all.
        top_k: Number of tokens kept; 0 keeps all.
    """
    logits_AV = logits_AV.float()
    log_probs_AV = torch.log_softmax(logits_AV / temperature if temperature > 0 else logits_AV, dim=-1)
    probs_AV = log_probs_AV.exp()
    entropy_A = -torch.where(probs_AV > 0, probs_AV * log_probs_AV, torch.zeros_like(probs_AV)).sum(-1)
    if temperature == 0:
        token_A = logits_AV.argmax(-1)
    elif top_p < 1 or top_k > 0:
        token_A = _draw_truncated(probs_AV, uniform_A, top_p, top_k)
    else:
        token_A = _invert_cdf(probs_AV, uniform_A)
    return Draw(token_A, log_probs_AV.gather(1, token_A.unsqueeze(1)).squeeze(1), entropy_A)


def _invert_cdf(probs_AV: Tensor, uniform_A: Tensor) -> Tensor:
    cdf_AV = probs_AV.double().cumsum(-1)  # float64: float32 sums lose rare tokens of large vocabularies
    target_A1 = (uniform_A * cdf_AV[:, -1]).unsqueeze(1)
    return torch.searchsorted(cdf_AV, target_A1, right=True).squeeze(1).clamp_(max=probs_AV.shape[1] - 1)


def _draw_truncated(probs_AV: Tensor, uniform_A: Tensor, top_p: float, top_k: int) -> Tensor:
    sorted_AV, order_AV = probs_AV.sort(dim=-1, descending=True, stable=True)
    keep_AV = torch.ones_like(sorted_AV, dtype=torch.bool)
    if top_k > 0:
        keep_AV[:, top_k:] = False
    kept_AV = torch.where(keep_AV, sorted_AV, torch.zeros_like(sorted_AV))
    kept_AV = kept_AV / kept_AV.sum(-1, keepdim=True)
    before_AV = kept_AV.cumsum(-1) - kept_AV  # mass before a token; the first token always stays
    kept_AV = torch.where(before_AV < top_p, kept_AV, torch.zeros_like(kept_AV))
    return order_AV.gather(1, _invert_cdf(kept_AV, uniform_A).unsqueeze(1)).squeeze(1)


def draw_rows(
    logits_AV: Tensor,
    uniform_A: npt.NDArray[np.float64],
    kind_A: npt.NDArray[np.int64],
    kinds: Sequence[SamplingParams],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Draw one token per row, row i with ``kinds[kind_A[i]]``; see :func:`draw_tokens`.

    Returns:
        Token, log-prob and entropy of each row.
    """
    device = logits_AV.device
    uniform = torch.from_numpy(uniform_A).to(device)
    drawn_3A = np.empty((3, len(kind_A)), dtype=np.float64)  # holds any token id and any float32
    for kind in sorted(set(kind_A.tolist())):
        params = kinds[kind]
        chosen = np.flatnonzero(kind_A == kind)
        index = slice(None) if len(chosen) == len(kind_A) else torch.from_numpy(chosen).to(device)
        draw = draw_tokens(
            logits_AV[index],
            uniform_A=uniform[index],
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
        )
        # a single copy from the device
        drawn_3A[:, chosen] = torch.stack([part.double() for part in draw]).cpu().numpy()
    return drawn_3A[0].astype(np.int64), drawn_3A[1].astype(np.float32), drawn_3A[2].astype(np.float32)
