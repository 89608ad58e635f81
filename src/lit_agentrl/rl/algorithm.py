"""An algorithm as one choice on each axis, and the policy loss it defines.

An `Algorithm` is composed by YAML from functions of the other files of this folder; there is no branch on its
name anywhere.  What it needs from a run (a reference, entropies, groups of at least two) is read from the
signatures of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_agentrl.rl.advantages import Advantage
from lit_agentrl.rl.aggregation import Weights
from lit_agentrl.rl.binding import bind, constants, tensor_names, try_out
from lit_agentrl.rl.clipping import Clipped
from lit_agentrl.rl.kl import KLInLoss, KLInReward, k3
from lit_agentrl.rl.masked import check_shapes, masked_sum, segment_sum, trajectory_index
from lit_agentrl.rl.row_selection import keep_all

__all__ = [
    "Algorithm",
    "add_metrics",
    "bind",
    "metric_values",
    "policy_loss",
    "shape_rewards",
    "tensor_names",
    "try_out",
]

_CARRY_GRADIENT = ("logp_BT", "entropy_BT")


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One function per axis, its constants bound by ``functools.partial``.

    Attributes:
        name: as in ``conf/algo``; for logs only.
        advantage: returns `Advantage`; see ``advantages.py``.
        ratio: returns ``ratio_BT``; see ``ratios.py``.
        clip: returns `Clipped`; see ``clipping.py``.
        aggregate: returns `Weights`; see ``aggregation.py``.
        kl: `KLInLoss`, `KLInReward` or None.
        entropy: returns the loss of each token, or None; see ``entropy.py``.
        rows: returns ``keep_B``, the rows to train on; see ``row_selection.py``.

    Raises:
        ValueError: at construction, if a part does not run on a toy batch or two parts make no sense
            together.
    """

    name: str
    advantage: Callable[..., Advantage]
    ratio: Callable[..., Tensor]
    clip: Callable[..., Clipped]
    aggregate: Callable[..., Weights]
    kl: KLInLoss | KLInReward | None = None
    entropy: Callable[..., Tensor] | None = None
    rows: Callable[..., Tensor] = keep_all

    def __post_init__(self) -> None:
        """Checks every part and their combination."""
        results = {"advantage": Advantage, "clip": Clipped, "aggregate": Weights}
        for axis, part in self._parts():
            try_out(f"algo.{axis}", part, results.get(axis, Tensor))
        if self.kl is not None and not isinstance(self.kl, KLInLoss | KLInReward):
            raise ValueError(f"algo.kl={type(self.kl).__name__} must be KLInLoss or KLInReward")
        if "old_logp_BT" not in tensor_names(self.ratio) and (idle := constants(self.clip)):
            raise ValueError(
                f"algo.clip.{next(iter(idle))} never acts, because this algo/ratio is always 1: "
                "use algo/clip=none, or algo/ratio=token"
            )

    def _parts(self) -> Iterator[tuple[str, Callable[..., object]]]:
        for axis in ("advantage", "rows", "ratio", "clip", "aggregate", "kl", "entropy"):
            if (part := getattr(self, axis)) is not None:
                yield axis, part

    def needs(self, tensor: str) -> bool:
        """Whether any part takes the tensor of that name, such as ``value_BT``."""
        return any(tensor in tensor_names(part) for _, part in self._parts())

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of a frozen reference must be computed."""
        return self.needs("ref_logp_BT")

    @property
    def needs_critic(self) -> bool:
        """Whether the advantage is computed from values."""
        return self.needs("value_BT")

    @property
    def needs_entropy(self) -> bool:
        """Whether entropies must carry gradient."""
        return self.needs("entropy_BT")

    @property
    def needs_whole_trajectories(self) -> list[str]:
        """The axes whose parts need each row to hold its whole trajectory (the full context)."""
        return [axis for axis in ("ratio", "clip") if "trajectory_B" in tensor_names(getattr(self, axis))]

    @property
    def min_group_size(self) -> int:
        """Rollouts per prompt below which the advantage is always 0: 2 with group statistics, else 1."""
        has_group_statistics = "group_B" in tensor_names(self.advantage)
        return 2 if has_group_statistics and constants(self.advantage).get("singleton") != "raw" else 1


def shape_rewards(algorithm: Algorithm, *, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``reward_BT`` and ``return_B`` with the KL to the reference taken off; {} without `KLInReward`.

    ``r_t <- r_t + kl_t`` at sampled tokens and ``R_i <- R_i + sum of kl_t over the whole trajectory``, with
    ``kl_t = -coef * k1(old_logp, ref_logp)``.  Call it before rows of one trajectory are dealt apart and
    before advantages.  Takes ``reward_BT, return_B, trajectory_B, is_action_BT, old_logp_BT, ref_logp_BT``;
    no gradient.
    """
    if not isinstance(algorithm.kl, KLInReward):
        return {}
    term_BT = bind(algorithm.kl, tensors)
    index_B, num = trajectory_index(tensors["trajectory_B"])
    reward_BT, return_B = tensors["reward_BT"], tensors["return_B"]
    term_B = segment_sum(term_BT.double().sum(1), index_B, num)[index_B]
    return {
        "reward_BT": reward_BT + term_BT.to(reward_BT.dtype),
        "return_B": return_B + term_B.to(return_B.dtype),
    }


def policy_loss(
    algorithm: Algorithm, *, tensors: Mapping[str, Tensor], weight_BT: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-prob -> ratio -> clip -> + KL + entropy -> weighted sum, over one micro-batch.

    Args:
        algorithm: the mix.
        tensors: ``is_action_BT``, ``logp_BT``, ``advantage_BT`` and what else the parts take.  Only
            ``logp_BT`` (nats) and ``entropy_BT`` (nats) carry gradient.  Values outside ``is_action_BT`` are
            ignored.
        weight_BT: this micro-batch's rows of `Weights.weight_BT`, counted over the whole minibatch.

    Returns:
        The sum of weighted losses, still to be divided by the denominator over all ranks
        (``aggregation.divide``), and metrics for `add_metrics`, detached: ``approx_kl`` (nats, ``-delta``),
        ``clip_share_low``, ``clip_share_high``, ``ratio_max``, and ``entropy``, ``ref_kl`` (nats, k3) where
        their tensors are given.

    Raises:
        ValueError: if shapes disagree or a part lacks a tensor.
    """
    for name in ("is_action_BT", "logp_BT", "advantage_BT"):
        if name not in tensors:
            raise ValueError(f"policy_loss needs {name}")
    is_action_BT = tensors["is_action_BT"]
    check_shapes(weight_BT=weight_BT, is_action_BT=is_action_BT, advantage_BT=tensors["advantage_BT"])
    clean = {name: _clean(name, tensor, is_action_BT) for name, tensor in tensors.items()}
    clean["ratio_BT"] = bind(algorithm.ratio, clean)
    clipped = bind(algorithm.clip, clean)
    loss_BT = clipped.loss_BT
    if isinstance(algorithm.kl, KLInLoss):
        loss_BT = loss_BT + bind(algorithm.kl, clean)
    if algorithm.entropy is not None:
        loss_BT = loss_BT + bind(algorithm.entropy, clean)
    return masked_sum(weight_BT * loss_BT, is_action_BT), _metrics(clean, clipped)


def _clean(name: str, tensor: Tensor, is_action_BT: Tensor) -> Tensor:
    """Drops gradients that must not flow, and garbage at tokens that were not sampled."""
    if not name.endswith("_BT") or not tensor.is_floating_point():
        return tensor
    check_shapes(**{name: tensor}, is_action_BT=is_action_BT)
    tensor = tensor if name in _CARRY_GRADIENT else tensor.detach()
    return torch.where(is_action_BT, tensor, torch.zeros_like(tensor))


@torch.no_grad()
def _metrics(clean: Mapping[str, Tensor], clipped: Clipped) -> dict[str, Tensor]:
    is_action_BT, ratio_BT = clean["is_action_BT"], clean["ratio_BT"]
    values = {"clip_share_low": clipped.is_clipped_low_BT, "clip_share_high": clipped.is_clipped_high_BT}
    if "old_logp_BT" in clean:
        values["approx_kl"] = clean["old_logp_BT"] - clean["logp_BT"]
    if "entropy_BT" in clean:
        values["entropy"] = clean["entropy_BT"]
    if "ref_logp_BT" in clean:
        values["ref_kl"] = k3(logp_BT=clean["logp_BT"], ref_logp_BT=clean["ref_logp_BT"])
    count = is_action_BT.sum().to(ratio_BT.dtype)
    metrics = {
        name: torch.stack([masked_sum(value.to(ratio_BT.dtype), is_action_BT), count])
        for name, value in values.items()
    }
    highest = torch.where(is_action_BT, ratio_BT, torch.zeros_like(ratio_BT)).flatten()
    metrics["ratio_max"] = torch.cat([highest, highest.new_zeros(1)]).max()
    return metrics


def add_metrics(total: Mapping[str, Tensor], part: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merges metrics of two micro-batches or ranks; ``[sum, weight]`` pairs add, ``*_max`` the larger."""
    merged = dict(total)
    for name, value in part.items():
        if name not in merged:
            merged[name] = value
        elif name.endswith("_max"):
            merged[name] = torch.maximum(merged[name], value)
        else:
            merged[name] = merged[name] + value
    return merged


def metric_values(total: Mapping[str, Tensor]) -> dict[str, float]:
    """Means (or maxima) as numbers; a mean over no token is 0."""
    return {
        name: float(value if name.endswith("_max") else value[0] / value[1].clamp(min=1))
        for name, value in total.items()
    }
