"""Sorting for alignment by optimal transport (AOT), arXiv 2406.05882.

AOT compares distributions instead of pairs: two kinds of numbers are sorted separately over a batch, and numbers of the
same rank are compared.  A loss sees only a part of the batch, so the partner of each number is determined before the
first step of an iteration and stored in a column.  Nothing here carries gradient.  Shapes: N and M numbers, P pairs, B
rows, K pairs of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lit_agentrl.rl.binding import bare, tensor_names
from lit_agentrl.rl.preference.pairing import Pairs
from lit_agentrl.rl.preference.scores import reverse_kl


def at_same_rank(own_N: Tensor, other_M: Tensor) -> Tensor:
    """Return, for each own number, the other number of the same rank, (N,).

    Equal numbers are ranked in the order of the tensor.  If N and M differ, the own number of rank r, counted from 0,
    gets the other number at the same quantile, whose rank is ``floor((r + 1/2) M / N)``.  The result is NaN if there
    are no other numbers.

    >>> at_same_rank(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([7.0, 9.0, 8.0])).tolist()
    [9.0, 7.0, 8.0]
    """
    count, other_count = len(own_N), len(other_M)
    if not other_count:
        return torch.full_like(own_N, math.nan)
    rank_N = torch.empty(count, dtype=torch.int64, device=own_N.device)
    rank_N[torch.argsort(own_N, stable=True)] = torch.arange(count, device=own_N.device)
    return torch.sort(other_M).values[(2 * rank_N + 1) * other_count // (2 * max(count, 1))]


@torch.no_grad()
def reordered(
    pairs: Pairs, score: Callable[..., Tensor], *, policy_BT: Tensor, reference_BT: Tensor
) -> Tensor:
    """``v_i - v_j`` (P,) in nats, which AOT adds to ``u_i - v_i``; float64.

    ``u`` is the score of the chosen side minus that of the rejected side under the policy, ``v`` the same difference
    under the reference.  Pair j is the one whose ``v`` has the rank of ``u_i``.

    Args:
        pairs: all pairs that are sorted together.
        score: score of each side; see ``scores.py``.
        policy_BT: log-probs of sampled tokens under the policy (nats).
        reference_BT: log-probs under the reference (nats).
    """

    def compute_gap(logp_BT: Tensor) -> Tensor:
        x_A, sides = pairs.units.read(logp_BT), (pairs.chosen_P, pairs.rejected_P)
        chosen_score_P, rejected_score_P = (
            score(x_A, units=pairs.units, side_S=side_P, other_S=other_P)
            for side_P, other_P in (sides, sides[::-1])
        )
        return chosen_score_P - rejected_score_P

    reference_gap_P = compute_gap(reference_BT)
    return reference_gap_P - at_same_rank(compute_gap(policy_BT), reference_gap_P)


def check_sorted(
    reference: Callable[..., Tensor], divergence: Callable[..., Tensor], link: Callable[..., Tensor]
) -> None:
    """Refuse parts that cannot be combined with a margin that sorts pairs.

    Raises:
        ValueError: a part does not fit; the message names the part and the remedy.
    """
    if "ref_logp_BT" not in tensor_names(reference):
        raise ValueError("margin sorts pairs by a frozen reference: use algo/reference=frozen")
    if bare(divergence) is not reverse_kl:
        raise ValueError(
            "margin sorts policy and reference separately, and this divergence needs both: use "
            "algo/divergence=reverse_kl"
        )
    if others := sorted(tensor_names(link).keys() - {"z_P"}):
        raise ValueError(
            f"margin sorts pairs, and link takes {others[0]} of single pairs: use algo/link=logistic"
        )


def to_rows(x_P: Tensor, pairs: Pairs, is_action_BT: Tensor) -> Tensor:
    """Convert numbers of pairs to a column of rows, (B, K), padded with NaN.

    The k-th number of a row belongs to the k-th pair whose chosen unit begins in that row.
    """
    row_P, place_P, count_B = _locate_pairs(pairs, is_action_BT)
    max_count = int(count_B.max()) if len(row_P) else 0
    x_BK = x_P.new_full((len(is_action_BT), max(max_count, 1)), math.nan)
    x_BK[row_P, place_P] = x_P
    return x_BK


def of_rows(x_BK: Tensor, pairs: Pairs, is_action_BT: Tensor) -> Tensor:
    """Convert a column of `to_rows` back to numbers of pairs, (P,).

    ``x_BK`` may hold only some of the rows.

    Raises:
        ValueError: the pairs of a row have changed.
    """
    row_P, place_P, count_B = _locate_pairs(pairs, is_action_BT)
    is_same_B = count_B == (~x_BK.isnan()).sum(1)
    if not bool(is_same_B[row_P].all()):
        raise ValueError(
            "margin sorts pairs, and the loss finds other pairs than the preparation before the first step: use a "
            "pairing whose pairs do not change, and not algo/structure=two_level, which removes tokens in between"
        )
    return x_BK[row_P, place_P]


def _locate_pairs(pairs: Pairs, is_action_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Assign each pair to the row in which its chosen unit begins.

    Returns:
        The row of each pair (P,), its index within the row (P,), and the number of pairs of each row (B,).
    """
    units = pairs.units
    row_P = (units.place_A // max(is_action_BT.shape[1], 1))[units.start_N[pairs.chosen_P]]
    count_B = torch.bincount(row_P, minlength=len(is_action_BT))
    order = torch.argsort(row_P, stable=True)
    place_P = torch.empty_like(row_P)
    place_P[order] = (
        torch.arange(len(row_P), device=row_P.device) - (count_B.cumsum(0) - count_B)[row_P[order]]
    )
    return row_P, place_P, count_B
