"""The tensors of one iteration: its prompts, and the packed rows of training.

Shape suffixes used everywhere: ``B`` rows, ``T`` tokens, ``K`` turns, ``P`` prompts, ``N`` group size
(rollouts of one prompt), ``V`` vocabulary.  Log-probabilities are in nats and position ``t`` holds
the log-probability *of* token ``t``; rewards are those of the environment.  Masks say what True means.
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
    "is_left_out_BT"  # sampled tokens that count for advantages and not for the loss; in `StepBatch.columns`
)
SKIPPED = "is_skipped_BT"  # sampled tokens over which no advantage is computed; in `StepBatch.columns`
_NODE_OFFSET = 1 << 39  # half of the node numbers of a rank
FILLER = -1  # trajectory and group of filler rows, which only keep the ranks in step
_TOY_SIZES = {"_B": (4,), "_BT": (4, 3), "_BK": (4, 1)}  # 4 trajectories in 2 groups, 1 turn of 2 tokens


@dataclass(frozen=True)
class Column:
    """The declaration of a column.

    Attributes:
        dtype: data type of the values.
        fill: value at padding.
        filler: value in filler rows.
        toy: small valid values for 4 trajectories in 2 groups, of 1 turn: a prompt token and two reply tokens.
        says: meaning, for the docs.
    """

    dtype: torch.dtype
    fill: float
    filler: float
    toy: Any
    says: str


def declare_column(
    dtype: torch.dtype, *, says: str, fill: float = 0, filler: float | None = None, toy: Any = 0
) -> Any:
    """Declare a column of :class:`TrajectoryBatch`; see :class:`Column`.

    ``filler`` is ``fill`` by default.
    """
    return field(metadata={"column": Column(dtype, fill, fill if filler is None else filler, toy, says)})


def list_columns(kind: type[TrajectoryBatch] | None = None) -> dict[str, Column]:
    """List the declared columns by name, in order."""
    return {f.name: f.metadata["column"] for f in fields(kind or TrajectoryBatch)}


@dataclass(frozen=True)
class TrajectoryBatch:
    """Packed rows, tensors only, right-padded; see ``docs/formats.md`` for an example.

    Several rows may belong to one trajectory (per-turn contexts); a mean over sequences weights trajectories, not rows.
    A column is declared here and filled in ``rollout/pack.py``; other code that handles columns reads the declarations.
    """

    tokens_BT: Tensor = declare_column(
        torch.int64, toy=[[1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]], says="ids"
    )
    is_real_BT: Tensor = declare_column(torch.bool, toy=1, says="not padding")
    is_action_BT: Tensor = declare_column(torch.bool, toy=[0, 1, 1], says="sampled by the policy")
    turn_BT: Tensor = declare_column(
        torch.int32, fill=-1, says="of the trajectory; a turn owns its prefix and its reply"
    )
    is_turn_end_BT: Tensor = declare_column(torch.bool, toy=[0, 0, 1], says="last sampled token of a turn")
    is_plan_BT: Tensor = declare_column(
        torch.bool, says="sampled in a turn of the planner, or a draft, see `two_level`, `refine`"
    )
    segment_BT: Tensor = declare_column(torch.int8, fill=Segment.PADDING, toy=Segment.THINK, says="`Segment`")
    sampler_logp_BT: Tensor = declare_column(torch.float32, toy=-1, says="nats, 0 where not an action")
    sampler_entropy_BT: Tensor = declare_column(
        torch.float32, toy=0.5, says="nats, of the distribution it was drawn from; 0 where not an action"
    )
    policy_version_BT: Tensor = declare_column(
        torch.int32, fill=-1, says="of the weights that sampled it, -1 where not an action"
    )
    reward_BT: Tensor = declare_column(
        torch.float32, toy=[[0, 0, 0], [0, 0, 1]] * 2, says="reward at turn ends, shaping included"
    )
    cost_BT: Tensor = declare_column(
        torch.float32,
        toy=[[0, 0, 1], [0, 0, 0]] * 2,
        says="what a turn costs by the game, or by `reward=cost`, at turn ends",
    )
    node_BT: Tensor = declare_column(
        torch.int64, toy=[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]],
        says="equal for a token shared by several rows, else unique",
    )  # fmt: skip
    group_B: Tensor = declare_column(torch.int64, filler=FILLER, toy=[0, 0, 1, 1], says="unique over the run")
    member_B: Tensor = declare_column(torch.int64, toy=[0, 1, 0, 1], says="of the group")
    trajectory_B: Tensor = declare_column(
        torch.int64, filler=FILLER, toy=[0, 1, 2, 3], says="unique over the run"
    )
    tree_B: Tensor = declare_column(
        torch.int64, toy=[0, 1, 2, 3], says="trajectories that branched from one root"
    )
    task_B: Tensor = declare_column(torch.int64, says="index into the run's games")
    first_turn_B: Tensor = declare_column(torch.int32, says="the row's first turn")
    return_B: Tensor = declare_column(
        torch.float32, filler=math.nan, toy=[0, 1, 0, 1],  # NaN: left out of statistics
        says="sum of the rewards of the whole trajectory, shaping included",
    )  # fmt: skip
    baseline_B: Tensor = declare_column(
        torch.float32,
        toy=0.5,
        says="return of the prompt's greedy episode; NaN where none was played",
    )
    success_B: Tensor = declare_column(torch.bool, toy=[0, 1, 0, 1], says="the game was solved")
    source_B: Tensor = declare_column(torch.int8, says="`Source`")
    is_opponent_B: Tensor = declare_column(
        torch.bool, toy=[0, 1, 0, 1], says="played by the opponent, see `opponent`"
    )
    end_B: Tensor = declare_column(torch.int8, says="`EndReason`")
    is_truncated_B: Tensor = declare_column(
        torch.bool, says="a limit cut off a reply of the trajectory, or left no room for the next message"
    )
    state_key_BK: Tensor = declare_column(
        torch.int64, toy=[[0], [0], [1], [1]], says="hash of the game's state before each turn of the row"
    )

    @classmethod
    def make_empty(cls) -> Self:
        """Make a batch without rows, for a process whose groups were all filtered out."""
        return cls(**{
            name: torch.zeros((0,) if name.endswith("_B") else (0, 0), dtype=spec.dtype)
            for name, spec in list_columns(cls).items()
        })  # fmt: skip

    @classmethod
    def make_toy(cls) -> Self:
        """Make a small valid batch, to try out an algorithm before the rollouts."""

        def make_column(name: str, spec: Column) -> Tensor:
            shape = _TOY_SIZES[name[name.rindex("_") :]]
            return torch.tensor(spec.toy).to(spec.dtype).broadcast_to(shape).clone()

        return cls(**{name: make_column(name, spec) for name, spec in list_columns(cls).items()})

    @property
    def num_rows(self) -> int:
        return self.tokens_BT.shape[0]

    def to_dict(self) -> dict[str, Tensor]:
        """Return the columns by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def append(self, other: Self) -> Self:
        """Append the rows of another batch of this rank that shares no tokens."""
        parts = [self.to_dict(), other.to_dict()]
        parts[1] = parts[1] | {"node_BT": other.node_BT + _NODE_OFFSET}
        widths = {n: max(p[n].shape[1] for p in parts) for n in parts[0] if not n.endswith("_B")}
        parts = [pad_columns(part, widths) for part in parts]
        return replace(self, **{name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def select(self, rows: Tensor) -> Self:
        """Select rows by an index or a mask; columns are unchanged."""
        return replace(self, **{name: tensor[rows] for name, tensor in self.to_dict().items()})

    def trim(self) -> Self:
        """Trim the positions that are padding in every row."""
        longest = int(self.is_real_BT.sum(1).max()) if self.num_rows else 0
        trimmed = {
            name: tensor[:, :longest] for name, tensor in self.to_dict().items() if name.endswith("_BT")
        }
        return replace(self, **trimmed)

    def to(self, device: torch.device | str, **kwargs: Any) -> Self:
        return replace(self, **{name: t.to(device, **kwargs) for name, t in self.to_dict().items()})


def pad_columns(tensors: Mapping[str, Tensor], widths: Mapping[str, int]) -> dict[str, Tensor]:
    """Pad tensors on the right to the given widths, with declared fill values or 0."""
    known = list_columns()
    fills = {name: known[name].fill if name in known else 0 for name in widths}
    return dict(tensors) | {
        name: torch.nn.functional.pad(tensors[name], (0, width - tensors[name].shape[1]), value=fills[name])
        for name, width in widths.items()
    }


def make_filler_rows(like: Tensor, name: str, number: int) -> Tensor:
    """Make filler rows like a tensor, with the declared filler value or 0."""
    spec = list_columns().get(name)
    return like.new_full((number, *like.shape[1:]), 0 if spec is None else spec.filler)


@dataclass
class StepBatch:
    """The prompts of one iteration; the rollout callback adds the other fields."""

    iteration: int
    seed_P: list[int]
    task_P: list[int]
    group_P: list[int]  # ids unique over the run
    trajectories: TrajectoryBatch | None = None
    episodes: list[Episode] = field(default_factory=list)  # all episodes, also those without training
    outcomes: list[Outcome] = field(default_factory=list)  # outcomes of all ranks, in evaluations
    num_groups: int = 0  # groups rolled out
    num_kept_groups: int = 0  # groups selected for training
    # one per prompt if a greedy baseline is used
    greedy_episodes: list[Episode] = field(default_factory=list)
    wave: int = 0  # number of the iteration's draw of prompts
    used: dict[str, float] = field(default_factory=dict)  # usage of the engines of all ranks, if counted
    columns: dict[str, Tensor] = field(default_factory=dict)  # further columns of the trajectories
    given: dict[str, float] | None = None  # metrics of trajectories that were read, not played
    recorded: StepBatch | None = None  # recorded data to train on together with the rollouts
    measures_nll: bool = False  # True for held-out demonstrations, whose NLL is measured

    @property
    def own_episodes(self) -> list[Episode]:
        """Episodes of the policy without hints and opponents, for metrics of the policy."""
        return [e for e in self.episodes if not e.hint and e.source is not Source.OPPONENT]

    def to(self, device: torch.device | str, **kwargs: Any) -> StepBatch:
        """Return the batch unchanged: Lightning moves it before the rollout fills it."""
        return self
