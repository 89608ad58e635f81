"""An algorithm as one choice on each axis, and the policy loss it defines.

An `Algorithm` is composed by YAML from functions of the other files of this folder; there is no branch on its
name anywhere.  What it needs from a run (a reference, entropies, groups of at least two) is read from the
signatures of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lit_agentrl.rl.advantages import Advantage
from lit_agentrl.rl.aggregation import Weights
from lit_agentrl.rl.binding import bind, constants, tensor_names, try_out
from lit_agentrl.rl.clipping import Clipped
from lit_agentrl.rl.entropy import AdaptiveBonus
from lit_agentrl.rl.kl import KLInLoss, KLInReward, KLTerm, KLToOld, k3
from lit_agentrl.rl.kl_control import Controller, Fixed
from lit_agentrl.rl.masked import check_shapes, masked_sum, segment_sum, trajectory_index
from lit_agentrl.rl.row_selection import keep_all

_CARRY_GRADIENT = ("logp_BT", "entropy_BT")
_AXES = ("advantage", "rows", "tokens", "correction", "ratio", "clip", "aggregate", "kl", "entropy")


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One function per axis, its constants bound by ``functools.partial``.

    Attributes:
        name: as in ``conf/algo``; for logs only.
        advantage: returns `Advantage`; see ``advantages.py``.
        ratio: returns ``ratio_BT``; see ``ratios.py``.
        clip: returns `Clipped`; see ``clipping.py``.
        aggregate: returns `Weights`; see ``aggregation.py``.
        kl: `KLInLoss`, `KLInReward`, `KLToOld` or None.
        kl_controller: moves ``kl.coef`` once an iteration; see ``kl_control.py``.
        entropy: returns the loss of each token, or None; see ``entropy.py``.
        rows: returns ``keep_B``, the rows to train on; see ``row_selection.py``.
        tokens: returns ``is_kept_BT``, the tokens whose policy loss counts, or None for all of them.
        correction: returns the weight of each token's policy loss, or None; see ``correction.py``.

    Raises:
        ValueError: at construction, if two parts make no sense together; :meth:`try_out` sees the others.
    """

    name: str
    advantage: Callable[..., Advantage]
    ratio: Callable[..., Tensor]
    clip: Callable[..., Clipped]
    aggregate: Callable[..., Weights]
    kl: KLTerm | None = None
    kl_controller: Controller = field(default_factory=Fixed)
    entropy: Callable[..., Tensor] | None = None
    rows: Callable[..., Tensor] = keep_all
    tokens: Callable[..., Tensor] | None = None
    correction: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        """Checks the kinds of terms."""
        if self.kl is not None and not isinstance(self.kl, KLInLoss | KLInReward | KLToOld):
            raise ValueError(f"kl={type(self.kl).__name__} must be KLInLoss, KLInReward or KLToOld")
        if self.kl is None and not isinstance(self.kl_controller, Fixed):
            raise ValueError(
                f"kl_controller={type(self.kl_controller).__name__} has no coefficient to move under "
                "algo/kl=none: use algo/kl_controller=fixed, or algo/kl=loss_k3"
            )

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Runs every part once on a toy batch, and checks their combination; call it before anything is played.

        Args:
            rows: small ones, each column under its name.

        Raises:
            ValueError: a constant out of range or missing, a tensor that is no column, or parts that make no sense
                together.
        """
        results = {"advantage": Advantage, "clip": Clipped, "aggregate": Weights}
        for axis, part in self._parts():
            try_out(axis, part, results.get(axis, Tensor), rows)
        if self.needs_fresh_advantages and not _keeps_all(self.rows):
            raise ValueError(
                "rows: the advantage is computed anew over whole groups before each step; use algo/rows=none"
            )
        if "old_logp_BT" not in tensor_names(self.ratio) and (idle := constants(self.clip)):
            raise ValueError(
                f"clip.{next(iter(idle))}={next(iter(idle.values()))} never acts, because this algo/ratio is always 1: "
                "use algo/clip=none, or algo/ratio=token"
            )

    def _parts(self) -> Iterator[tuple[str, Callable[..., object]]]:
        for axis in _AXES:
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
    def needs_fresh_advantages(self) -> bool:
        """Whether advantages depend on the current policy and are computed anew before each step."""
        return "logp_BT" in tensor_names(self.advantage)

    @property
    def needs_baseline(self) -> bool:
        """Whether each prompt must also be played greedily."""
        return self.needs("baseline_B")

    @property
    def prompt_factor(self) -> float:
        """Prompts to roll out for each one whose episodes fit the update, as row selection drops some."""
        return float(getattr(self.rows, "prompt_factor", 1.0))

    @property
    def needs_whole_trajectories(self) -> list[str]:
        """The axes whose parts need each row to hold its whole trajectory (the full context)."""
        return [axis for axis in ("ratio", "clip") if "trajectory_B" in tensor_names(getattr(self, axis))]

    @property
    def min_group_size(self) -> int:
        """Rollouts per prompt below which the advantage is always 0: 2 with group statistics, else 1."""
        has_group_statistics = "group_B" in tensor_names(self.advantage)
        return 2 if has_group_statistics and constants(self.advantage).get("singleton") != "raw" else 1

    def state_dict(self) -> dict[str, float]:
        """The coefficients that move during a run, for checkpoints."""
        return {axis: part.coef for axis, part in self._adaptive()}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """The inverse of `state_dict`; what it lacks stays as configured."""
        for axis, part in self._adaptive():
            part.coef = state.get(axis, part.coef)

    def _adaptive(self) -> Iterator[tuple[str, KLTerm | AdaptiveBonus]]:
        if self.kl is not None:
            yield "kl", self.kl
        if isinstance(self.entropy, AdaptiveBonus):
            yield "entropy", self.entropy

    def before_update(self, *, entropy: float) -> dict[str, float]:
        """Adapts to the mean entropy (nats) of the iteration's sampled tokens; returns what to log."""
        if not isinstance(self.entropy, AdaptiveBonus):
            return {}
        self.entropy.update(entropy)
        return {"train/entropy_coef": self.entropy.coef if self.entropy.is_low else 0.0}

    def after_update(self, *, kl: float, num_tokens: int) -> dict[str, float]:
        """Adapts to the KL named by ``kl.measure`` (nats a token) over ``num_tokens``; returns what to log."""
        if self.kl is None:
            return {}
        used = self.kl.coef
        self.kl.coef = self.kl_controller.update(used, kl, num_tokens)
        return {"train/kl_coef": used}


def _keeps_all(rows: Callable[..., Tensor]) -> bool:
    return getattr(rows, "func", rows) is keep_all


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
        tensors: ``is_action_BT``, ``logp_BT``, ``advantage_BT`` and what else the parts take, and
            ``is_kept_BT`` from the axis ``tokens``.  Only ``logp_BT`` (nats) and ``entropy_BT`` (nats) carry
            gradient.  Values outside ``is_action_BT`` are ignored.
        weight_BT: this micro-batch's rows of `Weights.weight_BT`, counted over the whole minibatch.

    Returns:
        The sum of weighted losses, still to be divided by the denominator over all ranks
        (``aggregation.divide``), and metrics for `add_metrics`, detached: ``approx_kl`` (nats, ``-delta``),
        ``clip_share_low``, ``clip_share_high``, ``ratio_max``, and ``entropy``, ``ref_kl`` (nats, k3) where
        their tensors are given, ``correction`` (weight) and ``correction_max`` where there is one.

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
    if algorithm.correction is not None:
        clean["correction_BT"] = bind(algorithm.correction, clean)
        loss_BT = loss_BT * clean["correction_BT"]
    if "is_kept_BT" in clean:
        loss_BT = torch.where(clean["is_kept_BT"], loss_BT, torch.zeros_like(loss_BT))
    if isinstance(algorithm.kl, KLInLoss | KLToOld):
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
    if "correction_BT" in clean:
        values["correction"] = clean["correction_BT"]
    if "entropy_BT" in clean:
        values["entropy"] = clean["entropy_BT"]
    if "ref_logp_BT" in clean:
        values["ref_kl"] = k3(logp_BT=clean["logp_BT"], ref_logp_BT=clean["ref_logp_BT"])
    count = is_action_BT.sum().to(ratio_BT.dtype)
    metrics = {
        name: torch.stack([masked_sum(value.to(ratio_BT.dtype), is_action_BT), count])
        for name, value in values.items()
    }
    if "correction_BT" in clean:
        metrics["correction_max"] = torch.cat([clean["correction_BT"].flatten(), ratio_BT.new_zeros(1)]).max()
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
