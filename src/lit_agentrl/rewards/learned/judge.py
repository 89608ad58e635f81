"""Rewards by a language model that judges episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import pstdev
from typing import Any, ClassVar, Literal, TypeVar

from lit_agentrl import seeds
from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.judging import VOTES, Criteria, aggregate_votes, select_best_judgements
from lit_agentrl.rewards.base import Answerer, RewardContext, Rewards, at_end
from lit_agentrl.rewards.learned.asking import ask_questions
from lit_agentrl.rewards.learned.episode_cache import EpisodeCache
from lit_agentrl.rewards.learned.labels import Labels
from lit_agentrl.rewards.learned.meta import JudgementScorer, count_voters
from lit_agentrl.rewards.learned.replacing import Replacing
from lit_agentrl.rewards.learned.success_comparison import SuccessComparison

T = TypeVar("T")
_USAGE = ("tokens_in", "tokens_out", "failed", "cost")  # logged counts of the engine's usage
_SCORE_OPTIONS = ("vote", "meta", "keep", "low", "high")  # options that need written scores


@dataclass(kw_only=True)
class Judge(Replacing):
    """A judge rewards each episode at its end with ``weight * value``.

    The value is 0 for the lowest score and 1 for the highest.  The judge reads the episode and writes principles
    (unless they are configured), a critique and a score, ``samples`` times; the value is the vote of the scores.  A
    reply that cannot be parsed is counted and asked for again, up to ``retries`` times.  An episode without any
    readable reply has no reward: it is not trained on, and is counted.

    With ``scalar`` the judge writes no score: a trained reward model reads question and critique, and the value is the
    mean of its values over the samples (CLoud, arXiv 2408.11791).

    Args:
        engine: constructor of the engine that answers.
        model: constructor of the model that judges; None for an API.
        weight, replaces, keep_penalties: see `Replacing`.
        samples: number of replies per episode.
        vote: how to combine the samples: ``mean``, ``median`` or ``majority``.
        meta: folder of a run that trained a reward model on judgements: only the
            ``keep`` samples that this model scores highest vote.
        keep: number of samples that vote under ``meta``; None: half, rounded up.
        scalar: folder of a run that trained a reward model on critiques, which scores them instead of the judge.
        retries: how often to ask again for a reply that cannot be parsed.
        max_unjudged_share: the run stops if the share of episodes without a value in an iteration is higher.
        temperature, max_reply_tokens, max_context_tokens: sampling options of the judge.
        principles, low, high, shows_end, most_characters: see `Criteria`.

    Raises:
        ValueError: an option is invalid; :meth:`setup` refuses a judge that does not answer.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"  # its metrics are over all episodes
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
    _stds: list[float] = field(default_factory=list, init=False, repr=False)
    _comparison: SuccessComparison = field(default_factory=SuccessComparison, init=False, repr=False)

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
        self._num_voters = count_voters(self.meta, self.keep, self.samples)
        self._criteria = Criteria(
            principles=self.principles, low=self.low, high=self.high, shows_end=self.shows_end,
            most_characters=self.most_characters,
        )  # fmt: skip
        self._values = EpisodeCache(self._ask)

    def _check_scalar(self) -> None:
        if self.scalar is None:
            return
        is_text = isinstance(self.scalar, str) and bool(self.scalar.strip())
        require(is_text, "scalar", self.scalar, "the folder of a reward model, or null")
        for field_ in fields(self):
            if field_.name in _SCORE_OPTIONS and (value := getattr(self, field_.name)) != field_.default:
                raise ValueError(
                    f"{field_.name}={value} has no effect with scalar={self.scalar}: no score is asked for, and the "
                    "mean of its numbers is taken; leave it out"
                )

    def setup(self, context: RewardContext) -> None:
        """Create the judge.

        Raises:
            ValueError: it cannot be created, or its server does not answer.
        """
        self._seed = context.seed
        self._meta = None if self.meta is None else JudgementScorer(self.meta, context.device)
        self._scalar = (
            None if self.scalar is None else JudgementScorer(self.scalar, context.device, option="scalar")
        )
        params = {
            "temperature": self.temperature, "max_reply_tokens": self.max_reply_tokens,
            "max_context_tokens": self.max_context_tokens,
        }  # fmt: skip
        self._answerer: Answerer = context.open_answerer(self.engine, self.model, params)
        self._usage_before = dict(self._answerer.meter())

    def close(self) -> None:
        """Close the engine of the judge."""
        self._answerer.close()

    # ------------------------------------------------------------------ rewards
    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Add the judge's rewards to the game's, or replace them; 0 for those of `left_out`.

        Raises:
            ValueError: more than ``max_unjudged_share`` of all episodes have no readable reply.
        """
        values = self._values.get(episodes)
        missing = self.gather_numbers([float(value is None) for value in values])
        if sum(missing) > self.max_unjudged_share * len(missing):
            raise ValueError(
                f"{sum(missing):.0f} of {len(missing)} episodes got no reply of the judge that can be read (more than "
                f"max_unjudged_share={self.max_unjudged_share:g}){self._first_unread}; choose another judge, or raise "
                "retries"
            )
        return self.combine_rewards(rewards, episodes, at_end(episodes, [value or 0.0 for value in values]))

    def left_out(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """Return the episodes without a readable reply."""
        values = self._values.get(episodes)
        return [episode for episode, value in zip(episodes, values, strict=True) if value is None]

    def _ask(self, episodes: Sequence[Episode]) -> list[float | None]:
        values = (
            self._ask_scores(episodes)
            if self._scalar is None
            else self._ask_critiques(episodes, self._scalar)
        )
        self._counts.update(episodes=len(episodes), unjudged=sum(not samples for samples in values))
        return [aggregate_votes(samples, self.vote) if samples else None for samples in values]

    def _ask_scores(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """Ask for scores; return those of each episode that vote."""
        texts = [self._criteria.ask_score(episode) for episode in episodes]
        parsed = self._ask_judge(texts, episodes, self._criteria.read_score)
        values = [[value for value, _ in samples] for samples in parsed]
        self._stds += [pstdev(samples) for samples in values if len(samples) > 1]
        if self._meta is None:
            return values
        qualities = self._meta.score_each(texts, [[reply for _, reply in samples] for samples in parsed])
        return [
            select_best_judgements(samples, quality, self._num_voters)
            for samples, quality in zip(values, qualities, strict=True)
        ]

    def _ask_critiques(self, episodes: Sequence[Episode], scalar: JudgementScorer) -> list[list[float]]:
        """Ask for critiques; return the values that a reward model gives to them."""
        texts = [self._criteria.ask_critique(episode) for episode in episodes]
        parsed = self._ask_judge(texts, episodes, self._criteria.read_critique)
        values = scalar.score_each(texts, [[critique for critique, _ in samples] for samples in parsed])
        self._stds += [pstdev(samples) for samples in values if len(samples) > 1]
        return values

    def _ask_judge(
        self, texts: Sequence[str], episodes: Sequence[Episode], read: Callable[[str], T]
    ) -> list[list[tuple[T, str]]]:
        answers = ask_questions(
            self._answerer, texts, samples=self.samples, retries=self.retries, read=read,
            key=lambda index, sample, attempt: self._make_key(episodes[index], sample, attempt),
        )  # fmt: skip
        self._counts += answers.counts
        self._first_unread = answers.first
        return answers.parsed

    def _make_key(self, episode: Episode, sample: int, attempt: int) -> int:
        return seeds.make_key(
            self._seed, "judge", episode.iteration, episode.wave, episode.group, episode.member, sample, attempt
        )  # fmt: skip

    # ------------------------------------------------------------------ labels
    @property
    def labels(self) -> Labels:
        """Questions to the judge about recorded episodes."""
        return Labels(self._answerer, self._criteria, self._seed, self.retries)

    def get_usage(self) -> dict[str, float]:
        """Return the total usage of the judge by name."""
        return self._answerer.meter()

    # ------------------------------------------------------------------ metrics and state
    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Return the metrics of `SuccessComparison` and those of the judge.

        Over all processes: ``asked``; shares of ``unread`` replies, also by reason, and of ``unjudged`` episodes;
        ``spread``, the mean standard deviation over the samples of an episode; tokens and cost.
        """
        judged = list(zip(episodes, self._values.get(episodes), strict=True))
        values = self.gather_numbers([value for _, value in judged if value is not None])
        solved = self.gather_numbers([float(e.success) for e, value in judged if value is not None])
        metrics = self._comparison.measure(values, solved) if values else {}
        unread_names = [f"unread_{reason}" for reason in ("empty", "form", "out_of_range")]
        meter = self._answerer.meter()
        counts = {
            **{name: float(self._counts[name]) for name in ("asked", *unread_names, "unjudged", "episodes")},
            "std_sum": sum(self._stds), "std_count": float(len(self._stds)),
            **{name: meter.get(name, 0.0) - self._usage_before.get(name, 0.0) for name in _USAGE},
        }  # fmt: skip
        gathered = self.gather_numbers(list(counts.values()))
        total = {name: sum(gathered[index :: len(counts)]) for index, name in enumerate(counts)}
        asked = total["asked"]
        metrics |= {
            "asked": asked,
            "unread": sum(total[name] for name in unread_names) / max(asked, 1.0),
            "unjudged": total["unjudged"] / max(total["episodes"], 1.0),
        }
        metrics |= {name: total[name] / asked for name in unread_names if asked and total[name]}
        metrics |= {"spread": total["std_sum"] / total["std_count"]} if total["std_count"] else {}
        metrics |= {name: total[name] for name in _USAGE if total[name]}
        self._usage_before, self._counts, self._stds = dict(meter), Counter(), []
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the first median of successes, and the fingerprints of both models."""
        return {"watched": self._comparison.state_dict(), **self._get_fingerprints()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`.

        Raises:
            ValueError: the checkpoint was trained with another model in ``meta`` or ``scalar``.
        """
        for name, own_fingerprint in self._get_fingerprints().items():
            if own_fingerprint != (other := state.get(name)):
                raise ValueError(
                    f"reward.{self.name}.{name}={getattr(self, name)} holds weights "
                    f"{str(own_fingerprint)[:12]}, and this run was trained with {str(other)[:12]}; put the model back"
                )
        self._comparison.load_state_dict(state["watched"])

    def _get_fingerprints(self) -> dict[str, str | None]:
        models = {"meta": self._meta, "scalar": self._scalar}
        return {name: None if model is None else model.fingerprint for name, model in models.items()}
