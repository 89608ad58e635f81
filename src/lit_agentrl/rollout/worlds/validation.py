"""Checks of what a game returns; errors of users' games are reported in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

OF_STEP = "observation, reward, terminated, truncated, info"


def check_returned(call: str, given: Any, expected: str) -> Any:
    """Return the parts that a game returned, checked against ``expected``.

    Their number must match, and the last one must be an info dict.

    Raises:
        ValueError: The game returned another form.
    """
    if not isinstance(given, tuple | list) or len(given) != expected.count(",") + 1:
        raise ValueError(f"{call} must return ({expected}), and returned {_describe_value(given)}")
    if not isinstance(given[-1], Mapping):
        raise ValueError(f"the info of {call} must be a dict, not {_describe_value(given[-1])}")
    return given


def is_solved(info: Mapping[str, Any]) -> bool:
    """Return whether the info of the last step says that the game is solved."""
    if "success" not in info:
        raise ValueError("the info of the last step must say whether the game is solved: info['success']")
    return bool(info["success"])


def read_reward_parts(info: Mapping[str, Any], reward: float) -> dict[str, float]:
    """Return the parts of a reward by name."""
    parts = info.get("reward_parts", {"reward": reward})
    if not isinstance(parts, Mapping):
        raise ValueError(f"info['reward_parts'] must be a dict of numbers, not {_describe_value(parts)}")
    return {str(name): read_number(f"reward_parts.{name}", value) for name, value in parts.items()}


def read_cost(info: Mapping[str, Any]) -> float | None:
    """Return the cost of a step, or None if the game reports none."""
    return None if "cost" not in info else read_number("info['cost']", info["cost"])


def read_counts(info: Mapping[str, Any]) -> dict[str, float]:
    """Return what a step counts by name; empty if the game counts nothing."""
    counts = info.get("counts", {})
    if not isinstance(counts, Mapping):
        raise ValueError(f"info['counts'] must be a dict of numbers, not {_describe_value(counts)}")
    return {str(name): read_number(f"counts.{name}", value) for name, value in counts.items()}


def read_scenario(info: Mapping[str, Any]) -> tuple[str, int]:
    """Return a task's scenario and its number of tasks; empty and 0 without one."""
    if "scenario" not in info:
        return "", 0
    tasks = info.get("scenario_tasks")
    if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 1:
        raise ValueError(
            f"info['scenario_tasks'] must be the number of tasks of the scenario, not {_describe_value(tasks)}"
        )
    return str(info["scenario"]), tasks


def _describe_value(given: Any) -> str:
    """Describe a value of any type in a few characters of one line."""
    text = " ".join(repr(given).split())
    text = text if len(text) <= 40 else text[:40] + "…"
    return text if given is None else f"{type(given).__name__} {text}"


def make_readable(observation: str) -> str:
    """Return an observation as text that a tokenizer can encode.

    Raises:
        ValueError: The observation is not a text.
    """
    if not isinstance(observation, str):
        raise ValueError(f"the observation must be a str, not {_describe_value(observation)}")
    return observation.encode("utf-8", "replace").decode()  # a lone surrogate is not a character


def read_number(name: str, value: Any) -> float:
    """Return one finite number of reward."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last for several numbers
        raise ValueError(f"{name} must be one number, not {_describe_value(value)}") from error
    if not math.isfinite(number):
        raise ValueError(f"{name}={number} must be finite")
    return number
