"""An objective whose loss compares the trajectories of whole groups, such as GVPO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lit_agentrl.rl.binding import bare, bind, tensor_names, try_out
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.masked import masked_sum
from lit_agentrl.rl.objective import Objective, Requirements, Tensors, Term
from lit_agentrl.rl.policy.aggregation import divide, seq_mean_token_sum
from lit_agentrl.rl.policy.algorithm import min_members, prepared, prompt_factor
from lit_agentrl.rl.policy.kl import KLTerm
from lit_agentrl.rl.policy.kl_control import Controller, Fixed
from lit_agentrl.rl.policy.penalties import check_kl, cleaned, in_loss, moving, policy_metrics
from lit_agentrl.rl.policy.row_selection import keep_all


@dataclass(frozen=True, kw_only=True)
class GroupLoss(Objective):
    """Mean of a loss over groups, plus KL and entropy terms.

    The loss is ``1/G sum over groups of loss(group)``, where ``G`` counts the groups of a minibatch, on all ranks, that
    have a scored trajectory.  KL and entropy terms are means over trajectories of sums over tokens.

    Attributes:
        name: name in messages.
        loss_of_groups: returns the sum of the loss over groups, a scalar with gradient through ``logp_BT``; see
            `gvpo_loss`.
        advantage: returns `Advantage`; see ``advantages.py``.
        rows: returns ``keep_B``, the rows to train on; see ``row_selection.py``.
        kl, kl_controller, entropy: see `Algorithm`.

    Raises:
        ValueError: at construction, two parts exclude each other; :meth:`try_out` checks the rest.
    """

    unit: ClassVar[str | None] = "group_B"
    name: str
    loss_of_groups: Callable[..., Tensor]
    advantage: Callable[..., Advantage]
    rows: Callable[..., Tensor] = keep_all
    kl: KLTerm | None = None
    kl_controller: Controller = field(default_factory=Fixed)
    entropy: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        """Check the KL term."""
        check_kl(self.kl, self.kl_controller)

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Run every part once on a toy batch; see `Algorithm`."""
        for axis, part in self._list_parts():
            shape = {"rows": "B", "loss_of_groups": ""}.get(axis, "BT")
            try_out(axis, part, Advantage if axis == "advantage" else Tensor, rows, shape)

    def _list_parts(self) -> Iterator[tuple[str, Callable[..., object]]]:
        for axis in ("advantage", "rows", "loss_of_groups", "kl", "entropy"):
            if (part := getattr(self, axis)) is not None:
                yield axis, part

    @property
    def requirements(self) -> Requirements:
        return Requirements(
            min_members=max(
                getattr(bare(self.loss_of_groups), "min_members", 2), min_members(self.advantage)
            ),
            min_steps=1 if self.kl is None else self.kl.first_step,
            prompt_factor=prompt_factor(self.rows),
            reference_dtype=None if self.kl is None else self.kl.reference_dtype,
        )

    def needs(self, tensor: str) -> bool:
        """Return True if any part reads the tensor of that name."""
        return tensor == "reward_BT" or any(tensor in tensor_names(part) for _, part in self._list_parts())

    def prepare(self, tensors: Tensors) -> Tensors:
        """Compute rewards minus their KL, advantages, and the rows to train on."""
        columns = prepared(tensors, kl=self.kl, advantage=self.advantage, has_critic=self.needs("value_BT"))
        return columns | {"keep_B": bind(self.rows, tensors | columns)}

    def count(self, tensors: Tensors) -> Tensors:
        """Count groups, and trajectories for the KL and entropy terms."""
        scored_B = tensors["group_B"][~tensors["return_B"].isnan()]
        weights = seq_mean_token_sum(
            is_action_BT=tensors["is_action_BT"], trajectory_B=tensors["trajectory_B"]
        )
        assert weights.denominator is not None
        return {
            "num_groups": torch.tensor(len(torch.unique(scored_B)), device=scored_B.device),
            "num_trajectories": weights.denominator,
        }

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return these groups' share of the loss, with KL and entropy terms, and metrics."""
        clean = cleaned(tensors)
        loss = divide(bind(self.loss_of_groups, clean), tensors["num_groups"])
        for term in in_loss(self.kl, self.entropy):
            term_sum = masked_sum(bind(term, clean), clean["is_action_BT"])
            loss = loss + divide(term_sum, tensors["num_trajectories"])
        return loss, policy_metrics(clean)

    def terms(self) -> Sequence[Term]:
        return moving(self.kl, self.kl_controller, self.entropy)
