"""A structure that improves the prompt with lessons instead of updating weights.

The policy writes the lessons itself, from groups in which some episodes fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require_whole
from lit_agentrl.distributed import gather_objects, get_rank
from lit_agentrl.episode import Message
from lit_agentrl.experimental import lessons
from lit_agentrl.experimental.lessons import (
    Operation,
    ask_for_lessons,
    ask_for_one_list,
    ask_for_operations,
    ask_for_summary,
    format_lessons,
)
from lit_agentrl.facts import IN_ORDER, LESSONS
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.hooks import Moment, PlayHook
from lit_agentrl.rollout.questions import Question
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress, group_episodes
from lit_agentrl.rollout.structures.hook import StructureHook
from lit_agentrl.rollout.structures.refill import Refill

_METRIC_NAMES = {
    "add": "added",
    "update": "updated",
    "delete": "deleted",
    "merge": "merged",
    "dropped": "dropped",
}


@dataclass(frozen=True)
class LessonsHook(PlayHook):
    """A hook that adds the lessons to the first prompt.

    The lessons follow the name of the game, or the system message.
    """

    lessons: str

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        if moment.turns:
            return written
        is_compact = moment.prompt.style == "compact"
        return add_text(
            written, moment, self.lessons if is_compact else f"Lessons of earlier episodes:\n{self.lessons}"
        )


def add_text(written: list[Message], moment: Moment, text: str) -> list[Message]:
    """Add a text below the game's name, or at the end of the system message."""
    first, *others = written
    if moment.prompt.style == "compact":
        name, _, rest = first["content"].partition("\n")
        return [first | {"content": f"{name}\n{text}\n{rest}"}, *others]
    if first["role"] == "system":
        return [first | {"content": f"{first['content']}\n\n{text}"}, *others]
    system = {"role": "system", "content": text}
    if "tools" in first:  # the first message declares the tools
        system["tools"] = first.pop("tools")
    return [system, first, *others]


class _Interview:
    """Rounds of questions to the policy, with counts of questions and tokens.

    All ranks must take part in each round.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.counts = dict.fromkeys(("asked", "unanswered", "asked_tokens", "answer_tokens"), 0)

    def ask(self, purpose: str, texts: Mapping[tuple[int, ...], str]) -> dict[tuple[int, ...], str]:
        """Return an answer to each text, each sampled with its own key."""
        seed, iteration = self._progress.seed, self._progress.iteration
        keys = [seeds.make_key(seed, f"experience/{purpose}", iteration, *address) for address in texts]
        answers = self._progress.ask(
            [Question(text, key) for text, key in zip(texts.values(), keys, strict=True)]
        )
        new = (len(texts), answers.texts.count(""), answers.num_read, answers.num_written)
        self.counts = {name: old + more for (name, old), more in zip(self.counts.items(), new, strict=True)}
        return dict(zip(texts, answers.texts, strict=True))


class Experience(StructureHook, Refill):
    """A structure that shows a list of lessons in the first prompt of every episode.

    Evaluations see the list too.  Training-Free GRPO, arXiv 2510.08191.  For each group in which some episodes solve
    the task and some do not, the policy is asked three times: for a summary of each episode; for at most ``lessons``
    lessons from all summaries and outcomes; and for operations on the list (add, update, delete, merge).  If several
    groups propose operations, the policy is asked once more to combine them into one list.  Operations are JSON and
    parsed strictly: an operation that cannot be parsed, or names a missing item, is dropped and counted.  Groups are
    refilled as by `Refill`.

    Args:
        max_items: maximum number of items in the list.
        max_chars: maximum length of an item in characters; longer items are dropped.
        lessons: maximum number of lessons per group.
        transcript: number of characters of an episode shown for its summary, from its beginning and its end.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range.
    """

    curves = (
        "items", "added", "updated", "deleted", "merged", "dropped", "mixed_share", "asked", "unanswered",
        "asked_tokens", "answer_tokens",
    )  # fmt: skip
    requires = frozenset(
        {Requirement(IN_ORDER, reason="it plans an iteration with the lessons of the previous one")}
    )
    provides = Refill.provides | {LESSONS}

    def __init__(
        self,
        *,
        max_items: int = 32,
        max_chars: int = 300,
        lessons: int = 2,
        transcript: int = 4000,
        max_waves: int | None = None,
    ) -> None:
        require_whole("max_items", max_items, 1)
        require_whole("max_chars", max_chars, 1)
        require_whole("lessons", lessons, 1)
        require_whole("transcript", transcript, 1)
        self._max_items, self._max_chars, self._lessons = max_items, max_chars, lessons
        self._transcript = transcript
        super().__init__(max_waves)
        self._items: dict[str, str] = {}

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        return self.plan_evaluation(super().plan(prompts, members))

    def plan_evaluation(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        return (
            [replace(spec, extra=LessonsHook(format_lessons(self._items))) for spec in specs]
            if self._items
            else specs
        )

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        groups, interview = group_episodes(progress.sampled), _Interview(progress)
        mixed = {
            g: episodes
            for g, episodes in groups.items()
            if 0 < sum(e.success for e in episodes) < len(episodes)
        }
        summaries = interview.ask(
            "summary",
            {
                (g, e.member): ask_for_summary(e, self._transcript)
                for g, episodes in mixed.items()
                for e in episodes
            },
        )
        new_lessons = interview.ask(
            "lessons",
            {
                (g,): ask_for_lessons(episodes, [summaries[g, e.member] for e in episodes], self._lessons)
                for g, episodes in mixed.items()
            },
        )
        answers = interview.ask(
            "operations", {key: ask_for_operations(self._items, text) for key, text in new_lessons.items()}
        )
        read = [(key, self._read(answer)) for key, answer in answers.items()]
        # all ranks must make the same changes to the list
        gathered = sorted(gather_objects(read), key=lambda entry: entry[0])
        operations, num_bad = self._combine_proposals(
            [proposal for _, (proposal, _) in gathered if proposal], interview
        )
        self._items, counts = lessons.apply_operations(self._items, operations, max_items=self._max_items)
        counts["dropped"] += num_bad + sum(bad for _, (_, bad) in gathered)
        is_first = float(get_rank() == 0)  # metrics are summed over ranks; shared ones count on rank 0 only
        return {
            "items": (is_first * len(self._items), is_first),
            **{name: (is_first * counts[kind], is_first) for kind, name in _METRIC_NAMES.items()},
            **{name: (number, is_first) for name, number in interview.counts.items()},
            "mixed_share": (len(mixed), len(groups)),
        }

    def _read(self, answer: str) -> tuple[list[Operation], int]:
        return lessons.parse_operations(answer, list(self._items), max_chars=self._max_chars)

    def _combine_proposals(
        self, proposals: list[list[Operation]], interview: _Interview
    ) -> tuple[list[Operation], int]:
        """Combine the operations that groups propose into one list.

        If the policy's answer holds no operations, the proposals are used in order.

        Returns:
            The operations, and the number of entries of the answer that were dropped.
        """
        is_asked = len(proposals) > 1 and get_rank() == 0
        answers = interview.ask(
            "one list", {(): ask_for_one_list(self._items, proposals)} if is_asked else {}
        )
        operations: list[Operation] = []
        num_bad = 0
        for answer in gather_objects(list(answers.values())):
            operations, num_bad = self._read(answer)
        return operations or [operation for proposal in proposals for operation in proposal], num_bad

    def state_dict(self) -> dict[str, Any]:
        return {"items": list(self._items.values())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        texts = [lessons.clean_lesson(str(text), self._max_chars) for text in state["items"]][
            : self._max_items
        ]
        self._items = {f"G{number}": text for number, text in enumerate(t for t in texts if t is not None)}

    def make_notes(self) -> Mapping[str, str]:
        return {"experience": "".join(f"{name}: {text}\n" for name, text in self._items.items())}
