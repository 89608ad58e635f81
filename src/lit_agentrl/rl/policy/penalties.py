"""KL and entropy terms that any loss can add: checks, coefficients and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.masked import check_shapes, segment_sum, trajectory_index
from lit_agentrl.rl.objective import Tensors, Term, token_mean_metric
from lit_agentrl.rl.policy.kl import KLTerm, k3
from lit_agentrl.rl.policy.kl_control import Controller, KLCoefficient

CARRY_GRADIENT = ("logp_BT", "entropy_BT", "ref_kl_BT")
PLACES = ("reward", "loss")


def check_kl(kl: KLTerm | None, controller: Controller) -> None:
    """Refuse a KL term without a valid `place`, and a controller without a KL term.

    Raises:
        ValueError: the two do not fit; the message names the option and the remedy.
    """
    if kl is not None and getattr(kl, "place", None) not in PLACES:
        raise ValueError(
            f"kl={type(kl).__name__} must say in `place` where it acts: {' or '.join(PLACES)}; see KLTerm"
        )
    if kl is None and controller.moves:
        raise ValueError(
            f"kl_controller={type(controller).__name__} has no coefficient to move under "
            "algo/kl=none: use algo/kl_controller=fixed, or algo/kl=loss_k3"
        )


def shape_rewards(kl: KLTerm | None, *, tensors: Mapping[str, Tensor]) -> Tensors:
    """Subtract the KL to the reference from ``reward_BT`` and ``return_B``.

    ``r_t <- r_t + kl_t`` at sampled tokens and ``R_i <- R_i + sum of kl_t over the whole trajectory``, with
    ``kl_t = -coef * k1(old_logp, ref_logp)`` in reward units.  The result is {} if the place of the KL term is not
    ``reward``.  ``tensors`` must have ``reward_BT, return_B, trajectory_B, is_action_BT, old_logp_BT, ref_logp_BT`` of
    all rows of a trajectory, before advantages are computed.  Nothing carries gradient.
    """
    if kl is None or kl.place != "reward":
        return {}
    term_BT = bind(kl, tensors)
    index_B, num = trajectory_index(tensors["trajectory_B"])
    reward_BT, return_B = tensors["reward_BT"], tensors["return_B"]
    term_B = segment_sum(term_BT.double().sum(1), index_B, num)[index_B]
    return {
        "reward_BT": reward_BT + term_BT.to(reward_BT.dtype),
        "return_B": return_B + term_B.to(return_B.dtype),
    }


def in_loss(kl: KLTerm | None, entropy: Callable[..., Tensor] | None) -> list[Callable[..., Tensor]]:
    """Return the terms to add to the loss of each sampled token.

    Each takes columns by name and returns (B, T).
    """
    terms: list[Callable[..., Tensor]] = [kl] if kl is not None and kl.place == "loss" else []
    return terms if entropy is None else [*terms, entropy]


def moving(kl: KLTerm | None, controller: Controller, entropy: Callable[..., Tensor] | None) -> list[Term]:
    """Return the adaptive coefficients of the KL and entropy terms."""
    terms: list[Term] = [] if kl is None else [KLCoefficient(kl, controller)]
    return [*terms, entropy] if isinstance(entropy, Term) else terms


def cleaned(tensors: Mapping[str, Tensor]) -> Tensors:
    """Detach columns that must carry no gradient, and zero tokens that were not sampled."""
    return {name: _clean(name, tensor, tensors["is_action_BT"]) for name, tensor in tensors.items()}


def _clean(name: str, tensor: Tensor, is_action_BT: Tensor) -> Tensor:
    if not name.endswith("_BT") or not tensor.is_floating_point():
        return tensor
    check_shapes(**{name: tensor}, is_action_BT=is_action_BT)
    tensor = tensor if name in CARRY_GRADIENT else tensor.detach()
    return torch.where(is_action_BT, tensor, torch.zeros_like(tensor))


@torch.no_grad()
def policy_metrics(clean: Mapping[str, Tensor]) -> Tensors:
    """Return ``approx_kl``, ``entropy`` and ``ref_kl``, as far as their columns are given.

    All are in nats; ``approx_kl`` is ``old_logp - logp`` and ``ref_kl`` is k3.
    """
    values = {}
    if "old_logp_BT" in clean:
        values["approx_kl"] = clean["old_logp_BT"] - clean["logp_BT"]
    if "entropy_BT" in clean:
        values["entropy"] = clean["entropy_BT"]
    if "ref_logp_BT" in clean:
        values["ref_kl"] = k3(logp_BT=clean["logp_BT"], ref_logp_BT=clean["ref_logp_BT"])
    dtype = clean["logp_BT"].dtype
    return {name: token_mean_metric(value.to(dtype), clean["is_action_BT"]) for name, value in values.items()}
