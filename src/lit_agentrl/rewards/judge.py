"""Points by a language model that is asked what an episode is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import pstdev
from typing import Any, ClassVar, Literal

from lit_agentrl import seeds
from lit_agentrl.checks import one_line, require, require_number, require_one_of, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.judging import VOTES, Criteria, Unreadable, best_judged, voted
from lit_agentrl.rewards.base import Answerer, Points, RewardContext, at_end
from lit_agentrl.rewards.meta import Meta, voters
from lit_agentrl.rewards.remembered import Remembered
from lit_agentrl.rewards.replacing import Replacing
from lit_agentrl.rewards.watching import Watched

_OF_SERVER = ("tokens_in", "tokens_out", "failed", "cost")  # counts that are logged


@dataclass(kw_only=True)
class Judge(Replacing):
    """``weight * value`` of an episode at its end, by a judge: 0 for its lowest score, 1 for its highest.

    The judge reads the episode and writes principles (unless they are given), a critique and a score, ``samples``
    times; the value is their vote.  A reply that is not exactly of that form is counted and asked for again,
    ``retries`` times.  An episode without any readable reply has no reward: it is not trained on, and is counted.

    Args:
        engine: makes the engine that answers.
        model: makes the model that judges; None: it is behind an API.
        weight, replaces, keep_penalties: see `Replacing`.
        samples: replies for each episode.
        vote: of the samples: ``mean``, ``median`` or ``majority``.
        meta: folder of a run that trained a reward model on judgements: the samples that it scores highest vote alone.
        keep: so many of them; None: half, rounded up.
        retries: how often a reply that cannot be read is asked for again.
        max_unjudged_share: of an iteration's episodes; more end the run.
        temperature, max_reply_tokens, max_context_tokens: of the judge's replies.
        principles, low, high, shows_end, most_characters: see `Criteria`.

    Raises:
        ValueError: an option that makes no sense; :meth:`setup` refuses a judge that cannot be asked.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"  # its curves are of all episodes
    engine: Callable[..., Any]
    model: Callable[..., Any] | None = None
    samples: int = 1
    vote: str = "mean"
    meta: str | None = None
    keep: int | None = None
    retries: int = 2
    max_unjudged_share: float = 0.2
    temperature: float = 1.0
    max_reply_tokens: int = 1024
    max_context_tokens: int = 16_384
    principles: Sequence[str] = ()
    low: float = 0.0
    high: float = 10.0
    shows_end: bool = False
    most_characters: int = 20_000
    _counts: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _spread: list[float] = field(default_factory=list, init=False, repr=False)
    _watched: Watched = field(default_factory=Watched, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(callable(self.engine), "engine", self.engine, "an engine with _partial_: true")
        require(
            self.model is None or callable(self.model), "model", self.model, "null, or with _partial_: true"
        )
        require_whole("samples", self.samples, 1, 1024)
        require_one_of("vote", self.vote, VOTES)
        require_whole("retries", self.retries, 0, 100)
        require_number("max_unjudged_share", self.max_unjudged_share, "in [0, 1]", lambda s: 0 <= s <= 1)
        if self.samples > 1 and not self.temperature:
            raise ValueError(f"samples={self.samples} with temperature=0 would ask for the same reply again")
        if self.samples == 1 and self.vote != "mean":
            raise ValueError(f"vote={self.vote} has no effect with samples=1; raise it")
        self._keep = voters(self.meta, self.keep, self.samples)
        self._criteria = Criteria(
            principles=self.principles, low=self.low, high=self.high, shows_end=self.shows_end,
            most_characters=self.most_characters,
        )  # fmt: skip
        self._values = Remembered(self._asked)

    def setup(self, context: RewardContext) -> None:
        """Makes the judge.

        Raises:
            ValueError: it cannot be made, or its server does not answer.
        """
        self._seed = context.seed
        self._meta = None if self.meta is None else Meta(self.meta, context.device)
        params = {
            "temperature": self.temperature, "max_reply_tokens": self.max_reply_tokens,
            "max_context_tokens": self.max_context_tokens,
        }  # fmt: skip
        self._answerer: Answerer = context.open_answerer(self.engine, self.model, params)
        self._before = dict(self._answerer.meter())

    def close(self) -> None:
        """Ends the judge's engine."""
        self._answerer.close()

    # ------------------------------------------------------------------ points
    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """The judge's points, beside the game's or in their place; 0 for the episodes of `left_out`.

        Raises:
            ValueError: more than ``max_unjudged_share`` of all episodes have no readable reply.
        """
        values = self._values.of(episodes)
        missing = self.everyones_numbers([float(value is None) for value in values])
        if sum(missing) > self.max_unjudged_share * len(missing):
            raise ValueError(
                f"{sum(missing):.0f} of {len(missing)} episodes got no reply of the judge that can be read (more than "
                f"max_unjudged_share={self.max_unjudged_share:g}){self._first}; choose another judge, or raise retries"
            )
        return self.placed(points, episodes, at_end(episodes, [value or 0.0 for value in values]))

    def left_out(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """Those without a readable reply."""
        values = self._values.of(episodes)
        return [episode for episode, value in zip(episodes, values, strict=True) if value is None]

    def _asked(self, episodes: Sequence[Episode]) -> list[float | None]:
        texts = [self._criteria.score_of(episode) for episode in episodes]
        open_ = [(place, sample) for place in range(len(episodes)) for sample in range(self.samples)]
        found: list[list[tuple[float, str]]] = [[] for _ in episodes]
        self._first = ""
        for attempt in range(self.retries + 1):
            questions = [
                (texts[place], self._key(episodes[place], sample, attempt)) for place, sample in open_
            ]
            replies = self._answerer.ask(questions)
            self._counts["asked"] += len(questions)
            unread = []
            for (place, sample), reply in zip(open_, replies, strict=True):
                try:
                    found[place].append((self._criteria.read_score(reply), reply))
                except Unreadable as error:
                    unread.append((place, sample))
                    self._counts[f"unread_{error}"] += 1
                    self._first = self._first or f'; the first: "{one_line(reply[:80])}" ({error})'
            open_ = unread
        self._counts.update(episodes=len(episodes), unjudged=sum(not judged for judged in found))
        self._spread += [pstdev(value for value, _ in judged) for judged in found if len(judged) > 1]
        values = [[value for value, _ in judged] for judged in found]
        if self._meta is not None:
            judgements = [
                (text, reply) for text, judged in zip(texts, found, strict=True) for _, reply in judged
            ]
            worth = iter(self._meta.values(judgements))
            values = [best_judged(each, [next(worth) for _ in each], self._keep) for each in values]
        return [voted(each, self.vote) if each else None for each in values]

    def _key(self, episode: Episode, sample: int, attempt: int) -> int:
        return seeds.key(
            self._seed, "judge", episode.iteration, episode.wave, episode.group, episode.member, sample, attempt
        )  # fmt: skip

    # ------------------------------------------------------------------ pairs
    def compared(
        self, pairs: Sequence[tuple[Episode, Episode]], *, address: int
    ) -> list[float | Literal["inconsistent", "unread"]]:
        """Which of two episodes is better, asked in both orders: 1 is the first, 0 the second, 0.5 a tie.

        ``inconsistent``: the two orders had two answers.  ``unread``: one of them had no readable answer.

        Args:
            pairs: each of one prompt.
            address: of the draws, with the place of the pair.
        """
        open_ = {(place, order) for place in range(len(pairs)) for order in (0, 1)}
        found: dict[tuple[int, int], int] = {}
        for attempt in range(self.retries + 1):
            now = sorted(open_ - found.keys())
            texts = [self._criteria.better_of(*(pairs[p][::-1] if order else pairs[p])) for p, order in now]
            keys = [seeds.key(self._seed, "compare", address, *each, attempt) for each in now]
            for each, reply in zip(now, self._answerer.ask(list(zip(texts, keys, strict=True))), strict=True):
                with suppress(Unreadable):
                    found[each] = self._criteria.read_better(reply)
        return [_verdict(found.get((place, 0)), found.get((place, 1))) for place in range(len(pairs))]

    def used(self) -> dict[str, float]:
        """What the judge was asked for so far."""
        return self._answerer.meter()

    # ------------------------------------------------------------------ watching
    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Those of `Watched`, and of the judge over all processes.

        ``asked``; shares of ``unread`` replies, by reason too, and of ``unjudged`` episodes; ``spread`` of an episode's
        samples; tokens and cost.
        """
        judged = list(zip(episodes, self._values.of(episodes), strict=True))
        values = self.everyones_numbers([value for _, value in judged if value is not None])
        solved = self.everyones_numbers([float(e.success) for e, value in judged if value is not None])
        row = self._watched.look(values, solved) if values else {}
        names = ("asked", *(f"unread_{reason}" for reason in ("empty", "form", "out_of_range")))
        meter = self._answerer.meter()
        counts = [
            *(float(self._counts[name]) for name in names),
            float(self._counts["unjudged"]), float(self._counts["episodes"]),
            sum(self._spread), float(len(self._spread)),
            *(meter.get(name, 0.0) - self._before.get(name, 0.0) for name in _OF_SERVER),
        ]  # fmt: skip
        size, every = len(counts), self.everyones_numbers(counts)
        total = [sum(every[place::size]) for place in range(size)]
        asked, *unread, unjudged, number, spread, spreads = total[: len(names) + 4]
        row |= {
            "asked": asked,
            "unread": sum(unread) / max(asked, 1.0),
            "unjudged": unjudged / max(number, 1.0),
        }
        row |= {name: count / asked for name, count in zip(names[1:], unread, strict=True) if asked and count}
        row |= {"spread": spread / spreads} if spreads else {}
        row |= {name: n for name, n in zip(_OF_SERVER, total[len(names) + 4 :], strict=True) if n}
        self._before, self._counts, self._spread = dict(meter), Counter(), []
        return row

    def state_dict(self) -> dict[str, Any]:
        """What a success was worth at first, and which model chooses among samples."""
        return {
            "watched": self._watched.state_dict(),
            "meta": None if self._meta is None else self._meta.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`.

        Raises:
            ValueError: another model chooses than that of the checkpoint.
        """
        mine, other = (None if self._meta is None else self._meta.fingerprint), state.get("meta")
        if mine != other:
            raise ValueError(
                f"reward.{self.name}.meta={self.meta} holds weights {str(mine)[:12]}, and this run was trained with "
                f"{str(other)[:12]}; put the model back"
            )
        self._watched.load_state_dict(state["watched"])


def _verdict(first: int | None, swapped: int | None) -> float | Literal["inconsistent", "unread"]:
    """Of the answers in both orders: 1, 2, 0 for a tie, or None."""
    if first is None or swapped is None:
        return "unread"
    known: dict[tuple[int, int], float] = {(1, 2): 1.0, (2, 1): 0.0, (0, 0): 0.5}
    return known.get((first, swapped), "inconsistent")
