"""The door of data sets: how episodes become groups.  A kind is a class that inherits `Kind`, and a YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lit_agentrl import seeds
from lit_agentrl.checks import (
    format_value,
    require,
    require_local,
    require_number,
    require_one_of,
    require_whole,
)
from lit_agentrl.data.recordings import Group
from lit_agentrl.episode import Episode, Turn
from lit_agentrl.facts import (
    COST_SCORES,
    GROUP_SIZE,
    HELD_OUT,
    HELD_REFERENCE,
    LEARNS_COSTS,
    LEARNS_REFERRED,
    NO_IMITATION,
    PLAYED,
    READS_REFERENCE,
    RECORDED,
    REFERRED,
    STILL_REFERENCE,
    TRAINS_POLICY,
    TRAINS_SCORES,
)
from lit_agentrl.requirements import Fact, Offer, Requirement

if TYPE_CHECKING:
    from lit_agentrl.data.conversations import Reader

MOST = 1_000_000
_NAME = re.compile(r"\w{1,32}", re.ASCII)  # of a head


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What every kind of data set has.

    Attributes:
        path: a folder that `collect` wrote, a ``.jsonl`` or ``.parquet`` file, or a list of them.
        batch: groups of an iteration.
        max_bad_share: share of rows that may be bad; these are counted and left out.
        cache_reference: the log-probs of a reference that stands still are computed once, before the first step, and
            kept: True: in the run folder; a text: in this folder, for other runs too.
        held_out: share of the prompts that a reward model is not trained on: one half of them validates it, the other
            tests it.  A prompt is always on the same side, whatever the seed.  None: whatever the run needs.
        smallest: members that every group has at least.
        score: of recorded episodes: ``return`` (points), ``success`` (1 or 0) or ``cost`` (what it cost, for a cost
            model: the higher, the worse; of the rows of a file, their scores).  A list: a reward model has a head for
            each; of the rows of a file these are names in their scores.
        scores: what `score` may be.
        several: whether `score` may be a list.
        is_referred: answers are read behind another one, for a reward model that is told a reference.
        is_beside: training plays as well.
    """

    path: str | Sequence[str]
    batch: int = 16
    max_bad_share: float = 0.05
    score: str | Sequence[str] = "return"
    held_out: float | None = None
    cache_reference: bool | str = False
    smallest: ClassVar[int] = 1
    is_referred: ClassVar[bool] = False
    is_beside: ClassVar[bool] = False
    scores: ClassVar[tuple[str, ...]] = ("return", "success", "cost")
    several: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            ValueError: one that makes no sense.
        """
        is_text = isinstance(self.path, str) and bool(self.path.strip())
        is_list = not isinstance(self.path, str | Mapping) and isinstance(self.path, Sequence)
        is_list = is_list and bool(self.path) and all(isinstance(each, str) and each for each in self.path)
        require(is_text or is_list, "path", self.path, "a folder or a file, or a list of them")
        require_whole("batch", self.batch, 1, MOST)
        require_number("max_bad_share", self.max_bad_share, "in [0, 1]", lambda share: 0 <= share <= 1)
        if self.heads:
            _check_heads(self.heads, type(self))
        else:
            require_one_of("score", self.score, self.scores)
        folder = self.cache_reference
        is_folder = isinstance(folder, str) and bool(folder.strip())
        require(isinstance(folder, bool) or is_folder, "cache_reference", folder, "true, false or a folder")
        require_local("cache_reference", folder)
        if is_folder and Path(str(folder)).expanduser().is_file():
            raise ValueError(f"cache_reference={folder} is a file; name a folder, which need not be there")
        if self.held_out is not None:
            require_number("held_out", self.held_out, "in [0, 1), or null", lambda share: 0 <= share < 1)

    @property
    def requires(self) -> list[Fact | Requirement]:
        """An algorithm that reads what its episodes say, and a reference that stands still where it is kept."""
        found: list[Fact | Requirement] = []
        if self.cache_reference:
            by, off = (
                f"data.cache_reference={format_value(self.cache_reference)}",
                "data.cache_reference=false",
            )
            found += [Requirement(fact, by=by, remedy=off) for fact in (READS_REFERENCE, STILL_REFERENCE)]
        if self.held_out:
            by = f"data.held_out={self.held_out:g}"
            found.append(
                Requirement(
                    TRAINS_SCORES, by=by, reason="others are judged by playing", remedy="data.held_out=0"
                )
            )
        if self.heads:
            by = f"data.score=[{','.join(self.heads)}]"
            found.append(Requirement(TRAINS_SCORES, by=by, reason="each has a head", remedy="one data.score"))
        if self.score == "cost":
            reason = "it ranks the worst first"
            found.append(
                Requirement(LEARNS_COSTS, by="data.score=cost", reason=reason, remedy="data.score=return")
            )
        if self.is_referred:
            found.append(Requirement(LEARNS_REFERRED, remedy="data=ranked"))
        if self.is_beside:
            found.append(Requirement(TRAINS_POLICY, reason="it imitates beside what is played"))
        return found

    @property
    def provides(self) -> list[Fact | Offer]:
        """Groups of its files, or, beside them, those that are played, and what their episodes say."""
        name = type(self).__name__.lower()
        size = Offer(GROUP_SIZE, self.smallest, f"data={name}, whose groups may be of {self.smallest}")
        found: list[Fact | Offer] = [PLAYED] if self.is_beside else [size, RECORDED, NO_IMITATION]
        given = {
            HELD_REFERENCE: not self.cache_reference,
            COST_SCORES: self.score == "cost" or bool(self.heads),
            REFERRED: self.is_referred,
        }
        held_out = Offer(HELD_OUT, float(bool(self.held_out)), f"data.held_out={self.held_out or 0:g}")
        return [*found, held_out, *(fact for fact, is_given in given.items() if is_given)]

    @property
    def heads(self) -> tuple[str, ...]:
        """The scores where `score` is a list, each of a head; else empty."""
        is_list = isinstance(self.score, Sequence) and not isinstance(self.score, str)
        return tuple(map(str, self.score)) if is_list else ()

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else list(self.path)

    def of_episodes(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        """Groups of the recorded episodes of one prompt, whose returns are their scores."""
        raise NotImplementedError

    def judged(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        """Groups of the recorded episodes of a prompt that is held out: all of them, as all pairs are compared."""
        yield episodes

    def side(self, prompt: str) -> str:
        """On which side a prompt is: ``train``, ``val`` or ``test``."""
        return side_of(prompt, self.held_out or 0.0)

    def of_row(self, row: Mapping[str, Any], read: Reader) -> Group:
        """The group of a row of a file.

        Args:
            row: its columns.
            read: makes an episode of messages; see `data.conversations.Reader`.

        Raises:
            BadRow: it cannot be trained on.
        """
        raise NotImplementedError


def _check_heads(heads: Sequence[str], kind: type[Kind]) -> None:
    told = f"score=[{','.join(heads)}]"
    if not kind.several:
        raise ValueError(
            f"{told} ranks answers in several ways, and data={kind.__name__.lower()} in one; set data=ranked, where "
            "each head has pairs of its own, or name one score"
        )
    if len(set(heads)) < len(heads) or len(heads) < 2:
        raise ValueError(f"{told} must name two scores or more, each once; one is written without brackets")
    if wrong := [name for name in heads if not _NAME.fullmatch(name)]:
        raise ValueError(
            f"{told}: {wrong[0][:40]!r} names metrics too; write letters, digits and _ alone, 32 at most"
        )


def side_of(prompt: str, held_out: float) -> str:
    """On which side a prompt is, ``train``, ``val`` or ``test``: the same one in every run."""
    drawn = seeds.draw_uniform(0, f"held out|{prompt}") if held_out else 1.0
    return "val" if drawn < held_out / 2 else "test" if drawn < held_out else "train"


def by_prompt(episodes: Iterable[Episode]) -> list[list[Episode]]:
    """The episodes of each prompt, in the order in which prompts first come."""
    found: dict[tuple[str, int], list[Episode]] = {}
    for episode in episodes:
        found.setdefault((episode.task_name, episode.instance_seed), []).append(episode)
    return list(found.values())


def replies(episode: Episode) -> tuple[tuple[int, ...], ...]:
    """What was sampled, by which two episodes of a prompt are told apart."""
    return tuple(tuple(turn.reply_tokens.tolist()) for turn in episode.turns)


def scored(episode: Episode, points: float) -> Episode:
    """The same episode, worth so much: its last turn has all of the points."""
    turns: list[Turn] = [replace(turn, shaped_reward=0.0) for turn in episode.turns]
    turns[-1].shaped_reward = points
    return replace(episode, turns=turns)
