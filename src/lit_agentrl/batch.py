"""The tensors of one iteration: the prompts that are asked for and the packed rows that are trained on.

Shape suffixes used everywhere: ``B`` rows, ``T`` tokens, ``K`` turns, ``P`` prompts, ``N`` members of a
group (rollouts of one prompt), ``V`` vocabulary.  Log-probabilities are in nats and position ``t`` holds
the log-probability *of* token ``t``; rewards are in environment points.  Masks say what True means.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.episode import Episode

_FLOATS = {"sampler_logp_BT", "sampler_entropy_BT", "reward_BT", "return_B", "baseline_B"}
_INT32 = {"turn_BT", "policy_version_BT", "first_turn_B"}
_INT8 = {"segment_BT", "end_B"}


@dataclass(frozen=True)
class TrajectoryBatch:
    """Packed rows, tensors only, right-padded.  See ``docs/ledger.md`` for a worked example.

    Several rows may belong to one trajectory (per-turn contexts); sequence means weight trajectories.
    """

    tokens_BT: Tensor  # int64, padding holds 0
    is_real_BT: Tensor  # bool: not padding
    is_action_BT: Tensor  # bool: sampled by the policy
    turn_BT: Tensor  # int32, of the trajectory, -1 at padding; a turn owns its prefix and its reply
    is_turn_end_BT: Tensor  # bool: last sampled token of a turn
    segment_BT: Tensor  # int8, see Segment
    sampler_logp_BT: Tensor  # float32 nats, 0 where not an action
    sampler_entropy_BT: Tensor  # float32 nats, of the distribution it was drawn from; 0 where not an action
    policy_version_BT: Tensor  # int32, -1 where not an action
    reward_BT: Tensor  # float32 points, at turn ends, shaping included
    node_BT: Tensor  # int64, equal for a token shared by several rows, else unique
    group_B: Tensor  # int64, unique over the run
    member_B: Tensor  # int64
    trajectory_B: Tensor  # int64
    tree_B: Tensor  # int64
    task_B: Tensor  # int64
    first_turn_B: Tensor  # int32, the row's first turn
    return_B: Tensor  # float32 points, of the whole trajectory, shaping included
    baseline_B: Tensor  # float32 points, return of the prompt's greedy episode; NaN where none was played
    success_B: Tensor  # bool
    end_B: Tensor  # int8, see EndReason
    state_key_BK: Tensor  # int64, hash of the game's state before each turn of the row; 0 beyond the last

    @classmethod
    def empty(cls) -> TrajectoryBatch:
        """No rows: what a process has that the filter left none of its groups."""

        def column(name: str) -> Tensor:
            is_bool = name.startswith("is_") or name == "success_B"
            dtype = torch.float32 if name in _FLOATS else torch.bool if is_bool else torch.int64
            dtype = torch.int32 if name in _INT32 else torch.int8 if name in _INT8 else dtype
            return torch.zeros((0,) if name.endswith("_B") else (0, 0), dtype=dtype)

        return cls(**{f.name: column(f.name) for f in fields(cls)})

    @property
    def num_rows(self) -> int:
        return self.tokens_BT.shape[0]

    def select(self, rows: Tensor) -> TrajectoryBatch:
        """The rows named by an index or a mask, columns unchanged."""
        return TrajectoryBatch(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def trimmed(self) -> TrajectoryBatch:
        """Without the columns that are padding in every row."""
        longest = int(self.is_real_BT.sum(1).max()) if self.num_rows else 0
        names = [f.name for f in fields(self) if f.name.endswith("_BT")]
        return replace(self, **{name: getattr(self, name)[:, :longest] for name in names})

    def to(self, device: torch.device | str, **kwargs: Any) -> TrajectoryBatch:
        return TrajectoryBatch(**{f.name: getattr(self, f.name).to(device, **kwargs) for f in fields(self)})


@dataclass
class StepBatch:
    """What the data stream yields: the prompts of one iteration; the rollout callback adds the rest."""

    iteration: int
    seed_P: list[int]
    task_P: list[int]
    group_P: list[int]  # ids unique over the run
    trajectories: TrajectoryBatch | None = None
    episodes: list[Episode] = field(default_factory=list)  # all of them, also those not trained on
    num_groups: int = 0  # groups rolled out
    num_kept_groups: int = 0  # groups selected for training
    greedy_episodes: list[Episode] = field(default_factory=list)  # one per prompt where baselines are wanted

    def to(self, device: torch.device | str, **kwargs: Any) -> StepBatch:
        """Lightning moves batches before the rollout fills them: nothing to move yet."""
        return self
