"""Episodes exactly as they happened: plain Python and numpy, so that any process can hold them.

Log-probabilities and entropies are in nats, rewards in environment points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Message = dict[str, str]  # role and content, as chat templates take them


class EndReason(IntEnum):
    """Why an episode ended."""

    SUCCESS = 0  # the environment ended it and says it was solved
    FAILURE = 1  # the environment ended it unsolved (a hole, the wrong arm)
    TURN_LIMIT = 2
    ACTION_LIMIT = 3
    CONTEXT_LIMIT = 4  # the next observation or reply no longer fits; counted as truncated
    ERROR = 5  # the game or the engine raised; recorded, counted, never trained on
    ENV_TIMEOUT = 6  # the game took longer than its hosting allows; as ERROR


PLANNER, OPPONENT = "planner", "opponent"  # see `Turn.player`
FAILED = (EndReason.ERROR, EndReason.ENV_TIMEOUT)


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


class Source(IntEnum):
    """How an episode of training came about."""

    ROLLOUT = 0  # played by the policy as it was
    REPLAY = 1  # by the policy of an earlier iteration, and kept
    HINT = 2  # told the beginning of a solution
    TRIAL = 3  # by the policy after a step that was taken back
    RECORDED = 4  # read from a data set, whoever wrote it
    OPPONENT = 5  # by the reference, or a mixture of policy and reference


_DTYPES: dict[str, type] = {  # of what a turn holds for each token
    "prefix_tokens": np.int64,
    "prefix_segments": np.int8,
    "reply_tokens": np.int64,
    "reply_segments": np.int8,
    "reply_logps": np.float64,  # as wide as Python's: sums of them are what they are of lists
    "reply_entropies": np.float64,
}


def _nothing() -> Any:
    return np.empty(0)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return int(value) if isinstance(value, IntEnum) else value


def _rename_plan(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn as it is written today; up to 0.2 one of a planner was marked by ``is_plan``."""
    renamed = {key: value for key, value in turn.items() if key != "is_plan"}
    return renamed | ({"player": PLANNER} if turn.get("is_plan") else {})


@dataclass(eq=False)
class Turn:
    """One turn of an episode exactly as it happened; the token ledger's row.

    ``prefix_tokens`` are the tokens put before the reply: the whole prompt where ``starts_row``, otherwise what
    is new (the end marker of the last reply if it was not sampled, the observation, the reply header).
    ``prefix_segments`` has one :class:`Segment` for each.  ``reply_tokens`` were sampled; ``reply_segments``,
    ``reply_logps`` (nats, full-vocabulary log-softmax at the sampling temperature) and ``reply_entropies``
    (nats) have one entry for each.  These six are arrays; a list that is put in becomes one.

    >>> Turn(observation="P _", prefix_tokens=[5, 7], prefix_segments=[0, 2]).prefix_tokens
    array([5, 7])
    """

    observation: str
    prefix_tokens: NDArray[np.int64]
    prefix_segments: NDArray[np.int8]
    message: str = ""  # what the game said before the reply; of the first turn Episode.opening holds it
    state_key: int = 0
    starts_row: bool = False  # read from an empty history; the first turn starts a row anyhow
    reply_tokens: NDArray[np.int64] = field(default_factory=_nothing)
    reply_segments: NDArray[np.int8] = field(default_factory=_nothing)
    reply_logps: NDArray[np.float64] = field(default_factory=_nothing)
    reply_entropies: NDArray[np.float64] = field(default_factory=_nothing)
    policy_version: int = 0  # -1: of a model that is not the run's, whose log-probs nobody knows (NaN)
    reply_text: str = ""
    finish: FinishReason = FinishReason.STOP
    is_valid: bool = False
    problem: str = ""  # why the reply was invalid, a short name of its dialect
    is_well_formed: bool = False  # its markup is in order, whatever is named inside
    has_think: bool = False  # a closed think block stands before the answer
    player: str = ""  # who writes the reply, where it is not the policy as ever: `PLANNER`, `OPPONENT`
    actions: list[str] = field(default_factory=list)  # those played
    num_surplus_actions: int = 0  # parsed but beyond a budget, hence not played
    reward: float = 0.0  # environment reward and protocol penalty of this turn, in points
    reward_parts: dict[str, float] = field(default_factory=dict)
    probes: dict[str, float] = field(default_factory=dict)  # of the state before it, for reward parts
    shaping: dict[str, float] = field(default_factory=dict)  # points that each reward part added
    shaped_reward: float | None = None  # what training sees in place of reward; None without reward parts
    cost: float | None = None  # what may be held within a limit, no part of the reward; None: nobody told any
    told_cost: float | None = None  # what training sees in its place; None without a part that tells it

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, np.asarray(value, _DTYPES[name]) if name in _DTYPES else value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn):
            return NotImplemented
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    @property
    def training_reward(self) -> float:
        """Points of this turn as training sees them."""
        return self.reward if self.shaped_reward is None else self.shaped_reward


@dataclass(frozen=True)
class Outcome:
    """What reports need of an episode: numbers and names, small enough to travel between processes."""

    wave: int
    group: int
    member: int
    end: EndReason
    success: bool
    total_reward: float  # points, shaping excluded
    turns: int
    taken: int  # turns with a reply
    actions: int  # played
    invalid: int  # turns
    surplus: int  # actions named beyond a budget
    tokens: int  # sampled
    entropy: float  # nats, sum over sampled tokens
    task_name: str
    error: str
    broken: int = 0  # markers in its prompts
    cost: float | None = None  # None: nobody told any

    @property
    def failed(self) -> bool:
        """See `Episode.failed`."""
        return self.end in FAILED


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
    opening: list[Message] = field(default_factory=list)  # what the policy was told first; ids stay the truth
    turns: list[Turn] = field(default_factory=list)
    end: EndReason = EndReason.ERROR
    success: bool = False
    error: str = ""
    wave: int = 0
    source: Source = Source.ROLLOUT
    hint: float = 0.0  # share of a solution that the opening tells
    tree: int | None = None  # member that names its tree; None: itself
    branches: list[tuple[int, int]] = field(default_factory=list)  # see `parent`
    num_new: int = 0  # tokens of the messages between replies, each counted once
    num_prefilled: int = 0  # tokens of prompts and messages that the engine had to read
    num_shared: int = 0  # ... and those whose state it took over from another episode
    num_broken: int = 0  # markers that prompts spelt and only a space could make text; see text.marker_guard
    env_calls: int = 0  # resets and steps of the game
    env_seconds: float = field(default=0.0, compare=False)  # that they took; never the same twice

    def to_plain(self) -> dict[str, Any]:
        """In lists, dicts, texts and numbers, as checkpoints hold it."""
        turns = [{f.name: _plain(getattr(turn, f.name)) for f in fields(Turn)} for turn in self.turns]
        return {f.name: _plain(getattr(self, f.name)) for f in fields(Episode)} | {"turns": turns}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Episode:
        """Inverse of :meth:`to_plain`.

        Raises:
            ValueError: it is no episode.
        """
        try:
            turns = [
                Turn(**{**_rename_plan(turn), "finish": FinishReason(turn["finish"])})
                for turn in plain["turns"]
            ]
            enums = {"end": EndReason(plain["end"]), "source": Source(plain["source"])}
            return cls(**{**plain, **enums, "turns": turns})
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise ValueError(f"this is no episode: {type(error).__name__}: {error}") from error

    @property
    def failed(self) -> bool:
        """Whether its game or its engine failed: counted, never trained on."""
        return self.end in FAILED

    @property
    def parent(self) -> int | None:
        """The member whose turns it goes on from, if it does.

        Turns before ``turn`` of an entry (member, turn) of ``branches``, and not before that of an earlier entry, were
        written by that member; those after the last entry are its own.
        """
        return self.branches[-1][0] if self.branches else None

    @property
    def tree_member(self) -> int:
        """The member that names its tree."""
        return self.member if self.tree is None else self.tree

    @property
    def branch_turn(self) -> int:
        """Its first own turn."""
        return self.branches[-1][1] if self.branches else 0

    @property
    def is_truncated(self) -> bool:
        """Whether a limit cut off a reply, or left no room for the next message."""
        limits = (FinishReason.LENGTH, FinishReason.CONTEXT)
        return self.end == EndReason.CONTEXT_LIMIT or any(turn.finish in limits for turn in self.turns)

    @property
    def total_reward(self) -> float:
        """Undiscounted return in environment points, shaping excluded."""
        return sum(turn.reward for turn in self.turns)

    @property
    def training_return(self) -> float:
        """Undiscounted return in points as training sees it, shaping included."""
        return sum(turn.training_reward for turn in self.turns)

    @property
    def total_cost(self) -> float | None:
        """The costs of its turns, summed; None where nobody told any."""
        told = [turn.cost for turn in self.turns if turn.cost is not None]
        return sum(told) if told else None

    @property
    def outcome(self) -> Outcome:
        """What reports need of it."""
        taken = [turn for turn in self.turns if len(turn.reply_tokens)]
        return Outcome(
            wave=self.wave,
            group=self.group,
            member=self.member,
            end=self.end,
            success=self.success,
            total_reward=self.total_reward,
            turns=len(self.turns),
            taken=len(taken),
            actions=sum(len(turn.actions) for turn in self.turns),
            invalid=sum(not turn.is_valid for turn in taken),
            surplus=sum(turn.num_surplus_actions for turn in taken),
            tokens=self.num_action_tokens,
            entropy=sum(sum(turn.reply_entropies.tolist()) for turn in taken),
            task_name=self.task_name,
            error=self.error,
            broken=self.num_broken,
            cost=self.total_cost,
        )

    @property
    def num_tokens(self) -> int:
        return sum(len(turn.prefix_tokens) + len(turn.reply_tokens) for turn in self.turns)

    @property
    def num_action_tokens(self) -> int:
        return sum(len(turn.reply_tokens) for turn in self.turns)

    @property
    def num_sampled(self) -> int:
        """Of the action tokens, those that were not taken over from its parent."""
        return sum(len(turn.reply_tokens) for turn in self.turns[self.branch_turn :])
