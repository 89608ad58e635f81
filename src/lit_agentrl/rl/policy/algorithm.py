"""An algorithm, composed of one function per axis, and the policy loss that it defines.

YAML composes an `Algorithm` from functions of the other files of this folder; no code branches on its name.  What it
needs from a run (a reference, entropies, groups of at least two) is read from the signatures of its parts.
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
    """A policy loss as a weighted sum over tokens, composed of one function per axis.

    The constants of the functions are bound by ``functools.partial``.

    Attributes:
        name: name in ``conf/algo``; for logs only.
        advantage: returns `Advantage`; see ``advantages.py``.
        ratio: returns ``ratio_BT``; see ``ratios.py``.
        clip: returns `Clipped`; see ``clipping.py``.
        aggregate: returns `Weights`; see ``aggregation.py``.
        kl: a `KLTerm` or None.
        kl_controller: updates ``kl.coef`` once per iteration; see ``kl_control.py``.
        entropy: returns the loss of each token, or None; see ``entropy.py``.
        rows: returns ``keep_B``, the rows to train on; see ``row_selection.py``.
        tokens: returns ``is_kept_BT``, the tokens whose policy loss counts, or None for all of them.
        correction: returns the weight of each token's policy loss, or None; see ``correction.py``.
        cost: limits costs by a Lagrange multiplier, or None; see ``costs.py``.

    Raises:
        ValueError: at construction, two parts exclude each other; :meth:`try_out` checks the rest.
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
        """Check the KL and cost terms."""
        check_kl(self.kl, self.kl_controller)
        check_costs(self.cost, self.advantage)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Run every part once on a toy batch, and check their combination.

        Args:
            rows: columns of the toy batch by name.

        Raises:
            ValueError: a constant is out of range or missing, a part asks for an unknown tensor, or parts exclude each
                other.
        """
        for axis, part in self._list_parts():
            try_out(axis, part, _RESULTS.get(axis, Tensor), rows, "B" if axis == "rows" else "BT")
        if "old_logp_BT" not in tensor_names(self.ratio) and (idle := constants(self.clip)):
            name, value = next(iter(idle.items()))
            raise ValueError(
                f"clip.{name}={format_value(value)} never acts, because this algo/ratio is always 1: "
                "use algo/clip=none, or algo/ratio=token"
            )

    def _list_parts(self) -> Iterator[tuple[str, Callable[..., object]]]:
        for axis in _AXES:
            if (part := getattr(self, axis)) is not None:
                yield axis, part

    @property
    def requirements(self) -> Requirements:
        """Groups of two for group statistics, whole rows for ratios over trajectories."""
        axes = ("correction", "ratio", "clip")
        return Requirements(
            min_members=min_members(self.advantage),
            min_steps=1 if self.kl is None else self.kl.first_step,
            prompt_factor=prompt_factor(self.rows),
            whole_trajectories=tuple(
                a for a in axes if (part := getattr(self, a)) and "trajectory_B" in tensor_names(part)
            ),
            reference_dtype=None if self.kl is None else self.kl.reference_dtype,
            all_groups=self.cost is not None,
        )

    def needs(self, tensor: str) -> bool:
        """Return True if any part takes the tensor of that name, such as ``value_BT``."""
        if tensor in ("cost_BT", "cost_value_BT"):
            return self.cost is not None and (tensor == "cost_BT" or self.needs("value_BT"))
        return tensor == "reward_BT" or any(tensor in tensor_names(part) for _, part in self._list_parts())

    def ratio_bounds(self, rows: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Return the constants of a clip rule that clips no token at ratio 1."""
        clipped: Clipped = bind(self.clip, with_computed(rows))
        if bool((clipped.is_clipped_low_BT | clipped.is_clipped_high_BT).any()):
            return ()
        values = constants(self.clip)
        return tuple(f"clip.{name}" for name, value in values.items() if isinstance(value, int | float))

    def prepare(self, tensors: Tensors) -> Tensors:
        """Compute rewards with their KL, advantages, and the rows and tokens to train on.

        Advantages are in reward units, or as the advantage function scales them.
        """
        parts: dict[str, Any] = {"kl": self.kl, "advantage": self.advantage}
        columns = prepared(tensors, **parts, has_critic=self.needs("value_BT"))
        if self.cost is not None:
            cost_columns = prepared(as_rewards(tensors), **parts, has_critic=self.needs("value_BT"))
            columns |= self.cost.combine(columns, cost_columns) | {"cost": mean_cost(tensors)}
        if self.tokens is not None:
            columns["is_kept_BT"] = bind(self.tokens, tensors | columns)
        return columns | {"keep_B": bind(self.rows, tensors | columns)}

    def count(self, tensors: Tensors) -> Tensors:
        """Return the weight of each token, and the denominator if there is one."""
        weights: Weights = bind(self.aggregate, tensors)
        counted = {"weight_BT": weights.weight_BT}
        return counted if weights.denominator is None else counted | {"denominator": weights.denominator}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return `policy_loss` divided by the denominator, and metrics."""
        columns = {name: t for name, t in tensors.items() if name not in ("weight_BT", "denominator")}
        loss_sum, metrics = policy_loss(self, tensors=columns, weight_BT=tensors["weight_BT"])
        return divide(loss_sum, tensors.get("denominator")), metrics

    def terms(self) -> Sequence[Term]:
        terms = moving(self.kl, self.kl_controller, self.entropy)
        return terms if self.cost is None else [*terms, self.cost]


def min_members(advantage: Callable[..., Advantage]) -> int:
    """Return the smallest group size with which advantages are not all 0.

    It is 2 for an advantage with group statistics, else 1.
    """
    has_group_statistics = "group_B" in tensor_names(advantage)
    return 2 if has_group_statistics and constants(advantage).get("singleton") != "raw" else 1


def prompt_factor(rows: Callable[..., Tensor]) -> float:
    """Return the number of prompts to roll out per prompt of the update.

    It is above 1 where row selection drops rows and asks for replacements.
    """
    return float(getattr(rows, "prompt_factor", 1.0))


def prepared(
    tensors: Tensors, *, kl: KLTerm | None, advantage: Callable[..., Advantage], has_critic: bool
) -> Tensors:
    """Compute shaped rewards and ``advantage_BT``.

    With a critic the result also has its targets, ``return_BT`` and ``is_value_target_BT``.

    Args:
        tensors: rows of all ranks.
        kl: changes rewards if its place is ``reward``; otherwise ignored.
        advantage: see `Algorithm`.
        has_critic: compute targets of a critic too.

    Raises:
        ValueError: there is a critic, but the advantage returns no ``return_BT``.
    """
    columns = shape_rewards(kl, tensors=tensors)
    tensors = tensors | columns
    result: Advantage = bind(advantage, tensors)
    columns["advantage_BT"] = result.advantage_BT.detach()
    if has_critic:
        if result.return_BT is None:
            raise ValueError("advantage takes values, but returns no return_BT that a critic could learn")
        columns["return_BT"] = result.return_BT.detach()
        targets_BT = result.is_value_target_BT
        is_target_BT = tensors["is_action_BT"] if targets_BT is None else targets_BT
        columns["is_value_target_BT"] = is_target_BT & ~tensors["return_B"].isnan()[:, None]
    return columns


def policy_loss(
    algorithm: Algorithm, *, tensors: Mapping[str, Tensor], weight_BT: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the weighted sum of token losses of one micro-batch, and metrics.

    Log-prob -> ratio -> clip -> * correction -> + KL + entropy -> weighted sum.

    Args:
        algorithm: the functions to apply.
        tensors: ``is_action_BT``, ``logp_BT``, ``advantage_BT``, the other tensors that the parts take, and
            ``is_kept_BT`` of the axis ``tokens``.  Only ``logp_BT`` (nats) and ``entropy_BT`` (nats) carry gradient.
            Values outside ``is_action_BT`` are ignored.
        weight_BT: the rows of `Weights.weight_BT` of this micro-batch, counted over the whole minibatch.

    Returns:
        The sum of weighted losses, still to be divided by the denominator over all ranks (``aggregation.divide``), and
        detached metrics for `add_metrics`: ``approx_kl`` (nats, ``-delta``), ``clip_share_low``, ``clip_share_high``,
        ``ratio_max``; ``entropy`` and ``ref_kl`` (nats, k3) where their tensors are given; ``correction`` (weight) and
        ``correction_max`` where the axis is used.

    Raises:
        ValueError: the shapes disagree or a tensor is missing.
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
    return masked_sum(weight_BT * loss_BT, is_action_BT), _compute_metrics(clean, clipped)


@torch.no_grad()
def _compute_metrics(clean: Mapping[str, Tensor], clipped: Clipped) -> Tensors:
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
