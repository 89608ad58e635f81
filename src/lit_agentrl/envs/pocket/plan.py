"""Tasks on the phone: request, solution, and checks of the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolCall
from lit_agentrl.envs.pocket.apps import bank, calendar, contacts, files, messages, music, notes, shop
from lit_agentrl.envs.pocket.phone import Api, Phone, Refused, count_changes

FINISH = "finish"
APPS = (contacts, messages, calendar, notes, bank, shop, music, files)
APIS: Mapping[str, Api] = {each.spec.name: each for app in APPS for each in app.APIS}


Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Plan:
    """A task on a phone.

    Attributes:
        asks: the request of the user.
        calls: one solution, as ``(name, arguments)``.
        answer: the expected answer; None: none is expected.
    """

    asks: str
    calls: Sequence[tuple[str, Mapping[str, Any]]]
    answer: str | None = None


# Prepares the phone and returns the task.  Its last argument says whether this is the special case, which differs from
# the template's other tasks as its docstring says.
Template = Callable[[Phone, np.random.Generator, bool], Plan]


@dataclass(frozen=True)
class Kind:
    """A template of tasks with its properties.

    Attributes:
        level: 1: one app; 2: two apps; 3: three apps or more, or many calls.
        apps: apps that it needs.
    """

    name: str
    level: int
    apps: tuple[str, ...]
    make: Template


def declare(level: int, *apps: str, name: str = "") -> Callable[[Template], Kind]:
    """Return a decorator that makes a `Kind` of a template; default name: the function's."""
    return lambda make: Kind(name or make.__name__, level, apps, make)


def call(phone: Phone, name: str, arguments: Mapping[str, Any]) -> str:
    """Call an app and return its answer as JSON."""
    try:
        return json.dumps(APIS[name].act(phone, **arguments), sort_keys=True)
    except Refused as refusal:
        return json.dumps({"error": str(refusal)})


def is_refusal(answer: str) -> bool:
    """Return whether an answer of `call` says that the app refused it."""
    parsed = json.loads(answer)
    return isinstance(parsed, dict) and set(parsed) == {"error"}


def apply_plan(before: Phone, plan: Plan) -> Phone:
    """Return the phone after the calls of a plan.

    Raises:
        Refused: a call is rejected, which is an error in the template.
    """
    after = before.copy()
    for name, arguments in plan.calls:
        APIS[name].act(after, **arguments)
    return after


@dataclass(frozen=True)
class Verdict:
    """Result of the checks at the end.

    Attributes:
        reached: number of required changes that were made, plus 1 for a right answer.
        wanted: number of required changes, plus 1 if an answer is required.
        stray: number of changes that were not required.
    """

    reached: int
    wanted: int
    stray: int

    @property
    def success(self) -> bool:
        """True if everything required was done, and nothing else."""
        return self.reached == self.wanted and not self.stray

    @property
    def share(self) -> float:
        """Share of what was required; 0 once anything else has changed."""
        return 0.0 if self.stray else self.reached / self.wanted


def judge(before: Phone, after: Phone, plan: Plan, answer: str) -> Verdict:
    """Compare the changes with those of the plan, and the answer with the right one."""
    required, changed = count_changes(before, apply_plan(before, plan)), count_changes(before, after)
    is_right = plan.answer is not None and normalise_answer(answer) == normalise_answer(plan.answer)
    is_asked = plan.answer is not None
    return Verdict(
        (required & changed).total() + is_right, required.total() + is_asked, (changed - required).total()
    )


def normalise_answer(answer: str) -> str:
    """Normalise an answer: case, spaces, dollar signs and final full stops do not count."""
    return " ".join(answer.lower().replace("$", "").rstrip(". ").split())


def list_actions(plan: Plan) -> list[str]:
    """Convert a plan to actions, the last of which ends the task."""
    last = {} if plan.answer is None else {"answer": plan.answer}
    return [str(ToolCall(name, dict(arguments))) for name, arguments in (*plan.calls, (FINISH, last))]
