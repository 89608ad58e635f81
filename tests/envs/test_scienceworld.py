"""ScienceWorld: solved by the library's own solutions, equal in every process, and no game disturbs another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lit_agentrl.envs.adapters import java
from lit_agentrl.envs.adapters.scienceworld import TASKS, ScienceWorld
from lit_agentrl.envs.checker import check_env
from tests.conftest import sampled
from tests.envs.java import measure_use, needs_java, play_best, play_out, start_variation
from tests.envs.processes import printed_alike

pytest.importorskip("scienceworld")


@needs_java
def test_a_task_played_by_hand() -> None:
    env = ScienceWorld(tasks=["find-plant"], shows=["inventory"])
    shown = start_variation(env, 225)
    assert shown.startswith("Your task is to find a(n) plant.") and "In your inventory, you see:" in shown
    before = env.state_key()
    for nonsense in ("", "\n", "é\0", "\ud800", "xyzzy", "look " * 500):
        shown, reward, over, _, info = env.step(nonsense)
        assert shown.startswith("No known action matches that input.") and (reward, over) == (0.0, False)
        assert not info["action_is_valid"] and env.state_key() == before
    plan = env.optimal_actions(horizon=999)
    assert plan is not None and env.optimal_actions(horizon=2) == plan[:2]
    saved, total = env.state_dict(), 0.0
    for action in plan:
        _, reward, over, _, info = env.step(action)
        total += reward
        if over:
            break
    assert over and info["success"] and total == pytest.approx(1.0)
    assert env.optimal_actions(horizon=1) is None
    env.load_state_dict(saved)
    assert env.state_key() == before and env.optimal_actions(horizon=999) == plan
    shown, lost, over, _, info = env.step("focus on air")
    assert over and not info["success"] and lost == 0.0, "a mistake ends with 0, not with less"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["cook"]}, "^tasks=cook must be one of boil, melt, "),
        ({"tasks": "boil"}, r"^tasks=boil must be a list, such as \[boil\]$"),
        ({"tasks": ["boil", "boil"]}, r"^tasks=\[boil, boil\] must be a list of different names$"),
        ({"tasks": []}, r"^tasks=\[\] must be at least one task; null stands for all$"),
        ({"simplifications": ["fly"]}, "^simplifications=fly must be one of teleportAction, "),
        (
            {"simplifications": ["noElectricalAction"]},
            "^simplifications=noElectricalAction makes power-component imp",
        ),
        ({"shows": ["map"]}, "^shows=map must be one of look, inventory, actions"),
        ({"memory_mb": 1}, "^memory_mb=1 must be a whole number >= 256"),
    ],
)
def test_an_option_out_of_range_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScienceWorld(**options)


@needs_java
@pytest.mark.slow
def test_the_tasks_and_splits_are_those_of_the_library() -> None:
    from scienceworld.constants import ID2TASK

    assert list(ID2TASK.values()) == list(TASKS)
    counts = {}
    for split in ("train", "val", "test"):
        env = ScienceWorld(split=split)
        counts[split] = {task: env._list_variations(task) for task in TASKS}
    assert [sum(map(len, fold.values())) for fold in counts.values()] == [3592, 1796, 1819]
    for task in TASKS:
        folds = [set(fold[task]) for fold in counts.values()]
        assert all(folds) and len(set.union(*folds)) == sum(map(len, folds)), task


@needs_java
@pytest.mark.slow
def test_a_task_keeps_the_contract() -> None:
    check_env(
        lambda split: ScienceWorld(tasks=["find-plant"], split=split, simplifications=["easy"]), episodes=2
    )


@needs_java
@pytest.mark.slow
def test_games_of_one_java_process_do_not_disturb_each_other() -> None:
    """The library keeps its random generator, its numbers of objects and its simplifications only once."""
    rows: list[tuple[str, tuple[str, ...], int]] = [
        ("grow-fruit", (), 3), ("grow-fruit", (), 3), ("boil", ("easy",), 2), ("mendelian-genetics-known-plant", (), 5),
    ]  # fmt: skip
    envs = [ScienceWorld(tasks=[task], simplifications=parts) for task, parts, _ in rows]
    alone = []
    for (_, _, number), env in zip(rows, envs, strict=True):
        start_variation(env, number)
        alone.append(play_out(env, np.random.default_rng(len(alone)), 6))
    for (_, _, number), env in zip(rows, envs, strict=True):
        start_variation(env, number)
    rngs = [np.random.default_rng(number) for number in range(len(rows))]
    together: list[list[Any]] = [[] for _ in rows]
    for _ in range(6):
        for env, rng, trace in zip(envs, rngs, together, strict=True):
            if not (trace and trace[-1][3]):
                trace += play_out(env, rng, 1)
    assert together == alone


@needs_java
@pytest.mark.slow
@pytest.mark.sweep
def test_tasks_are_the_same_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.adapters.scienceworld import ScienceWorld as S\n"
        "env = S(split='val')\n"
        "for seed in range(4):\n"
        "    print(env.reset(seed=seed), env.step('look around'), env.optimal_actions(horizon=999))\n"
        "    print(env._list_actions(), env._get_content())\n"
    )
    assert len(printed_alike(script)) > 20_000


@needs_java
@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(
    "task", sampled(TASKS, often=("find-living-thing", "chemistry-mix", "lifespan-longest-lived"))
)
def test_the_solution_of_a_test_variation_scores_one(task: str) -> None:
    env = ScienceWorld(tasks=[task], split="test")
    variations = env._list_variations(task)
    for number in (variations[0], variations[len(variations) // 2], variations[-1]):
        start_variation(env, number)
        total, _, success = play_best(env)
        assert success and total == pytest.approx(1.0), number


@needs_java
@pytest.mark.parametrize(
    "parts", [pytest.param(5, marks=pytest.mark.slow), pytest.param(42, marks=pytest.mark.long)]
)
def test_resets_and_steps_leave_nothing_behind(parts: int) -> None:
    """24 resets and at least 288 steps a part: 1,000 and 10,000 in the long form."""
    used, rng = [], np.random.default_rng(0)
    for part in range(parts):
        for seed in range(12):
            env = ScienceWorld()
            env.reset(seed=seed)
            for action in (
                "look around",
                "open door to hallway",
                "wait1",
                "inventory",
                *["look around"] * 20,
            ):
                env.step(action)
            env.reset(seed=seed + 1)
            play_out(env, rng, 3)
            env.close()
        runtime = java.share_runtime(env._jar, memory_mb=1024)
        runtime.connect().java.lang.System.gc()
        used.append(measure_use("scienceworld.jar"))
        print(part, used[-1])
    assert [javas for javas, _, _ in used] == [1] * parts
    assert used[-1][1] <= used[1][1] + 2, "open files"
    assert used[-1][2] <= used[1][2] + 150, "memory of Java, MB"
