"""The grammar ``<think>free text</think><answer>action || action</answer>``.

:data:`DECISION_TABLE` lists every form of a reply; the first row that applies decides.  Two rows need a reason:

* *Two answer blocks* are invalid and play nothing.  If one of them were played, several answers would be a free way
  to hedge, and the policy could exploit the rule that picks one.
* *A missing think block* is accepted, since only a missing, empty or unknown answer is an error.  It is recorded, so
  that a policy that stops thinking is noticed.

The table holds for named actions.  If actions are free text or tool calls, an answer is one action: the whole text
between the tags, neither split nor stripped, including any tags in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lit_agentrl.actions import Actions, Format
from lit_agentrl.text.dialects.base import Reply
from lit_agentrl.text.dialects.blocks import (
    EXAMPLE_CALL,
    THINK_START,
    Block,
    Tag,
    TagStop,
    read_calls,
    write_think_lines,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TAG = Tag("answer", "answer")
VALID_PROBLEMS = frozenset({"", "no_think"})
COMPLAINTS = {
    "no_answer": "it had no answer block",
    "two_answers": "it had more than one answer block",
    "unclosed_answer": "its answer block was not closed",
    "nested_tags": "it had a tag inside the answer block",
    "empty_answer": "its answer block was empty",
    "empty_action": "it had nothing between two separators",
    "unknown_action": "it named an action that does not exist",
}
# problems of replies whose markup is correct
_WELL_FORMED = VALID_PROBLEMS | {
    "unknown_action", "empty_action", "empty_answer", "unknown_tool", "bad_arguments"
}  # fmt: skip

# Condition, example (of a game with the actions Up and Down), problem, actions played.
DECISION_TABLE: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("empty reply", "", "no_answer", ()),
    ("no answer tag", "<think>a wall</think>Up", "no_answer", ()),
    ("closing answer tag only", "<think>a wall</think>Up</answer>", "no_answer", ()),
    ("answer inside the think block only", "<think><answer>Up</answer></think>", "no_answer", ()),
    ("two answer blocks, think blocks aside", "<answer>Up</answer><answer>Up</answer>", "two_answers", ()),
    ("second answer block unclosed", "<answer>Up</answer><answer>Do", "two_answers", ()),
    ("answer block unclosed (truncated)", "<think></think><answer>Up || Do", "unclosed_answer", ()),
    ("a think or answer tag inside the answer", "<answer><think></think>Up</answer>", "nested_tags", ()),
    ("nothing but white space in the answer", "<think></think><answer> </answer>", "empty_answer", ()),
    ("nothing between two separators", "<answer>Up || || Down</answer>", "empty_action", ("Up",)),
    ("separator at the end", "<answer>Up ||</answer>", "empty_action", ("Up",)),
    ("a name the game does not know", "<answer>Up || Jump || Down</answer>", "unknown_action", ("Up",)),
    ("valid answer, no think block before it", "<answer>Up</answer>", "no_think", ("Up",)),
    ("valid answer, think block unclosed", "<think>a wall<answer>Up</answer>", "no_think", ("Up",)),
    (
        "answers in and after the think block",
        "<think><answer></answer></think><answer>Up</answer>",
        "",
        ("Up",),
    ),
    ("think block inside a think block", "<think>a<think>b</think>c</think><answer>Up</answer>", "", ("Up",)),
    ("opening think tag was forced", "a wall</think><answer>Up</answer>", "", ("Up",)),
    ("tags or names in another case", "<Think>a</THINK><ANSWER>uP</Answer>", "", ("Up",)),
    ("text around the blocks", "Well <think>a</think> so <answer>Up</answer> done.", "", ("Up",)),
    ("the format", "<think>a wall</think><answer>Up || Down</answer>", "", ("Up", "Down")),
)


@dataclass(frozen=True)
class Answer:
    """The grammar of the embedded policy: named actions between answer tags.

    Args:
        separator: Text between two named actions.

    Raises:
        ValueError: If the separator is blank.

    >>> Answer().parse("<answer>up || Jump</answer>", Actions("names", ("Up",)), think=False).actions
    ('Up',)
    """

    separator: str = "||"
    formats = frozenset[Format]({"names", "text", "tools"})
    think_start = THINK_START

    def __post_init__(self) -> None:
        if not self.separator.strip():
            raise ValueError(
                f"separator={self.separator!r} is blank; it must hold a visible character, such as '||'"
            )

    def instructions(self, actions: Actions, *, max_actions: int, think: bool) -> str:
        """See `Dialect`."""
        samples: Sequence[str] = actions.names[:2]
        if actions.format == "text":
            samples, max_actions = ["your action"], 1
        elif actions.format == "tools":
            samples, max_actions = [EXAMPLE_CALL], 1
        lines = write_think_lines(think)
        lines.append("Put your actions inside <answer> </answer>, once.")
        if max_actions > 1:
            lines.append(f"Separate actions by {self.separator}.")
        if actions.format == "names":
            lines.append(f"The actions are: {', '.join(actions.names)}.")
        elif actions.format == "tools":
            lines += ["An action is a call of one of these tools:", *(tool.text for tool in actions.tools)]
        example = self.write(samples[:max_actions], thought="what I see and why I act" if think else None)
        return "\n".join([*lines, "For example:", example])

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        """See `Dialect`.

        Raises:
            ValueError: If action names are ambiguous or contain the separator.  No ``text`` raises.
        """
        # raises for any reply if the names of the game are wrong
        names = _canonicalise_names(actions.names, self.separator)
        parts = TAG.find_parts(text, think=think)
        played: tuple[str, ...] = ()
        problem = _find_problem(parts.answers, may_hold_tags=actions.format != "names")
        complaint = COMPLAINTS.get(problem, "")
        if not problem:
            body = text[parts.answers[0].body_start : parts.answers[0].body_end]
            played, problem, complaint = self._read(body, actions, names)
        if not problem and think and not parts.has_think:
            problem = "no_think"
        is_valid = problem in VALID_PROBLEMS
        return Reply(
            is_valid, played, problem, parts.think, parts.has_think, problem in _WELL_FORMED, complaint
        )

    def _read(self, body: str, actions: Actions, names: dict[str, str]) -> tuple[tuple[str, ...], str, str]:
        """Return actions, problem and complaint of the text in the answer block."""
        if not body.strip():
            return (), "empty_answer", COMPLAINTS["empty_answer"]
        if actions.format == "text":
            return (body,), "", ""
        if actions.format == "tools":
            return read_calls(body, tools=actions.tools)
        played, problem = _read_names(body, names, self.separator)
        return played, problem, COMPLAINTS.get(problem, "")

    def rejected(self, action: str) -> tuple[str, str]:
        """See `Dialect`."""
        return "unknown_action", COMPLAINTS["unknown_action"]

    def spans(self, text: str, *, in_think: bool) -> list[Block]:
        """See `Dialect`."""
        return TAG.spans(text, in_think=in_think)

    def stop(self, tokenizer: PreTrainedTokenizerBase) -> TagStop:
        """Return the rule that ends a reply at ``</answer>``."""
        return TAG.stop(tokenizer)

    def write(self, actions: Sequence[str], *, thought: str | None) -> str:
        """See `Dialect`."""
        return TAG.write([f" {self.separator} ".join(actions)], thought=thought)


ANSWER = Answer()  # the default of callers without a config


def _find_problem(answers: Sequence[Block], *, may_hold_tags: bool) -> str:
    if problem := TAG.find_problem(answers):
        return problem
    return "nested_tags" if answers[0].has_tags and not may_hold_tags else ""


def _read_names(body: str, names: dict[str, str], separator: str) -> tuple[tuple[str, ...], str]:
    """Return the actions before the first invalid one, and the problem of that one."""
    actions: list[str] = []
    for part in body.split(separator):
        word = part.strip()
        if not word:
            return tuple(actions), "empty_action"
        if word.casefold() not in names:
            return tuple(actions), "unknown_action"
        actions.append(names[word.casefold()])
    return tuple(actions), ""


@lru_cache(maxsize=256)
def _canonicalise_names(action_names: tuple[str, ...], separator: str) -> dict[str, str]:
    names = {name.strip().casefold(): name for name in action_names}
    if "" in names or len(names) != len(action_names):
        raise ValueError(f"action_names={action_names!r} must be non-empty and differ in more than case")
    if any(separator in name for name in action_names):
        raise ValueError(f"action_names={action_names!r} must not contain the separator {separator!r}")
    return names
