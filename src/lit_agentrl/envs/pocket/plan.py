"""A task: what is asked, the calls that do it, and the checks of what was done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolCall
from lit_agentrl.envs.pocket.apps import bank, calendar, contacts, files, messages, music, notes, shop
from lit_agentrl.envs.pocket.phone import Api, Phone, Refused, changes

FINISH = "finish"
APPS = (contacts, messages, calendar, notes, bank, shop, music, files)
APIS: Mapping[str, Api] = {each.spec.name: each for app in APPS for each in app.APIS}


Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Plan:
    """A task on a phone.

    Attributes:
        asks: what the user wants.
        calls: a way to do it, as ``(name, arguments)``.
        answer: what has to be told at the end; None: nothing.
    """

    asks: str
    calls: Sequence[tuple[str, Mapping[str, Any]]]
    answer: str | None = None


# Changes the phone as the task needs it, and says what to do. Its last argument is 0, 1 or 2: 2 is the odd case.
Template = Callable[[Phone, np.random.Generator, int], Plan]


@dataclass(frozen=True)
class Kind:
    """A template with what is known of it.

    Attributes:
        level: 1: one app; 2: two apps; 3: three apps or more, or many calls.
        apps: that it needs.
    """

    name: str
    level: int
    apps: tuple[str, ...]
    make: Template


def kind(level: int, *apps: str) -> Callable[[Template], Kind]:
    """Makes a `Kind` of a template."""
    return lambda make: Kind(make.__name__, level, apps, make)


def call(phone: Phone, name: str, arguments: Mapping[str, Any]) -> str:
    """What an app answers, as JSON."""
    try:
        return json.dumps(APIS[name].act(phone, **arguments), sort_keys=True)
    except Refused as refusal:
        return json.dumps({"error": str(refusal)})


def done(before: Phone, plan: Plan) -> Phone:
    """The phone after the calls of a plan.

    Raises:
        Refused: a call of it is refused, which is a fault of the template.
    """
    after = before.copy()
    for name, arguments in plan.calls:
        APIS[name].act(after, **arguments)
    return after


@dataclass(frozen=True)
class Verdict:
    """What was checked at the end.

    Attributes:
        reached: of the changes that are wanted, and the answer, how many were made, and of how many.
        stray: changes that nobody asked for.
    """

    reached: int
    wanted: int
    stray: int

    @property
    def success(self) -> bool:
        """All that is wanted, and nothing else."""
        return self.reached == self.wanted and not self.stray

    @property
    def share(self) -> float:
        """Of what is wanted; 0 as soon as anything else has changed."""
        return 0.0 if self.stray else self.reached / self.wanted


def judge(before: Phone, after: Phone, plan: Plan, answer: str) -> Verdict:
    """Compare what changed with what the calls of the plan change, and the answer with the right one."""
    wanted, made = changes(before, done(before, plan)), changes(before, after)
    is_right = plan.answer is not None and plain(answer) == plain(plan.answer)
    asked = plan.answer is not None
    return Verdict((wanted & made).total() + is_right, wanted.total() + asked, (made - wanted).total())


def plain(answer: str) -> str:
    """An answer as it is compared: case, spaces, a dollar sign and a full stop do not count."""
    return " ".join(answer.lower().replace("$", "").rstrip(". ").split())


def written(plan: Plan) -> list[str]:
    """The calls of a plan as actions, the last of which ends the task."""
    last = {} if plan.answer is None else {"answer": plan.answer}
    return [str(ToolCall(name, dict(arguments))) for name, arguments in (*plan.calls, (FINISH, last))]
