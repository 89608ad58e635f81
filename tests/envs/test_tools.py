"""Tools of functions: what hints become, what calls become, and what is refused by name."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import pytest

from lit_agentrl.actions import BadCall, ToolCall, read_call
from lit_agentrl.envs.tools import call_tool, describe_tool

pydantic = pytest.importorskip("pydantic")


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Item(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    """One thing."""

    title: str
    count: int = pydantic.Field(1, ge=1, description="how many")
    size: Size = Size.SMALL


class Order(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    items: list[Item]
    note: Optional[str] = None  # noqa: UP045

    @pydantic.field_validator("note")
    @classmethod
    def check_note(cls, note: str | None) -> str | None:
        if note == "rude":
            raise ValueError("be polite")
        return note


class Shop:
    def order(
        self,
        order: Order,
        schema: Literal["fast", "slow"] = "fast",
        *,
        days: Annotated[float, pydantic.Field(ge=0)] = 1.5,
    ) -> Any:
        """Orders things.

        They come later.

        Args:
            order: the things,
                and a note.
            schema (str): how they come.

        Returns:
            All that was given.
        """
        return order, schema, days


def test_hints_and_docstring_become_the_declaration() -> None:
    tool = describe_tool(Shop().order)
    assert (tool.name, tool.description) == ("order", "Orders things. They come later.")
    assert tool.schema == {
        "type": "object", "additionalProperties": False, "required": ["order"],
        "properties": {
            "order": {"$ref": "#/$defs/Order", "description": "the things, and a note."},
            "schema": {"type": "string", "enum": ["fast", "slow"], "default": "fast", "description": "how they come."},
            "days": {"type": "number", "minimum": 0, "default": 1.5},
        },
        "$defs": {
            "Size": {"enum": ["small", "large"], "type": "string"},
            "Item": {
                "type": "object", "additionalProperties": False, "required": ["title"], "description": "One thing.",
                "properties": {
                    "title": {"type": "string"},  # a property of that name, not a generated title
                    "count": {"type": "integer", "minimum": 1, "default": 1, "description": "how many"},
                    "size": {"$ref": "#/$defs/Size", "default": "small"},
                },
            },
            "Order": {
                "type": "object", "additionalProperties": False, "required": ["items"],
                "properties": {
                    "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                },
            },
        },
    }  # fmt: skip


def called(arguments: str) -> Any:
    shop = Shop()
    call = read_call(f'{{"name": "order", "arguments": {arguments}}}', [describe_tool(shop.order)])
    return call_tool([shop.order], str(call)) if isinstance(call, ToolCall) else call


def test_arguments_arrive_as_objects_and_defaults_are_filled_in() -> None:
    order, schema, days = called('{"order": {"items": [{"title": "x", "size": "large"}]}, "days": 2}')
    assert order == Order(items=[Item(title="x", size=Size.LARGE)]) and (schema, days) == ("fast", 2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"order": {"items": [{"title": "x", "colour": 1}]}}', ".order.items[0]: Additional properties are not"),
        ('{"order": {"items": [{"title": 3}]}}', ".order.items[0].title: 3 is not of type 'string'"),
        ('{"order": {"items": [{"title": "x", "count": 0}]}}', ".order.items[0].count: 0 is less than the minimum"),
        ('{"order": {"items": []}, "schema": "now"}', ".schema: 'now' is not one of ['fast', 'slow']"),
        ('{"order": {"items": []}, "argument_1": "slow"}', ": Additional properties are not allowed ('argument_1'"),
        ('{"schema": "slow"}', ": 'order' is a required property"),
        ('{"order": {"items": [], "note": "rude"}}', ".order.note: Value error, be polite"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_answered_by_place_and_reason(arguments: str, message: str) -> None:
    call = called(arguments)
    assert isinstance(call, BadCall) and call.problem == "bad_arguments"
    assert call.message.startswith(f"order was called wrongly: arguments{message}")


def untyped(text): ...  # type: ignore[no-untyped-def]
def spread(*texts: str) -> None: ...
def unknown(text: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def without_schema(text: Callable[[], str]) -> None: ...
def misdescribed(text: str) -> None:
    """Reads.

    Args:
        test: what is read.
    """


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "tool untyped: argument text has no type; write text: str"),
        (spread, r"tool spread: \*texts.* cannot be given by name; list its arguments one by one"),
        (unknown, "tool unknown: a type hint cannot be read: name 'Nowhere' is not defined; import it"),
        (without_schema, "tool without_schema: an argument has no JSON schema: .*; give it another type"),
        (misdescribed, "tool misdescribed: its docstring describes test, which is no argument; correct it"),
        (lambda: None, "tool '<lambda>' is no function with a name; write one with def"),
    ],
)
def test_a_function_that_is_no_tool_is_refused_in_one_line(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        describe_tool(function)
    assert "\n" not in str(caught.value)
