"""A structure in which the policy rewrites its replies before the game plays them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require, require_whole
from lit_agentrl.episode import PLANNER, Episode, FinishReason, Message, Segment, Turn
from lit_agentrl.facts import WHOLE_CONTEXT
from lit_agentrl.rollout.hooks import NO_HOOK, Moment, PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill

_REQUEST = (
    "Your reply has not been played yet. Say what is wrong with it, then write a better one in the same form. "
    "If nothing is wrong, {ending}give the same answer again."
)


def read_answer(turn: Turn) -> list[int]:
    """Return the tokens of a reply's answer; without one, all tokens after the thought."""
    is_answer = turn.reply_segments == Segment.ANSWER
    is_read = is_answer if is_answer.any() else turn.reply_segments != Segment.THINK
    answer: list[int] = turn.reply_tokens[is_read].tolist()
    return answer


def is_repeated(draft: Turn, turn: Turn) -> bool:
    """Return whether a reply gives the answer of the draft before it, token by token."""
    answer = read_answer(turn)
    return bool(answer) and answer == read_answer(draft)


@dataclass(frozen=True)
class RefineHook(PlayHook):
    """A hook that asks the policy to rewrite its reply until the game plays it.

    Attributes:
        rounds: maximum number of drafts before a reply that the game plays.
        stop: text, in lower case, that makes the game play a reply without further drafts; empty: no text.
    """

    rounds: int
    stop: str

    def needs_rewriting(self, turn: Turn, turns: Sequence[Turn]) -> bool:
        """Return whether the reply after ``turns`` is a draft."""
        drafts = list(takewhile(is_draft, reversed(turns)))
        if len(drafts) == self.rounds or turn.finish is FinishReason.CONTEXT:
            return False
        if not drafts:
            return True
        says_stop = bool(self.stop) and self.stop in turn.reply_text.lower()
        return not says_stop and not is_repeated(drafts[0], turn)

    def after_reply(self, turn: Turn, turns: Sequence[Turn]) -> None:
        turn.player = PLANNER if self.needs_rewriting(turn, turns) else ""

    def is_action(self, turn: Turn) -> bool:
        return not is_draft(turn)

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        if not moment.turns or not is_draft(moment.turns[-1]):
            return written
        if moment.prompt.style == "compact":
            # the embedded policy acts on the observation only if it ends the prompt
            budget = f"turns {moment.turns_left} actions {moment.actions_left}"
            text = f"refine\n{budget}\n{moment.observation}"
        else:
            text = _REQUEST.format(ending=f'say "{self.stop}" and ' if self.stop else "")
        return [{"role": "user", "content": text}]


class Refine(StructureHook, Refill):
    """A structure with a self-refine loop: Madaan et al., arXiv 2303.17651, and CoT-RO.

    A reply is first a draft, which the game does not play, and which uses no turn of the game's budget.  The policy
    reads the draft, criticises it and writes a new one, at most ``rounds`` times.  The loop ends early when a reply
    repeats the answer of its draft, contains ``stop``, or reaches the limit of the context.  The game plays the last
    reply.  The policy is trained on drafts as well as on replies that are played: a draft is credited with later
    rewards of the game, and with those of reward parts for its own tokens.  ``is_plan_BT`` marks drafts.  Evaluations
    are played in the same way.

    Departs: in most tasks of the paper, critique and new reply are two calls, with examples; here they are one reply
    without examples, as in its release for mathematics, whose ``stop`` is the default.  That release trains nothing.
    No primary source of CoT-RO is known: its rewards of tokens are those of ``reward=sentences``.

    Args:
        rounds: maximum number of drafts before a reply that is played; 0: independent episodes.
        stop: text, in any case, that makes the game play a reply without further drafts; None: no text.
        max_waves: see `Refill`.

    Raises:
        ValueError: ``rounds`` is negative, or ``stop`` is blank.
    """

    requires = frozenset({WHOLE_CONTEXT})
    curves = ("drafts", "changed_share")

    def __init__(
        self, *, rounds: int = 2, stop: str | None = "it is correct", max_waves: int | None = None
    ) -> None:
        require_whole("rounds", rounds, 0)
        is_text = stop is None or (isinstance(stop, str) and bool(stop.strip()))
        require(is_text, "stop", repr(stop), "a text that is not blank, or null for none")
        self._hook = RefineHook(rounds, (stop or "").lower()) if rounds else NO_HOOK
        super().__init__(max_waves)

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        return self.plan_evaluation(super().plan(prompts, members))

    def plan_evaluation(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        return [replace(spec, extra=self._hook) for spec in specs]

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        played = [episode for episode in progress.sampled if not episode.failed]
        rewritten = [pair for episode in played for pair in list_rewritten(episode)]
        return {
            "drafts": (sum(map(is_draft, (turn for e in played for turn in e.turns))), len(played)),
            "changed_share": (sum(not is_repeated(*pair) for pair in rewritten), len(rewritten)),
        }


def is_draft(turn: Turn) -> bool:
    """Return whether a turn is recorded as a draft."""
    return turn.player == PLANNER


def list_rewritten(episode: Episode) -> list[tuple[Turn, Turn]]:
    """Return each draft with the reply that follows it, which may be a draft too."""
    return [
        (draft, turn) for draft, turn in pairwise(episode.turns) if is_draft(draft) and len(turn.reply_tokens)
    ]
