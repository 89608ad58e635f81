"""The data that flows through one RL iteration: prompts, episodes, packed rows.

Shape suffixes used everywhere: ``B`` rows, ``T`` tokens, ``K`` turns, ``P`` prompts, ``N`` members of a
group (rollouts of one prompt), ``V`` vocabulary.  Log-probabilities are in nats and position ``t`` holds
the log-probability *of* token ``t``; rewards are in environment points.  Masks say what True means.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor


class EndReason(IntEnum):
    """Why an episode ended."""

    SUCCESS = 0  # the environment ended it and says it was solved
    FAILURE = 1  # the environment ended it unsolved (a hole, the wrong arm)
    TURN_LIMIT = 2
    ACTION_LIMIT = 3
    CONTEXT_LIMIT = 4  # the next observation or reply no longer fits; counted as truncated
    ERROR = 5  # the game or the engine raised; recorded, counted, never trained on


class FinishReason(IntEnum):
    """Why one reply ended."""

    STOP = 0  # a stop sequence (the answer's end tag, or the model's end-of-turn token)
    LENGTH = 1  # the reply limit
    CONTEXT = 2  # the context limit
    ERROR = 3


class Segment(IntEnum):
    """What a token is; only THINK, ANSWER and OTHER are sampled by the policy."""

    PADDING = -1
    PROMPT = 0  # the first message: instructions and first observation
    OBSERVATION = 1  # later messages of the environment
    FORCED = 2  # template tokens and forced prefixes: not sampled, not trained on
    THINK = 3
    ANSWER = 4
    OTHER = 5
    PAST = 6  # a reply of an earlier turn, shown again: sampled, and trained on, in that turn's own row


@dataclass
class Turn:
    """One turn of an episode exactly as it happened; the token ledger's row.

    ``prefix_tokens`` are the tokens put before the reply: the whole prompt where ``starts_row``, otherwise what
    is new (the end marker of the last reply if it was not sampled, the observation, the reply header).
    ``prefix_segments`` has one :class:`Segment` for each.  ``reply_tokens`` were sampled; ``reply_segments``,
    ``reply_logps`` (nats, full-vocabulary log-softmax at the sampling temperature) and ``reply_entropies``
    (nats) have one entry for each.

    >>> Turn(observation="P _", prefix_tokens=[5, 7], prefix_segments=[0, 2]).reply_tokens
    []
    """

    observation: str
    prefix_tokens: list[int]
    prefix_segments: list[int]
    state_key: int = 0
    starts_row: bool = False  # read from an empty history; the first turn starts a row anyhow
    reply_tokens: list[int] = field(default_factory=list)
    reply_segments: list[int] = field(default_factory=list)
    reply_logps: list[float] = field(default_factory=list)
    reply_entropies: list[float] = field(default_factory=list)
    policy_version: int = 0
    reply_text: str = ""
    finish: FinishReason = FinishReason.STOP
    is_valid: bool = False
    problem: str = ""  # why the reply was invalid, from the parser's decision table
    has_think: bool = False  # a closed think block stands before the answer
    actions: list[str] = field(default_factory=list)  # those played
    num_surplus_actions: int = 0  # parsed but beyond a budget, hence not played
    reward: float = 0.0  # environment reward and protocol penalty of this turn, in points
    reward_parts: dict[str, float] = field(default_factory=dict)
    probes: dict[str, float] = field(default_factory=dict)  # of the state before it, for reward parts
    shaping: dict[str, float] = field(default_factory=dict)  # points that each reward part added
    shaped_reward: float | None = None  # what training sees in place of reward; None without reward parts

    @property
    def training_reward(self) -> float:
        """Points of this turn as training sees them."""
        return self.reward if self.shaped_reward is None else self.shaped_reward


@dataclass
class Episode:
    """One trajectory: who it is (addresses of its random draws), what happened, how it ended."""

    iteration: int
    group: int  # unique over the run
    member: int
    task: int  # index into the run's list of games
    task_name: str
    instance_seed: int
    instance_id: str = ""
    turns: list[Turn] = field(default_factory=list)
    end: EndReason = EndReason.ERROR
    success: bool = False
    error: str = ""
    wave: int = 0
    num_new: int = 0  # tokens of the messages between replies, each counted once
    num_prefilled: int = 0  # tokens of prompts and messages that the engine had to read
    num_shared: int = 0  # ... and those whose state it took over from another episode

    @property
    def total_reward(self) -> float:
        """Undiscounted return in environment points, shaping excluded."""
        return sum(turn.reward for turn in self.turns)

    @property
    def training_return(self) -> float:
        """Undiscounted return in points as training sees it, shaping included."""
        return sum(turn.training_reward for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        return sum(len(turn.prefix_tokens) + len(turn.reply_tokens) for turn in self.turns)

    @property
    def num_action_tokens(self) -> int:
        return sum(len(turn.reply_tokens) for turn in self.turns)


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
