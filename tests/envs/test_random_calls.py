"""Random tool calls follow the schemas of their tools, and the checker plays them."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

from examples.own_world.safe import Safe
from lit_agentrl.actions import BadCall, ToolSpec, read_call
from lit_agentrl.envs.base import Outcome
from lit_agentrl.envs.checker import ContractError, check_env
from lit_agentrl.envs.random_calls import draw_call

TREE = {
    "type": "object",
    "properties": {"child": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "name": {"const": "leaf"}},
    "required": ["child"],
}
SCHEMAS = {
    "nothing": {},
    "choice": {"properties": {"day": {"enum": ["monday", "friday"]}}, "required": ["day"]},
    "numbers": {
        "properties": {
            "code": {"type": "integer", "minimum": 0, "maximum": 999},
            "below": {"type": "integer", "exclusiveMaximum": -5},
            "share": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 1},
            "even": {"type": "integer", "multipleOf": 2, "minimum": 3},
        },
        "required": ["code", "below", "share", "even"],
    },
    "texts": {
        "properties": {
            "word": {"type": "string", "minLength": 6},
            "note": {"type": ["string", "null"], "maxLength": 2},
            "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        },
        "required": ["word", "list"],
    },
    "nested": {
        "$defs": {
            "Slot": {"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]}
        },
        "properties": {"slot": {"$ref": "#/$defs/Slot"}},
        "required": ["slot"],
    },
    "recursive": TREE,
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_drawn_calls_are_valid_and_differ(name):
    tool = ToolSpec(name, "", {"type": "object", **SCHEMAS[name]})
    rng = np.random.default_rng(0)
    calls = [str(draw_call([tool], rng)) for _ in range(50)]
    assert not [call for call in calls if isinstance(read_call(call, [tool]), BadCall)]
    assert (len(set(calls)) > 1) == (name != "nothing")


def test_each_tool_is_drawn_and_one_that_no_call_fits_is_left_out():
    fixed = {"type": "string", "pattern": "^[0-9]{12}$"}
    hard = ToolSpec("hard", "", {"type": "object", "properties": {"code": fixed}, "required": ["code"]})
    easy = [ToolSpec(name, "", {"type": "object"}) for name in ("first", "second")]
    rng = np.random.default_rng(0)
    assert {draw_call([hard, *easy], rng).name for _ in range(50)} == {"first", "second"}
    assert draw_call([hard], rng) is None


def make(kind: type[Safe], split: str) -> Safe:
    return kind(split=split)


class Infinite(Safe):
    def unlock(self, code: int) -> Outcome:
        """Tries a number."""
        return Outcome({"safe": float("inf")})


class Shared(Safe):
    calls: list[str] = []  # noqa: RUF012 - the fault

    def _play(self, action):
        self.calls.append(action)
        return Outcome({"safe": float(len(self.calls))})


@pytest.mark.parametrize(("kind", "rule"), [(Infinite, "rewards"), (Shared, "determinism")])
def test_the_checker_calls_tools_of_a_game_without_random_play(kind, rule):
    assert kind(split="train").random_action(np.random.default_rng(0)) is None
    with pytest.raises(ContractError, match=f"rule '{rule}' is broken"):
        check_env(functools.partial(make, kind), episodes=4)


class Refusing(Safe):
    """It refuses what its schema allows, as a validator may."""

    def _play(self, action):
        if json.loads(action)["name"] == "unlock":
            return BadCall("bad_arguments", "this number is not allowed")
        return super()._play(action)


def test_a_refused_call_that_the_checker_drew_is_no_fault():
    check_env(functools.partial(make, Refusing), episodes=4)


class Unsaved(Safe):
    has_state = False


def test_a_game_whose_tools_are_not_called_is_named(caplog):
    check_env(functools.partial(make, Unsaved), episodes=2)
    assert "no tool was called" in caplog.text
    caplog.clear()
    check_env(functools.partial(make, Safe), episodes=2)
    assert not caplog.text


def test_a_refused_call_changes_nothing_and_its_message_is_shown():
    game = Refusing(split="train")
    game.reset(seed=0)
    before = game.state_dict()
    shown, reward, is_over, _, info = game.step('{"name": "unlock", "arguments": {"code": 1}}')
    assert (shown, reward, is_over, info["action_is_valid"]) == (
        "this number is not allowed",
        0.0,
        False,
        False,
    )
    assert game.state_dict() == before
