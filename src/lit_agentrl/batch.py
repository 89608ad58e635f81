"""The tensors of one iteration: the prompts that are asked for and the packed rows that are trained on.

Shape suffixes used everywhere: ``B`` rows, ``T`` tokens, ``K`` turns, ``P`` prompts, ``N`` members of a
group (rollouts of one prompt), ``V`` vocabulary.  Log-probabilities are in nats and position ``t`` holds
the log-probability *of* token ``t``; rewards are in environment points.  Masks say what True means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from lit_agentrl.episode import Episode, Outcome, Segment, Source

LEFT_OUT = (
    "is_left_out_BT"  # sampled tokens that advantages see and the loss does not; in `StepBatch.columns`
)
_APART = 1 << 39  # half of the numbers that a rank has for its tokens
FILLER = -1  # id of the trajectory, and group, of a row that is there only to take part
_TOY_SIZES = {"_B": (4,), "_BT": (4, 3), "_BK": (4, 1)}  # 4 trajectories in 2 groups, 1 turn of 2 tokens


@dataclass(frozen=True)
class Column:
    """What is known of a column before it has rows.

    Attributes:
        dtype: of its numbers.
        fill: stands at padding.
        filler: stands in a row that is there only to take part.
        toy: small valid values for 4 trajectories in 2 groups, of 1 turn: a prompt token, two of the reply.
        says: its meaning, for the docs.
    """

    dtype: torch.dtype
    fill: float
    filler: float
    toy: Any
    says: str


def column(
    dtype: torch.dtype, *, says: str, fill: float = 0, filler: float | None = None, toy: Any = 0
) -> Any:
    """Declares a column of :class:`TrajectoryBatch`; see :class:`Column`.  ``filler`` is ``fill`` unless given."""
    return field(metadata={"column": Column(dtype, fill, fill if filler is None else filler, toy, says)})


def columns(kind: type[TrajectoryBatch] | None = None) -> dict[str, Column]:
    """The columns by name, in order."""
    return {f.name: f.metadata["column"] for f in fields(kind or TrajectoryBatch)}


@dataclass(frozen=True)
class TrajectoryBatch:
    """Packed rows, tensors only, right-padded.  See ``docs/formats.md`` for a worked example.

    Several rows may belong to one trajectory (per-turn contexts); sequence means weight trajectories.  A column
    is declared here and filled in ``rollout/pack.py``; whatever else handles columns reads the declarations.
    """

    tokens_BT: Tensor = column(torch.int64, toy=[[1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]], says="ids")
    is_real_BT: Tensor = column(torch.bool, toy=1, says="not padding")
    is_action_BT: Tensor = column(torch.bool, toy=[0, 1, 1], says="sampled by the policy")
    turn_BT: Tensor = column(
        torch.int32, fill=-1, says="of the trajectory; a turn owns its prefix and its reply"
    )
    is_turn_end_BT: Tensor = column(torch.bool, toy=[0, 0, 1], says="last sampled token of a turn")
    is_plan_BT: Tensor = column(torch.bool, says="sampled in a turn of the planner, see `two_level`")
    segment_BT: Tensor = column(torch.int8, fill=Segment.PADDING, toy=Segment.THINK, says="`Segment`")
    sampler_logp_BT: Tensor = column(torch.float32, toy=-1, says="nats, 0 where not an action")
    sampler_entropy_BT: Tensor = column(
        torch.float32, toy=0.5, says="nats, of the distribution it was drawn from; 0 where not an action"
    )
    policy_version_BT: Tensor = column(
        torch.int32, fill=-1, says="of the weights that sampled it, -1 where not an action"
    )
    reward_BT: Tensor = column(
        torch.float32, toy=[[0, 0, 0], [0, 0, 1]] * 2, says="points, at turn ends, shaping included"
    )
    cost_BT: Tensor = column(
        torch.float32,
        toy=[[0, 0, 1], [0, 0, 0]] * 2,
        says="what a turn costs by the game, or by `reward=cost`, at turn ends",
    )
    node_BT: Tensor = column(
        torch.int64, toy=[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]],
        says="equal for a token shared by several rows, else unique",
    )  # fmt: skip
    group_B: Tensor = column(torch.int64, filler=FILLER, toy=[0, 0, 1, 1], says="unique over the run")
    member_B: Tensor = column(torch.int64, toy=[0, 1, 0, 1], says="of the group")
    trajectory_B: Tensor = column(torch.int64, filler=FILLER, toy=[0, 1, 2, 3], says="unique over the run")
    tree_B: Tensor = column(torch.int64, toy=[0, 1, 2, 3], says="trajectories that branched from one root")
    task_B: Tensor = column(torch.int64, says="index into the run's games")
    first_turn_B: Tensor = column(torch.int32, says="the row's first turn")
    return_B: Tensor = column(
        torch.float32, filler=math.nan, toy=[0, 1, 0, 1],  # NaN: left out of statistics
        says="points, of the whole trajectory, shaping included",
    )  # fmt: skip
    baseline_B: Tensor = column(
        torch.float32,
        toy=0.5,
        says="points, return of the prompt's greedy episode; NaN where none was played",
    )
    success_B: Tensor = column(torch.bool, toy=[0, 1, 0, 1], says="the game was solved")
    source_B: Tensor = column(torch.int8, says="`Source`")
    is_opponent_B: Tensor = column(
        torch.bool, toy=[0, 1, 0, 1], says="played by the opponent, see `opponent`"
    )
    end_B: Tensor = column(torch.int8, says="`EndReason`")
    is_truncated_B: Tensor = column(
        torch.bool, says="a limit cut off a reply of the trajectory, or left no room for the next message"
    )
    state_key_BK: Tensor = column(
        torch.int64, toy=[[0], [0], [1], [1]], says="hash of the game's state before each turn of the row"
    )

    @classmethod
    def empty(cls) -> Self:
        """No rows: what a process has that the filter left none of its groups."""
        return cls(**{
            name: torch.zeros((0,) if name.endswith("_B") else (0, 0), dtype=spec.dtype)
            for name, spec in columns(cls).items()
        })  # fmt: skip

    @classmethod
    def toy(cls) -> Self:
        """A small valid batch, on which parts of an algorithm are tried out before anything is played."""

        def made(name: str, spec: Column) -> Tensor:
            shape = _TOY_SIZES[name[name.rindex("_") :]]
            return torch.tensor(spec.toy).to(spec.dtype).broadcast_to(shape).clone()

        return cls(**{name: made(name, spec) for name, spec in columns(cls).items()})

    @property
    def num_rows(self) -> int:
        return self.tokens_BT.shape[0]

    def tensors(self) -> dict[str, Tensor]:
        """The columns by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def joined(self, other: Self) -> Self:
        """These rows, then those of another batch of this rank, which shares no token with it."""
        parts = [self.tensors(), other.tensors()]
        parts[1] = parts[1] | {"node_BT": other.node_BT + _APART}
        wide = {n: max(p[n].shape[1] for p in parts) for n in parts[0] if not n.endswith("_B")}
        parts = [padded(part, wide) for part in parts]
        return replace(self, **{name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def select(self, rows: Tensor) -> Self:
        """The rows named by an index or a mask, columns unchanged."""
        return replace(self, **{name: tensor[rows] for name, tensor in self.tensors().items()})

    def trimmed(self) -> Self:
        """Without the columns that are padding in every row."""
        longest = int(self.is_real_BT.sum(1).max()) if self.num_rows else 0
        cut = {name: tensor[:, :longest] for name, tensor in self.tensors().items() if name.endswith("_BT")}
        return replace(self, **cut)

    def to(self, device: torch.device | str, **kwargs: Any) -> Self:
        return replace(self, **{name: t.to(device, **kwargs) for name, t in self.tensors().items()})


def padded(tensors: Mapping[str, Tensor], widths: Mapping[str, int]) -> dict[str, Tensor]:
    """The tensors with padding on the right up to these widths: what their columns declare, else 0."""
    known = columns()
    fills = {name: known[name].fill if name in known else 0 for name in widths}
    return dict(tensors) | {
        name: torch.nn.functional.pad(tensors[name], (0, width - tensors[name].shape[1]), value=fills[name])
        for name, width in widths.items()
    }


def filler_rows(like: Tensor, name: str, number: int) -> Tensor:
    """Rows of a tensor that are there only to take part: what its column declares, else 0."""
    spec = columns().get(name)
    return like.new_full((number, *like.shape[1:]), 0 if spec is None else spec.filler)


@dataclass
class StepBatch:
    """What the data stream yields: the prompts of one iteration; the rollout callback adds the rest."""

    iteration: int
    seed_P: list[int]
    task_P: list[int]
    group_P: list[int]  # ids unique over the run
    trajectories: TrajectoryBatch | None = None
    episodes: list[Episode] = field(default_factory=list)  # all of them, also those not trained on
    outcomes: list[Outcome] = field(default_factory=list)  # of the episodes of all ranks, in evaluations
    num_groups: int = 0  # groups rolled out
    num_kept_groups: int = 0  # groups selected for training
    greedy_episodes: list[Episode] = field(default_factory=list)  # one per prompt where baselines are wanted
    wave: int = 0  # number of the iteration's draw of prompts
    used: dict[str, float] = field(
        default_factory=dict
    )  # what the engines of all ranks were asked for, if counted
    columns: dict[str, Tensor] = field(default_factory=dict)  # of the trajectories, beside their own
    given: dict[str, float] | None = None  # what is logged of trajectories that were not played, but read
    beside: StepBatch | None = None  # read, to be trained on beside those that are played

    @property
    def own_episodes(self) -> list[Episode]:
        """Those of the policy, told no part of a solution; what is reported of a policy is of these."""
        return [e for e in self.episodes if not e.hint and e.source is not Source.OPPONENT]

    def to(self, device: torch.device | str, **kwargs: Any) -> StepBatch:
        """Lightning moves batches before the rollout fills them: nothing to move yet."""
        return self
