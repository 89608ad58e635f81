"""Minibatches of the rows of all ranks: columns, selection, and exchange between ranks.

A minibatch holds the same units (trajectories or groups) on any number of ranks.  Units move as a whole, so that
counts per unit need no other rank.  A rank without rows in a minibatch gets a filler row of weight zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lit_agentrl.batch import FILLER, LEFT_OUT, SKIPPED, make_filler_rows, pad_columns
from lit_agentrl.distributed import Deal, gather_rows, get_rank, get_world_size, pad_to_widest, send_rows
from lit_agentrl.rl.masked import compute_masked_skewness
from lit_agentrl.rl.objective import ALWAYS, Objective
from lit_agentrl.rl.returns import sum_until_next
from lit_agentrl.update.microbatches import select_rows

Tensors = dict[str, Tensor]


def prepare_rows(
    objective: Objective, tensors: Tensors, *, at_least: int
) -> tuple[Tensors | None, dict[str, float]]:
    """Add the objective's columns to this rank's rows, and select its rows.

    The columns are computed on the rows of all ranks.

    Args:
        objective: see `Objective.prepare`.
        tensors: this rank's rows, with the columns that the objective needs; changed in place.
        at_least: minimum number of units that stay; see `select_rows`.

    Returns:
        The rows, or None if no rank has a row left; and metrics.
    """
    units = objective.unit or "trajectory_B"
    is_skipped_BT = tensors.pop(SKIPPED, None)
    columns_read = tensors if is_skipped_BT is None else drop_skipped(tensors, is_skipped_BT)
    columns_read = {name: t for name, t in columns_read.items() if name in ALWAYS or objective.needs(name)}
    gathered, rank_rows = gather_rows(columns_read, tensors["trajectory_B"])
    with torch.no_grad():
        columns = objective.prepare(gathered)
    metrics: dict[str, float] = {}
    if "is_kept_BT" in columns:
        count = gathered["is_action_BT"].sum().clamp(min=1)
        metrics["kept_token_share"] = float(columns["is_kept_BT"].sum() / count)
    if "advantage_BT" in columns:
        skewness = compute_masked_skewness(columns["advantage_BT"], gathered["is_action_BT"])
        metrics["advantage_skewness"] = float(skewness)
    keep_B = columns.pop("keep_B", None)
    metrics |= {name: float(columns.pop(name)) for name in list(columns) if not columns[name].dim()}
    width = tensors["is_action_BT"].shape[1]
    for name, column in columns.items():
        tensors[name] = column[rank_rows, :width] if name.endswith("_BT") else column[rank_rows]
    if (left_out_BT := tensors.pop(LEFT_OUT, None)) is not None:
        masks = [name for name in ("is_action_BT", "is_value_target_BT") if name in tensors]
        tensors |= {name: tensors[name] & ~left_out_BT for name in masks}
    if keep_B is None:
        return tensors, metrics
    metrics["kept_row_share"] = float(keep_B.float().mean())
    if not bool(keep_B.any()):  # equal on all ranks
        return None, metrics
    among = (gathered[units], keep_B)
    selected = select_rows(tensors, keep_B[rank_rows], at_least=at_least, units=units, among=among)
    return selected, metrics


def drop_skipped(tensors: Mapping[str, Tensor], is_skipped_BT: Tensor) -> Tensors:
    """Return the columns for advantages that step over skipped tokens.

    Skipped tokens no longer count as actions.  The reward and the cost of a skipped token move to the last action
    before it in its trajectory, and a turn ends at its last action.

    Args:
        tensors: rows of whole trajectories.
        is_skipped_BT: True at sampled tokens that are skipped.
    """
    is_action_BT, is_kept_BT = tensors["is_action_BT"], tensors["is_action_BT"] & ~is_skipped_BT
    moved: Tensors = {"is_action_BT": is_kept_BT}
    for name in ("reward_BT", "cost_BT", "is_turn_end_BT"):
        if (column_BT := tensors.get(name)) is not None:
            x_BT = column_BT.float() if column_BT.dtype == torch.bool else column_BT
            sum_BT = sum_until_next(
                x_BT=x_BT, is_action_BT=is_action_BT, is_kept_BT=is_kept_BT,
                trajectory_B=tensors["trajectory_B"], first_turn_B=tensors["first_turn_B"],
            )  # fmt: skip
            moved[name] = sum_BT > 0.5 if column_BT.dtype == torch.bool else sum_BT
    return {**tensors, **moved}


def split_minibatches(
    tensors: Tensors, *, count: int, units: str, generator: torch.Generator | None, deal: Deal | None
) -> tuple[Tensors, list[Tensor]]:
    """Return this rank's rows for the next epoch and their indices per minibatch.

    Args:
        tensors: this rank's current rows by name.
        count: number of minibatches.
        units: ``trajectory_B`` or ``group_B``; rows with the same number stay together in a minibatch.
        generator: see `split_units`; in the same state on all ranks.
        deal: assigns units to ranks; None: rows stay where they are.
    """
    if get_world_size() == 1:
        return tensors, split_units(tensors[units].cpu(), count, generator, units)
    own_rows = remove_fillers(tensors)
    rank_B = torch.full_like(own_rows["trajectory_B"], get_rank())
    columns = {"trajectory_B": own_rows["trajectory_B"], "unit_B": own_rows[units], "rank_B": rank_B}
    columns["length_B"] = own_rows["is_real_BT"].sum(1)
    gathered, _ = gather_rows(columns)
    gathered = {name: tensor.cpu() for name, tensor in gathered.items()}
    part_B = torch.empty_like(gathered["rank_B"])
    for part, rows in enumerate(split_units(gathered["unit_B"], count, generator, units)):
        part_B[rows] = part
    ids, index_B = torch.unique(gathered["unit_B"], return_inverse=True)
    load_U = torch.zeros_like(ids).index_add_(0, index_B, gathered["length_B"])
    part_U, rank_U = (torch.zeros_like(ids).index_copy_(0, index_B, x) for x in (part_B, gathered["rank_B"]))
    if deal is not None:
        dealt = deal(
            loads=load_U.tolist(), parts=part_U.tolist(), ranks=rank_U.tolist(), world_size=get_world_size()
        )
        own_rows = _exchange_rows(own_rows, gathered["rank_B"], torch.tensor(dealt)[index_B])
    index_B = torch.searchsorted(ids, own_rows[units].cpu())
    own_rows, own_part_B = add_fillers(own_rows, part_U[index_B], count)
    return own_rows, [torch.nonzero(own_part_B == part).squeeze(1) for part in range(count)]


def name_units(units: str) -> str:
    """Name the units that a column numbers, in the plural.

    >>> name_units("trajectory_B"), name_units("group_B")
    ('trajectories', 'groups')
    """
    name = units.removesuffix("_B")
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


def split_units(
    unit_B: Tensor, count: int, generator: torch.Generator | None, units: str = "trajectory_B"
) -> list[Tensor]:
    """Split rows into ``count`` minibatches of near-equal numbers of whole units.

    Args:
        unit_B: number of each row's unit, such as a trajectory; rows of a unit stay together.
        count: number of minibatches; 1 keeps the order.
        generator: shuffles units when there are several minibatches.
        units: name of the column ``unit_B``, for the message.

    Raises:
        ValueError: there are fewer units than minibatches.
    """
    ids, index_B = torch.unique(unit_B, return_inverse=True)
    if len(ids) < count:
        raise ValueError(
            f"update.minibatches={count} exceeds the {len(ids)} {name_units(units)} selected for training; lower it, "
            "or play more"
        )
    if count == 1:
        return [torch.arange(len(unit_B))]
    position = torch.randperm(len(ids), generator=generator)
    part_B = position[index_B] * count // len(ids)
    return [torch.nonzero(part_B == part).squeeze(1) for part in range(count)]


def remove_fillers(tensors: Mapping[str, Tensor]) -> Tensors:
    """Remove filler rows."""
    is_real_B = tensors["trajectory_B"] != FILLER
    if bool(is_real_B.all()):
        return dict(tensors)
    return {name: tensor[is_real_B] for name, tensor in tensors.items()}


def _exchange_rows(own_rows: Tensors, from_B: Tensor, to_B: Tensor) -> Tensors:
    """Exchange rows between ranks; return this rank's, ordered by trajectory; a collective.

    Args:
        own_rows: this rank's rows.
        from_B: current rank of each row of all ranks, in rank order.
        to_B: new rank of each row.
    """
    if torch.equal(from_B, to_B):
        return own_rows
    names = sorted(own_rows)
    own_to_B = to_B[from_B == get_rank()]
    order = torch.argsort(own_to_B, stable=True)
    sent = torch.bincount(own_to_B, minlength=get_world_size()).tolist()
    received = torch.bincount(from_B[to_B == get_rank()], minlength=get_world_size()).tolist()
    wide, order = pad_to_widest(own_rows), order.to(own_rows["trajectory_B"].device)
    received_rows = {name: send_rows(wide[name][order], sent, received) for name in names}
    longest = int(received_rows["is_real_BT"].sum(1).max()) if sum(received) else 0
    in_order = torch.argsort(received_rows["trajectory_B"], stable=True)
    return {n: t[in_order, :longest] if n.endswith("_BT") else t[in_order] for n, t in received_rows.items()}


def add_fillers(own_rows: Tensors, part_B: Tensor, count: int) -> tuple[Tensors, Tensor]:
    """Add fillers so that each minibatch has a row; also return each row's minibatch."""
    missing = sorted(set(range(count)) - set(part_B.tolist()))
    if not missing:
        return own_rows, part_B
    width = max(2, own_rows["is_real_BT"].shape[1])  # a single token has no log-prob
    own_rows = pad_columns(own_rows, {name: width for name in own_rows if name.endswith("_BT")})
    fillers = {name: make_filler_rows(rows, name, len(missing)) for name, rows in own_rows.items()}
    fillers["is_real_BT"][:, :2] = True
    return {name: torch.cat([rows, fillers[name]]) for name, rows in own_rows.items()}, torch.cat(
        [part_B, torch.tensor(missing)]
    )
