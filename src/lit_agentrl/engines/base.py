"""The engine protocol: requests for one reply go in, completed replies come out as they finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from lit_agentrl import facts
from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.episode import FinishReason, Message
from lit_agentrl.requirements import Fact, Requirement

MOST_SLOTS = 65_536  # of an engine: what is known of each is held in memory


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn.

    Args:
        temperature: softmax temperature; 0 takes the most likely token (log-probs are then at temperature 1).
        top_p: keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        top_k: keep the k most likely tokens; 0 keeps all.
        max_reply_tokens: limit on one reply.
        max_context_tokens: limit on what is read and written in one sequence: an episode, or a turn of it.

    Raises:
        ValueError: a value out of range, naming the option.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_reply_tokens: int = 64
    max_context_tokens: int = 1024

    def __post_init__(self) -> None:
        require_number(
            "temperature", self.temperature, "a finite number >= 0; 0 is greedy", lambda value: value >= 0
        )
        require_number("top_p", self.top_p, "in (0, 1]; 1 keeps all tokens", lambda value: 0 < value <= 1)
        require_whole("top_k", self.top_k, 0, alternative="; 0 keeps all tokens")
        require_whole("max_reply_tokens", self.max_reply_tokens, 1)
        if self.max_context_tokens <= self.max_reply_tokens:
            raise ValueError(
                f"max_context_tokens={self.max_context_tokens} must exceed "
                f"max_reply_tokens={self.max_reply_tokens}"
            )


@dataclass(frozen=True)
class TurnRequest:
    """Ask for one reply of one episode.

    Args:
        episode: id of the episode whose history the engine holds; unknown ids start empty.
        prefix: new token ids since the last reply (first turn: the whole prompt).
        key: 64-bit key of this reply's random draws.
        params: sampling parameters.
        messages: the whole dialogue that the prompt shows; for engines without ``token_ids`` alone.
        tools: what the reply may call, as chat APIs take them; as before.
        player: who writes the reply, as of `Turn.player`; for engines that hold several players.
        note: the game's answer to `Rules.asks`; no engine that samples reads it.
    """

    episode: int
    prefix: Sequence[int]
    key: int
    params: SamplingParams
    messages: Sequence[Message] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    player: str = ""
    note: str | None = None


@dataclass
class TurnResult:
    """One completed reply: ids, log-probs (nats, full vocabulary, at the sampling temperature), finish."""

    episode: int
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    finish: FinishReason = FinishReason.STOP
    policy_version: int = 0
    num_prefilled: int = 0  # tokens of the prefix that were read to answer this request
    num_shared: int = 0  # tokens of the prefix whose state was taken over from another episode
    error: str = ""
    text: str | None = None  # in place of tokens, of an engine without ``token_ids``
    calls: list[str] = field(default_factory=list)  # of tools beside the text, each as JSON


@dataclass(frozen=True)
class Capabilities:
    """What an engine promises; see ``needs.py`` for what is refused without it.

    ``weights`` says how it comes by those of the policy: it computes with the trainer's own network (``shared``), is
    given them at each version (``given``; it is then a `GivenEngine`), or has its own and keeps them (``none``).
    """

    exact_log_probs: bool  # recorded log-probs are those of the trainer's own weights
    fork: bool  # an episode can be branched
    token_ids: bool = True  # it reads and writes token ids, and not texts that are encoded afterwards
    entropies: bool = True  # it records them; NaN otherwise
    weights: Literal["shared", "given", "none"] = "shared"
    is_server: bool = False  # one for all processes of a run, with the weights of one version at a time
    is_alone: bool = False  # cannot be in one of several training processes
    opponent: bool = (
        False  # it takes a `reader` of two networks, so that an opponent can play beside the policy
    )

    @property
    def provides(self) -> list[Fact]:
        """What other parts of a run may require of the engine."""
        offered = {
            facts.TOKEN_IDS: self.token_ids,
            facts.TAKES_WEIGHTS: self.weights != "none",
            facts.ENTROPIES: self.entropies,
            facts.FORK: self.fork,
            facts.PLAYS_REFERENCE: self.opponent,
            facts.RUNS_CRITIC: self.weights == "shared",
            facts.EXACT_LOG_PROBS: self.exact_log_probs,
        }
        return [fact for fact, is_given in offered.items() if is_given]

    @property
    def requires(self) -> list[Fact | Requirement]:
        """What an engine needs of the run around it."""
        alone = [Requirement(facts.ONE_PROCESS, remedy="engine=native")] if self.is_alone else []
        reason = "it is one server with the weights of one version"
        return [*alone, *([Requirement(facts.ONE_VERSION, reason=reason)] if self.is_server else [])]


class Engine(Protocol):
    """See ``docs/models.md``.  ``native`` holds the trainer's own network; ``scripted`` plays given replies."""

    @property
    def capabilities(self) -> Capabilities:
        """What this engine promises."""

    @property
    def capacity(self) -> int:
        """Episodes that it can hold at once."""

    @property
    def num_steps(self) -> int:
        """Decode steps so far: the clock by which answers of slow games are due."""

    @property
    def num_pending(self) -> int:
        """Requests that it has yet to answer."""

    def submit(self, request: TurnRequest) -> None:
        """Queue one reply; requests are served in order of submission."""

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """Replies that have finished.

        None: waits for one; empty if nothing is queued, or if a remote engine was silent for a while.  Seconds: an
        empty list says that none finished in them.
        ``steps``: also comes back after so many decode steps; an engine that writes replies whole takes more.
        """

    def fork(self, parent: int, child: int, at: int) -> None:
        """Start a new episode ``child`` from the first ``at`` tokens of ``parent``, which lives on.

        Raises:
            ValueError: the engine cannot, or there is no such parent, place or room.
        """

    def close(self, episode: int) -> None:
        """Forget an episode and free what it holds; a later request under its id starts empty."""

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """Write later replies with these weights, under this version; all episodes are forgotten.

        Args:
            weights: by name, as of `named_weights`; None: the engine has them already.
            version: optimizer steps that led to them.
        """

    def stop(self) -> None:
        """Give back what it holds beside memory: connections, threads, files.  It is used no more, but may be stopped.

        Whoever opened it calls this, also where a run ends in an error or is interrupted.
        """


class GivenEngine(Engine, Protocol):
    """An engine with weights of its own, which it is given whole at each version.

    Attributes:
        max_sync_gap: nats by which its log-probs may differ from the trainer's.
    """

    max_sync_gap: float

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Log-probs (nats, at temperature 1) of all tokens of a text but the first, each after those before it."""


@runtime_checkable
class MeteredEngine(Protocol):
    """An engine whose use is counted, since it costs."""

    def meter(self) -> dict[str, float]:
        """What it has been asked for since it was made, by name: requests, tokens, money."""


@runtime_checkable
class Foretelling(Protocol):
    """A class of engines that can judge its options before there is a network, so that a bad one is told at once."""

    def foretold(self, **options: Any) -> Capabilities:
        """What an engine with these options will promise.

        Raises:
            ValueError: an option makes no sense.
        """


@runtime_checkable
class ServedEngine(Protocol):
    """A class of engines behind a server."""

    def reach(self, **options: Any) -> None:
        """Ask the server that these options name once, before anything is played.

        Raises:
            ServerError: it does not answer.
        """


def require_fork(parent: int, child: int, at: int, *, length: int | None, is_new: bool) -> None:
    """Check what `Engine.fork` is asked for.

    Args:
        parent: episode that is gone on from.
        child: episode that goes on.
        at: tokens that are taken over.
        length: tokens of the parent; None: the engine holds none.
        is_new: whether the engine does not hold the child.

    Raises:
        ValueError: it cannot be done.
    """
    if length is None or not is_new:
        raise ValueError(f"fork of {parent} into {child}: the one must live, the other must not")
    if not 0 < at <= length:
        raise ValueError(f"fork at {at}: episode {parent} has {length} tokens")
