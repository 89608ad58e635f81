"""Functions that are written and run in a sandbox: solved by their solutions, and by nothing that breaks out."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import pytest

from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.levels import find_levels
from lit_agentrl.envs.tasks.code import Code, strip_fence
from lit_agentrl.envs.tasks.code_tasks import LAST, MIDDLE, CodeTask
from lit_agentrl.envs.tasks.sandbox import Limits, run
from tests.conftest import load_task_yaml
from tests.envs.processes import printed_alike

PROBES = [json.loads(line) for line in Path(__file__).with_name("probes.jsonl").read_text().splitlines()]


def test_the_contract_and_a_game_played_by_hand() -> None:
    check_env(lambda split: Code(split=split), episodes=3)
    env = Code()
    assert "multiply each number by 3" in env.reset(seed=3)[0]
    told, points, over, _, _ = env.step("def f(xs):\n    print('hm')\n    return 3")
    assert told.startswith("It printed:\nhm\nhm\nhm\nf([8, 8, -8, 10, 0]) gave 3\nWrite f(xs)")
    assert (points, over) == (0.0, False)
    assert env.step("def f(xs)")[0].startswith("The program failed: ")
    told, points, over, _, info = env.step(f"```python\n{(env.optimal_actions(horizon=1) or [''])[0]}\n```")
    assert told.startswith("All tests are passed.") and (points, over, info["success"]) == (1.0, True, True)
    seen = {str(xs): env._task.compute(xs) for xs in env._example_inputs}
    env.reset(seed=3)
    told = env.step(f"def f(xs):\n    print(xs)\n    return {seen}[str(xs)]")[0]
    assert "The examples are right, and other tests are not." in told
    assert told.count("[") == 2 * len(env._example_inputs)  # of hidden calls nothing is told
    assert strip_fence("a\n```\nb\n```") == "a\n```\nb\n```" and strip_fence("```\n  b\n```") == "  b"


def test_levels_are_shipped() -> None:
    levels = find_levels(load_task_yaml("code"), "test")
    assert levels.oracle_success == 1.0 and (levels.chance_success or 0) < 0.2 and levels.episodes >= 1000


def test_every_step_says_what_it_does() -> None:
    for places, parts in ((MIDDLE, "middle"), (LAST, "last")):
        for place, step in enumerate(places):
            for numbers in (
                zip(*(range(low, high + 1) for low, high in step.ranges), strict=True)
                if step.ranges
                else [()]
            ):
                part = (place, numbers)
                task = CodeTask((part, (0, ())) if parts == "middle" else (part,))
                lists = [[], [3], [5, -2, 5, 12, 8, 0, 7], list(range(-9, 9))]
                found = run(task.solution, [("f", (xs,)) for xs in lists])
                assert list(found.results) == [repr(task.compute(xs)) for xs in lists], (task.question, found)


def attacked(kind: str, limits: Limits) -> None:
    """Play these probes, and then a program that is none.

    A probe that gets where it wants to returns ESCAPED, or touches a file named CANARY.
    """
    env = Code(seconds=limits.seconds, max_memory_mb=limits.max_memory_mb, tries=1)
    os.environ["SECRET_CANARY"] = "ESCAPED"
    before, parent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, os.getppid()
    for probe in (p for p in PROBES if (p["kind"] == "exhaustion") == (kind == "exhaustion")):
        env.reset(seed=3)
        began = time.monotonic()
        told, points, _, _, info = env.step(probe["code"])
        assert "ESCAPED" not in told and not points and not info["success"], (probe, told)
        assert len(told) < 4000 and time.monotonic() - began < 40 * limits.seconds + 20, probe
    assert not Path("CANARY").exists() and os.getppid() == parent
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    env.reset(seed=3)
    assert env.step((env.optimal_actions(horizon=1) or [""])[0])[1] == 1.0


def test_no_probe_breaks_out_or_changes_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(PROBES) >= 150
    attacked("", Limits(0.5, 32))


@pytest.mark.slow
def test_no_probe_exhausts_time_or_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    attacked("exhaustion", Limits(0.2, 32))


@pytest.mark.slow
def test_gold_solves_and_another_process_sees_the_same() -> None:
    for split in ("train", "val", "test"):
        env = Code(split=split)
        for seed in range(300):
            env.reset(seed=seed)
            assert env.step((env.optimal_actions(horizon=1) or [""])[0])[1] == 1.0
    printed_alike(
        "from lit_agentrl.envs.tasks.code import Code\nenv = Code()\n"
        "for seed in range(20): print(env.reset(seed=seed), env._hidden_inputs, env.state_key())"
    )


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_agentrl.envs.tasks.sandbox._pools", {})
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(
        ValueError, match=r"^this game needs pydantic-monty .*pip install 'lit-agentrl\[code\]'$"
    ):
        Code()
    for options in ({"steps": 0}, {"tests": 0}, {"tries": 0}, {"seconds": 0}, {"max_memory_mb": 1}):
        with pytest.raises(ValueError, match=rf"^{next(iter(options))}="):
            Code(**options)  # type: ignore[arg-type]
