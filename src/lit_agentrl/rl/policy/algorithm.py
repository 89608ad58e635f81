"""An algorithm as one choice on each axis, and the policy loss it defines.

An `Algorithm` is composed by YAML from functions of the other files of this folder; there is no branch on its
name anywhere.  What it needs from a run (a reference, entropies, groups of at least two) is read from the
signatures of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.checks import format_value
from lit_agentrl.rl.binding import bind, constants, tensor_names, try_out, with_computed
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.masked import check_shapes, masked_sum
from lit_agentrl.rl.objective import Objective, Requirements, Tensors, Term, token_mean_metric
from lit_agentrl.rl.policy.aggregation import Weights, divide
from lit_agentrl.rl.policy.clipping import Clipped
from lit_agentrl.rl.policy.costs import Lagrange, as_rewards, check_costs, mean_cost
from lit_agentrl.rl.policy.kl import KLTerm
from lit_agentrl.rl.policy.kl_control import Controller, Fixed
from lit_agentrl.rl.policy.penalties import check_kl, cleaned, in_loss, moving, policy_metrics, shape_rewards
from lit_agentrl.rl.policy.row_selection import keep_all

_AXES = ("advantage", "rows", "tokens", "correction", "ratio", "clip", "aggregate", "kl", "entropy")
_RESULTS = {"advantage": Advantage, "clip": Clipped, "aggregate": Weights}


@dataclass(frozen=True, kw_only=True)
class Algorithm(Objective):
    """One function per axis, its constants bound by ``functools.partial``: a sum over tokens.

    Attributes:
        name: as in ``conf/algo``; for logs only.
        advantage: returns `Advantage`; see ``advantages.py``.
        ratio: returns ``ratio_BT``; see ``ratios.py``.
        clip: returns `Clipped`; see ``clipping.py``.
        aggregate: returns `Weights`; see ``aggregation.py``.
        kl: a `KLTerm` or None.
        kl_controller: moves ``kl.coef`` once an iteration; see ``kl_control.py``.
        entropy: returns the loss of each token, or None; see ``entropy.py``.
        rows: returns ``keep_B``, the rows to train on; see ``row_selection.py``.
        tokens: returns ``is_kept_BT``, the tokens whose policy loss counts, or None for all of them.
        correction: returns the weight of each token's policy loss, or None; see ``correction.py``.
        cost: holds costs within a limit beside the reward, or None; see ``costs.py``.

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
    cost: Lagrange | None = None

    def __post_init__(self) -> None:
        """Checks the kinds of terms."""
        check_kl(self.kl, self.kl_controller)
        check_costs(self.cost, self.advantage)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Runs every part once on a toy batch, and checks their combination; call it before anything is played.

        Args:
            rows: small ones, each column under its name.

        Raises:
            ValueError: a constant out of range or missing, a tensor that is no column, or parts that make no sense
                together.
        """
        for axis, part in self._parts():
            try_out(axis, part, _RESULTS.get(axis, Tensor), rows, "B" if axis == "rows" else "BT")
        if "old_logp_BT" not in tensor_names(self.ratio) and (idle := constants(self.clip)):
            name, value = next(iter(idle.items()))
            raise ValueError(
                f"clip.{name}={format_value(value)} never acts, because this algo/ratio is always 1: "
                "use algo/clip=none, or algo/ratio=token"
            )

    def _parts(self) -> Iterator[tuple[str, Callable[..., object]]]:
        for axis in _AXES:
            if (part := getattr(self, axis)) is not None:
                yield axis, part

    @property
    def requirements(self) -> Requirements:
        """Groups of two where the advantage compares, whole rows where ratio or clip look at trajectories."""
        axes = ("ratio", "clip")
        return Requirements(
            min_members=min_members(self.advantage),
            min_steps=1 if self.kl is None else self.kl.first_step,
            prompt_factor=prompt_factor(self.rows),
            whole_trajectories=tuple(a for a in axes if "trajectory_B" in tensor_names(getattr(self, a))),
            reference_dtype=None if self.kl is None else self.kl.reference_dtype,
            all_groups=self.cost is not None,
        )

    def needs(self, tensor: str) -> bool:
        """Whether any part takes the tensor of that name, such as ``value_BT``."""
        if tensor in ("cost_BT", "cost_value_BT"):
            return self.cost is not None and (tensor == "cost_BT" or self.needs("value_BT"))
        return tensor == "reward_BT" or any(tensor in tensor_names(part) for _, part in self._parts())

    def ratio_bounds(self, rows: Mapping[str, Tensor]) -> tuple[str, ...]:
        """The constants of a clip rule that marks no token whose ratio is 1."""
        clipped: Clipped = bind(self.clip, with_computed(rows))
        if bool((clipped.is_clipped_low_BT | clipped.is_clipped_high_BT).any()):
            return ()
        given = constants(self.clip)
        return tuple(f"clip.{name}" for name, value in given.items() if isinstance(value, int | float))

    def prepare(self, tensors: Tensors) -> Tensors:
        """Rewards with a KL that acts there, advantages (points, or as the mix scales them), and what is kept."""
        parts: dict[str, Any] = {"kl": self.kl, "advantage": self.advantage}
        found = prepared(tensors, **parts, has_critic=self.needs("value_BT"))
        if self.cost is not None:
            of_costs = prepared(as_rewards(tensors), **parts, has_critic=self.needs("value_BT"))
            found |= self.cost.weigh(found, of_costs) | {"cost": mean_cost(tensors)}
        if self.tokens is not None:
            found["is_kept_BT"] = bind(self.tokens, tensors | found)
        return found | {"keep_B": bind(self.rows, tensors | found)}

    def count(self, tensors: Tensors) -> Tensors:
        """The weight of each token, and the denominator where there is one."""
        weights: Weights = bind(self.aggregate, tensors)
        counted = {"weight_BT": weights.weight_BT}
        return counted if weights.denominator is None else counted | {"denominator": weights.denominator}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """The weighted sum of `policy_loss`, divided."""
        columns = {name: t for name, t in tensors.items() if name not in ("weight_BT", "denominator")}
        loss_sum, metrics = policy_loss(self, tensors=columns, weight_BT=tensors["weight_BT"])
        return divide(loss_sum, tensors.get("denominator")), metrics

    def terms(self) -> Sequence[Term]:
        found = moving(self.kl, self.kl_controller, self.entropy)
        return found if self.cost is None else [*found, self.cost]


def min_members(advantage: Callable[..., Advantage]) -> int:
    """Rollouts per prompt below which the advantage is always 0: 2 with group statistics, else 1."""
    has_group_statistics = "group_B" in tensor_names(advantage)
    return 2 if has_group_statistics and constants(advantage).get("singleton") != "raw" else 1


def prompt_factor(rows: Callable[..., Tensor]) -> float:
    """Prompts to roll out for each one whose episodes fit the update, as row selection drops some."""
    return float(getattr(rows, "prompt_factor", 1.0))


def prepared(
    tensors: Tensors, *, kl: KLTerm | None, advantage: Callable[..., Advantage], has_critic: bool
) -> Tensors:
    """Shaped rewards and ``advantage_BT``; with a critic also ``return_BT`` and ``is_value_target_BT``.

    Args:
        tensors: rows of all ranks.
        kl: acts in the reward, or not here.
        advantage: see `Algorithm`.
        has_critic: whether there is anything to learn targets.
    """
    found = shape_rewards(kl, tensors=tensors)
    tensors = tensors | found
    result: Advantage = bind(advantage, tensors)
    found["advantage_BT"] = result.advantage_BT.detach()
    if has_critic:
        if result.return_BT is None:
            raise ValueError("advantage takes values, but returns no return_BT that a critic could learn")
        found["return_BT"] = result.return_BT.detach()
        targets_BT = result.is_value_target_BT
        is_target_BT = tensors["is_action_BT"] if targets_BT is None else targets_BT
        found["is_value_target_BT"] = is_target_BT & ~tensors["return_B"].isnan()[:, None]
    return found


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
    clean = cleaned(tensors)
    clean["ratio_BT"] = bind(algorithm.ratio, clean)
    clipped = bind(algorithm.clip, clean)
    loss_BT = clipped.loss_BT
    if algorithm.correction is not None:
        clean["correction_BT"] = bind(algorithm.correction, clean)
        loss_BT = loss_BT * clean["correction_BT"]
    if "is_kept_BT" in clean:
        loss_BT = torch.where(clean["is_kept_BT"], loss_BT, torch.zeros_like(loss_BT))
    for term in in_loss(algorithm.kl, algorithm.entropy):
        loss_BT = loss_BT + bind(term, clean)
    return masked_sum(weight_BT * loss_BT, is_action_BT), _metrics(clean, clipped)


@torch.no_grad()
def _metrics(clean: Mapping[str, Tensor], clipped: Clipped) -> Tensors:
    is_action_BT, ratio_BT = clean["is_action_BT"], clean["ratio_BT"]
    values = {"clip_share_low": clipped.is_clipped_low_BT, "clip_share_high": clipped.is_clipped_high_BT}
    if "correction_BT" in clean:
        values["correction"] = clean["correction_BT"]
    metrics = {
        name: token_mean_metric(value.to(ratio_BT.dtype), is_action_BT) for name, value in values.items()
    }
    metrics |= policy_metrics(clean)
    if "correction_BT" in clean:
        metrics["correction_max"] = torch.cat([clean["correction_BT"].flatten(), ratio_BT.new_zeros(1)]).max()
    highest = torch.where(is_action_BT, ratio_BT, torch.zeros_like(ratio_BT)).flatten()
    metrics["ratio_max"] = torch.cat([highest, highest.new_zeros(1)]).max()
    return metrics
