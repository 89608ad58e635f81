"""What a game gives back, checked: whatever a user's game says is told in one line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

OF_STEP = "observation, reward, terminated, truncated, info"


def returned(call: str, given: Any, what: str) -> Any:
    """What a game gave back, if it is so many things, the last of them ``info``.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(given, tuple | list) or len(given) != what.count(",") + 1:
        raise ValueError(f"{call} must return ({what}), and returned {_told(given)}")
    if not isinstance(given[-1], Mapping):
        raise ValueError(f"the info of {call} must be a dict, not {_told(given[-1])}")
    return given


def is_solved(info: Mapping[str, Any]) -> bool:
    """What the last step says."""
    if "success" not in info:
        raise ValueError("the info of the last step must say whether the game is solved: info['success']")
    return bool(info["success"])


def points(info: Mapping[str, Any], reward: float) -> dict[str, float]:
    """The parts of a reward."""
    parts = info.get("reward_parts", {"reward": reward})
    if not isinstance(parts, Mapping):
        raise ValueError(f"info['reward_parts'] must be a dict of numbers, not {_told(parts)}")
    return {str(name): finite(f"reward_parts.{name}", points) for name, points in parts.items()}


def cost_of(info: Mapping[str, Any]) -> float | None:
    """What a step costs, where the game tells it."""
    return None if "cost" not in info else finite("info['cost']", info["cost"])


def _told(given: Any) -> str:
    """A value of any kind, in a few characters of one line."""
    text = " ".join(repr(given).split())
    text = text if len(text) <= 40 else text[:40] + "…"
    return text if given is None else f"{type(given).__name__} {text}"


def readable(observation: str) -> str:
    """As a tokenizer can take it.

    Raises:
        ValueError: it is no text.
    """
    if not isinstance(observation, str):
        raise ValueError(f"the observation must be a str, not {_told(observation)}")
    return observation.encode("utf-8", "replace").decode()  # half a character is none


def finite(name: str, points: Any) -> float:
    """One number of points."""
    try:
        number = float(points)
    except (TypeError, ValueError, RuntimeError) as error:  # the last is torch's, of several numbers
        raise ValueError(f"{name} must be one number, not {_told(points)}") from error
    if not math.isfinite(number):
        raise ValueError(f"{name}={number} must be finite")
    return number
