"""BFCL: the calls that are known to be right solve every task, and doing nothing solves none."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lit_agentrl.actions import ToolCall
from lit_agentrl.envs.adapters.bfcl import BFCL, FINISH, TASKS
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.splits import SPLITS
from tests.conftest import thinned
from tests.envs.processes import printed_alike


@pytest.fixture
def installed() -> None:
    pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed (docs/adapters.md)")


def all_of(env: BFCL) -> Iterator[str]:
    """Begins each task, whatever its split."""
    env.reset(seed=0)
    for number, task in enumerate(env._tasks):
        env._done, env._is_running = [], True
        env._begin(number)
        yield task["id"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", thinned(TASKS, one_in=4))
def test_right_calls_solve_all_tasks_and_none_solve_nothing(name: str) -> None:
    env, solved = BFCL(tasks=[name]), 0
    for _ in all_of(env):
        points, info = 0.0, dict[str, Any]()
        while plan := env.optimal_actions(horizon=1):
            _, points, _, _, info = env.step(plan[0])
            assert info["action_is_valid"]
        solved += info["success"]
        assert points == float(info["success"])
    assert solved == 200
    for _ in all_of(env):
        over = False
        while not over:
            _, points, over, _, info = env.step(str(ToolCall(FINISH, {})))
        assert not info["success"] and points == 0.0


@pytest.mark.usefixtures("installed")
def test_the_contract_and_splits_that_variants_share() -> None:
    check_env(lambda split: BFCL(split=split), episodes=4)
    split_of: dict[str, str] = {}
    for split in SPLITS:
        env = BFCL(split=split)
        for seed in range(60):
            env.reset(seed=seed)
            assert split_of.setdefault(env._task["id"].rpartition("_")[2], split) == split


@pytest.mark.usefixtures("installed")
def test_a_task_by_hand() -> None:
    env = BFCL(tasks=["base"])
    next(all_of(env))
    assert env._observe().startswith("user: Move 'final_report.pdf' within document directory")
    assert "cp" not in {tool.name for tool in env.tools()}, "the task takes this tool away"

    def call(name: str, **arguments: Any) -> tuple[Any, ...]:
        return env.step(json.dumps({"name": name, "arguments": arguments}))

    key = env.state_key()
    assert call("cd", place="document")[4]["action_is_valid"] is False and env.state_key() == key
    assert call("cd", folder="document")[0] == '{"current_working_directory": "document"}'
    assert env.optimal_actions(horizon=9)[0] == str(ToolCall("mkdir", {"dir_name": "temp"}))  # type: ignore[index]
    assert "Error" in call("mv", source="nothing.pdf", destination="temp")[0] or "error" in env._observation
    assert env.optimal_actions(horizon=9) is None and env.state_key() != key
    call("mkdir", dir_name="temp")
    call("mv", source="final_report.pdf", destination="temp")
    told, points, over, *_ = call(FINISH, message="It is done.")
    assert told.startswith("user: Perform a detailed search") and (points, over) == (0.0, False)
    told, points, over, _, info = call(FINISH)  # nothing was searched, and nothing changes by a search
    assert (told, points, over, info["success"]) == ("The user is not content.", 0.0, True, False)


@pytest.mark.usefixtures("installed")
def test_a_tool_that_is_missing_comes_later() -> None:
    env = BFCL(tasks=["miss_func"])
    next(all_of(env))
    seen = []
    while plan := env.optimal_actions(horizon=1):
        seen.append("sort" in {tool.name for tool in env.tools()})
        told, *_ = env.step(plan[0])
        if told.startswith("user: There are more tools now"):
            assert env.tools() != () and "sort" in {tool.name for tool in env.tools()}
    assert seen[0] is False and seen[-1] is True


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("tasks", [["none"], [], "base"])
def test_unknown_tasks_are_named(tasks: Any) -> None:
    with pytest.raises(ValueError, match="^tasks=.* must be a list of some of base"):
        BFCL(tasks=tasks)


def test_without_the_library_its_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "bfcl_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    from lit_agentrl.envs.adapters import bfcl_data

    bfcl_data.read_tasks.cache_clear()
    with pytest.raises(ValueError, match=r"^this game needs bfcl-eval .*pip install --no-deps bfcl-eval=="):
        BFCL()


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.usefixtures("installed")
def test_tasks_are_the_same_in_two_processes() -> None:
    script = (
        "import numpy as np\nfrom lit_agentrl.envs.adapters.bfcl import BFCL\n"
        "env, rng = BFCL(split='val'), np.random.default_rng(0)\n"
        "for seed in range(10):\n"
        "    print(env.reset(seed=seed), env._get_content())\n"
        "    for _ in range(5): print(env.step(env.random_action(rng))[0]) if env._is_running else None\n"
    )
    assert len(printed_alike(script)) > 20_000
