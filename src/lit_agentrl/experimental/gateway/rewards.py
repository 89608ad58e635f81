"""Rewards of programs: those that are posted, and the result that ends an episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lit_agentrl.experimental.gateway.messages import BadRequest, shorten

MOST_REWARDS = 1000  # posted in one episode
_LARGEST = 1e30  # so many of them have a finite sum in single precision
_RESULT = {"reward", "success", "reward_parts", "cost"}


@dataclass(frozen=True)
class PostedReward:
    """A reward for one call of an episode.

    Attributes:
        reward: A finite number.
        completion_id: Id of the reply that it credits; None: the reply given last.
    """

    reward: float
    completion_id: str | None = None


def read_posted(body: Any) -> PostedReward:
    """Read the body of a request to ``/v1/rewards``.

    Raises:
        BadRequest: It is not ``{"reward": NUMBER}``, perhaps with a ``completion_id``.
    """
    if not isinstance(body, Mapping) or "reward" not in body:
        raise BadRequest('the body must be an object with a reward, as {"reward": 0.5}')
    if unknown := sorted(set(body) - {"reward", "completion_id"}):
        raise BadRequest(f"{unknown[0]} is not supported; a reward has the keys reward and completion_id")
    completion = body.get("completion_id")
    if not isinstance(completion, str | None):
        raise BadRequest(f"completion_id={shorten(completion)} must be the id of a reply")
    try:
        return PostedReward(_read_number("reward", body["reward"]), completion)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def read_result(result: Any, posted: float) -> tuple[float, dict[str, Any]]:
    """Return the reward of a result, and the info of a last step.

    Args:
        result: What the program gave: a number, or an object with a reward.
        posted: Sum of the rewards that it posted before, which count for its success.

    Raises:
        ValueError: It is neither, or a value has a wrong type.
    """
    if isinstance(result, bool | int | float):
        result = {"reward": result}
    if not isinstance(result, Mapping) or "reward" not in result or set(result) - _RESULT:
        raise ValueError(
            f"the result must be a number, or an object with reward and perhaps success, reward_parts and cost, not "
            f"{json.dumps(result)[:100]}"
        )
    reward = result["reward"]
    reward = float(reward) if isinstance(reward, bool) else _read_number("reward", reward)
    success = result.get("success", reward + posted > 0)
    if not isinstance(success, bool):
        raise ValueError(f"success={shorten(success)} must be true or false")
    info: dict[str, Any] = {"success": success}
    if "reward_parts" in result:
        parts = result["reward_parts"]
        if not isinstance(parts, Mapping):
            raise ValueError(f"reward_parts={shorten(parts)} must be an object of numbers")
        info["reward_parts"] = {
            name: _read_number(f"reward_parts.{name}", part) for name, part in parts.items()
        }
    if "cost" in result:
        info["cost"] = _read_number("cost", result["cost"])
    return reward, info


def _read_number(name: str, value: Any) -> float:
    """Return a finite number; texts and truth values are none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name}={shorten(value)} must be a number")
    if not abs(value) <= _LARGEST:  # also if it is no number
        raise ValueError(f"{name}={shorten(value)} must be finite, and at most {_LARGEST:g} in size")
    return float(value)
