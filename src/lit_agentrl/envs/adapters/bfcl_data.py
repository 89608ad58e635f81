"""What bfcl-eval ships: the tasks with the calls that are right, its APIs, the schemas of their tools, its checks."""

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
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}  # as BFCL writes them


def _library() -> Any:
    try:
        return import_module("bfcl_eval.constants.executable_backend_config")
    except ImportError as error:
        what = " ".join(str(error).split())
        raise ValueError(
            f"this game needs bfcl-eval ({what}); pip install --no-deps bfcl-eval==2026.3.23"
        ) from error


@cache
def tasks(name: str) -> tuple[Mapping[str, Any], ...]:
    """The 200 tasks of a kind: id, messages, and the calls that are right, as JSON, by turn."""
    _library()
    data = resources.files("bfcl_eval") / "data"
    file = f"BFCL_v4_multi_turn_{name}.json"
    rows = [json.loads(line) for line in (data / file).read_text(encoding="utf-8").splitlines()]
    answers = (data / "possible_answer" / file).read_text(encoding="utf-8").splitlines()
    gold = {row["id"]: row["ground_truth"] for row in map(json.loads, answers)}
    return tuple(
        {
            **row,
            "messages": ["\n".join(each["content"] for each in turn) or _MORE for turn in row["question"]],
            "gold": [[_written(call, row["involved_classes"]) for call in turn] for turn in gold[row["id"]]],
        }
        for row in rows
    )


@cache
def _class(name: str) -> Any:
    return getattr(import_module(_library().CLASS_FILE_PATH_MAPPING[name]), name)


def made(task: Mapping[str, Any]) -> dict[str, Any]:
    """The APIs of a task, as they are at its beginning."""
    found = {}
    for name in task["involved_classes"]:
        found[name] = _class(name)()
        if name not in _library().STATELESS_CLASSES:
            start = copy.deepcopy(task["initial_config"].get(name, {}))
            # private, and the only way: the exact version is in the command that installs it
            load = methodcaller("_load_scenario", start, long_context="long_context" in task["id"])
            load(found[name])
    return found


def called(apis: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    """What a call answers, in the words of the leaderboard; the name has been checked against the tools."""
    [method] = [found for api in apis.values() if (found := getattr(api, call["name"], None)) is not None]
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


def _written(call: str, classes: Sequence[str]) -> str:
    """A call that the data write as Python, with its arguments named, as JSON; nothing of it is executed."""
    found = ast.parse(call, mode="eval").body
    assert isinstance(found, ast.Call) and isinstance(found.func, ast.Name)
    name = found.func.id
    [method] = [getattr(_class(each), name) for each in classes if hasattr(_class(each), name)]
    order = list(inspect.signature(method).parameters)[1:]
    arguments = {order[place]: ast.literal_eval(value) for place, value in enumerate(found.args)}
    arguments |= {str(each.arg): ast.literal_eval(each.value) for each in found.keywords}
    return str(ToolCall(name, arguments))


@cache
def _documented(name: str) -> tuple[ToolSpec, ...]:
    """The tools of a class."""
    file = _library().MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]
    text = (resources.files("bfcl_eval") / "data" / "multi_turn_func_doc" / file).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return tuple(ToolSpec(row["name"], row["description"], _schema(row["parameters"])) for row in rows)


@cache
def tools(id: str, turn: int) -> tuple[ToolSpec, ...]:
    """The tools that are there in a turn: also those that a right call of it needs, where the data err."""
    [task] = [each for each in tasks(id.rpartition("_")[0].removeprefix("multi_turn_")) if each["id"] == id]
    later = [names for at, names in task.get("missed_function", {}).items() if int(at) > turn]
    calls = [json.loads(call) for calls in task["gold"][: turn + 1] for call in calls]
    gone = {name for names in (task.get("excluded_function", ()), *later) for name in names}
    gone -= {call["name"] for call in calls}
    found = (tool for name in task["involved_classes"] for tool in _documented(name))
    return tuple(_taking(tool, calls) for tool in found if tool.name not in gone)


def _taking(tool: ToolSpec, calls: Sequence[Mapping[str, Any]]) -> ToolSpec:
    """The tool itself, or without the types of what right calls give it, where they differ."""
    own = [call for call in calls if call["name"] == tool.name]
    if all(isinstance(read_call(json.dumps(call), [tool]), ToolCall) for call in own):
        return tool
    given = {name for call in own for name in call["arguments"]}
    names = tool.schema["properties"]
    wide = {
        name: {"description": kind.get("description", "")} for name, kind in names.items() if name in given
    }
    return ToolSpec(tool.name, tool.description, {**tool.schema, "properties": {**names, **wide}})


def _schema(told: Any) -> Any:
    """A JSON schema of what BFCL writes."""
    if isinstance(told, list):
        return [_schema(each) for each in told]
    if not isinstance(told, dict):
        return told
    found = {key: _schema(value) for key, value in told.items() if key not in ("optional", "response")}
    if isinstance(found.get("type"), str):
        kind = _TYPES.get(found["type"], found["type"])
        found = {key: value for key, value in found.items() if key != "type"}
        found |= {"type": kind} if kind else {}
    return found


def are_right(
    player: Mapping[str, Any], gold: Mapping[str, Any], given: list[str], expected: list[str]
) -> bool:
    """The leaderboard's own checks: equal states, and all answers that are expected among those that were given."""
    checks = import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    return bool(
        checks.state_checker(player, gold)["valid"] and checks.response_checker(given, expected, 0)["valid"]
    )


def plain(value: Any, above: tuple[int, ...]) -> Any:
    """What an object of the library holds, for its hash."""
    if isinstance(value, random.Random):
        return stable_hash(repr(value.getstate()))
    if isinstance(value, datetime.datetime):  # of the clock
        return "time"
    if id(value) in above:
        return "above"
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return [[str(key), plain(each, inside)] for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [plain(each, inside) for each in value]
    if hasattr(value, "__dict__") and not callable(value):
        return [type(value).__name__, plain(vars(value), inside)]
    return repr(value)
