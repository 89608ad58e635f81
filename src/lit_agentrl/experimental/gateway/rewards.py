"""Rewards of programs: posted rewards, and the result that ends an episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lit_agentrl.experimental.gateway.messages import BadRequest, shorten

MOST_REWARDS = 1000  # posted in one episode
_LARGEST = 1e30  # `MOST_REWARDS` rewards of this size have a finite sum in single precision
_LONGEST_ID = 200
_POSTED = {"reward", "completion_id", "reward_id"}
_RESULT = {"reward", "success", "reward_parts", "cost"}


@dataclass(frozen=True)
class PostedReward:
    """A reward for one call of an episode.

    Attributes:
        reward: A finite number.
        completion_id: Id of the reply that it credits; None: the latest reply.
        reward_id: Name of this reward in its episode; rewards of the same name count once.  None: no name.
    """

    reward: float
    completion_id: str | None = None
    reward_id: str | None = None


def read_posted(body: Any, key: str | None = None, *, is_retry: bool = False) -> PostedReward:
    """Read the body of a request to ``/v1/rewards``.

    Args:
        body: The body.
        key: The header ``Idempotency-Key``, which names the reward as ``reward_id`` does.
        is_retry: Whether the request says that it was sent before.

    Raises:
        BadRequest: The body is not ``{"reward": NUMBER}`` with optional ids, or a retry has no name.
    """
    if not isinstance(body, Mapping) or "reward" not in body:
        raise BadRequest('the body must be an object with a reward, as {"reward": 0.5}')
    if unknown := sorted(set(body) - _POSTED):
        raise BadRequest(
            f"{unknown[0]} is not supported; a reward has the keys reward, completion_id and reward_id"
        )
    completion = body.get("completion_id")
    if not isinstance(completion, str | None):
        raise BadRequest(f"completion_id={shorten(completion)} must be the id of a reply")
    name = _read_reward_id(body.get("reward_id"), key)
    if is_retry and name is None:
        raise BadRequest(
            "a retry of a reward without a reward_id might count twice; give a reward_id, or set max_retries=0"
        )
    try:
        return PostedReward(_read_number("reward", body["reward"]), completion, name)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def _read_reward_id(given: Any, key: str | None) -> str | None:
    if given is not None and key is not None and given != key:
        raise BadRequest(
            f"reward_id={shorten(given)} and Idempotency-Key={shorten(key)} name two rewards; give one of them"
        )
    name = key if given is None else given
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= _LONGEST_ID):
        raise BadRequest(f"reward_id={shorten(name)} must be a text of 1 to {_LONGEST_ID} characters")
    return name


def read_result(result: Any, posted: float) -> tuple[float, dict[str, Any]]:
    """Return the reward of a result, and the info of the last step.

    Args:
        result: Result of the program: a number, or an object with a reward.
        posted: Sum of the posted rewards.  Unless the result says so, ``reward + posted > 0`` is a success.

    Raises:
        ValueError: The result is neither a number nor such an object, or a value has a wrong type.
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
    """Convert a value to a finite float; refuse texts and booleans."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name}={shorten(value)} must be a number")
    if not abs(value) <= _LARGEST:  # true for NaN as well
        raise ValueError(f"{name}={shorten(value)} must be finite, and at most {_LARGEST:g} in size")
    return float(value)
