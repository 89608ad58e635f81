"""The engine protocol: requests for replies go in, results come out as replies complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from lit_agentrl import facts
from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.episode import FinishReason, Message
from lit_agentrl.requirements import Fact, Requirement

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of sampling.

    Args:
        temperature: Softmax temperature; 0 takes the most likely token (log-probs are then at temperature 1).
        top_p: Sample from the smallest set of tokens whose probability reaches this; 1 allows all tokens.
        top_k: Sample from the k most likely tokens; 0 allows all tokens.
        max_reply_tokens: Maximum tokens of one reply.
        max_context_tokens: Maximum tokens, prompt and replies, of one sequence: an episode, or one turn.

    Raises:
        ValueError: If a value is out of range; the message names the option.
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
    """A request for one reply of one episode.

    Args:
        episode: Id of the episode whose history the engine holds; an unknown id starts an empty history.
        prefix: New token ids since the last reply (in the first turn the whole prompt).
        key: 64-bit key of this reply's random draws.
        params: Sampling parameters.
        messages: The whole dialogue of the prompt; only for engines without ``token_ids``.
        tools: The tools that the reply may call, in chat API format; only for engines without ``token_ids``.
        player: Who writes the reply, as in `Turn.player`; for engines with several players.
        note: The game's answer to `Rules.asks`; sampling engines ignore it.
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
    """A completed reply.

    Log-probs and entropies are in nats, over the full vocabulary, at the sampling temperature.
    """

    episode: int
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    finish: FinishReason = FinishReason.STOP
    policy_version: int = 0
    num_prefilled: int = 0  # prefix tokens read for this request
    num_shared: int = 0  # prefix tokens whose state was copied from another episode
    error: str = ""
    text: str | None = None  # replaces tokens if the engine has no ``token_ids``
    calls: list[str] = field(default_factory=list)  # tool calls in addition to the text, each as JSON


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of an engine; see ``needs.py`` for the runs that each one rules out.

    ``weights`` is the source of the engine's weights: it computes with the trainer's own network (``shared``),
    receives each version of the weights (``given``; it is then a `GivenEngine`), or keeps weights of its own
    (``none``).
    """

    exact_log_probs: bool  # recorded log-probs equal those of the trainer's own weights
    fork: bool  # episodes can be branched
    token_ids: bool = True  # reads and writes token ids, not texts that are encoded afterwards
    entropies: bool = True  # records entropies; otherwise they are NaN
    weights: Literal["shared", "given", "none"] = "shared"
    # one server for all processes of a run, with one version of the weights at a time
    is_server: bool = False
    # accepts a `reader` of two networks, so that an opponent can play against the policy
    opponent: bool = False

    @property
    def provides(self) -> list[Fact]:
        """The capabilities that other parts of a run may require."""
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
        """The requirements of the engine on the rest of the run."""
        reason = "it is one server with the weights of one version"
        return [Requirement(facts.ONE_VERSION, reason=reason)] if self.is_server else []


class Engine(Protocol):
    """Generates replies; see ``docs/models.md``."""

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this engine."""

    @property
    def capacity(self) -> int:
        """Maximum number of episodes held at once."""

    @property
    def num_steps(self) -> int:
        """Decode steps so far; the clock on which answers of slow games arrive."""

    @property
    def num_pending(self) -> int:
        """Number of unanswered requests."""

    def submit(self, request: TurnRequest) -> None:
        """Queue a request for one reply; requests are served in order of submission."""

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """Return the replies that have finished.

        Args:
            timeout: None waits for a reply; the list is empty if nothing is queued, or if a remote engine was silent
                for a while.  With seconds, the list is empty if no reply finished in this time.
            steps: Return after this many decode steps at the latest; engines that generate whole replies may take
                more.
        """

    def fork(self, parent: int, child: int, at: int) -> None:
        """Start a new episode ``child`` from the first ``at`` tokens of ``parent``, which continues.

        Raises:
            ValueError: If the engine cannot fork, or there is no such parent or position, or no free slot.
        """

    def close(self, episode: int) -> None:
        """Forget an episode and free its memory.

        A later request with the same id starts with an empty history.
        """

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        """Set the weights for later replies, and their version; all episodes are forgotten.

        Args:
            weights: Weights by name, as in `get_named_weights`; None if the engine has them already.
            version: Number of optimizer steps of these weights.
        """

    def stop(self) -> None:
        """Release connections, threads and files; may be called several times.

        The engine is not used afterwards.  The code that opened it calls this, also after an error or an interrupt.
        """


class GivenEngine(Engine, Protocol):
    """An engine with its own copy of the weights, which it receives at each version.

    Attributes:
        max_sync_gap: Maximum difference (nats) between the engine's log-probs and the trainer's.
    """

    max_sync_gap: float

    def score(self, tokens: Sequence[int]) -> list[float]:
        """Return the log-probs (nats, temperature 1) of all tokens but the first.

        Each is conditioned on all tokens before it.
        """


@runtime_checkable
class MeteredEngine(Protocol):
    """An engine whose usage is counted because it costs money."""

    def meter(self) -> dict[str, float]:
        """Return usage since construction by name: requests, tokens, money."""


@runtime_checkable
class RestingEngine(Protocol):
    """An engine that releases memory while nothing is played."""

    def rest(self) -> bool:
        """Release memory until the next `load`; return True if that call must pass the weights.

        The engine forgets all episodes.
        """


@runtime_checkable
class CheckedEngine(Protocol):
    """A class of engines that checks its options before the network exists."""

    def check_options(self, **options: Any) -> Capabilities:
        """Check the options and return the capabilities of an engine with them.

        Raises:
            ValueError: If an option has an invalid value.
        """


@runtime_checkable
class ServedEngine(Protocol):
    """A class of engines behind a server."""

    def check_server(self, **options: Any) -> None:
        """Send one request to the server of these options, before any episode is played.

        Raises:
            ServerError: If the server does not answer.
        """


def require_fork(parent: int, child: int, at: int, *, length: int | None, is_new: bool) -> None:
    """Check the arguments of `Engine.fork`.

    Args:
        parent: Episode to branch from.
        child: New episode.
        at: Number of tokens to copy.
        length: Number of tokens of the parent; None if the engine does not hold it.
        is_new: Whether the engine does not hold the child yet.

    Raises:
        ValueError: If the fork is not possible.
    """
    if length is None or not is_new:
        raise ValueError(f"fork of {parent} into {child}: the first must exist, the second must not")
    if not 0 < at <= length:
        raise ValueError(f"fork at {at}: episode {parent} has {length} tokens")
