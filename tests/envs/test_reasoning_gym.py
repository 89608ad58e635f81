"""Questions of reasoning-gym: its own answers are right, nonsense is not, and no answer is executed."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.envs.adapters.reasoning_gym import TASKS, ReasoningGym
from lit_agentrl.envs.checker import check_env
from tests.conftest import ROOT, thinned
from tests.envs.processes import printed_alike

NONSENSE = [
    "",
    " ",
    "garbage",
    "9" * 5000,
    "1e999999999",
    "[[" * 4000,
    "nan",
    "inf",
    "{}",
    "9**9**9",
    "(1)" * 3000,
    "√\0",
]


@pytest.mark.parametrize("task", thinned(TASKS))
def test_a_task_knows_its_answer_and_gives_nothing_for_nonsense(task: str, tmp_path: Path) -> None:
    env, trap = ReasoningGym(tasks=[task], partial=True), tmp_path / "trap"
    for seed in range(3):
        env.reset(seed=seed)
        (answer,) = env.optimal_actions(horizon=1) or [""]
        code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
        for text in (*NONSENSE, code, f"[{code}]"):
            _, points, is_over, _, info = env.step(text)
            assert points < 0.2 and is_over and not info["success"], (text[:20], points)
            env.reset(seed=seed)
        assert env.step(answer)[1] == 1.0
    assert not trap.exists()


def test_no_task_that_the_page_rules_out_is_played() -> None:
    page = (
        (ROOT / "docs/adapters.md")
        .read_text(encoding="utf-8")
        .partition("| why | tasks |")[2]
        .partition("\n\n")[0]
    )
    ruled_out = set(
        re.findall(r"\b[a-z][a-z0-9_]+\b", " ".join(row.split("|")[2] for row in page.splitlines()[2:]))
    )
    assert {"coin_flip", "countdown", "complex_arithmetic"} <= ruled_out and not ruled_out & {*TASKS}


def test_tries_are_told_and_counted() -> None:
    env = ReasoningGym(tasks=["chain_sum"], settings={"chain_sum": {"max_terms": 2}}, tries=2, retry="No.")
    question, _ = env.reset(seed=4)
    answer = env.optimal_actions(horizon=2)
    told, points, is_over, _, _ = env.step("x")
    assert (told, points, is_over) == (f"No.\n{question}", 0.0, False)
    copy = pickle.loads(pickle.dumps(env))
    assert answer is not None and copy.step(answer[0])[1:3] == (1.0, True)
    assert copy.optimal_actions(horizon=1) is None
    check_env(lambda split: ReasoningGym(tasks=["maze", "gcd"], tries=2, split=split), episodes=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["countdown"]}, "^tasks=countdown must be one of the tasks that docs/adapters.md lists$"),
        ({"tasks": []}, r"^tasks=\[\] must be at least one task"),
        ({"settings": {"gcd": {"seed": 1}}}, "^settings.gcd=.* must be free of seed and size$"),
        ({"settings": {"gcd": {"depth": 1}}}, "^settings.gcd={'depth': 1} is refused by its generator"),
        ({"settings": {"gcd": {"min_numbers": -1}}}, "^settings.gcd=.* is refused by its generator"),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReasoningGym(**options)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(
        ValueError, match=r"^this game needs reasoning-gym .*pip install 'lit-agentrl\[reasoning\]'$"
    ):
        ReasoningGym()


@pytest.mark.slow
@pytest.mark.sweep
def test_questions_are_the_same_in_two_processes() -> None:
    script = (
        "from lit_agentrl.envs.adapters.reasoning_gym import ReasoningGym as R\n"
        "env = R(split='val')\n"
        "for seed in range(300): print(env.reset(seed=seed), env.optimal_actions(horizon=1))\n"
    )
    assert len(printed_alike(script)) > 30_000
