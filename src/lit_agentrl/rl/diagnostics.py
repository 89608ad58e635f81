"""Mutual information of observations X and thoughts Z: do thoughts depend on the observation?

All estimates use one matrix L_ij = log p(z_i | x_j) in nats: thought i, teacher-forced, after observation j.  There are
N thoughts and P observations; ``own_N`` holds the observation that each thought was written for.  No input carries
gradient.  RAGEN v2, arXiv:2604.06268.  Its paper and its code differ; both forms are here (`per_token_paper` and
`per_token_code`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-3  # added to the denominator of z-scores


@dataclass(frozen=True, kw_only=True)
class Information:
    """Information estimates from a matrix of log-likelihoods, in its unit.

    Attributes:
        mutual: I(X; Z), the mean of matched − marginal: 0 if thoughts ignore the observation, log P if each thought
            identifies it.
        conditional_entropy: H(Z | X) = −mean matched.
        entropy: H(Z) = −mean marginal.
        z_score: mutual divided by the standard deviation of the marginals.
        retrieval: share of thoughts that are likeliest under their own observation; ties count 1 / (number tied).
        chance: the retrieval share of thoughts that ignore the observation, 1 / P.
    """

    mutual: float
    conditional_entropy: float
    entropy: float
    z_score: float
    retrieval: float
    chance: float


def information(*, logp_NP: Tensor, own_N: Tensor) -> Information:
    """Estimate mutual information from log-likelihoods.

    matched_i = L_i,own(i);  marginal_i = logsumexp_j L_ij − log P.  If L sums over the tokens of a thought, this is the
    form of the paper (nats per thought).

    Args:
        logp_NP: log-likelihoods of thoughts under observations, finite.
        own_N: column of each thought's own observation.

    Raises:
        ValueError: the shapes disagree, or ``own_N`` names a column that does not exist.
    """
    if logp_NP.ndim != 2 or own_N.shape != logp_NP.shape[:1] or not logp_NP.numel():
        raise ValueError(
            f"logp_NP {tuple(logp_NP.shape)} and own_N {tuple(own_N.shape)} must be (N, P) and (N,)"
        )
    if int(own_N.min()) < 0 or int(own_N.max()) >= logp_NP.shape[1]:
        raise ValueError(f"own_N must name one of {logp_NP.shape[1]} observations")
    logp_NP = logp_NP.detach().double()
    num_observations = logp_NP.shape[1]
    matched_N = logp_NP.gather(1, own_N[:, None])[:, 0]
    marginal_N = torch.logsumexp(logp_NP, dim=1) - math.log(num_observations)
    mutual = float((matched_N - marginal_N).mean())
    is_likeliest_NP = logp_NP == logp_NP.max(dim=1, keepdim=True).values
    hit_N = is_likeliest_NP.gather(1, own_N[:, None])[:, 0] / is_likeliest_NP.sum(dim=1)
    std = float(marginal_N.std(correction=0))
    return Information(
        mutual=mutual, conditional_entropy=float(-matched_N.mean()), entropy=float(-marginal_N.mean()),
        z_score=mutual / (std + EPS), retrieval=float(hit_N.mean()), chance=1 / num_observations,
    )  # fmt: skip


def per_token_paper(*, logp_NP: Tensor, own_N: Tensor, tokens_N: Tensor) -> float:
    """Return I(X; Z) per token, nats: whole thoughts divided by their length.

    This is equation 1 of the paper.

    Args:
        logp_NP: summed over the tokens of each thought.
        own_N: column of each thought's own observation.
        tokens_N: length of each thought.
    """
    matched_N = logp_NP.gather(1, own_N[:, None])[:, 0]
    marginal_N = torch.logsumexp(logp_NP, dim=1) - math.log(logp_NP.shape[1])
    return float(((matched_N - marginal_N) / tokens_N.clamp(min=1)).mean())


def per_token_code(*, logp_NP: Tensor, own_N: Tensor, tokens_N: Tensor) -> Information:
    """Estimate from log-likelihoods averaged over tokens, as the code of the paper does.

    The exponential of a mean over tokens is not a likelihood.  The result is therefore a score, smaller than the mutual
    information.

    Args:
        logp_NP: summed over the tokens of each thought.
        own_N: column of each thought's own observation.
        tokens_N: length of each thought.
    """
    return information(logp_NP=logp_NP / tokens_N.clamp(min=1)[:, None], own_N=own_N)


def merged(*, logp_NP: Tensor, own_N: Tensor, same_P: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the columns of equal observations; return the new matrix and ``own_N``.

    Args:
        logp_NP: log-likelihoods.
        own_N: column of each thought's own observation.
        same_P: one number per observation; equal observations have equal numbers.
    """
    kinds, kind_P = torch.unique(same_P, return_inverse=True)
    first = [int((kind_P == kind).nonzero()[0]) for kind in range(len(kinds))]
    return logp_NP[:, first], kind_P[own_N]
