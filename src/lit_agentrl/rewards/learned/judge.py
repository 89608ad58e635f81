"""Points by a language model that is asked what an episode is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import pstdev
from typing import Any, ClassVar, Literal, TypeVar

from lit_agentrl import seeds
from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.judging import VOTES, Criteria, aggregate_votes, select_best_judged
from lit_agentrl.rewards.base import Answerer, Points, RewardContext, at_end
from lit_agentrl.rewards.learned.asking import hear
from lit_agentrl.rewards.learned.labels import Labels
from lit_agentrl.rewards.learned.meta import Meta, voters
from lit_agentrl.rewards.learned.remembered import Remembered
from lit_agentrl.rewards.learned.replacing import Replacing
from lit_agentrl.rewards.learned.watching import Watched

T = TypeVar("T")
_OF_SERVER = ("tokens_in", "tokens_out", "failed", "cost")  # counts that are logged
_OF_SCORES = ("vote", "meta", "keep", "low", "high")  # options that act on scores alone


@dataclass(kw_only=True)
class Judge(Replacing):
    """``weight * value`` of an episode at its end, by a judge: 0 for its lowest score, 1 for its highest.

    The judge reads the episode and writes principles (unless they are given), a critique and a score, ``samples``
    times; the value is their vote.  A reply that is not exactly of that form is counted and asked for again,
    ``retries`` times.  An episode without any readable reply has no reward: it is not trained on, and is counted.

    With ``scalar`` the judge writes no score: a trained reward model reads question and critique, and the value is the
    mean of what it gives to the samples (CLoud, arXiv 2408.11791).

    Args:
        engine: makes the engine that answers.
        model: makes the model that judges; None: it is behind an API.
        weight, replaces, keep_penalties: see `Replacing`.
        samples: replies for each episode.
        vote: of the samples: ``mean``, ``median`` or ``majority``.
        meta: folder of a run that trained a reward model on judgements: the samples that it scores highest vote alone.
        keep: so many of them; None: half, rounded up.
        scalar: folder of a run that trained a reward model on critiques: it reads them, and no score is asked for.
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
    scalar: str | None = None
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
        self._check_scalar()
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

    def _check_scalar(self) -> None:
        if self.scalar is None:
            return
        is_text = isinstance(self.scalar, str) and bool(self.scalar.strip())
        require(is_text, "scalar", self.scalar, "the folder of a reward model, or null")
        for each in fields(self):
            if each.name in _OF_SCORES and (value := getattr(self, each.name)) != each.default:
                raise ValueError(
                    f"{each.name}={value} has no effect with scalar={self.scalar}: no score is asked for, and the mean "
                    "of its numbers is taken; leave it out"
                )

    def setup(self, context: RewardContext) -> None:
        """Makes the judge.

        Raises:
            ValueError: it cannot be made, or its server does not answer.
        """
        self._seed = context.seed
        self._meta = None if self.meta is None else Meta(self.meta, context.device)
        self._scalar = None if self.scalar is None else Meta(self.scalar, context.device, option="scalar")
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
        found = self._scores(episodes) if self._scalar is None else self._numbers(episodes, self._scalar)
        self._counts.update(episodes=len(episodes), unjudged=sum(not each for each in found))
        return [aggregate_votes(each, self.vote) if each else None for each in found]

    def _scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """Those of each episode that vote, as the judge writes them."""
        texts = [self._criteria.ask_score(episode) for episode in episodes]
        found = self._heard(texts, episodes, self._criteria.read_score)
        values = [[value for value, _ in judged] for judged in found]
        self._spread += [pstdev(each) for each in values if len(each) > 1]
        if self._meta is None:
            return values
        worth = self._meta.values_of_each(texts, [[reply for _, reply in judged] for judged in found])
        return [
            select_best_judged(each, of_each, self._keep) for each, of_each in zip(values, worth, strict=True)
        ]

    def _numbers(self, episodes: Sequence[Episode], scalar: Meta) -> list[list[float]]:
        """What a reward model gives to the critiques of each episode."""
        texts = [self._criteria.ask_critique(episode) for episode in episodes]
        found = self._heard(texts, episodes, self._criteria.read_critique)
        values = scalar.values_of_each(texts, [[critique for critique, _ in judged] for judged in found])
        self._spread += [pstdev(each) for each in values if len(each) > 1]
        return values

    def _heard(
        self, texts: Sequence[str], episodes: Sequence[Episode], read: Callable[[str], T]
    ) -> list[list[tuple[T, str]]]:
        heard = hear(
            self._answerer, texts, samples=self.samples, retries=self.retries, read=read,
            key=lambda place, sample, attempt: self._key(episodes[place], sample, attempt),
        )  # fmt: skip
        self._counts += heard.counts
        self._first = heard.first
        return heard.found

    def _key(self, episode: Episode, sample: int, attempt: int) -> int:
        return seeds.make_key(
            self._seed, "judge", episode.iteration, episode.wave, episode.group, episode.member, sample, attempt
        )  # fmt: skip

    # ------------------------------------------------------------------ labels
    @property
    def labels(self) -> Labels:
        """What it can be asked about recorded episodes."""
        return Labels(self._answerer, self._criteria, self._seed, self.retries)

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
        """What a success was worth at first, and which models choose among samples, or read them."""
        return {"watched": self._watched.state_dict(), **self._fingerprints()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`.

        Raises:
            ValueError: another model chooses or reads than that of the checkpoint.
        """
        for name, mine in self._fingerprints().items():
            if mine != (other := state.get(name)):
                raise ValueError(
                    f"reward.{self.name}.{name}={getattr(self, name)} holds weights {str(mine)[:12]}, and this run was "
                    f"trained with {str(other)[:12]}; put the model back"
                )
        self._watched.load_state_dict(state["watched"])

    def _fingerprints(self) -> dict[str, str | None]:
        models = {"meta": self._meta, "scalar": self._scalar}
        return {name: None if model is None else model.fingerprint for name, model in models.items()}
