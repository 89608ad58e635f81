"""Records of episodes in plain Python and numpy, usable in any process.

Log-probabilities and entropies are in nats, rewards in units of the environment.
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
    ERROR = 5  # the game or the engine raised; recorded and counted, excluded from training
    ENV_TIMEOUT = 6  # the game exceeded its time limit; otherwise as ERROR


PLANNER, OPPONENT = "planner", "opponent"  # see `Turn.player`
FAILED = (EndReason.ERROR, EndReason.ENV_TIMEOUT)


class FinishReason(IntEnum):
    """Why one reply ended."""

    STOP = 0  # a stop sequence (the answer's end tag, or the model's end-of-turn token)
    LENGTH = 1  # the reply limit
    CONTEXT = 2  # the context limit
    ERROR = 3


class Segment(IntEnum):
    """The origin of a token; only THINK, ANSWER and OTHER are sampled by the policy."""

    PADDING = -1
    PROMPT = 0  # the first message: instructions and first observation
    OBSERVATION = 1  # later messages of the environment
    FORCED = 2  # template tokens and forced prefixes: not sampled, not trained on
    THINK = 3
    ANSWER = 4
    OTHER = 5
    PAST = 6  # a reply of an earlier turn, shown again: sampled, and trained on, in that turn's own row


class Source(IntEnum):
    """The source of a training episode."""

    ROLLOUT = 0  # played by the current policy
    REPLAY = 1  # played by the policy of an earlier iteration
    HINT = 2  # played with the beginning of a solution in the prompt
    TRIAL = 3  # played by the policy after a step that was undone
    RECORDED = 4  # read from a data set
    OPPONENT = 5  # played by the reference, or a mixture of policy and reference


_DTYPES: dict[str, type] = {  # types of the fields with one entry per token
    "prefix_tokens": np.int64,
    "prefix_segments": np.int8,
    "trained_tokens": np.int64,
    "trained_segments": np.int8,
    "reply_tokens": np.int64,
    "reply_segments": np.int8,
    "reply_logps": np.float64,  # as wide as Python floats, so that sums equal those of lists
    "reply_entropies": np.float64,
}


def _make_empty() -> Any:
    return np.empty(0)


def _to_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return int(value) if isinstance(value, IntEnum) else value


def _rename_plan(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn in the current format; version 0.2 marked plans by ``is_plan``."""
    renamed = {key: value for key, value in turn.items() if key != "is_plan"}
    return renamed | ({"player": PLANNER} if turn.get("is_plan") else {})


@dataclass(eq=False)
class Turn:
    """One turn of an episode: a row of the token ledger.

    ``prefix_tokens`` precede the reply: the whole prompt if ``starts_row``, otherwise only the new tokens (the end
    marker of the last reply if it was not sampled, the observation, the reply header).  ``prefix_segments`` has one
    :class:`Segment` for each.  ``reply_tokens`` were sampled; ``reply_segments``, ``reply_logps`` (nats,
    full-vocabulary log-softmax at the sampling temperature) and ``reply_entropies`` (nats) have one entry for each.
    These six are arrays; lists are converted.

    >>> Turn(observation="P _", prefix_tokens=[5, 7], prefix_segments=[0, 2]).prefix_tokens
    array([5, 7])
    """

    observation: str
    prefix_tokens: NDArray[np.int64]
    prefix_segments: NDArray[np.int8]
    message: str = ""  # the game's message before the reply; the first turn's is in Episode.opening
    state_key: int = 0
    starts_row: bool = False  # the prompt is rebuilt from an empty history; always so in the first turn
    reply_tokens: NDArray[np.int64] = field(default_factory=_make_empty)
    reply_segments: NDArray[np.int8] = field(default_factory=_make_empty)
    reply_logps: NDArray[np.float64] = field(default_factory=_make_empty)
    reply_entropies: NDArray[np.float64] = field(default_factory=_make_empty)
    policy_version: int = 0  # -1: another model, whose log-probs are unknown (NaN)
    reply_text: str = ""
    finish: FinishReason = FinishReason.STOP
    is_valid: bool = False
    problem: str = ""  # why the reply was invalid, a short name of its dialect
    is_well_formed: bool = False  # the markup is valid, whatever its content
    has_think: bool = False  # a closed think block precedes the answer
    player: str = ""  # author of the reply if it is not the policy: `PLANNER` or `OPPONENT`
    actions: list[str] = field(default_factory=list)  # the actions that were played
    num_surplus_actions: int = 0  # parsed actions beyond a budget, which were not played
    reward: float = 0.0  # environment reward and protocol penalty of this turn
    reward_parts: dict[str, float] = field(default_factory=dict)
    probes: dict[str, float] = field(default_factory=dict)  # measured before the turn, for reward parts
    shaping: dict[str, float] = field(default_factory=dict)  # reward that each reward part added
    shaped_reward: float | None = None  # reward used in training; None without reward parts
    # parts of the training reward given to tokens other than the last: index in `reply_tokens`, reward
    early_rewards: list[tuple[int, float]] = field(default_factory=list)
    cost: float | None = None  # for constraints, not part of the reward; None: the game gives no costs
    counts: dict[str, float] = field(default_factory=dict)  # what the game counts, such as failed calls
    told_cost: float | None = None  # cost used in training; None without a reward part that gives one
    # what training uses in place of the prefix of the first turn; empty: the prefix itself
    trained_tokens: NDArray[np.int64] = field(default_factory=_make_empty)
    trained_segments: NDArray[np.int8] = field(default_factory=_make_empty)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, np.asarray(value, _DTYPES[name]) if name in _DTYPES else value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn):
            return NotImplemented
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    @property
    def training_reward(self) -> float:
        """Reward of this turn in training, shaping included."""
        return self.reward if self.shaped_reward is None else self.shaped_reward


@dataclass(frozen=True)
class Outcome:
    """The summary of an episode for reports, small enough to send between processes."""

    wave: int
    group: int
    member: int
    end: EndReason
    success: bool
    total_reward: float  # shaping excluded
    turns: int
    taken: int  # turns with a reply
    actions: int  # played actions
    invalid: int  # turns with an invalid reply
    surplus: int  # parsed actions beyond a budget
    tokens: int  # sampled tokens
    entropy: float  # nats, sum over the sampled tokens
    task_name: str
    error: str
    broken: int = 0  # chat markers that prompts contained as text
    cost: float | None = None  # None: the game gives no costs
    cut: int = 0  # turns whose reply reached its limit
    lost: int = 0  # characters of prompts that the tokenizer dropped
    answers: int = 0  # turns with a valid reply
    distinct: int = 0  # different answers among the valid replies
    instance_id: str = ""
    scenario: str = ""  # the scenario of its task; empty if the game names none
    scenario_tasks: int = 0  # tasks of the scenario
    counts: dict[str, float] = field(default_factory=dict)  # numbers that the game counts, by name

    @property
    def failed(self) -> bool:
        """See `Episode.failed`."""
        return self.end in FAILED


@dataclass
class Episode:
    """One trajectory: its identity (the key of its random draws), its turns and its end."""

    iteration: int
    group: int  # unique over the run
    member: int
    task: int  # index into the run's list of games
    task_name: str
    instance_seed: int
    instance_id: str = ""
    scenario: str = ""  # see `Outcome`
    scenario_tasks: int = 0
    opening: list[Message] = field(default_factory=list)  # first messages; the token ids are authoritative
    turns: list[Turn] = field(default_factory=list)
    end: EndReason = EndReason.ERROR
    success: bool = False
    error: str = ""
    wave: int = 0
    source: Source = Source.ROLLOUT
    hint: float = 0.0  # share of a solution that the opening reveals
    tree: int | None = None  # member that is the root of its tree; None: itself
    branches: list[tuple[int, int]] = field(default_factory=list)  # see `parent`
    num_new: int = 0  # tokens of the messages between replies, each counted once
    num_prefilled: int = 0  # tokens of prompts and messages that the engine had to read
    num_shared: int = 0  # further such tokens, whose state the engine shared between episodes
    num_lost: int = 0  # characters of its prompts that the tokenizer dropped; see text.lost_characters
    num_broken: int = 0  # chat markers in prompts that had to be broken up by a space; see text.marker_guard
    env_calls: int = 0  # resets and steps of the game
    env_seconds: float = field(default=0.0, compare=False)  # their duration; differs between runs

    def to_plain(self) -> dict[str, Any]:
        """Convert to lists, dicts, texts and numbers for checkpoints."""
        turns = [{f.name: _to_plain(getattr(turn, f.name)) for f in fields(Turn)} for turn in self.turns]
        return {f.name: _to_plain(getattr(self, f.name)) for f in fields(Episode)} | {"turns": turns}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Episode:
        """Restore an episode from :meth:`to_plain`.

        Raises:
            ValueError: the data is not an episode.
        """
        try:
            turns = [
                Turn(**{**_rename_plan(turn), "finish": FinishReason(turn["finish"])})
                for turn in plain["turns"]
            ]
            enums = {"end": EndReason(plain["end"]), "source": Source(plain["source"])}
            return cls(**{**plain, **enums, "turns": turns})
        except (TypeError, KeyError, ValueError, OverflowError) as error:
            raise ValueError(f"this is not an episode: {type(error).__name__}: {error}") from error

    @property
    def failed(self) -> bool:
        """True if the game or the engine failed; such episodes are excluded from training."""
        return self.end in FAILED

    @property
    def parent(self) -> int | None:
        """The member of the group from which this episode branched, or None.

        An entry (member, turn) of ``branches`` says that ``member`` played the turns from the turn of the previous
        entry up to, but without, ``turn``.  The turns from that of the last entry on are this episode's own.
        """
        return self.branches[-1][0] if self.branches else None

    @property
    def tree_member(self) -> int:
        """The member that is the root of its tree."""
        return self.member if self.tree is None else self.tree

    @property
    def branch_turn(self) -> int:
        """Index of the first turn that this episode played itself."""
        return self.branches[-1][1] if self.branches else 0

    @property
    def is_truncated(self) -> bool:
        """True if a limit cut off a reply or left no room for a message."""
        limits = (FinishReason.LENGTH, FinishReason.CONTEXT)
        return self.end == EndReason.CONTEXT_LIMIT or any(turn.finish in limits for turn in self.turns)

    @property
    def prompt_texts(self) -> list[str]:
        """The texts that its prompts show: the opening and the message before each later turn."""
        opening = [message["content"] for message in self.opening]
        return opening + [turn.message for turn in self.turns if turn.message]

    @property
    def total_reward(self) -> float:
        """Undiscounted return in units of the environment's reward, shaping excluded."""
        return sum(turn.reward for turn in self.turns)

    @property
    def training_return(self) -> float:
        """Undiscounted return in training, shaping included."""
        return sum(turn.training_reward for turn in self.turns)

    @property
    def total_cost(self) -> float | None:
        """Sum of the costs of its turns; None if the game gives no costs."""
        costs = [turn.cost for turn in self.turns if turn.cost is not None]
        return sum(costs) if costs else None

    @property
    def answers(self) -> list[tuple[str, ...]]:
        """The actions of each played turn with a valid reply."""
        return [tuple(turn.actions) for turn in self.turns if turn.is_valid and turn.player != PLANNER]

    @property
    def counts(self) -> dict[str, float]:
        """Sums over turns of the numbers that the game counts, by name."""
        sums: dict[str, float] = {}
        for turn in self.turns:
            for name, number in turn.counts.items():
                sums[name] = sums.get(name, 0.0) + number
        return sums

    @property
    def outcome(self) -> Outcome:
        """Summary for reports."""
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
            lost=self.num_lost,
            cost=self.total_cost,
            cut=sum(turn.finish is FinishReason.LENGTH for turn in taken),
            answers=len(self.answers),
            distinct=len(set(self.answers)),
            instance_id=self.instance_id,
            scenario=self.scenario,
            scenario_tasks=self.scenario_tasks,
            counts=self.counts,
        )

    @property
    def num_tokens(self) -> int:
        return sum(len(turn.prefix_tokens) + len(turn.reply_tokens) for turn in self.turns)

    @property
    def num_action_tokens(self) -> int:
        return sum(len(turn.reply_tokens) for turn in self.turns)

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens, without those of its parent's turns."""
        return sum(len(turn.reply_tokens) for turn in self.turns[self.branch_turn :])
