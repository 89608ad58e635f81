"""Summaries of long episodes, which the policy writes, and from which it continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.checks import require, require_whole
from lit_agentrl.episode import PLANNER, Message, Segment, Turn
from lit_agentrl.requirements import Fact, Requirement
from lit_agentrl.rollout.hooks import Moment, PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill
from lit_agentrl.text.chat import ChatRenderer, Prefix
from lit_agentrl.text.context import Past

SUMMARIES = Fact("summaries", "turns that write summaries", "algo/structure=summary", "algo.structure")
BEGINS_WITH_SUMMARY = Fact(
    "begins with summary", "a context that goes on from a summary", "context=summary", "context"
)
_REQUEST = (
    "Your memory is nearly full, and all of the above will be forgotten. Write down in a few words all that you need "
    "to go on. Do not act yet: this reply is no turn."
)
_SHORT_REQUEST = "notes ?"


@dataclass(frozen=True)
class SummaryHook(PlayHook):
    """A hook that asks for a summary once a row holds ``tokens`` tokens.

    The game does not play the summary, which uses no turn of the game's budget.
    """

    tokens: int

    def is_summary_next(self, turns: Sequence[Turn]) -> bool:
        """Return whether the reply after these turns is a summary."""
        if not turns or turns[-1].player == PLANNER:
            return False
        return count_open_row_tokens(turns) >= self.tokens

    def before_turn(self, turn: Turn, turns: Sequence[Turn]) -> None:
        turn.player = PLANNER if self.is_summary_next(turns) else ""

    def is_action(self, turn: Turn) -> bool:
        return turn.player != PLANNER

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        if not self.is_summary_next(moment.turns):
            return written
        request = _SHORT_REQUEST if moment.prompt.style == "compact" else _REQUEST
        return [{"role": "user", "content": request}]


def count_open_row_tokens(turns: Sequence[Turn]) -> int:
    """Count the tokens of the row that the last turn belongs to."""
    count = 0
    for turn in reversed(turns):
        count += len(turn.prefix_tokens) + len(turn.reply_tokens)
        if turn.starts_row:
            break
    return count


class Summary(StructureHook, Refill):
    """A structure in which the policy summarises each row for the next one.

    Once the tokens of a row reach ``tokens``, the next message asks for a summary.  The summary is trained with the
    return of the episode, as any other reply.  The next row begins with the opening, the summary and the current
    message (`Summarised`).  A summary is recorded as a turn of the planner.  Groups are refilled as by `Refill`.

    Args:
        tokens: Tokens of a row after which a summary is asked for.
        train_summaries: Whether the loss includes the tokens of summaries.
        max_waves: See `Refill`.

    Raises:
        ValueError: A value is out of range.
    """

    requires = frozenset({BEGINS_WITH_SUMMARY})
    provides = Refill.provides | {SUMMARIES}
    curves = ("summaries", "summary_tokens")

    def __init__(self, tokens: int = 256, train_summaries: bool = True, max_waves: int | None = None) -> None:
        require_whole("tokens", tokens, 1)
        require(isinstance(train_summaries, bool), "train_summaries", train_summaries, "true or false")
        self._hook, self._trains = SummaryHook(tokens), train_summaries
        super().__init__(max_waves)

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        return self.plan_evaluation(super().plan(prompts, members))

    def plan_evaluation(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        return [replace(spec, extra=self._hook) for spec in specs]

    def mask_tokens(self, iteration: int, rows: TrajectoryBatch) -> Tensor | None:
        return None if self._trains else rows.is_action_BT & rows.is_plan_BT

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        played = [episode for episode in progress.sampled if not episode.failed]
        written = [turn for episode in played for turn in episode.turns if turn.player == PLANNER]
        return {
            "summaries": (len(written), len(played)),
            "summary_tokens": (sum(len(turn.reply_tokens) for turn in written), len(written)),
        }


@dataclass(frozen=True)
class Summarised:
    """A context of the opening, the last summary, and all turns since the summary.

    The thought of a summary is left out, as templates leave out the thoughts of earlier turns.

    Args:
        intro: Line before the summary; None: no line.

    Raises:
        ValueError: ``intro`` is neither a text nor None.
    """

    intro: str | None = "Your notes:"
    is_append_only: ClassVar[bool] = False
    shows_replies: ClassVar[bool] = True
    requires: ClassVar[frozenset[Fact | Requirement]] = frozenset({SUMMARIES})
    provides: ClassVar[frozenset[Fact]] = frozenset({BEGINS_WITH_SUMMARY})

    def __post_init__(self) -> None:
        require(
            self.intro is None or isinstance(self.intro, str), "intro", self.intro, "a text, or null for none"
        )

    def prompt(self, past: Past, chat: ChatRenderer) -> Prefix:
        """Return the tokens of the new message, or the prompt of a new row."""
        if not past.turns:
            return past.pieces[0]
        if past.turns[-1].player != PLANNER:
            return replace(past.pieces[-1], continues=True)
        return chat.render_opening(self._begin(past, read_summary(past.turns[-1], chat)))

    def _begin(self, past: Past, summary: str) -> list[Message]:
        parts = (self.intro, summary, past.messages[-1])
        return past.opening(message="\n".join(filter(None, parts)))


def read_summary(turn: Turn, chat: ChatRenderer) -> str:
    """Return the text of a reply without its thought and its end tokens."""
    pairs = zip(turn.reply_tokens.tolist(), turn.reply_segments.tolist(), strict=True)
    left_out = chat.end_of_turn_ids
    shown = [token for token, segment in pairs if segment != Segment.THINK and token not in left_out]
    return chat.decode(shown).strip()
