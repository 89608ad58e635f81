"""Data and code of bfcl-eval: tasks with correct calls, APIs, schemas of tools, and checks."""

from __future__ import annotations

import ast
import copy
import datetime
import inspect
import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module, resources
from operator import methodcaller
from typing import Any

from lit_agentrl.actions import ToolCall, ToolSpec, read_call
from lit_agentrl.envs.splits import stable_hash

_MORE = "There are more tools now. Please go on with what I asked before."
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}  # BFCL's names of types


def _import_library() -> Any:
    try:
        return import_module("bfcl_eval.constants.executable_backend_config")
    except ImportError as error:
        message = " ".join(str(error).split())
        raise ValueError(
            f"this game needs bfcl-eval ({message}); pip install --no-deps bfcl-eval==2026.3.23"
        ) from error


@cache
def read_tasks(name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the 200 tasks of a kind: id, messages, correct calls as JSON, by turn."""
    _import_library()
    data = resources.files("bfcl_eval") / "data"
    file = f"BFCL_v4_multi_turn_{name}.json"
    rows = [json.loads(line) for line in (data / file).read_text(encoding="utf-8").splitlines()]
    answers = (data / "possible_answer" / file).read_text(encoding="utf-8").splitlines()
    gold = {row["id"]: row["ground_truth"] for row in map(json.loads, answers)}
    return tuple(
        {
            **row,
            "messages": [
                "\n".join(message["content"] for message in turn) or _MORE for turn in row["question"]
            ],
            "gold": [
                [_convert_call(call, row["involved_classes"]) for call in turn] for turn in gold[row["id"]]
            ],
        }
        for row in rows
    )


@cache
def _get_class(name: str) -> Any:
    return getattr(import_module(_import_library().CLASS_FILE_PATH_MAPPING[name]), name)


def create_apis(task: Mapping[str, Any]) -> dict[str, Any]:
    """Create the APIs of a task in their initial state."""
    apis = {}
    for name in task["involved_classes"]:
        apis[name] = _get_class(name)()
        if name not in _import_library().STATELESS_CLASSES:
            start = copy.deepcopy(task["initial_config"].get(name, {}))
            # private, but the only way; the exact version is pinned in the installation command
            load = methodcaller("_load_scenario", start, long_context="long_context" in task["id"])
            load(apis[name])
    return apis


def execute_call(apis: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    """Return the answer to a call in the leaderboard's words.

    The name must have been checked against the tools.
    """
    [method] = [
        function for api in apis.values() if (function := getattr(api, call["name"], None)) is not None
    ]
    try:
        answer = method(**call["arguments"])
    except Exception as error:
        return f"Error during execution: {error}"
    if isinstance(answer, dict):
        try:
            return json.dumps(answer)
        except TypeError:
            return str(answer)
    return str(answer)


def _convert_call(call: str, classes: Sequence[str]) -> str:
    """Convert a call from Python to JSON, with named arguments; nothing is executed."""
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)
    name = tree.func.id
    apis = [_get_class(class_name) for class_name in classes]
    [method] = [getattr(api, name) for api in apis if hasattr(api, name)]
    order = list(inspect.signature(method).parameters)[1:]
    arguments = {order[position]: ast.literal_eval(value) for position, value in enumerate(tree.args)}
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
    return str(ToolCall(name, arguments))


@cache
def _read_tools(name: str) -> tuple[ToolSpec, ...]:
    """Return the tools of a class."""
    file = _import_library().MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]
    text = (resources.files("bfcl_eval") / "data" / "multi_turn_func_doc" / file).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return tuple(
        ToolSpec(row["name"], row["description"], _convert_schema(row["parameters"])) for row in rows
    )


@cache
def list_tools(id: str, turn: int) -> tuple[ToolSpec, ...]:
    """Return the tools of a turn, including all that its correct calls need.

    The data hides some of the needed tools, or restricts their arguments too much.
    """
    [task] = [row for row in read_tasks(id.rpartition("_")[0].removeprefix("multi_turn_")) if row["id"] == id]
    later = [names for turn_key, names in task.get("missed_function", {}).items() if int(turn_key) > turn]
    calls = [json.loads(call) for calls in task["gold"][: turn + 1] for call in calls]
    hidden = {name for names in (task.get("excluded_function", ()), *later) for name in names}
    hidden -= {call["name"] for call in calls}
    tools = (tool for name in task["involved_classes"] for tool in _read_tools(name))
    return tuple(_widen_types(tool, calls) for tool in tools if tool.name not in hidden)


def _widen_types(tool: ToolSpec, calls: Sequence[Mapping[str, Any]]) -> ToolSpec:
    """Widen the types of arguments where correct calls contradict them."""
    own_calls = [call for call in calls if call["name"] == tool.name]
    if all(isinstance(read_call(json.dumps(call), [tool]), ToolCall) for call in own_calls):
        return tool
    used = {name for call in own_calls for name in call["arguments"]}
    names = tool.schema["properties"]
    widened = {
        name: {"description": kind.get("description", "")} for name, kind in names.items() if name in used
    }
    return ToolSpec(tool.name, tool.description, {**tool.schema, "properties": {**names, **widened}})


def _convert_schema(schema: Any) -> Any:
    """Convert a schema of BFCL to a JSON schema."""
    if isinstance(schema, list):
        return [_convert_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {
        key: _convert_schema(value) for key, value in schema.items() if key not in ("optional", "response")
    }
    if isinstance(converted.get("type"), str):
        kind = _TYPES.get(converted["type"], converted["type"])
        converted = {key: value for key, value in converted.items() if key != "type"}
        converted |= {"type": kind} if kind else {}
    return converted


def check_calls(
    player: Mapping[str, Any], gold: Mapping[str, Any], answers: list[str], expected: list[str]
) -> bool:
    """Run the leaderboard's own checks.

    The states must be equal, and all expected answers must be among the given ones.
    """
    checks = import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    return bool(
        checks.state_checker(player, gold)["valid"] and checks.response_checker(answers, expected, 0)["valid"]
    )


def describe_object(value: Any, above: tuple[int, ...]) -> Any:
    """Return the content of an object of the library, for its hash.

    ``above`` holds the ids of the objects that contain it, so that cycles end.
    """
    if isinstance(value, random.Random):
        return stable_hash(repr(value.getstate()))
    if isinstance(value, datetime.datetime):  # depends on the clock
        return "time"
    if id(value) in above:
        return "above"
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return [[str(key), describe_object(each, inside)] for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [describe_object(each, inside) for each in value]
    if hasattr(value, "__dict__") and not callable(value):
        return [type(value).__name__, describe_object(vars(value), inside)]
    return repr(value)
