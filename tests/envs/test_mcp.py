"""A world of an MCP server's tools: played to the end; what hangs, dies or lies harms one episode and is told."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.actions import ToolCall
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosted.mcp import Mcp
from lit_agentrl.envs.levels import measure
from lit_agentrl.rollout.worlds.environments import Environments
from tests.conftest import ROOT
from tests.envs.started import started

OWN = ROOT / "examples/own_mcp"
RAW = [sys.executable, "-S", str(Path(__file__).with_name("mcp_raw.py"))]


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"name": tool, "arguments": arguments})


def process_of(env: Mcp) -> int:
    """The process of its server, asked for behind the episode's back."""
    return int(env._session.call(ToolCall("pid", {"text": ""}))[0].split()[0])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("mcp") / "tasks.jsonl"
    row = {
        "setup": [json.loads(call("times", text="a"))],
        "answer": "1",
        "solution": [json.loads(call("say", text="a"))],
    }
    file.write_text("".join(json.dumps({"question": f"{i}?", **row}) + "\n" for i in range(40)))
    return str(file)


def raw(what: str, rows: str, **options: Any) -> Mcp:
    return Mcp(command=[*RAW, what], path=rows, **{"timeout_s": 10.0, **options})


@pytest.mark.slow
@pytest.mark.sweep
def test_a_server_of_the_library_is_played() -> None:
    env = Mcp(command=[sys.executable, str(OWN / "server.py")], path=str(OWN / "tasks.jsonl"))
    question, info = env.reset(seed=1)
    assert "out of the book" in question and info["instance_id"].startswith("Mcp-")
    assert [tool.name for tool in env.tools()] == ["add", "look_up", "names", "remove", "finish"]
    told, points, over, _, info = env.step(call("look_up", nam="Ann"))
    assert (
        "look_up was called wrongly" in told
        and not info["action_is_valid"]
        and (points, over) == (0.0, False)
    )
    told, _, _, _, info = env.step(call("look_up", name="Nobody"))
    assert told == "Nobody is not in the book." and info["action_is_valid"]
    assert env.optimal_actions(horizon=9) is None  # it went another way
    env.reset(seed=1)
    for action in env.optimal_actions(horizon=9) or []:
        _, points, over, _, info = env.step(action)
    assert (points, over, info["success"]) == (1.0, True, True)
    env.close()


@pytest.mark.slow
def test_what_a_server_says_is_text_and_a_session_is_new(rows: str) -> None:
    env = raw("", rows, max_chars=30, tools=["say", "times", "pid"])
    env.reset(seed=0)
    assert env.rules.endswith("Be kind.")
    assert env.step(call("times", text="a"))[0] == "2\n[image]"  # after the setup
    assert env.step(call("say", text="<|im_end|>" * 9))[0].endswith("… (72 more characters)")
    first = env.step(call("pid", text=""))[0]
    env.reset(seed=0)
    assert env.step(call("pid", text=""))[0] != first and env.step(call("times", text=""))[0] == "3\n[image]"
    assert env.step(call("finish", answer="2"))[1:3] == (0.0, True)
    env.close()
    env = raw("dirty", rows)
    env.reset(seed=0)
    assert env.step(call("say", text="a"))[0] == "say a\n[image]"
    env.close()


def test_a_server_that_has_ended_is_started_again(rows: str, caplog: pytest.LogCaptureFixture) -> None:
    env = raw("", rows)
    env.reset(seed=0)
    assert env.step(call("times", text="a"))[0] == "2\n[image]"
    os.kill(process_of(env), signal.SIGKILL)
    with caplog.at_level(logging.WARNING):
        assert env.step(call("times", text="a"))[0] == "3\n[image]"
    assert "had ended in an episode, whose calls were made again (1 so far)" in caplog.text
    env.step(call("pid", text="a"))  # which no other process says
    os.kill(process_of(env), signal.SIGKILL)
    with pytest.raises(ValueError, match="ended, and started again shows something else to pid$"):
        env.step(call("times", text="a"))
    env.close()
    env = raw("die", rows)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"^the MCP server .* ended twice at a call of say$"):
        env.step(call("say", text="a"))
    env.close()


@pytest.mark.slow
@pytest.mark.sweep
def test_what_hangs_is_a_timeout_of_its_episode(rows: str) -> None:
    seats = Environments(
        Task("it", partial(Mcp, command=[*RAW, "hang"], path=rows, timeout_s=0.5), max_actions=9), {}
    )
    began = time.monotonic()
    answer = seats.reset(0, "train", 0, 0)
    assert answer.timed_out and "did not answer within timeout_s=0.5" in answer.error
    assert time.monotonic() - began < 20
    seats.close()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("lie", "said what is no MCP"),
        ("schema", "said what is no MCP|cannot be used"),
        ("pages", "lists more than 256 tools, or pages without end"),
        ("none", "ended or said what is no MCP"),
    ],
)
def test_a_server_that_lies_is_told_in_one_line(what: str, message: str, rows: str) -> None:
    env = raw(what, rows)
    with pytest.raises(ValueError, match=message) as error:
        env.reset(seed=0)
    assert "\n" not in str(error.value)
    env.close()


@pytest.mark.slow
def test_patterns_and_references_of_a_server_do_not_block(rows: str) -> None:
    began = time.monotonic()
    env = raw("regex", rows)  # also in the schema of its results
    env.reset(seed=0)
    assert "does not match" in env.step(call("say", text="a" * 5000 + "b"))[0]
    assert env.step(call("say", text="a" * 50))[0].startswith("say aaa")
    env.close()
    env = raw("ahead", rows)  # which the server checks itself
    env.reset(seed=0)
    assert env.step(call("say", text="b"))[0].startswith("say b")
    env.close()
    env = raw("refs", rows)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="more than 20000 rules for one call"):
        env.step(call("say", text="a"))
    env.close()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a"}, "nothing says when the task is solved; add a column check or answer"),
        ({"question": "a", "check": [{"name": "x", "arguments": {}}]}, "an entry of check has no result"),
        ({"question": "a", "answer": "b", "setup": ["x"]}, "column setup must hold calls"),
        ({"question": "a", "answer": "b", "solution": {}}, ""),
        ({"question": "a", "answer": 3}, "column answer is 3; write a text"),
    ],
)
def test_rows_that_are_no_tasks(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    good = "".join(json.dumps({"question": f"{i}", "answer": "b"}) + "\n" for i in range(30))
    file.write_text(good + json.dumps(row) + "\n")
    if not message:
        assert Mcp(command=["x"], path=str(file)).max_solution == 1
        return
    with pytest.raises(ValueError, match=message) as error:
        Mcp(command=["x"], path=str(file))
    assert str(error.value).startswith("path=") and "tasks.jsonl line 31" in str(error.value)


def test_options_are_checked(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"command": ["x"], "url": "http://x"}, {"command": []}, {"url": "file:///x"}):
        with pytest.raises(ValueError, match=r"^(command|url)="):
            Mcp(path=rows, **options)  # type: ignore[arg-type]
    env = Mcp(command=["/no/such/program"], path=rows)
    with pytest.raises(ValueError, match="cannot be started or reached"):
        env.reset(seed=0)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ValueError, match=r"^this game needs mcp .*pip install 'lit-agentrl\[mcp\]'$"):
        Mcp(command=["x"], path=rows)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_server_behind_an_address_has_a_session_for_each_episode() -> None:
    with started([sys.executable, str(OWN / "online.py")]) as url:
        make = partial(Mcp, url=f"{url}/mcp", path=str(OWN / "tasks.jsonl"))
        one, other = make(), make()
        one.reset(seed=1)
        own = one.step(call("names"))[0]
        other.reset(seed=2)
        assert other.step(call("names"))[0] != own == one.step(call("names"))[0]
        one.step(call("remove", name=own.split(", ")[0]))
        one.reset(seed=1)
        assert one.step(call("names"))[0] == own
        for env in (one, other):
            env.close()
        local = partial(Mcp, command=[sys.executable, str(OWN / "server.py")], path=str(OWN / "tasks.jsonl"))
        found = []
        for env in (make(split="val"), local(split="val")):
            first = env.reset(seed=3)
            steps = [env.step(action) for action in env.optimal_actions(horizon=9) or []]
            assert steps[-1][4]["success"]
            found.append([first, steps, env.tools()])
            env.close()
        assert found[0] == found[1]


@pytest.mark.slow
def test_levels_and_a_server_that_does_not_end(rows: str) -> None:
    own = partial(Mcp, command=[sys.executable, str(OWN / "server.py")], path=str(OWN / "tasks.jsonl"))
    levels = measure(Task("it", own, max_turns=6, max_actions_per_turn=1, max_actions=6), "test", 2, 0)
    assert levels.oracle_success == 1.0 and levels.chance_success is not None
    env = raw("deaf", rows, timeout_s=5.0)  # does not end with its input
    env.reset(seed=0)
    process = process_of(env)
    env.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
