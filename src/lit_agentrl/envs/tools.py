"""Tools made of Python functions, whose schemas come from type hints."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any, get_type_hints

from lit_agentrl.actions import BadCall, ToolSpec
from lit_agentrl.schemas import shorten

_SECTION = re.compile(r"^(\w[\w ]*):\s*$")  # a heading of a docstring, such as Args:
_ARGUMENT = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


def describe_tool(function: Callable[..., Any]) -> ToolSpec:
    """Make a tool of a function: its name, docstring and type hints become the declaration.

    Hints may be anything that pydantic reads: models in models, enums, ``Literal``, ``Optional``, lists, ``Annotated``
    with ``pydantic.Field``.  The text under ``Args:`` describes the arguments.

    Args:
        function: a function or a method of an object.

    Raises:
        ValueError: an argument has no type, or one without a schema; the message names both.
    """
    name = getattr(function, "__name__", None)
    if name is None or not name.isidentifier():
        raise ValueError(f"tool {name or function!r} is no function with a name; write one with def")
    return _build(_get_function(function), inspect.ismethod(function))[0]


def call_tool(functions: Iterable[Callable[..., Any]], action: str) -> Any:
    """Call the function that an action names, with arguments converted to its types.

    Args:
        functions: those given to `describe_tool`.
        action: a call as `World.step` gets it.

    Returns:
        What the function returned, or a `BadCall` if a validator of a model refuses an argument.

    Raises:
        KeyError: no function has that name.
    """
    call = json.loads(action)
    function = {each.__name__: each for each in functions}[call["name"]]
    _, model = _build(_get_function(function), inspect.ismethod(function))
    try:
        given = model.model_validate(call["arguments"])
    except _import_pydantic().ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
        reason = f"arguments{shorten(place)}: {shorten(first['msg'])}"
        return BadCall("bad_arguments", f"{function.__name__} was called wrongly: {reason}")
    # models and enums stay objects; arguments that were left out take their defaults
    return function(**{field.alias: getattr(given, name) for name, field in type(given).model_fields.items()})


def _get_function(function: Callable[..., Any]) -> Any:
    return getattr(function, "__func__", function)


@lru_cache(maxsize=1024)
def _build(function: Any, is_method: bool) -> tuple[ToolSpec, Any]:
    """Build the declaration of a function, and the model that reads its arguments."""
    pydantic, name = _import_pydantic(), function.__name__
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ValueError(
            f"tool {name}: a type hint cannot be read: {error}; import it in its module"
        ) from error
    text, descriptions = _read_docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[is_method:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(
                f"tool {name}: {parameter} cannot be given by name; list its arguments one by one"
            )
        if parameter.name not in hints:
            raise ValueError(
                f"tool {name}: argument {parameter.name} has no type; write {parameter.name}: str, or another"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        described = {"description": descriptions[parameter.name]} if parameter.name in descriptions else {}
        field = pydantic.Field(default, alias=parameter.name, **described)
        # pydantic reserves some names, so fields are numbered and arguments are their aliases
        fields[f"argument_{len(fields)}"] = (hints[parameter.name], field)
    if unknown := sorted(descriptions.keys() - {field.alias for _, field in fields.values()}):
        raise ValueError(
            f"tool {name}: its docstring describes {unknown[0]}, which is no argument; correct it"
        )
    try:
        model = pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema()
    except pydantic.errors.PydanticUserError as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise ValueError(
            f"tool {name}: an argument has no JSON schema: {reason}; give it another type"
        ) from error
    return ToolSpec(name, text, _clean_schema(schema, is_properties=False)), model


def _clean_schema(schema: Any, *, is_properties: bool) -> Any:
    """Remove generated titles, and refuse unknown keys of nested models, which would be lost silently."""
    if isinstance(schema, list):
        return [_clean_schema(item, is_properties=False) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    tidied = {
        key: _clean_schema(value, is_properties=key in ("properties", "$defs") and not is_properties)
        if key not in ("default", "const", "enum", "examples") or is_properties
        else value
        for key, value in schema.items()
        if is_properties or not (key == "title" and isinstance(value, str))
    }
    if not is_properties and schema.get("type") == "object" and "properties" in schema:
        tidied.setdefault("additionalProperties", False)
    return tidied


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the description of each argument."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if _SECTION.match(line)]
    head = " ".join(" ".join(lines[: heads[0] if heads else len(lines)]).split())
    descriptions: dict[str, str] = {}
    for number in heads:
        if lines[number].rstrip(": ") not in ("Args", "Arguments", "Parameters"):
            continue
        indent, name = None, ""
        for line in lines[number + 1 :]:
            if line.strip() and not line.startswith(" "):
                break
            depth = len(line) - len(line.lstrip())
            indent = depth if indent is None and line.strip() else indent
            found = _ARGUMENT.match(line.strip()) if depth == indent else None
            if found:
                name = found[1]
                descriptions[name] = found[2]
            elif name and line.strip():
                descriptions[name] = f"{descriptions[name]} {line.strip()}".strip()
    return head, descriptions


def _import_pydantic() -> ModuleType:
    try:
        import pydantic
    except ImportError as error:
        raise ImportError(
            "tools made of functions need pydantic; pip install 'lit-agentrl[tools]'"
        ) from error
    return pydantic
