"""Evaluate every task of a world with a finite set of them, each once (``episodes=all``)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from lit_agentrl.checks import MOST_EPISODES
from lit_agentrl.config.errors import UserError
from lit_agentrl.data.prompts import EvalSpec, make_evaluation_key
from lit_agentrl.envs.base import Task

ALL = "all"  # value of ``episodes``


def choose_tasks(specs: Sequence[EvalSpec], tasks: Sequence[Task], split: str) -> list[EvalSpec]:
    """Return the specs with tasks that show each instance of a game once.

    Args:
        specs: the evaluated games.
        tasks: the games that they index.
        split: whose instances are played.

    Raises:
        UserError: a game does not number its instances, or has too many.
    """
    chosen = []
    for spec in specs:
        numbers = list_numbers(tasks[spec.task], split)
        chosen.append(replace(spec, prompts=len(numbers), numbers=numbers))
    return chosen


def list_numbers(task: Task, split: str) -> tuple[int, ...]:
    """Return the lowest number of a task for each instance, in their order.

    Tasks draw instances with replacement, so about n log n numbers are tried for n instances.

    Raises:
        UserError: the game does not number its instances, or has too many.
    """
    with closing(task.make(split)) as env:
        count = env.instances
        if count is None or env.locate(0) is None:
            raise UserError(
                f"episodes=all: {task.name} has no list of tasks to play once each; give a number, such as episodes=512"
            )
        if count > MOST_EPISODES:
            raise UserError(f"episodes=all: {task.name} has {count} tasks, and {MOST_EPISODES} is the most")
        number_by_instance: dict[int, int] = {}
        for number in itertools.count():
            instance = env.locate(make_evaluation_key("test", number))
            assert instance is not None
            number_by_instance.setdefault(instance, number)
            if len(number_by_instance) == count:
                return tuple(number_by_instance[instance] for instance in range(count))
    raise AssertionError("unreachable: count() does not end")
