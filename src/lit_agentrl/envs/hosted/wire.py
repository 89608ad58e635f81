"""What a served game and who plays it say to each other: JSON objects, and what may stand in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolSpec
from lit_agentrl.checks import require
from lit_agentrl.envs.world import World

PROTOCOL = 1


def packed(value: Mapping[str, Any]) -> bytes:
    """As it is sent.

    Raises:
        ValueError: it holds what is no JSON, such as NaN.
    """
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def unpacked(text: bytes) -> dict[str, Any]:
    """What was sent.

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


def told(env: World) -> dict[str, Any]:
    """What a game says of its state now."""
    return {
        "format": env.action_format(),
        "names": env.action_names(),
        "tools": [{"name": t.name, "description": t.description, "schema": t.schema} for t in env.tools()],
        "rules": env.rules,
        "system_text": env.system_text,
        "state_key": int(env.state_key()),
    }


def tools_of(given: Any) -> tuple[ToolSpec, ...]:
    """Tools that a server tells.

    Raises:
        ValueError: they are none.
    """
    try:
        return tuple(ToolSpec(str(t["name"]), str(t["description"]), dict(t["schema"])) for t in given)
    except (TypeError, KeyError) as error:
        raise ValueError(f"tools={str(given)[:80]} are none: name, description and schema each") from error


def rng_of(state: Any) -> np.random.Generator:
    """The generator in a state that was sent.

    Raises:
        ValueError: it is no state of PCG64, numpy's own choice.
    """
    bits = np.random.PCG64(0)
    try:
        bits.state = state
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
        raise ValueError(f"rng is no state of PCG64 ({error})") from error
    return np.random.Generator(bits)


def object_in(answer: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object in an answer; empty where there is none.

    Raises:
        ValueError: it is something else.
    """
    value = answer.get(key, {})
    require(isinstance(value, dict), key, str(value)[:40], "an object, as the server says it")
    return value  # type: ignore[no-any-return]


def list_in(answer: Mapping[str, Any], key: str) -> list[Any]:
    """A list in an answer; empty where there is none.

    Raises:
        ValueError: it is something else.
    """
    value = answer.get(key, [])
    require(isinstance(value, list), key, str(value)[:40], "a list, as the server says it")
    return value  # type: ignore[no-any-return]


def text_in(answer: Mapping[str, Any], key: str) -> str:
    """A text in an answer.

    Raises:
        ValueError: it is something else.
    """
    value = answer.get(key)
    require(isinstance(value, str), key, str(value)[:40], "a text, as the server says it")
    return value  # type: ignore[return-value]
