"""What pairs come to: the rows that they keep, the loss of each, and the metrics of a loss of pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lit_agentrl.checks import name_errors
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.objective import Tensors
from lit_agentrl.rl.preference.pairing import Pairs

_SIDES = ("chosen", "rejected")


def kept_pairs(pairs: Pairs, tensors: Tensors) -> Tensors:
    """``keep_B``, the rows of pairs; ``pairless_share`` of groups have none."""
    units, keep_B = pairs.units, torch.zeros_like(tensors["group_B"], dtype=torch.bool)
    is_paired_N = torch.zeros(len(units), dtype=torch.bool, device=keep_B.device)
    is_paired_N[pairs.chosen_P] = is_paired_N[pairs.rejected_P] = True
    row_A = units.place_A // max(tensors["is_action_BT"].shape[1], 1)
    keep_B[row_A[is_paired_N[units.unit_A]]] = True
    if units.is_pooled:
        keep_B = torch.isin(tensors["group_B"], tensors["group_B"][keep_B]) & ~tensors["return_B"].isnan()
    scored_B = tensors["group_B"][~tensors["return_B"].isnan()]
    groups, paired = (len(torch.unique(g_B)) for g_B in (scored_B, tensors["group_B"][keep_B]))
    return {"keep_B": keep_B, "pairless_share": torch.tensor(1 - paired / max(groups, 1))}


def link_losses(
    columns: Tensors,
    *,
    margin: Callable[..., Tensor],
    link: Callable[..., Tensor],
    smoothing: Callable[..., Tensor],
) -> Tensor:
    """The loss of each pair, (P,), from columns of pairs by name; gradient flows through ``z_P`` and both sides."""
    columns = columns | {"z_P": columns["z_P"] + bind(margin, columns)}
    turned = {"chosen": "rejected", "rejected": "chosen"}
    flipped = {
        "_".join(turned.get(part, part) for part in name.split("_")): value for name, value in columns.items()
    }
    flipped["z_P"] = -columns["z_P"]
    with name_errors("smoothing"):
        losses_P: Tensor = smoothing(bind(link, columns), bind(link, flipped))
    return losses_P


@torch.no_grad()
def pair_metrics(columns: Mapping[str, Tensor]) -> Tensors:
    """What a loss of pairs is watched by; each ``[sum over pairs, pairs]``.

    Implicit rewards and their margin, the share of pairs that these rank rightly beside the share in which the shorter
    side is the chosen one, and of both sides the log-prob (nats) and how far it has moved.
    """
    moves = {f"{name}_{side}": columns[f"{side}_{name}_P"] for name in ("logp", "moved") for side in _SIDES}
    return compared_metrics(columns) | {name: sum_and_count(value_P) for name, value_P in moves.items()}


@torch.no_grad()
def compared_metrics(columns: Mapping[str, Tensor]) -> Tensors:
    """Scores of both sides, their margin, and the share that they rank rightly beside that of the shorter side."""
    one, other = columns["chosen_length_P"], columns["rejected_length_P"]
    margin_P = columns["chosen_P"] - columns["rejected_P"]
    values = {
        "reward_chosen": columns["chosen_P"],
        "reward_rejected": columns["rejected_P"],
        "reward_margin": margin_P,
        "reward_accuracy": (margin_P > 0).double(),
        "shorter_wins": (one < other).double() + 0.5 * (one == other).double(),
    }
    return {name: sum_and_count(value_P) for name, value_P in values.items()}


def sum_and_count(value_P: Tensor) -> Tensor:
    """``[sum over pairs, pairs]`` of a column: what is added up over micro-batches and ranks to a mean."""
    return torch.stack([value_P.sum(), value_P.new_tensor(float(len(value_P)))])
