"""Messages of rows as people write them: other roles and keys, calls, weights, system texts, repeated prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.data.demonstrations import Demonstrations
from lit_agentrl.data.reading import read
from lit_agentrl.envs.tasks.message_parts import BadRow
from lit_agentrl.envs.tasks.messages import read_answers, read_dialogue, read_pair
from tests.data.test_reading import learnt, student

USER = {"role": "user", "content": "time?"}
NOON = {"role": "assistant", "content": "noon"}


def says(**keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **keys}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return says(
        tool_calls=[{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}],
        **more,
    )


def parse(*messages: Any) -> list[dict[str, str]]:
    _, parsed = read_dialogue({"messages": [USER, *messages]}, "completion")
    return parsed[1:]


def calls(*arguments: Any) -> dict[str, str]:
    given = [{"name": "f", "arguments": each} for each in arguments]
    return {"role": "assistant", "content": "", "calls": json.dumps(given)}


@pytest.mark.parametrize("arguments", ["", " ", "null", None, "{}", {}])
def test_a_call_without_arguments_has_none(arguments: Any) -> None:
    assert parse(call(arguments)) == [calls({})]


@pytest.mark.parametrize(
    ("message", "parsed"),
    [
        (call('{"a": null}'), calls({"a": None})),  # a null that the row itself wrote
        (says(tool_calls='[{"name": "f", "arguments": {"a": 1}}]'), calls({"a": 1})),
        (says(function_call={"name": "f", "arguments": "{}"}), calls({})),
        (says(function_call={"name": "f"}, content="I look."), {**calls({}), "content": "I look."}),
        ({"role": "tool_call", "content": '{"name": "f", "arguments": {"a": 2}}'}, calls({"a": 2})),
        ({"from": "function_call", "value": '{"name": "f", "arguments": {}}'}, calls({})),
        ({**NOON, "tool_calls": None}, NOON),
        ({**NOON, "tool_calls": [], "function_call": None}, NOON),
        ({"from": "gpt", "value": "noon"}, NOON),
        ({"role": "model", "content": [{"type": "text", "text": "noon"}]}, NOON),
        ({"role": "function", "name": "f", "content": "x"}, {"role": "tool", "content": "x"}),
        ({"role": "ipython", "content": {"hour": 12}}, {"role": "tool", "content": '{"hour": 12}'}),
        ({"role": "tool", "content": [1, None]}, {"role": "tool", "content": "[1, null]"}),
        ({"role": "tool", "content": ""}, {"role": "tool", "content": ""}),
        ({"role": "tool", "content": None}, {"role": "tool", "content": ""}),
        ({"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be brief."}),
        ({**NOON, "weight": 0}, {**NOON, "weight": "0"}),
        ({**NOON, "train": False}, {**NOON, "weight": "0"}),
        ({**NOON, "loss": False}, {**NOON, "weight": "0"}),
        ({**NOON, "weight": 1.0, "train": True, "loss": None}, NOON),
        ({**NOON, "reasoning_content": "sun"}, {**NOON, "thought": "sun"}),
        ({**NOON, "thinking": "sun", "reasoning": "sun"}, {**NOON, "thought": "sun"}),
        ({**NOON, "reasoning_content": " "}, NOON),
        (
            {**NOON, "content": [{"type": "thinking", "thinking": "sun"}, {"type": "text", "text": "noon"}]},
            {**NOON, "thought": "sun"},
        ),
    ],
)
def test_a_message_is_read_as_it_is_meant(message: Any, parsed: dict[str, str]) -> None:
    assert parse(message) == [parsed]


def test_calls_that_follow_a_reply_belong_to_it() -> None:
    one, two = ({"role": "tool_call", "content": {"name": "f", "arguments": {"a": k}}} for k in (1, 2))
    assert parse({**NOON, "content": "I look."}, one, two) == [
        {**calls({"a": 1}, {"a": 2}), "content": "I look."}
    ]


BOTH = [{"id": k, "function": {"name": "f", "arguments": {"a": k}}} for k in "ab"]
NULLS = {"tool_call_id": None, "tool_calls": None}  # as tables write the cells of other messages


def result(name: str | None, content: str = "") -> dict[str, Any]:
    return {"role": "tool", "content": content or str(name), "tool_call_id": name}


def read_results(*results: dict[str, Any], calls: Any = BOTH) -> str:
    before = [{**USER, **NULLS}, says(tool_calls=calls, tool_call_id=None)]
    return "".join(each["content"] for each in parse(*before, *results, {**NOON, **NULLS})[2:-1])


@pytest.mark.parametrize(
    ("results", "order"),
    [
        ([result("b"), result("a")], "ab"),
        ([result("a"), result("b")], "ab"),
        ([result("b"), result(None, "x")], "xb"),  # without an id: the place that is left
        ([result(None, "x"), result(None, "y")], "xy"),
        ([result("a")], "a"),  # an unfinished dialogue
    ],
)
def test_results_stand_in_the_order_of_their_calls(results: list[dict[str, Any]], order: str) -> None:
    assert read_results(*results) == order
    assert read_results(*results, calls=json.dumps(BOTH)) == order


def test_results_stand_in_the_order_of_calls_that_are_joined() -> None:
    one, two = (says(tool_calls=[each]) for each in BOTH)
    parsed = parse(one, two, result("b"), result("a"), NOON)
    assert parsed[0] == calls({"a": "a"}, {"a": "b"})
    assert [each["content"] for each in parsed[1:3]] == ["a", "b"]


def test_ids_that_only_results_have_are_not_looked_for() -> None:
    bare = [{"function": each["function"]} for each in BOTH]
    assert read_results(result("y"), result("x"), calls=bare) == "yx"
    assert read_results(result("x"), calls=BOTH[:1]) == "x"


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([result("c"), result("a")], "tool_call_id 'c' names no call of the reply before it"),
        ([{**result("b"), "tool_call_id": ["b"]}, result("a")], "names no call of the reply before it"),
        ([result("a"), result("a")], "two results name the call 'a'; keep one"),
        ([result("b")], "the call 'a' has no result, and a later one has"),
    ],
)
def test_results_that_belong_to_no_call_are_refused(results: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(BadRow, match=re.escape(said)):
        read_results(*results)


def test_a_table_of_messages_is_turned() -> None:
    table = {"role": ["user", "assistant"], "content": ["time?", "noon"], "thinking": [None, "sun"]}
    _, parsed = read_dialogue({"messages": table, "tools": ['{"name": "f"}']}, "completion")
    assert parsed == [{**USER, "tools": '[{"name": "f"}]'}, {**NOON, "thought": "sun"}]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({**NOON, "weight": 0.5}, "weight of a message is '0.5'; write 1 (learnt) or 0 (not learnt)"),
        ({**NOON, "weight": -1}, "weight of a message is '-1'"),
        ({**NOON, "train": "no"}, "train of a message is 'no'"),
        ({**NOON, "thinking": "a", "reasoning": "b"}, "has thinking and reasoning, which differ; keep one"),
        ({**NOON, "thinking": {"a": 1}}, "thinking of a message is no text"),
        (call("[1]"), "arguments of a tool call are no object"),
        (call('{"a": 1, "a": 2}'), "column a occurs twice"),
        (call('{"a": NaN}'), "NaN is no number of JSON"),
        (
            says(tool_calls=[{"name": "f"}], function_call={"name": "g"}),
            "tool_calls and function_call; keep one",
        ),
        ({"role": "assistant", "content": [{"type": "image", "text": ""}]}, "a part of type 'image'"),
        ({"role": "assistant", "content": {"answer": 1}}, "which is no text; write a text"),
    ],
)
def test_a_message_that_would_lose_something_is_refused(message: Any, said: str) -> None:
    with pytest.raises(BadRow) as raised:
        parse(message)
    assert said in str(raised.value)


def test_the_column_system_is_the_system_message() -> None:
    rules = {"role": "system", "content": "Be brief."}
    for row in ({"messages": [USER, NOON]}, {"messages": [rules, USER, NOON]}):
        assert read_dialogue({"system": "Be brief.", **row}, "completion")[1] == [rules, USER, NOON]
    row = {"system": "Be brief.", "prompt": "time?", "completion": "noon", "tools": [{"name": "f"}]}
    [first, second], _ = read_dialogue(row, "completion")
    assert first == {**rules, "tools": '[{"name": "f"}]'} and second == USER
    opening, _ = read_pair(
        {"system": "Be brief.", "chosen": [USER, NOON], "rejected": [USER, {**NOON, "content": "?"}]}
    )
    assert opening == [rules, USER]
    assert read_dialogue({"system": " ", "messages": [USER, NOON]}, "completion")[1] == [USER, NOON]
    with pytest.raises(BadRow, match="column system and the system message of the dialogue differ; keep one"):
        read_dialogue({"system": "Be long.", "messages": [rules, USER, NOON]}, "completion")
    with pytest.raises(BadRow, match="column system is '3'; write a text"):
        read_dialogue({"system": 3, "messages": [USER, NOON]}, "completion")


def test_a_prompt_that_an_answer_repeats_is_taken_off() -> None:
    rules = {"role": "system", "content": "Be brief."}
    late = {**NOON, "content": "late"}
    for first in ([], [USER]):
        pair = {"prompt": "time?", "chosen": [*first, NOON], "rejected": [USER, late]}
        assert read_pair(pair) == ([USER], [[NOON], [late]])
    pair = {"prompt": "time?", "chosen": [rules, USER, NOON], "rejected": [rules, USER, late]}
    assert read_pair(pair) == ([rules, USER], [[NOON], [late]])
    assert read_pair({"system": "Be brief.", **pair}) == ([rules, USER], [[NOON], [late]])
    ranked = {"prompt": "time?", "completions": [[USER, NOON], "late"], "scores": [1, 0]}
    assert read_answers(ranked)[:2] == ([USER], [[NOON], [late]])
    assert read_dialogue({"prompt": [USER], "completion": [USER, NOON]}, "completion") == ([USER], [NOON])
    more = {"role": "user", "content": "sure?"}
    goes_on = {"prompt": [USER, NOON], "chosen": [more, NOON], "rejected": [more, late]}
    assert read_pair(goes_on) == ([USER, NOON], [[more, NOON], [more, late]])
    for other in ([{**USER, "content": "where?"}, late], [rules, late], [USER]):
        with pytest.raises(BadRow, match="column rejected (begins with a message|repeats the prompt alone)"):
            read_pair(pair | {"chosen": [USER, NOON], "rejected": other})


def test_a_reply_of_weight_0_is_context(tmp_path: Path) -> None:
    row = {"messages": [USER, {**NOON, "weight": 0}, USER, {**NOON, "content": "late"}]}
    (tmp_path / "d.jsonl").write_text(json.dumps(row))
    [[episode]] = read(Demonstrations(path=str(tmp_path / "d.jsonl"), batch=1), student(), seed=0).groups
    assert [text.startswith("late") for text in learnt(episode)] == [True]


@pytest.mark.slow
def test_fields_that_arrow_adds_are_left_out(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    tools = [
        {"name": "f", "parameters": {"a": {"type": "x"}}},
        {"name": "g", "parameters": {"b": {"type": "y"}}},
    ]
    messages = [USER, call({"a": 1}), call({"b": 2}), {"role": "tool", "content": "x"}, NOON]
    rows = [{"messages": messages, "tools": tools}]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "d.parquet")
    (tmp_path / "d.jsonl").write_text(json.dumps(rows[0]))
    found = [
        read(Demonstrations(path=str(tmp_path / name), batch=1), student(400), seed=0).groups
        for name in ("d.parquet", "d.jsonl")
    ]
    assert repr(found[0]) == repr(found[1]) and "null" not in found[0][0][0].opening[0]["content"]
