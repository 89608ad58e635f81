"""Advantage estimators without a critic that use turns, trees, shared tokens or outcomes.

Notation, shapes and the treatment of NaN returns are those of ``advantages.py``: one number per sampled token, 0
elsewhere; no gradient; a trajectory counts once, however many rows it has; a trajectory whose return is NaN is left out
of every statistic and gets 0.  All functions raise ValueError when shapes disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from lit_agentrl.checks import require
from lit_agentrl.rl.credit.advantages import Advantage, broadcast_to_actions, group_mean, group_mean_std
from lit_agentrl.rl.masked import check_shapes, find_trajectories, segment_sum, sum_columns
from lit_agentrl.rl.returns import return_to_go

DEFAULT_EPS = 1e-6  # the default of group_mean_std


def gigpo(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    first_turn_B: Tensor,
    is_action_BT: Tensor,
    turn_BT: Tensor,
    reward_BT: Tensor,
    state_key_BK: Tensor,
    discount: float = 0.95,
    omega: float = 1.0,
    norm: Literal["mean", "mean_std"] = "mean_std",
    eps: float | None = None,
    episode_stats: Literal["trajectory", "row"] = "trajectory",
) -> Advantage:
    """Group-in-group advantages of episodes and turns: GiGPO, arXiv 2505.10978, section 4.

    ``A_ik = A^E_i + omega A^S_ik`` for turn k of trajectory i.  ``A^E`` normalises ``R_i`` within the group; with
    ``episode_stats=row`` its mean and std count a trajectory once per turn instead of once.  ``A^S`` normalises
    ``G_ik = sum over l >= k of discount^(l-k) r_il`` within the anchor group: all turns of the group that begin in the
    same state, including repeated visits by one trajectory; a turn that is the only one in its state gets 0.  ``r_ik``
    sums ``reward_BT`` over the sampled tokens of the turn; a turn without sampled tokens does not count as a discount
    step and is in no anchor group.

    ``norm=mean`` subtracts the mean; ``mean_std`` also divides by the std (ddof 1) plus ``eps``, 1e-6 if None.
    ``turn_BT`` is negative at padding, and only its differences within a row matter; ``first_turn_B`` orders the rows
    of a trajectory.  Column k of ``state_key_BK`` is the state before the k-th turn *of the row*, counted from the
    smallest turn in the row's ``turn_BT``, whatever ``first_turn_B`` is.

    Raises:
        ValueError: also if a constant is out of range, ``eps`` is given with ``norm=mean``, a sampled token has no
            turn, or its turn has no column in ``state_key_BK``.
    """
    normalise = _make_normaliser(norm, eps)
    _check_gigpo(discount, omega, episode_stats)
    check_shapes(return_B=return_B, group_B=group_B, is_action_BT=is_action_BT, state_key_BK=state_key_BK)
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    column_BT = _find_columns(turn_BT, is_counted_BT, state_key_BK.shape[1])
    reward_BK, is_turn_BK = _sum_turn_rewards(reward_BT, is_counted_BT, column_BT)
    turn_return_BK = return_to_go(
        reward_BT=reward_BK,
        is_action_BT=is_turn_BK,
        trajectory_B=trajectory_B,
        first_turn_B=first_turn_B,
        discount=discount,
    )
    row_N, k_N = is_turn_BK.nonzero(as_tuple=True)
    state_N2 = torch.stack([group_B[row_N], state_key_BK[row_N, k_N]], dim=1)
    anchor_N = torch.unique(state_N2, dim=0, return_inverse=True)[1]
    index_N = torch.arange(len(row_N), device=row_N.device)
    if episode_stats == "trajectory":
        episode_N = normalise(return_B.double(), group_B, trajectory_B)[row_N]
    else:
        episode_N = normalise(return_B[row_N].double(), group_B[row_N], index_N)
    value_BK = torch.zeros_like(reward_BK)
    value_BK[row_N, k_N] = episode_N + omega * normalise(turn_return_BK[row_N, k_N], anchor_N, index_N)
    advantage_BT = torch.where(is_counted_BT, value_BK.gather(1, column_BT), 0)
    return Advantage(advantage_BT.to(return_B.dtype))


def tree(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    tree_B: Tensor,
    is_action_BT: Tensor,
    eps: float = DEFAULT_EPS,
) -> Advantage:
    """``A^inter_i + A^intra_i``, each `group_mean_std`: Tree-GRPO, arXiv 2509.21240.

    The inter term is over all leaves of the prompt, the intra term over the leaves of the same tree (``tree_B`` within
    its group).  If a tree has only one scored leaf, its intra term is 0.
    """
    check_shapes(group_B=group_B, tree_B=tree_B)
    tree_of_group_B = torch.unique(torch.stack([group_B, tree_B], dim=1), dim=0, return_inverse=True)[1]
    inter, intra = (
        group_mean_std(
            return_B=return_B, group_B=ids_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT, eps=eps
        )
        for ids_B in (group_B, tree_of_group_B)
    )
    return Advantage(inter.advantage_BT + intra.advantage_BT)


def branch_hard(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    node_BT: Tensor,
    eps: float = DEFAULT_EPS,
) -> Advantage:
    """Mean advantage of the rows that share a token: ARPO's hard estimate, arXiv 2507.19849.

    ``(1/d) sum of a_j`` over the d rows that share the token.  ``a_j`` is `group_mean_std`; a token of only one row has
    ``a_i``.  Rows share a sampled token where their ``node_BT`` is equal; rows with a NaN return do not count in d.
    """
    check_shapes(return_B=return_B, is_action_BT=is_action_BT, node_BT=node_BT)
    advantage_BT = group_mean_std(
        return_B=return_B, group_B=group_B, trajectory_B=trajectory_B, is_action_BT=is_action_BT, eps=eps
    ).advantage_BT
    is_counted_BT = is_action_BT & ~return_B.isnan()[:, None]
    nodes, index_N = torch.unique(node_BT[is_counted_BT], return_inverse=True)
    value_N = advantage_BT[is_counted_BT].double()
    rows_per_node = segment_sum(torch.ones_like(value_N), index_N, len(nodes))
    mean_N = (segment_sum(value_N, index_N, len(nodes)) / rows_per_node)[index_N]
    return Advantage(advantage_BT.masked_scatter(is_counted_BT, mean_N.to(advantage_BT.dtype)))


def indicator(
    *,
    return_B: Tensor,
    group_B: Tensor,
    trajectory_B: Tensor,
    is_action_BT: Tensor,
    min_return: float = 0.0,
) -> Advantage:
    """``1[R_i = max of the group and R_i > min_return]``: RAFT++, arXiv 2504.11343.

    All trajectories that tie for the best get 1.  ``min_return`` (in reward units) prevents imitation of a group
    without any success.  A group with one scored trajectory gets 0.
    """
    require(min_return < math.inf, "min_return", min_return, "a number that returns can exceed")
    trajectories = find_trajectories(return_B=return_B, group_B=group_B, trajectory_B=trajectory_B)
    best_G = trajectories.return_S.new_full((trajectories.num_groups,), -math.inf)
    best_G = best_G.scatter_reduce_(0, trajectories.group_S, trajectories.return_S, "amax")
    size_G = segment_sum(
        torch.ones_like(trajectories.return_S), trajectories.group_S, trajectories.num_groups
    )
    is_best_S = (trajectories.return_S == best_G[trajectories.group_S]) & (size_G[trajectories.group_S] > 1)
    value_S = (is_best_S & (trajectories.return_S > min_return)).double()
    return Advantage(broadcast_to_actions(trajectories.to_rows(value_S, return_B), is_action_BT))


def raw_filtered(*, return_B: Tensor, group_B: Tensor, success_B: Tensor, is_action_BT: Tensor) -> Advantage:
    """``R_i`` if the group has both solved and failed trajectories, else 0: Reinforce-Rej.

    arXiv 2504.11343.
    """
    check_shapes(return_B=return_B, group_B=group_B, success_B=success_B, is_action_BT=is_action_BT)
    groups, index_B = torch.unique(group_B, return_inverse=True)
    is_scored_B = ~return_B.isnan()
    solved_G = segment_sum((success_B & is_scored_B).long(), index_B, len(groups))
    failed_G = segment_sum((~success_B & is_scored_B).long(), index_B, len(groups))
    is_mixed_B = ((solved_G > 0) & (failed_G > 0))[index_B]
    value_B = torch.where(is_mixed_B & is_scored_B, return_B, torch.zeros_like(return_B))
    return Advantage(broadcast_to_actions(value_B, is_action_BT))


def _check_gigpo(discount: float, omega: float, episode_stats: str) -> None:
    require(0 <= discount <= 1, "discount", discount, "in [0, 1]")
    require(0 <= omega < math.inf, "omega", omega, ">= 0 and finite")
    require(episode_stats in ("trajectory", "row"), "episode_stats", episode_stats, "trajectory or row")


def _make_normaliser(norm: str, eps: float | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a function (value_N, group_N, id_N) -> value_N normalised within its group.

    Entries with the same id count once.
    """
    require(norm in ("mean", "mean_std"), "norm", norm, "mean or mean_std")
    if norm == "mean" and eps is not None:
        raise ValueError(f"eps={eps} has no effect with norm=mean: leave it null")
    divide_by_std = partial(group_mean_std, eps=DEFAULT_EPS if eps is None else eps)
    estimator: Callable[..., Advantage] = group_mean if norm == "mean" else divide_by_std

    def normalise(value_N: Tensor, group_N: Tensor, id_N: Tensor) -> Tensor:
        one_token = torch.ones(len(value_N), 1, dtype=torch.bool, device=value_N.device)
        return estimator(
            return_B=value_N, group_B=group_N, trajectory_B=id_N, is_action_BT=one_token
        ).advantage_BT[:, 0]

    return normalise


def _find_columns(turn_BT: Tensor, is_counted_BT: Tensor, num_columns: int) -> Tensor:
    """Find each token's column of ``state_key_BK``, int64; 0 if the token does not count."""
    check_shapes(turn_BT=turn_BT, is_counted_BT=is_counted_BT)
    if bool((is_counted_BT & (turn_BT < 0)).any()):
        raise ValueError(
            "turn_BT is negative at a sampled token; algo/advantage=gigpo needs a turn number there"
        )
    largest = torch.iinfo(turn_BT.dtype).max
    turns_BT = torch.where(turn_BT < 0, largest, turn_BT)
    first_B1 = torch.nn.functional.pad(turns_BT, (0, 1), value=largest).amin(1, keepdim=True)
    column_BT = torch.where(is_counted_BT, turn_BT - first_B1, 0).long()
    if bool((is_counted_BT & (column_BT >= num_columns)).any()):
        raise ValueError(f"state_key_BK has K={num_columns}, but a row has {int(column_BT.max()) + 1} turns")
    return column_BT


def _sum_turn_rewards(reward_BT: Tensor, is_counted_BT: Tensor, column_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the rewards of each turn, float64, and mark turns with counted tokens.

    Both results are (B, K), with K at least 1.
    """
    check_shapes(reward_BT=reward_BT, is_counted_BT=is_counted_BT)
    num_columns = int(column_BT.max()) + 1 if column_BT.numel() else 1
    reward = torch.where(is_counted_BT, reward_BT, torch.zeros_like(reward_BT)).double()
    is_turn_BK = sum_columns(is_counted_BT.double(), column_BT, num_columns) > 0
    return sum_columns(reward, column_BT, num_columns), is_turn_BK
