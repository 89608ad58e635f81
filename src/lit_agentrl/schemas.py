"""Checks of JSON schemas of tools and of calls, in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

_SHOWN = 200  # characters of a text that a message quotes
_MAX_RULES = 20_000  # rules applied to one call: references can double their number endlessly
_MAX_PATTERN = 1000  # characters
_rules_left: ContextVar[int] = ContextVar("rules_left", default=_MAX_RULES)


def require_schema(schema: Mapping[str, Any]) -> None:
    """Check that a schema is valid, describes an object and refers to no other document.

    Raises:
        ValueError: the schema breaks one of these rules, or one of its patterns cannot be searched for in linear time;
            the caller puts the subject, "the schema of …", before the message.
    """
    if schema.get("type") != "object":
        raise ValueError("must have type: object")
    try:
        _import_library().Draft202012Validator.check_schema(schema)
    except _import_library().SchemaError as error:
        raise ValueError(f"is invalid: {error.message}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if _has_external_ref(schema):  # the library would open the file or the address
        raise ValueError("refers to another document; write $ref: '#/…'")
    for pattern in list_patterns(schema):
        compile_search(pattern)


def explain_mismatch(arguments: Any, schema: Mapping[str, Any]) -> str:
    """Return why arguments do not match the schema of a tool; empty if they do.

    Arguments that the schema does not name are refused.

    Raises:
        ValueError: the schema cannot be applied.
    """
    validator = _build_validator()({"additionalProperties": False, **schema})
    token = _rules_left.set(_MAX_RULES)
    try:
        error = _import_library().exceptions.best_match(validator.iter_errors(arguments))
    except RecursionError:  # the schema refers to itself
        return "arguments are nested too deeply"
    except ArithmeticError:  # multipleOf with a number that no float holds
        return "a number is too large"
    except Exception as error:  # a $ref that points nowhere is an error of the game, and its episode fails
        raise ValueError(f"the schema of a tool cannot be applied: {error}") from error
    finally:
        _rules_left.reset(token)
    return "" if error is None else _format_error(error)


@cache
def _build_validator() -> Any:
    """Build a validator with bounded work, because schemas and arguments are untrusted."""
    library = _import_library()
    rules = {
        **library.Draft202012Validator.VALIDATORS,
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
    }
    rules["additionalProperties"] = _exclude_pattern_properties(rules["additionalProperties"])
    return library.validators.extend(
        library.Draft202012Validator, {name: _count_applications(rule) for name, rule in rules.items()}
    )


def _count_applications(rule: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """Wrap a rule so that it stops the check after `_MAX_RULES` rules."""

    def apply_counted(*args: Any) -> Iterator[Any]:
        _rules_left.set(left := _rules_left.get() - 1)
        if left < 0:
            raise ValueError(f"it has more than {_MAX_RULES} rules for one call")
        yield from rule(*args) or ()

    return apply_counted


def _check_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not compile_search(pattern)(instance):
        value = repr(instance)
        # a long value would leave no room for the pattern, since `_format_error` cuts the end of the reason
        value = value if len(value) <= _SHOWN // 4 else f"{value[: _SHOWN // 4]}…"
        yield _import_library().ValidationError(f"{value} does not match {pattern!r}")


def _check_pattern_properties(
    validator: Any, schemas: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    for pattern, inner in schemas.items():
        for name in (
            [name for name in instance if compile_search(pattern)(name)] if isinstance(instance, dict) else ()
        ):
            yield from validator.descend(instance[name], inner, path=name, schema_path=pattern)


def _exclude_pattern_properties(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the library's rule ``additionalProperties`` so that it ignores names that match a pattern."""

    def check_additional(validator: Any, inner: Any, instance: Any, schema: Mapping[str, Any]) -> Any:
        patterns = schema.get("patternProperties", {})
        if patterns and isinstance(instance, dict):
            instance = {
                name: value
                for name, value in instance.items()
                if not any(compile_search(pattern)(name) for pattern in patterns)
            }
        without_patterns = {"properties": schema.get("properties", {})}
        return rule(validator, inner, instance, without_patterns)

    return check_additional


def list_patterns(schema: Any) -> list[str]:
    """Return the regular expressions in a schema.

    Raises:
        ValueError: the schema has both patternProperties and unevaluatedProperties, which only the library's unbounded
            search supports together.
    """
    nodes, patterns = [schema], []
    keys: set[str] = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, Mapping):
            keys |= {str(key) for key in node}
            pattern, properties = node.get("pattern"), node.get("patternProperties")
            patterns += [pattern] if isinstance(pattern, str) else []
            patterns += list(properties) if isinstance(properties, Mapping) else []
            nodes += node.values()
        elif isinstance(node, list | tuple):
            nodes += node
    if {"patternProperties", "unevaluatedProperties"} <= keys:
        raise ValueError("has both patternProperties and unevaluatedProperties; use one")
    return patterns


@lru_cache(maxsize=1024)
def compile_search(pattern: str) -> Callable[[str], Any]:
    r"""Compile a pattern into a search whose time is linear for any input.

    Raises:
        ValueError: the library is missing, or the pattern is too long or needs backtracking (``\1``, ``(?=…)``).
    """
    try:
        import re2
    except ImportError as error:
        raise ValueError("has a pattern, which needs google-re2; pip install 'lit-agentrl[tools]'") from error
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = 2**20, True, False
    if len(pattern) > _MAX_PATTERN:
        raise ValueError(
            f"has the pattern {shorten(pattern)} of more than {_MAX_PATTERN} characters; shorten it"
        )
    try:
        return re2.compile(pattern, options).search  # type: ignore[no-any-return]
    except re2.error as error:
        raise ValueError(
            f"has the pattern {shorten(pattern)}, which cannot be searched for in linear time "
            f"({shorten(_read_message(error))}); write it without \\1 and (?=…)"
        ) from error


def _format_error(error: Any) -> str:
    """Format the place and the reason of an error, each cut to a readable length."""
    return f"arguments{shorten(error.json_path.removeprefix('$'))}: {shorten(error.message)}"


def _read_message(error: Exception) -> str:
    message = error.args[0] if error.args else ""
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


def shorten(text: str) -> str:
    """Cut a text to the length that messages show."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _has_external_ref(schema: Any) -> bool:
    """Return whether any part of a schema refers to another document."""
    nodes = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, Mapping):
            targets = (node.get(key) for key in ("$ref", "$dynamicRef"))
            if any(isinstance(target, str) and not target.startswith("#") for target in targets):
                return True
            nodes += node.values()
        elif isinstance(node, list | tuple):
            nodes += node
    return False


@cache
def _import_library() -> ModuleType:
    import jsonschema  # imported late: only games with tools need it, and it slows down the start

    return jsonschema
