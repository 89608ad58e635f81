"""Messages between a served game and its players: JSON objects and their parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolSpec
from lit_agentrl.checks import require
from lit_agentrl.envs.world import World

PROTOCOL = 1


def serialize(value: Mapping[str, Any]) -> bytes:
    """Serialize a message.

    Raises:
        ValueError: it holds a value that is no JSON, such as NaN.
    """
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def parse(text: bytes) -> dict[str, Any]:
    """Parse a message.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def describe_state(env: World) -> dict[str, Any]:
    """Describe what a player may know of the game's current state."""
    return {
        "format": env.action_format(),
        "names": env.action_names(),
        "tools": [{"name": t.name, "description": t.description, "schema": t.schema} for t in env.tools()],
        "rules": env.rules,
        "system_text": env.system_text,
        "state_key": int(env.state_key()),
    }


def parse_tools(value: Any) -> tuple[ToolSpec, ...]:
    """Parse the tools that a server describes.

    Raises:
        ValueError: they are no tools.
    """
    try:
        return tuple(ToolSpec(str(t["name"]), str(t["description"]), dict(t["schema"])) for t in value)
    except (TypeError, KeyError) as error:
        raise ValueError(f"tools={str(value)[:80]} are none: name, description and schema each") from error


def restore_rng(state: Any) -> np.random.Generator:
    """Restore a random generator from its state.

    Raises:
        ValueError: it is no state of PCG64, numpy's default.
    """
    bits = np.random.PCG64(0)
    try:
        bits.state = state
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
        raise ValueError(f"rng is no state of PCG64 ({error})") from error
    return np.random.Generator(bits)


def get_object(answer: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an object of an answer; empty if it is missing.

    Raises:
        ValueError: it is no object.
    """
    value = answer.get(key, {})
    require(isinstance(value, dict), key, str(value)[:40], "an object, as the server says it")
    return value  # type: ignore[no-any-return]


def get_list(answer: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of an answer; empty if it is missing.

    Raises:
        ValueError: it is no list.
    """
    value = answer.get(key, [])
    require(isinstance(value, list), key, str(value)[:40], "a list, as the server says it")
    return value  # type: ignore[no-any-return]


def get_text(answer: Mapping[str, Any], key: str) -> str:
    """Return a text of an answer.

    Raises:
        ValueError: it is no text.
    """
    value = answer.get(key)
    require(isinstance(value, str), key, str(value)[:40], "a text, as the server says it")
    return value  # type: ignore[return-value]
