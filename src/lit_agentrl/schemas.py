"""JSON schemas of tools: checked, and applied to calls, in bounded time, whoever wrote schema and call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

_SHOWN = 200  # characters of a value that a message repeats
_MOST_RULES = (
    20_000  # of a schema that are applied to one call, each time anew: references can double them endlessly
)
_LONGEST_PATTERN = 1000  # characters
_rules_left: ContextVar[int] = ContextVar("rules_left", default=_MOST_RULES)


def require_schema(schema: Mapping[str, Any]) -> None:
    """Checks the schema of an object.

    Raises:
        ValueError: it is none, would be fetched from elsewhere, or has a pattern that cannot be searched for in linear
            time; the message goes on after "the schema of …".
    """
    if schema.get("type") != "object":
        raise ValueError("must have type: object")
    try:
        _library().Draft202012Validator.check_schema(schema)
    except _library().SchemaError as error:
        raise ValueError(f"is invalid: {error.message}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if _refers_out(schema):  # the library would open it, be it a file or an address
        raise ValueError("refers to another document; write $ref: '#/…'")
    for pattern in patterns_of(schema):
        finder(pattern)


def why_not(arguments: Any, schema: Mapping[str, Any]) -> str:
    """Why these are no arguments of a tool; empty if they are.  Ones that the schema does not name are refused."""
    validator = _bounded()({"additionalProperties": False, **schema})
    before = _rules_left.set(_MOST_RULES)
    try:
        error = _library().exceptions.best_match(validator.iter_errors(arguments))
    except RecursionError:  # of a schema that refers to itself
        return "arguments are nested too deeply"
    except ArithmeticError:  # multipleOf of what no float holds
        return "a number is too large"
    except Exception as error:  # a $ref to nothing: a fault of the game, whose episode fails
        raise ValueError(f"the schema of a tool cannot be applied: {error}") from error
    finally:
        _rules_left.reset(before)
    return "" if error is None else _where(error)


@cache
def _bounded() -> Any:
    """The validator, with a bound on its work: a schema may come from a server, and arguments from anyone."""
    library = _library()
    rules = {
        **library.Draft202012Validator.VALIDATORS,
        "pattern": _pattern,
        "patternProperties": _named_by_patterns,
    }
    rules["additionalProperties"] = _further(rules["additionalProperties"])
    return library.validators.extend(
        library.Draft202012Validator, {name: _counted(rule) for name, rule in rules.items()}
    )


def _counted(rule: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def counted(*given: Any) -> Iterator[Any]:
        _rules_left.set(left := _rules_left.get() - 1)
        if left < 0:
            raise ValueError(f"it has more than {_MOST_RULES} rules for one call")
        yield from rule(*given) or ()

    return counted


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not finder(pattern)(instance):
        value = repr(instance)
        value = (
            value if len(value) <= _SHOWN // 4 else f"{value[: _SHOWN // 4]}…"
        )  # the reason is cut at its end
        yield _library().ValidationError(f"{value} does not match {pattern!r}")


def _named_by_patterns(
    validator: Any, schemas: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    for pattern, inner in schemas.items():
        for name in (
            [name for name in instance if finder(pattern)(name)] if isinstance(instance, dict) else ()
        ):
            yield from validator.descend(instance[name], inner, path=name, schema_path=pattern)


def _further(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The library's rule about properties that are not named, with names that patterns name taken away before."""

    def further(validator: Any, inner: Any, instance: Any, schema: Mapping[str, Any]) -> Any:
        patterns = schema.get("patternProperties", {})
        if patterns and isinstance(instance, dict):
            instance = {
                name: value
                for name, value in instance.items()
                if not any(finder(pattern)(name) for pattern in patterns)
            }
        plain = {"properties": schema.get("properties", {})}
        return rule(validator, inner, instance, plain)

    return further


def patterns_of(schema: Any) -> list[str]:
    """The regular expressions in a schema.

    Raises:
        ValueError: it has both of two rules that only the library's own way of searching, without a bound, supports.
    """
    inside, found = [schema], []
    keys: set[str] = set()
    while inside:
        each = inside.pop()
        if isinstance(each, Mapping):
            keys |= {str(key) for key in each}
            pattern, named = each.get("pattern"), each.get("patternProperties")
            found += [pattern] if isinstance(pattern, str) else []
            found += list(named) if isinstance(named, Mapping) else []
            inside += each.values()
        elif isinstance(each, list | tuple):
            inside += each
    if {"patternProperties", "unevaluatedProperties"} <= keys:
        raise ValueError("has both patternProperties and unevaluatedProperties; use one")
    return found


@lru_cache(maxsize=1024)
def finder(pattern: str) -> Callable[[str], Any]:
    r"""Searches a text for a pattern in time linear in both: neither can make a backtracking search explode.

    Raises:
        ValueError: the library is missing, or the pattern is too long or needs backtracking (``\\1``, ``(?=…)``).
    """
    try:
        import re2
    except ImportError as error:
        raise ValueError("has a pattern, which needs google-re2; pip install 'lit-agentrl[tools]'") from error
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = 2**20, True, False
    if len(pattern) > _LONGEST_PATTERN:
        raise ValueError(
            f"has the pattern {short(pattern)} of more than {_LONGEST_PATTERN} characters; shorten it"
        )
    try:
        return re2.compile(pattern, options).search  # type: ignore[no-any-return]
    except re2.error as error:
        raise ValueError(
            f"has the pattern {short(pattern)}, which cannot be searched for in linear time ({short(_said(error))}); "
            "write it without \\1 and (?=…)"
        ) from error


def _where(error: Any) -> str:
    """Place and reason; those of thousands of characters are cut."""
    return f"arguments{short(error.json_path.removeprefix('$'))}: {short(error.message)}"


def _said(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def short(text: str) -> str:
    """A text as messages show it."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _refers_out(schema: Any) -> bool:
    """Whether any part of a schema refers to another document."""
    inside = [schema]
    while inside:
        each = inside.pop()
        if isinstance(each, Mapping):
            refers = (each.get(key) for key in ("$ref", "$dynamicRef"))
            if any(isinstance(target, str) and not target.startswith("#") for target in refers):
                return True
            inside += each.values()
        elif isinstance(each, list | tuple):
            inside += each
    return False


@cache
def _library() -> ModuleType:
    import jsonschema  # only games with tools need it, and start-up is counted in milliseconds

    return jsonschema
