"""Calls of tools: strict JSON, checked by schema; whatever is wrong plays nothing and is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_agentrl.actions import Actions, ToolSpec
from lit_agentrl.text.dialects.tool_call import ToolCalls

SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "enum": ["Ann", "Bob"]},
        "amount": {"type": "number", "minimum": 0, "description": "in euros"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["to", "amount"],
}
PAY = ToolSpec("pay", "Sends money.", SCHEMA)
TOOLS = Actions("tools", tools=(PAY, ToolSpec("done", "Ends.", {"type": "object"})))
GOOD = {"name": "pay", "arguments": {"to": "Ann", "amount": 2.5}}


def call(text: str) -> tuple[str, str]:
    reply = ToolCalls().parse(f"<think>a</think>\n<tool_call>{text}</tool_call>", TOOLS, think=True)
    assert reply.is_valid == (not reply.problem) == (not reply.complaint) == bool(reply.actions)
    return reply.problem, reply.complaint


def test_a_call_is_played_as_canonical_json() -> None:
    text = '<think>a</think><tool_call>\n{"arguments": {"to":"Ann", "amount":2.5},"name":"pay"}\n</tool_call>'
    reply = ToolCalls().parse(text, TOOLS, think=True)
    assert (reply.actions, reply.problem, reply.think) == ((json.dumps(GOOD),), "", "a")
    assert (
        ToolCalls().parse(f"<tool_call>{json.dumps(GOOD)}</tool_call>", TOOLS, think=True).problem
        == "no_think"
    )
    assert call('{"name": "pay", "arguments": {"to": "Bob", "amount": 0, "tags": ["</think>"]}}') == ("", "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"to": "Ann"}, "arguments: 'amount' is a required property"),
        ({"to": "Eve", "amount": 1}, "arguments.to: 'Eve' is not one of ['Ann', 'Bob']"),
        ({"to": "Ann", "amount": "1"}, "arguments.amount: '1' is not of type 'number'"),
        ({"to": "Ann", "amount": True}, "arguments.amount: True is not of type 'number'"),
        ({"to": "Ann", "amount": -1}, "arguments.amount: -1 is less than the minimum of 0"),
        ({"to": "Ann", "amount": 1, "tags": ["a", 1]}, "arguments.tags[1]: 1 is not of type 'string'"),
        (
            {"to": "Ann", "amount": 1, "iban": ""},
            "arguments: Additional properties are not allowed ('iban' was unexpected)",
        ),
        ([], "arguments: [] is not of type 'object'"),
    ],
)
def test_arguments_follow_the_schema(arguments: object, complaint: str) -> None:
    expected = ("bad_arguments", f"pay was called wrongly: {complaint}")
    assert call(json.dumps({"name": "pay", "arguments": arguments})) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "malformed_call"),
        ("{'name': 'done', 'arguments': {}}", "malformed_call"),
        ('{"name": "done", "arguments": {}} again', "malformed_call"),
        ('{"name": "done", "name": "pay", "arguments": {}}', "malformed_call"),
        ('{"name": "done", "arguments": NaN}', "malformed_call"),
        ('{"name": "done", "arguments": {}, "id": 1}', "malformed_call"),
        ("[" * 100_000, "malformed_call"),
        ("9" * 100_000, "malformed_call"),
        ('{"name": ["done"], "arguments": {}}', "unknown_tool"),
        ('{"name": "Done", "arguments": {}}', "unknown_tool"),
    ],
)
def test_what_is_no_call(text: str, problem: str) -> None:
    assert call(text)[0] == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no_call"),
        ("<answer>done</answer>", "no_call"),
        ("<think><tool_call>{}</tool_call></think>", "no_call"),
        ("<tool_call>{}", "unclosed_call"),
        ("<tool_call>{}</tool_call><tool_call>{}</tool_call>", "two_calls"),
    ],
)
def test_markup_that_is_out_of_order(text: str, problem: str) -> None:
    reply = ToolCalls().parse(text, TOOLS, think=True)
    assert (reply.is_valid, reply.problem, reply.is_well_formed) == (False, problem, False)


@given(
    st.lists(st.sampled_from([*'{}[]":, ', "name", "arguments", "<tool_call>", "</tool_call>", "é"])).map(
        "".join
    )
)
def test_total(text: str) -> None:
    assert not ToolCalls().parse(text, TOOLS, think=True).actions


def test_instructions_show_schemas_and_a_call_of_the_right_form() -> None:
    text = ToolCalls().instructions(TOOLS, max_actions=1, think=True)
    told = [json.loads(line) for line in text.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()]
    assert [tool["function"]["name"] for tool in told] == ["pay", "done"]
    assert told[0]["function"]["parameters"] == SCHEMA
    assert ToolCalls().parse(text.splitlines()[-1], TOOLS, think=True).problem == "unknown_tool"


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ({"type": "array"}, "must have type: object"),
        (
            {"type": "object", "properties": {"a": {"type": "text"}}},
            "schema of tool pay is invalid: 'text' is not",
        ),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ToolSpec("pay", "", schema)


def test_a_complaint_repeats_no_more_than_a_line() -> None:
    long = json.dumps({"name": "pay", "arguments": {"to": "A" * 100_000, "amount": 1}})
    assert len(call(long)[1]) < 300


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "pay", "arguments": {"to": "Ann", "amount": 1e999}}', "malformed_call"),
        ('{"name": "pay", "arguments": {"to": "\\ud800", "amount": 1}}', "malformed_call"),
        ('{"name": "done", "arguments": {"x": ' + "[" * 900 + "]" * 900 + "}}", "malformed_call"),
        ('{"name": "' + "x" * 5000 + '", "arguments": {}}', "unknown_tool"),
        ('{"name": "pay", "arguments": {"to": "Ann", "amount": 1' + "0" * 400 + "}}", "bad_arguments"),
    ],
)
def test_hostile_calls_are_answered_shortly(text: str, problem: str) -> None:
    tools = Actions("tools", tools=(ToolSpec("pay", "", {**SCHEMA, "properties": {
        **SCHEMA["properties"], "amount": {"type": "number", "multipleOf": 0.01},  # type: ignore[dict-item]
    }}), ToolSpec("done", "", {"type": "object", "additionalProperties": True})))  # fmt: skip
    reply = ToolCalls().parse(f"<tool_call>{text}</tool_call>", tools, think=False)
    assert reply.problem == problem and len(reply.complaint) < 500 and not reply.actions
