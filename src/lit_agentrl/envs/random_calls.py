"""Random tool calls whose arguments follow the schemas of the tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lit_agentrl.actions import ToolCall, ToolSpec
from lit_agentrl.schemas import explain_mismatch

_TRIES = 20  # draws for one tool; its schema may refuse them all, for example by a pattern
_MAX_DEPTH = 8  # of nested arguments; a schema may refer to itself
_SIZE = 10  # number of steps in the range of a number without bounds
_LETTERS = "abcdefghij"


def draw_call(tools: Sequence[ToolSpec], rng: np.random.Generator) -> ToolCall | None:
    """Draw a call of one tool with arguments that its schema accepts.

    Returns:
        The call; None if no drawn arguments fit any tool, for example because texts must match a pattern.
    """
    for index in rng.permutation(len(tools)):
        tool = tools[index]
        for _ in range(_TRIES):
            arguments = _draw(tool.schema, tool.schema, rng, 0)
            if isinstance(arguments, dict) and not explain_mismatch(arguments, tool.schema):
                return ToolCall(tool.name, arguments)
    return None


def _draw(schema: Any, root: Mapping[str, Any], rng: np.random.Generator, depth: int) -> Any:
    """Draw a value that follows the common rules of a schema.

    Its other rules may still refuse the value.
    """
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return _draw(_find(reference, root), root, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "examples"):
        if values := schema.get(key):
            return values[rng.integers(len(values))]
    for key in ("anyOf", "oneOf", "allOf"):
        if choices := schema.get(key):
            return _draw(choices[rng.integers(len(choices))], root, rng, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind if isinstance(kind, str) else kind[rng.integers(len(kind))]
    if kind == "object":
        return _draw_object(schema, root, rng, depth)
    if kind == "array":
        length = _draw_length(schema, "minItems", "maxItems", rng)
        return [_draw(schema.get("items", {}), root, rng, depth + 1) for _ in range(length)]
    if kind in ("integer", "number"):
        return _draw_number(schema, rng, is_whole=kind == "integer")
    if kind == "string":
        length = _draw_length(schema, "minLength", "maxLength", rng)
        return "".join(_LETTERS[i] for i in rng.integers(len(_LETTERS), size=length))
    return bool(rng.integers(2)) if kind == "boolean" else None


def _find(reference: str, root: Any) -> Any:
    for key in reference.removeprefix("#").split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        root = root.get(name) if isinstance(root, Mapping) else None
    return root


def _draw_object(
    schema: Mapping[str, Any], root: Mapping[str, Any], rng: np.random.Generator, depth: int
) -> dict[str, Any]:
    """Draw all required properties, and each other one with probability 1/2."""
    required = schema.get("required", ())
    return {
        name: _draw(inner, root, rng, depth + 1)
        for name, inner in schema.get("properties", {}).items()
        if name in required or (depth < _MAX_DEPTH // 2 and rng.integers(2))
    }


def _draw_length(schema: Mapping[str, Any], least: str, most: str, rng: np.random.Generator) -> int:
    low = int(schema.get(least, 0))
    return int(rng.integers(low, min(int(schema.get(most, low + 3)), low + 3) + 1))


def _draw_number(schema: Mapping[str, Any], rng: np.random.Generator, *, is_whole: bool) -> int | float:
    """Draw a number within the bounds of a schema.

    A missing bound is placed at a distance of `_SIZE` steps from the other bound, or from 0.
    """
    step = schema.get("multipleOf", 1 if is_whole else 0.1)
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    if low is None:
        low = 0 if high is None else high - _SIZE * step
    if high is None:
        high = low + _SIZE * step
    first = int(np.ceil(low / step))
    value = step * int(rng.integers(first, max(int(np.floor(high / step)), first) + 1))
    return int(value) if is_whole else float(value)
