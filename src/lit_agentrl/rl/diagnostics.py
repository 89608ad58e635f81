"""Whether thoughts depend on what is seen: mutual information of observations X and thoughts Z, by likelihoods.

All rest on one matrix L_ij = log p(z_i | x_j), nats, teacher-forced: thought i after observation j.  N thoughts, P
observations; ``own_N`` names the observation that each thought was written for.  No input carries a gradient.
RAGEN v2, arXiv:2604.06268; its paper and its code differ, and both forms are here (`per_token_means`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-3  # of the denominator of z-scores


@dataclass(frozen=True, kw_only=True)
class Information:
    """What a matrix of likelihoods says, in the unit of the matrix.

    Attributes:
        mutual: I(X; Z), mean of matched − marginal: 0 where thoughts ignore what is seen, log P where they copy it.
        conditional_entropy: H(Z | X) = −mean matched.
        entropy: H(Z) = −mean marginal.
        z_score: mutual over the standard deviation of the marginals.
        retrieval: share of thoughts of which the own observation is the likeliest; of a tie, the equal part.
        chance: that share for thoughts which ignore what is seen.
    """

    mutual: float
    conditional_entropy: float
    entropy: float
    z_score: float
    retrieval: float
    chance: float


def information(*, logp_NP: Tensor, own_N: Tensor) -> Information:
    """The estimates of a matrix: matched_i = L_i,own(i);  marginal_i = logsumexp_j L_ij − log P.

    With sums over the tokens of a thought this is the paper's form (nats a thought).

    Args:
        logp_NP: log-likelihoods of thoughts under observations, finite.
        own_N: column of each thought's own observation.

    Raises:
        ValueError: shapes that do not fit, or a column that is not there.
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
    spread = float(marginal_N.std(correction=0))
    return Information(
        mutual=mutual, conditional_entropy=float(-matched_N.mean()), entropy=float(-marginal_N.mean()),
        z_score=mutual / (spread + EPS), retrieval=float(hit_N.mean()), chance=1 / num_observations,
    )  # fmt: skip


def per_token_paper(*, logp_NP: Tensor, own_N: Tensor, tokens_N: Tensor) -> float:
    """I(X; Z) a token as the paper has it: of whole thoughts, divided by their length afterwards (equation 1).

    Args:
        logp_NP: summed over the tokens of each thought.
        own_N: column of each thought's own observation.
        tokens_N: length of each thought.
    """
    matched_N = logp_NP.gather(1, own_N[:, None])[:, 0]
    marginal_N = torch.logsumexp(logp_NP, dim=1) - math.log(logp_NP.shape[1])
    return float(((matched_N - marginal_N) / tokens_N.clamp(min=1)).mean())


def per_token_code(*, logp_NP: Tensor, own_N: Tensor, tokens_N: Tensor) -> Information:
    """The estimates as the code of the paper has them: of means over the tokens, before they are compared.

    A mean over tokens is no likelihood, so this is a score and not a mutual information: it is smaller.

    Args:
        logp_NP: summed over the tokens of each thought.
        own_N: column of each thought's own observation.
        tokens_N: length of each thought.
    """
    return information(logp_NP=logp_NP / tokens_N.clamp(min=1)[:, None], own_N=own_N)


def merged(*, logp_NP: Tensor, own_N: Tensor, same_P: Tensor) -> tuple[Tensor, Tensor]:
    """Matrix and own columns where equal observations are one.

    Args:
        logp_NP: log-likelihoods.
        own_N: column of each thought's own observation.
        same_P: a number for each observation, equal for equal ones.
    """
    kinds, kind_P = torch.unique(same_P, return_inverse=True)
    first = [int((kind_P == kind).nonzero()[0]) for kind in range(len(kinds))]
    return logp_NP[:, first], kind_P[own_N]
