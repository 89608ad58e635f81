"""TextWorldExpress: solved by the library's own solutions, equal in every process, and none disturbs another."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import numpy as np
import pytest

from lit_agentrl.envs.adapters import java
from lit_agentrl.envs.adapters.textworld_express import GAMES, TextWorldExpress
from lit_agentrl.envs.checker import check_env
from tests.conftest import thinned
from tests.envs.java import find_javas, measure_use, needs_java, play_best, play_out, start_variation
from tests.envs.processes import printed_alike

pytest.importorskip("textworld_express")


@needs_java
@pytest.mark.parametrize("id", thinned(sorted(GAMES), one_in=8))
def test_a_game_keeps_the_contract_and_is_solved_by_best_play(id: str) -> None:
    check_env(lambda split: TextWorldExpress(id=id, split=split), episodes=3)
    for shows in ([], ["look", "inventory", "actions"]):
        env = TextWorldExpress(id=id, shows=shows, partial=False, split="test")
        env.reset(seed=5)
        total, _, success = play_best(env)
        assert success and total == 1.0


@needs_java
def test_a_game_played_by_hand() -> None:
    env = TextWorldExpress(id="sorting")
    shown, _ = env.reset(seed=1)
    assert shown.startswith("Your task is to sort objects") and "Possible actions: inventory, " in shown
    plan = env.optimal_actions(horizon=99)
    assert plan is not None and plan[0].startswith("take ")
    before = env.state_key()
    for nonsense in ("", "é\0\n", plan[0] * 500, "put all in box"):
        shown, reward, over, _, info = env.step(nonsense)
        assert shown.startswith("Unknown action") and (reward, over) == (0.0, False)
        assert not info["action_is_valid"] and env.state_key() == before
    assert env.optimal_actions(horizon=1) == plan[:1]
    shown, reward, over, _, info = env.step(f" {plan[0].upper()}\n")
    assert shown.startswith("You take ") and info["action_is_valid"] and not over
    _, first, *_ = env.step(plan[1])
    assert first == pytest.approx(2 / len(plan))
    env.step(plan[4])
    assert env.optimal_actions(horizon=9) is None, "the solution was left"
    _, lost, over, _, info = env.step(plan[5])
    assert over and not info["success"] and lost == -first, "a failure ends with 0, not with less"


@needs_java
@pytest.mark.parametrize("id", thinned(["sorting", *sorted(set(GAMES) - {"sorting"})], one_in=9))
def test_games_of_one_java_process_do_not_disturb_each_other(id: str) -> None:
    """Also where they are of one variation: the library shares the objects of its sorting problems."""
    envs = [TextWorldExpress(id=id, split="val") for _ in range(3)]
    alone = []
    for number, env in enumerate(envs):
        env.reset(seed=4)
        alone.append(play_out(env, np.random.default_rng(number), 8))
    for env in envs:
        env.reset(seed=4)
    rngs = [np.random.default_rng(number) for number in range(3)]
    together: list[list[Any]] = [[], [], []]
    for _ in range(8):
        for env, rng, trace in zip(envs, rngs, together, strict=True):
            if not (trace and trace[-1][3]):
                env.optimal_actions(horizon=1)
                trace += play_out(env, rng, 1)
    assert together == alone
    assert len(find_javas("textworld-express.jar", of_workers=False)) == 1


@needs_java
@pytest.mark.slow
def test_a_killed_java_process_is_counted_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    envs = [TextWorldExpress(id="coin", split=split) for split in ("train", "test")]
    runtime = java.share_runtime(envs[0]._jar, memory_mb=256)
    traces = []
    for kills in (False, True):
        rngs = [np.random.default_rng(number) for number in range(2)]
        for env in envs:
            env.reset(seed=3)
        trace: list[Any] = []
        deaths = runtime.deaths
        for turn in range(6):
            if kills and turn in (2, 4):
                assert runtime.pid is not None
                os.kill(runtime.pid, signal.SIGKILL)
            with caplog.at_level(logging.WARNING):
                for env, rng in zip(envs, rngs, strict=True):
                    trace += play_out(env, rng, 1)
        assert runtime.deaths - deaths == 2 * kills
        traces.append(trace)
    assert traces[0] == traces[1]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and "died (exit code -9) and is replaced" in lines[0]
    assert len(find_javas("textworld-express.jar", of_workers=False)) == 1


@pytest.mark.slow
@needs_java
def test_a_java_process_that_dies_again_and_again_ends_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = java.JavaRuntime(TextWorldExpress()._jar, memory_mb=64)
    game = java.JavaGame(runtime, lambda classes: classes.java.lang.System)
    assert game.ask(lambda system: system.lineSeparator()) == "\n"
    with pytest.raises(RuntimeError, match="^the Java process died twice in the same action$"):
        game.ask(lambda system: system.exit(3))
    monkeypatch.setattr(java, "_RESTARTS", 2)
    with pytest.raises(
        RuntimeError, match=r"3 Java processes .* died, the last with exit code 3; raise env.game.mem"
    ):
        game.ask(lambda system: system.exit(3))
    assert runtime.pid is None
    with pytest.raises(RuntimeError, match="^Java: java.lang.NumberFormatException: "):
        java.JavaGame(runtime, lambda classes: classes.java.lang.Integer).ask(
            lambda number: number.parseInt("x")
        )
    runtime.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "chess"}, "^id=chess must be one of cookingworld, twc, "),
        ({"settings": {"numLocations": 12}}, "^settings.numLocations=12 must be a whole number from 1 to 11"),
        (
            {"settings": {"numRooms": 1}},
            "^settings.numRooms=1 must be left out: the settings of coin are numLoc",
        ),
        ({"id": "sorting", "settings": {"x": 1}}, "the settings of sorting are none$"),
        ({"id": "simonsays", "settings": {"verbose": 1}}, "^settings.verbose=1 has no effect without"),
        (
            {"id": "mapreader", "settings": {"numLocations": 49}},
            "^settings.numLocations=49 must be .* 2 to 48",
        ),
        ({"settings": [1]}, r"^settings=\[1\] must be a mapping"),
        ({"shows": "look"}, r"^shows=look must be a list, such as \[look\]$"),
        ({"shows": ["map"]}, "^shows=map must be one of look, inventory, actions"),
        ({"memory_mb": 1}, "^memory_mb=1 must be a whole number >= 64"),
    ],
)
def test_an_option_out_of_range_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextWorldExpress(**options)


@needs_java
@pytest.mark.slow
@pytest.mark.sweep
def test_games_are_the_same_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.adapters.textworld_express import TextWorldExpress as T, GAMES\n"
        "for id in GAMES:\n"
        "    env = T(id=id, split='val')\n"
        "    for seed in range(10):\n"
        "        print(id, env.reset(seed=seed), env.optimal_actions(horizon=99), env._get_content())\n"
    )
    assert len(printed_alike(script)) > 60_000


@needs_java
@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("id", sorted(GAMES))
def test_the_solution_of_every_tenth_test_variation_scores_one(id: str) -> None:
    env = TextWorldExpress(id=id, split="test")
    for number in range(20_000, 21_000, 10):
        start_variation(env, number)
        total, steps, success = play_best(env)
        assert success and total == pytest.approx(1.0) and steps <= 50, number


@needs_java
@pytest.mark.slow
def test_a_thousand_resets_and_ten_thousand_steps_leave_nothing_behind() -> None:
    used = []
    rng = np.random.default_rng(0)
    for part in range(6):
        for seed in range(170):
            env = TextWorldExpress(id=sorted(GAMES)[seed % 8])
            env.reset(seed=seed)
            play_out(env, rng, 17)
            env.reset(seed=seed + 1)
            env.close()
        java.share_runtime(TextWorldExpress()._jar, memory_mb=256).connect().java.lang.System.gc()
        used.append(measure_use("textworld-express.jar"))
        print(part, used[-1])
    assert [javas for javas, _, _ in used] == [1] * 6
    assert used[-1][1] <= used[1][1] + 2, "open files"
    assert used[-1][2] <= used[1][2] + 60, "memory of Java, MB"
