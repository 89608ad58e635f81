"""A wrapper of any world, with a user who knows what the task leaves out."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from lit_agentrl import seeds
from lit_agentrl.actions import ToolCall, ToolSpec, read_call
from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.splits import stable_hash
from lit_agentrl.envs.world import World
from lit_agentrl.envs.wrapped import WrappedWorld
from lit_agentrl.experimental.users.speakers import (
    Question,
    Reply,
    Speaker,
    clean_text,
    find_mentioned,
    require_texts,
)

_log = logging.getLogger(__name__)
_ASK = "Ask"  # how a question begins where actions are names or texts
_TOOL = "ask_user"
_SCHEMA = {
    "type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"],
    "additionalProperties": False,
}  # fmt: skip
_MOST = 400  # characters of a question
_NUMBERS = {"number": r"\d+(?:\.\d+)?"}


class UserWorld(WrappedWorld):
    """A world whose opening hides facts that a user tells when asked.

    Each text of the opening that matches the expression of a slot is a fact.  A vague phrase stands in its place, in
    the opening and wherever the same line is shown again, until the user has revealed the fact.  A question is the
    action ``Ask NAME`` where actions are names, a text that begins with ``Ask:`` where they are texts, or a call of the
    tool ``ask_user``.  It uses up an action, does not reach the world and earns 0.  The policy then reads the answer
    and, unless actions are tool calls, the last observation again.

    ``info["counts"]`` has ``questions``, ``facts_revealed`` and ``user_failures`` (questions without an answer).
    Phrases are drawn by ``seed``, and answers by ``seed``, ``noise_seed`` and the number of the question.  Best play
    asks for each fact once, and then plays as in the world.

    Args:
        world: the world that is wrapped.
        speaker: who answers.
        slots: name of a fact, and the regular expression of its text; if it has a group, the first one is the fact.
            None: each number is a fact ``number``.
        vague: phrases in place of a fact, with ``{slot}``.
        most_questions: questions that are answered in an episode.
        tired: the answer to later questions.
        unavailable: what the policy reads if no answer came.

    Raises:
        ValueError: an option has another form, or the world has a tool of the same name.
    """

    def __init__(
        self,
        world: World,
        *,
        speaker: Speaker,
        slots: Mapping[str, str] | None = None,
        vague: Sequence[str] = ("some {slot}",),
        most_questions: int = 8,
        tired: str = "I have told you enough.",
        unavailable: str = "The user does not answer.",
    ) -> None:
        super().__init__(world)
        slots = _NUMBERS if slots is None else slots
        require(isinstance(slots, Mapping) and bool(slots), "slots", slots, "NAME: EXPRESSION, at least one")
        for name, pattern in slots.items():
            is_name = isinstance(name, str) and name == name.strip() and name.isprintable() and bool(name)
            require(is_name, "slots", name, "names of visible characters")
            require(_is_expression(pattern), f"slots.{name}", pattern, "a regular expression")
        require_texts("vague", vague, "{slot}")
        require_whole("most_questions", most_questions, 1)
        require_texts("tired", [tired])
        require_texts("unavailable", [unavailable])
        self._speaker, self._vague, self._most = speaker, tuple(vague), most_questions
        self._slots = {name: re.compile(pattern) for name, pattern in slots.items()}
        self._tired, self._unavailable = tired, unavailable
        self.max_solution = world.max_solution + len(slots)
        self._key, self._task, self._seen = 0, "", ""
        self._lines: dict[str, list[list[str]]] = {}  # by line of the opening: pieces [text, slot or ""]
        self._phrases: dict[str, str] = {}
        self._facts: dict[str, list[str]] = {}
        self._revealed: list[str] = []
        self._asked_for: list[str] = []
        self._earlier: list[list[str]] = []  # questions and answers

    # ------------------------------------------------------------------ play
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        seed = self.choose_seed(seed)
        self._seen, info = self._world.reset(seed=seed, options=options)
        if any(tool.name == _TOOL for tool in self._world.tools()):
            raise ValueError(f"the world has a tool {_TOOL} of its own; leave user out")
        self._key = seeds.make_key(seed, "user", (options or {}).get("noise_seed", seed))
        self._task, self._revealed, self._asked_for, self._earlier = self._seen, [], [], []
        self._facts, self._lines = {}, {}
        for line in self._seen.split("\n"):
            if (pieces := self._split(line)) is not None:
                self._lines[line] = pieces
        for text, name in (piece for pieces in self._lines.values() for piece in pieces):
            values = self._facts.setdefault(name, []) if name else [text]
            if text not in values:
                values.append(text)
        self._phrases = {
            name: self._vague[seeds.make_key(seed, "vague", index) % len(self._vague)].replace("{slot}", name)
            for index, name in enumerate(self._facts)
        }
        if not self._facts:
            _warn_of_nothing_hidden(tuple(pattern.pattern for pattern in self._slots.values()))
        return self._hide(self._seen), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        counts = {"questions": 0.0, "facts_revealed": 0.0, "user_failures": 0.0}
        question = self._read_question(action)
        if question is None:
            self._seen, reward, terminated, truncated, info = self._world.step(action)
            counts = {**info.get("counts", {}), **counts}
            return self._hide(self._seen), reward, terminated, truncated, {**info, "counts": counts}
        reply = self._answer(question)
        new = [name for name in reply.revealed if name not in self._revealed]
        self._revealed += new
        self._asked_for += [n for n in find_mentioned(question, self._facts) if n not in self._asked_for]
        text = self._unavailable if reply.text is None else reply.text
        self._earlier.append([question, text])
        counts = {
            "questions": 1.0, "facts_revealed": float(len(new)), "user_failures": float(reply.text is None),
        }  # fmt: skip
        shown = text if self.action_format() == "tools" else f"User: {text}\n{self._hide(self._seen)}"
        return shown, 0.0, False, False, {"success": False, "reward_parts": {}, "counts": counts}

    def _answer(self, question: str) -> Reply:
        if len(self._earlier) >= self._most:
            return Reply(self._tired)
        number = len(self._earlier)
        earlier = [(asked, said) for asked, said in self._earlier]
        key = seeds.make_key(self._key, "answer", number)
        return self._speaker.answer(Question(question, self._task, self._facts, earlier, key))

    def _read_question(self, action: str) -> str | None:
        """Return the question that an action asks, or None."""
        kind = self._world.action_format()
        if kind == "tools":
            call = read_call(action, self.tools())
            if not isinstance(call, ToolCall) or call.name != _TOOL:
                return None
            return clean_text(call.arguments["question"], _MOST)
        if kind == "names":
            asked = {f"{_ASK} {name}".lower(): name for name in self._facts}
            return f"What is the {asked[action.lower()]}?" if action.lower() in asked else None
        start, colon, rest = action.partition(":")
        return clean_text(rest, _MOST) if colon and start.strip().lower() == _ASK.lower() else None

    # ------------------------------------------------------------------ what is hidden
    def _split(self, line: str) -> list[list[str]] | None:
        """Split a line into facts and the texts between them; None without facts."""
        spans: list[tuple[int, int, str]] = []
        for name, pattern in self._slots.items():
            for match in pattern.finditer(line):
                start, end = match.span(1 if pattern.groups else 0)
                is_free = all(end <= first or start >= last for first, last, _ in spans)
                if start < end and is_free:
                    spans.append((start, end, name))
        if not spans:
            return None
        pieces, place = [], 0
        for start, end, name in sorted(spans):
            pieces += [[line[place:start], ""], [line[start:end], name]]
            place = end
        return [*pieces, [line[place:], ""]]

    def _hide(self, text: str) -> str:
        """Replace unrevealed facts by phrases in all lines of the opening."""
        return "\n".join(
            "".join(self._phrases[n] if n and n not in self._revealed else t for t, n in self._lines[line])
            if line in self._lines
            else line
            for line in text.split("\n")
        )

    # ------------------------------------------------------------------ what the policy reads of the world
    @property
    def rules(self) -> str:
        return f"{self._world.rules}\n{self._explain()}".strip()

    @property
    def system_text(self) -> str | None:
        text = self._world.system_text
        return None if text is None else f"{text}\n{self._explain()}"

    def _explain(self) -> str:
        way = {"tools": f"call {_TOOL}", "names": f"{_ASK} and its name", "text": f"reply {_ASK}: QUESTION"}
        kind = self._world.action_format()
        return f"The task may leave out facts that the user knows. To ask the user for one, {way[kind]}."

    def action_names(self) -> list[str] | None:
        names = self._world.action_names()
        if names is None or self._world.action_format() != "names":
            return names
        return [*names, *(f"{_ASK} {name}" for name in self._facts)]

    def tools(self) -> Sequence[ToolSpec]:
        tools = self._world.tools()
        return [*tools, ToolSpec(_TOOL, "Ask the user a question.", _SCHEMA)] if tools else tools

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        require_whole("horizon", horizon, 1)
        names = [n for n in self._facts if n not in self._revealed and n not in self._asked_for]
        names = names[: max(self._most - len(self._earlier), 0)]
        if len(names) >= horizon:
            return None
        plan = self._world.optimal_actions(horizon=horizon - len(names))
        return None if plan is None else [*map(self._ask_for, names), *plan]

    def _ask_for(self, name: str) -> str:
        question, kind = f"What is the {name}?", self._world.action_format()
        if kind == "tools":
            return str(ToolCall(_TOOL, {"question": question}))
        return f"{_ASK} {name}" if kind == "names" else f"{_ASK}: {question}"

    # ------------------------------------------------------------------ state
    def state_key(self) -> int:
        key = self._world.state_key()
        return stable_hash(json.dumps([key, sorted(self._revealed)])) if key else 0

    def rekey(self, noise_seed: int) -> None:
        """Seed the answers, and all randomness of the world, with ``noise_seed``."""
        self._world.rekey(noise_seed)
        self._key = seeds.make_key(noise_seed, "user")

    def state_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, f"_{name}") for name in _STATE}
        return {"world": self._world.state_dict(), **json.loads(json.dumps(own))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._world.load_state_dict(state["world"])
        for name, value in json.loads(json.dumps({name: state[name] for name in _STATE})).items():
            setattr(self, f"_{name}", value)


_STATE = ("key", "task", "seen", "lines", "phrases", "facts", "revealed", "asked_for", "earlier")


@cache
def _warn_of_nothing_hidden(patterns: tuple[str, ...]) -> None:
    """Log once per process that an opening contains no facts."""
    _log.warning(
        "env.user.slots: %s match nothing in an opening, so the user knows nothing more there; change the expressions "
        "if none of the openings should be so",
        " and ".join(patterns),
    )


def _is_expression(pattern: Any) -> bool:
    try:
        re.compile(pattern)
    except (re.error, TypeError):
        return False
    return isinstance(pattern, str) and bool(pattern)
