"""Rows, losses and metrics of pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lit_agentrl.checks import name_errors
from lit_agentrl.rl.binding import bind, tensor_names
from lit_agentrl.rl.objective import Tensors
from lit_agentrl.rl.preference.pairing import Pairs

_SIDES = ("chosen", "rejected")
_TIE = 1e-5  # largest margin of a tie, because micro-batches round equal log-probs differently


def kept_pairs(pairs: Pairs, tensors: Tensors) -> Tensors:
    """Return ``keep_B``, the rows of pairs, and ``pairless_share``, the share of groups without pairs."""
    units, keep_B = pairs.units, torch.zeros_like(tensors["group_B"], dtype=torch.bool)
    is_paired_N = torch.zeros(len(units), dtype=torch.bool, device=keep_B.device)
    is_paired_N[pairs.chosen_P] = is_paired_N[pairs.rejected_P] = True
    row_A = units.place_A // max(tensors["is_action_BT"].shape[1], 1)
    keep_B[row_A[is_paired_N[units.unit_A]]] = True
    if units.is_pooled:  # values depend on the whole group, so all of it is kept
        keep_B = torch.isin(tensors["group_B"], tensors["group_B"][keep_B]) & ~tensors["return_B"].isnan()
    scored_B = tensors["group_B"][~tensors["return_B"].isnan()]
    num_groups, num_paired = (
        len(torch.unique(group_B)) for group_B in (scored_B, tensors["group_B"][keep_B])
    )
    return {"keep_B": keep_B, "pairless_share": torch.tensor(1 - num_paired / max(num_groups, 1))}


def link_losses(
    columns: Tensors,
    *,
    margin: Callable[..., Tensor],
    link: Callable[..., Tensor],
    smoothing: Callable[..., Tensor],
) -> Tensor:
    """The loss of each pair, (P,), from columns of pairs.

    Gradient flows through ``z_P`` and both sides.
    """
    columns = columns | {"z_P": columns["z_P"] + bind(margin, columns)}
    # smoothing also needs the loss with exchanged sides, so exchange the two words in all names of columns
    opposite = {"chosen": "rejected", "rejected": "chosen"}
    flipped = {
        "_".join(opposite.get(part, part) for part in name.split("_")): value
        for name, value in columns.items()
    }
    flipped["z_P"] = -columns["z_P"]
    with name_errors("smoothing"):
        if "chosen_visits_P" in tensor_names(smoothing) and "chosen_visits_P" not in columns:
            raise ValueError(
                "reads the number of episodes that hold each reply, which this pairing does not count: use "
                "algo/pairing=tree_state"
            )
        losses: Tensors = {"loss_P": bind(link, columns), "flipped_P": bind(link, flipped)}
        losses_P: Tensor = bind(smoothing, columns | losses)
    return losses_P


@torch.no_grad()
def pair_metrics(columns: Mapping[str, Tensor]) -> Tensors:
    """Metrics of a loss of pairs, each ``[sum over pairs, number of pairs]``.

    Implicit rewards and their margin, the share of pairs that they rank correctly, the share in which the shorter side
    is chosen, and for both sides the log-prob (nats) and its change.
    """
    by_side = {f"{name}_{side}": columns[f"{side}_{name}_P"] for name in ("logp", "moved") for side in _SIDES}
    return score_metrics(columns) | {name: sum_and_count(value_P) for name, value_P in by_side.items()}


@torch.no_grad()
def score_metrics(columns: Mapping[str, Tensor]) -> Tensors:
    """Metrics of the scores of pairs: scores, margin, accuracy and ``shorter_wins``.

    ``shorter_wins`` is the share of pairs whose shorter side is chosen.  A tie counts half in both shares.  A margin of
    at most 1e-5 is a tie.
    """
    chosen_P, rejected_P = columns["chosen_length_P"], columns["rejected_length_P"]
    margin_P = columns["chosen_P"] - columns["rejected_P"]
    values = {
        "reward_chosen": columns["chosen_P"],
        "reward_rejected": columns["rejected_P"],
        "reward_margin": margin_P,
        "reward_accuracy": (margin_P > _TIE).double() + 0.5 * (margin_P.abs() <= _TIE).double(),
        "shorter_wins": (chosen_P < rejected_P).double() + 0.5 * (chosen_P == rejected_P).double(),
    }
    return {name: sum_and_count(value_P) for name, value_P in values.items()}


def sum_and_count(value_P: Tensor) -> Tensor:
    """``[sum over pairs, number of pairs]``, which is added over micro-batches and ranks."""
    return torch.stack([value_P.sum(), value_P.new_tensor(float(len(value_P)))])
