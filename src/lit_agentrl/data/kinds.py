"""Base class of data sets, which turn episodes into groups.

A data set is a class that inherits `Kind`, and a YAML file.
"""

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
from lit_agentrl.envs.tasks.row_formats import OWN_COLUMNS
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
_NAME = re.compile(r"\w{1,32}", re.ASCII)  # name of a head


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Base class of data sets.

    Attributes:
        path: a folder that `collect` wrote, a ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file, or a list of them.
        columns: name of a column that is read here -> its name in the files, with dots if nested, as in
            ``{prompt: question}``; None: the names are the same.
        batch: groups per iteration.
        max_bad_share: share of rows that may be bad; these are counted and left out.
        cache_reference: compute the log-probs of a fixed reference once, before the first step, and cache them.  True:
            in the run folder; a text: in this folder, shared with other runs.
        held_out: share of the prompts that are not trained on.  They validate a policy; for a reward model, one half
            validates and the other half tests.  A prompt is held out for all seeds.  None: 0.2 for a reward model, 0.1
            for a policy without a world, else 0.
        smallest: minimum group size.
        score: score of recorded episodes: ``return`` (reward), ``success`` (1 or 0) or ``cost`` (for a cost model:
            higher is worse; for rows of a file, their scores).  A list: one head of a reward model for each; for rows
            of a file these are names in their scores.
        scores: valid values of `score`.
        several: whether `score` may be a list.
        is_referred: answers are read after a reference answer, for a reward model that uses one.
        is_mixed: training also plays rollouts.
    """

    path: str | Sequence[str]
    columns: Mapping[str, str] | None = None
    batch: int = 16
    max_bad_share: float = 0.05
    score: str | Sequence[str] = "return"
    held_out: float | None = None
    cache_reference: bool | str = False
    smallest: ClassVar[int] = 1
    is_referred: ClassVar[bool] = False
    is_mixed: ClassVar[bool] = False
    scores: ClassVar[tuple[str, ...]] = ("return", "success", "cost")
    several: ClassVar[bool] = False
    renamed_members: ClassVar[Mapping[str, str]] = {  # names in version 0.2 -> current names
        "of_episodes": "make_groups", "of_row": "read_group", "judged": "make_held_out_groups", "side": "get_split",
    }  # fmt: skip

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: an option is invalid.
        """
        is_text = isinstance(self.path, str) and bool(self.path.strip())
        is_list = not isinstance(self.path, str | Mapping) and isinstance(self.path, Sequence)
        is_list = is_list and bool(self.path) and all(isinstance(path, str) and path for path in self.path)
        require(is_text or is_list, "path", self.path, "a folder or a file, or a list of them")
        _check_columns({} if self.columns is None else self.columns, (*OWN_COLUMNS, *self.heads))
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
            raise ValueError(f"cache_reference={folder} is a file; name a folder, which may be new")
        if self.held_out is not None:
            require_number("held_out", self.held_out, "in [0, 1), or null", lambda share: 0 <= share < 1)

    @property
    def requires(self) -> list[Fact | Requirement]:
        """Facts about the algorithm and the reference that the data needs."""
        requirements: list[Fact | Requirement] = []
        if self.cache_reference:
            by, off = (
                f"data.cache_reference={format_value(self.cache_reference)}",
                "data.cache_reference=false",
            )
            requirements += [
                Requirement(fact, by=by, remedy=off) for fact in (READS_REFERENCE, STILL_REFERENCE)
            ]
        if self.heads:
            by = f"data.score=[{','.join(self.heads)}]"
            requirements.append(
                Requirement(TRAINS_SCORES, by=by, reason="each has a head", remedy="one data.score")
            )
        if self.score == "cost":
            reason = "it ranks the worst first"
            requirements.append(
                Requirement(LEARNS_COSTS, by="data.score=cost", reason=reason, remedy="data.score=return")
            )
        if self.is_referred:
            requirements.append(Requirement(LEARNS_REFERRED, remedy="data=ranked"))
        if self.is_mixed:
            requirements.append(Requirement(TRAINS_POLICY, reason="it imitates in addition to playing"))
        return requirements

    @property
    def provides(self) -> list[Fact | Offer]:
        """Facts about the groups and scores that the data gives."""
        name = type(self).__name__.lower()
        size = Offer(GROUP_SIZE, self.smallest, f"data={name}, whose groups may be of {self.smallest}")
        facts: list[Fact | Offer] = [PLAYED] if self.is_mixed else [size, RECORDED, NO_IMITATION]
        is_given_by_fact = {
            HELD_REFERENCE: not self.cache_reference,
            COST_SCORES: self.score == "cost" or bool(self.heads),
            REFERRED: self.is_referred,
        }
        held_out = Offer(HELD_OUT, float(bool(self.held_out)), f"data.held_out={self.held_out or 0:g}")
        return [*facts, held_out, *(fact for fact, is_given in is_given_by_fact.items() if is_given)]

    @property
    def heads(self) -> tuple[str, ...]:
        """The scores of the heads if `score` is a list; else empty."""
        is_list = isinstance(self.score, Sequence) and not isinstance(self.score, str)
        return tuple(map(str, self.score)) if is_list else ()

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else list(self.path)

    def make_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        """Group the recorded episodes of one prompt; their returns are the scores."""
        raise NotImplementedError

    def make_held_out_groups(self, episodes: Sequence[Episode]) -> Iterator[Group]:
        """Group the episodes of a held-out prompt: all of them, since all pairs are compared."""
        yield episodes

    def get_split(self, prompt: str) -> str:
        """Return the split of a prompt: ``train``, ``val`` or ``test``."""
        return assign_split(prompt, self.held_out or 0.0)

    def read_group(self, row: Mapping[str, Any], reader: Reader) -> Group:
        """Make the group of a row of a file.

        Args:
            row: its columns.
            reader: converts messages to an episode; see `data.conversations.Reader`.

        Raises:
            BadRow: the row cannot be trained on.
        """
        raise NotImplementedError


def _check_columns(columns: object, own: Sequence[str]) -> None:
    require(isinstance(columns, Mapping), "columns", columns, "names by name, as in {prompt: question}")
    assert isinstance(columns, Mapping)
    for ours, theirs in columns.items():
        if ours not in own:
            raise ValueError(f"columns={{{ours}: …}}: no column {ours} is read; valid: {', '.join(own)}")
        is_name = isinstance(theirs, str) and bool(theirs.strip())
        require(is_name, f"columns.{ours}", theirs, "the name of a column, nested ones with dots")


def _check_heads(heads: Sequence[str], kind: type[Kind]) -> None:
    option = f"score=[{','.join(heads)}]"
    if not kind.several:
        raise ValueError(
            f"{option} needs a group for each head, and data={kind.__name__.lower()} has none; set data=ranked, where "
            "each head has its own pairs, or name one score"
        )
    if len(set(heads)) < len(heads) or len(heads) < 2:
        raise ValueError(f"{option} must name two scores or more, each once; one is written without brackets")
    if wrong := [name for name in heads if not _NAME.fullmatch(name)]:
        raise ValueError(
            f"{option}: {wrong[0][:40]!r} is part of metric names; write letters, digits and _ alone, 32 at most"
        )


def assign_split(prompt: str, held_out: float) -> str:
    """Assign a prompt to ``train``, ``val`` or ``test``, to the same one in every run."""
    drawn = seeds.draw_uniform(0, f"held out|{prompt}") if held_out else 1.0
    return "val" if drawn < held_out / 2 else "test" if drawn < held_out else "train"


def group_by_prompt(episodes: Iterable[Episode]) -> list[list[Episode]]:
    """Group episodes by prompt, in the order of first occurrence."""
    groups: dict[tuple[str, int], list[Episode]] = {}
    for episode in episodes:
        groups.setdefault((episode.task_name, episode.instance_seed), []).append(episode)
    return list(groups.values())


def list_replies(episode: Episode) -> tuple[tuple[int, ...], ...]:
    """List the sampled tokens of each turn, which identify an episode of a prompt."""
    return tuple(tuple(turn.reply_tokens.tolist()) for turn in episode.turns)


def set_return(episode: Episode, value: float) -> Episode:
    """Return a copy of the episode whose last turn has all of the reward."""
    turns: list[Turn] = [replace(turn, shaped_reward=0.0) for turn in episode.turns]
    turns[-1].shaped_reward = value
    return replace(episode, turns=turns)
