"""What is estimated from the rows of all ranks before a step: advantages, and which tokens count."""

from __future__ import annotations

from torch import Tensor

from lit_agentrl.distributed import gather_rows
from lit_agentrl.rl.advantages import Advantage
from lit_agentrl.rl.algorithm import Algorithm
from lit_agentrl.rl.binding import bind, tensor_names

Tensors = dict[str, Tensor]


def advantages(algorithm: Algorithm, tensors: Tensors, *, with_targets: bool) -> Tensors:
    """``advantage_BT`` (points, or as the mix scales them) from statistics over all ranks; no gradient.

    Args:
        algorithm: the mix.
        tensors: of this rank's rows.
        with_targets: also ``return_BT`` and ``is_value_target_BT``, what a critic learns from.
    """
    given = {name: t for name, t in tensors.items() if algorithm.needs(name)}
    given["is_action_BT"] = tensors["is_action_BT"]
    if algorithm.needs_fresh_advantages:
        given["logp_BT"] = tensors.get("logp_BT", tensors["old_logp_BT"])
    everyone, mine = gather_rows(given, tensors["trajectory_B"])
    result: Advantage = bind(algorithm.advantage, everyone)
    width = tensors["is_action_BT"].shape[1]
    found = {"advantage_BT": result.advantage_BT[mine, :width].detach()}
    if with_targets:
        assert result.return_BT is not None, "Algorithm and critic were checked against each other"
        found["return_BT"] = result.return_BT[mine, :width].detach()
        targets_BT = result.is_value_target_BT
        is_target_BT = tensors["is_action_BT"] if targets_BT is None else targets_BT[mine, :width]
        found["is_value_target_BT"] = is_target_BT & ~tensors["return_B"].isnan()[:, None]
    return found


def kept_tokens(algorithm: Algorithm, tensors: Tensors) -> tuple[Tensors, float]:
    """``is_kept_BT``, the tokens whose policy loss counts among those of all ranks, and their share.

    Without ``algo.tokens``: nothing, and 1.
    """
    if algorithm.tokens is None:
        return {}, 1.0
    given = {name: tensors[name] for name in tensor_names(algorithm.tokens)}
    everyone, mine = gather_rows(given, tensors["trajectory_B"])
    is_kept_BT: Tensor = bind(algorithm.tokens, everyone)
    share = float(is_kept_BT.sum() / everyone["is_action_BT"].sum().clamp(min=1))
    return {"is_kept_BT": is_kept_BT[mine, : tensors["is_action_BT"].shape[1]]}, share
