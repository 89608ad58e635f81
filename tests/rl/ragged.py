"""Random ragged multi-turn batches over the whole vocabulary of tensors, and the loss of a mix on them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lit_agentrl.models.policy import NANO_FOLDER
from lit_agentrl.rl.objective import Objective
from tests.conftest import load_option
from tests.rl.test_algo_configs import composed

NAN = float("nan")


def ragged(
    seed: int,
    *,
    sizes: tuple[int, ...] = (4, 3, 5),
    turns: tuple[int, int] = (1, 3),
    reply: tuple[int, int] = (1, 4),
    is_on_policy: bool = False,
) -> dict[str, Tensor]:
    """float64 rows of groups of these sizes; NaN wherever a token was not sampled.

    Each row holds ``turns`` replies of ``reply`` tokens, both drawn between the bounds given, each after one
    or two observation tokens.  Log-probs differ by about 0.3 nats from the recorded ones, so that clips act.
    """
    draw = torch.Generator().manual_seed(seed)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=draw))

    rows: list[list[tuple[int, bool, bool]]] = []  # per token: turn, is it sampled, does it end the turn
    for _ in range(sum(sizes)):
        row = []
        for turn in range(between(*turns)):
            length = between(*reply)
            row += [(turn, False, False)] * between(1, 2)
            row += [(turn, True, place == length - 1) for place in range(length)]
        rows.append(row)
    B, T = len(rows), max(len(row) for row in rows)
    turn_BT = torch.full((B, T), -1, dtype=torch.int32)
    is_action_BT, is_end_BT, is_real_BT = (torch.zeros(B, T, dtype=torch.bool) for _ in range(3))
    for b, row in enumerate(rows):
        columns = torch.tensor(row)
        turn_BT[b, : len(row)] = columns[:, 0].int()
        is_action_BT[b, : len(row)], is_end_BT[b, : len(row)] = columns[:, 1].bool(), columns[:, 2].bool()
        is_real_BT[b, : len(row)] = True

    def at_actions(scale: float, shift: float = 0.0) -> Tensor:
        noise_BT = torch.randn(B, T, generator=draw, dtype=torch.float64)
        return torch.where(is_action_BT, shift + scale * noise_BT, NAN)

    old_logp_BT = at_actions(0.4, -1.5)
    reward_BT = torch.where(is_end_BT, at_actions(1.0), torch.where(is_action_BT, 0.0, NAN))
    K = turns[1]
    return {
        "tokens_BT": torch.randint(1, 50, (B, T), generator=draw),
        "is_real_BT": is_real_BT,
        "is_action_BT": is_action_BT,
        "turn_BT": turn_BT,
        "is_turn_end_BT": is_end_BT,
        "is_plan_BT": is_action_BT
        & ((turn_BT == 0) | ((turn_BT == 2) & (torch.arange(B) % 2 == 0)[:, None])),
        "segment_BT": torch.where(is_action_BT, 3, 1).to(torch.int8),
        "policy_version_BT": torch.where(is_action_BT, 0, -1).int(),
        "sampler_logp_BT": old_logp_BT,
        "old_logp_BT": old_logp_BT,
        "logp_BT": old_logp_BT.clone() if is_on_policy else old_logp_BT + at_actions(0.3),
        "ref_logp_BT": old_logp_BT + at_actions(0.3),
        "entropy_BT": at_actions(0.2, 1.0).abs(),
        "value_BT": at_actions(0.5),
        "q_BT": old_logp_BT / 2,
        "implicit_q_BT": old_logp_BT / 2,
        "reward_BT": reward_BT,
        "node_BT": torch.arange(B * T).reshape(B, T),
        "group_B": torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
        "member_B": torch.cat([torch.arange(size) for size in sizes]),
        "trajectory_B": torch.randperm(B, generator=draw),
        "tree_B": torch.cat([torch.arange(size) // 2 for size in sizes]),  # within a group
        "task_B": torch.zeros(B, dtype=torch.int64),
        "first_turn_B": torch.zeros(B, dtype=torch.int32),
        "return_B": torch.where(is_end_BT, reward_BT, 0.0).sum(1),
        "success_B": torch.rand(B, generator=draw) < 0.5,
        "source_B": torch.where(torch.arange(B) % 3 == 0, 2, 0).to(torch.int8),  # some were told a hint
        "is_opponent_B": torch.arange(B) % 2 == 1,
        "end_B": torch.zeros(B, dtype=torch.int8),
        "is_truncated_B": torch.arange(B) % 5 == 4,
        "state_key_BK": torch.randint(0, 3, (B, K), generator=draw),
        "sampler_entropy_BT": at_actions(0.2, 1.0).abs(),
        "baseline_B": torch.randn(B, generator=draw, dtype=torch.float64),
        "cost_BT": torch.where(is_end_BT, at_actions(1.0).abs(), torch.where(is_action_BT, 0.0, NAN)),
        "cost_value_BT": at_actions(0.5),
        "ref_kl_BT": at_actions(0.2, 0.3).abs(),
        "ref_quantile_B": torch.arange(B) % 5 / 4.0,
        "ref_count_B": torch.full((B,), 4.0),
        "rank_BT": torch.where(turn_BT % 2 == 0, at_actions(0.5), NAN),
    }


def advantages_of(objective: Objective, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The batch with the columns that the objective makes of it: shaped rewards and advantages."""
    return {**batch, **objective.prepare(dict(batch))}


def loss_of(objective: Objective, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Loss of one minibatch and its gradient in the log-probs, as a training step takes them."""
    tensors = advantages_of(objective, batch)
    keep_B = tensors["keep_B"]
    tensors = {name: tensor[keep_B] for name, tensor in tensors.items() if tensor.dim()}
    logp_BT = tensors["logp_BT"].detach().requires_grad_()
    loss, _ = objective.loss({**tensors, **objective.count(tensors), "logp_BT": logp_BT})
    loss.backward()
    grad_BT = torch.zeros_like(batch["logp_BT"])
    grad_BT[keep_B] = logp_BT.grad
    return loss.detach(), grad_BT


@lru_cache
def _named(name: str) -> DictConfig:
    config = composed(f"algo={name}")
    if OmegaConf.is_missing(config.reference, "path"):
        config.reference.path = str(NANO_FOLDER)
    return config


def config_of(name: str, *changes: str) -> DictConfig:
    """The configuration of a named algorithm with ``axis=option`` and ``axis.constant=value`` applied.

    Another option brings its own constants, without those that the named algorithm had set on that axis.
    """
    config = _named(name).copy()
    for change in changes:
        key, value = change.split("=")
        if "." in key:
            OmegaConf.update(config.algo, key, OmegaConf.create(f"value: {value}").value, force_add=True)
        else:
            config.algo[key] = load_option(f"algo/{key}", value)
    OmegaConf.resolve(config)
    return config


def fresh(name: str, *changes: str) -> Any:
    """A named algorithm, changed as by `config_of`; its coefficients may move."""
    return instantiate(config_of(name, *changes).algo)


mix = lru_cache(fresh)  # for losses, which move no coefficient
