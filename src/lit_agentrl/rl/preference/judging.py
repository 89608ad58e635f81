"""Accuracy and calibration of reward model scores on held-out pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.masked import segment_sum
from lit_agentrl.rl.preference.pairing import all_pairs
from lit_agentrl.rl.preference.reward_losses import ends

_NEAR = 0.1  # lengths that differ by at most this share of the longer one count as equal
_BINS = 10
COLUMNS = ("group", "margin", "chosen_length", "rejected_length")


@dataclass(frozen=True)
class Verdicts:
    """Pairs of unequal returns and the differences of their scores.

    Attributes:
        table_PC: float64, one row per pair with the columns `COLUMNS`: its group, the score of the side with the higher
            return minus that of the other, and the numbers of sampled tokens of both sides.
    """

    table_PC: Tensor

    def __len__(self) -> int:
        return len(self.table_PC)

    def column(self, name: str) -> Tensor:
        """Return one of `COLUMNS`, (P,)."""
        return self.table_PC[:, COLUMNS.index(name)]

    @property
    def is_right_P(self) -> Tensor:
        """1 if the scores rank the pair correctly, 0.5 for a tie, else 0."""
        margin_P = self.column("margin")
        return (margin_P > 0).double() + 0.5 * (margin_P == 0).double()

    @property
    def is_near_P(self) -> Tensor:
        """True if the lengths differ by at most a tenth of the longer one."""
        chosen_P, rejected_P = self.column("chosen_length"), self.column("rejected_length")
        return (chosen_P - rejected_P).abs() <= _NEAR * torch.maximum(chosen_P, rejected_P)

    def metrics(self) -> dict[str, float]:
        """Return metrics of the scores, and of the rule "the shorter reply wins".

        Shares and ``margin`` (nats) are means over prompts of the mean over each prompt's pairs.  ``calibration_error``
        is the mean over pairs of ``|accuracy - sigmoid(|margin|)|`` in ten bins.
        """
        if not len(self):
            return {}
        chosen_P, rejected_P = self.column("chosen_length"), self.column("rejected_length")
        shorter_P = (chosen_P < rejected_P).double() + 0.5 * (chosen_P == rejected_P).double()
        is_any_P = torch.ones_like(self.is_near_P)
        values = {
            "success": self._average(self.is_right_P, is_any_P),
            "margin": self._average(self.column("margin"), is_any_P),
            "shorter_wins": self._average(shorter_P, is_any_P),
            "calibration_error": self._compute_calibration_error(),
            "pairs": torch.tensor(float(len(self))), "equal_length_pairs": self.is_near_P.sum(),
        }  # fmt: skip
        if bool(self.is_near_P.any()):
            values["equal_length_success"] = self._average(self.is_right_P, self.is_near_P)
            values["equal_length_shorter_wins"] = self._average(shorter_P, self.is_near_P)
        return {name: float(value) for name, value in values.items()}

    def _average(self, x_P: Tensor, keep_P: Tensor) -> Tensor:
        """Average over prompts the mean over each prompt's pairs in ``keep_P``."""
        _, prompt_P, size_G = torch.unique(
            self.column("group")[keep_P], return_inverse=True, return_counts=True
        )
        mean: Tensor = (x_P[keep_P] / size_G[prompt_P]).sum() / len(size_G)
        return mean

    def _compute_calibration_error(self) -> Tensor:
        probability_P = torch.sigmoid(self.column("margin").abs())  # from 0.5 to 1
        bin_P = ((probability_P - 0.5) * 2 * _BINS).long().clamp(max=_BINS - 1)
        gap_K = segment_sum(self.is_right_P - probability_P, bin_P, _BINS)
        return gap_K.abs().sum() / len(self)


def sign_metrics(columns: Mapping[str, Tensor]) -> dict[str, float]:
    """Accuracy of the sign of costs, and the share of trajectories that are too costly.

    Args:
        columns: ``score`` and ``is_costly`` of trajectories, (N,).
    """
    is_costly_N = columns["is_costly"].bool()
    if not len(is_costly_N):
        return {}
    is_right_N = (columns["score"] > 0) == is_costly_N
    return {
        "sign_accuracy": float(is_right_N.double().mean()),
        "costly_share": float(is_costly_N.double().mean()),
    }


def judge(tensors: Mapping[str, Tensor], score_BT: Tensor) -> Verdicts:
    """Judge all pairs of trajectories of a group whose returns and replies differ.

    Args:
        tensors: columns of whole groups.
        score_BT: (B, T), scores in nats, without gradient; the last sampled token of each trajectory counts.
    """
    pairs = bind(all_pairs, tensors)
    units = pairs.units
    score_N = score_BT.detach().flatten()[ends(units)].double()
    width = max(score_BT.shape[1], 1)
    group_P = tensors["group_B"][units.place_A[units.start_N][pairs.chosen_P] // width]
    columns = {
        "group": group_P.double(), "margin": score_N[pairs.chosen_P] - score_N[pairs.rejected_P],
        "chosen_length": units.length_N[pairs.chosen_P], "rejected_length": units.length_N[pairs.rejected_P],
    }  # fmt: skip
    return Verdicts(torch.stack([columns[name] for name in COLUMNS], dim=1))
