"""Questions of mathematics: their answers are right, all equal forms count, and no answer costs time or memory."""

from __future__ import annotations

import re
import time
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.levels import find_levels
from lit_agentrl.envs.splits import SPLITS, keyed_rng
from lit_agentrl.envs.tasks.maths import Maths
from lit_agentrl.envs.tasks.maths_answers import MAX_LENGTH, Form, judge, parse_expression
from lit_agentrl.envs.tasks.maths_tasks import TOPICS, Sampler, format_polynomial
from tests.conftest import load_task_yaml
from tests.envs.processes import printed_alike

RIGHT: list[tuple[Form, str, str]] = [
    ("number", "3/4", "0.75|.75|6/8|75%|$3/4$|\\frac{3}{4}|\\boxed{0.75}|+3/4|3/4.|x = 3/4| x=0.750 "),
    ("number", "-1250", "-1,250|−1250|- 1250|\\(-1250\\)|-2500/2|-1250.00"),
    ("number", "3/2", "1 1/2|1.5|3/2|150%"),
    ("numbers", "-7 and 9", "-7 and 9|9, -7|9 or -7|x = 9, x = -7|9.0; -14/2"),
    ("expression", "2x^2 - 3x + 1", "2x^2-3x+1|1 - 3x + 2x²|2*x**2 - 3*x + 1|-3x+1+4x^2/2|(1)+2x^2-3x"),
    ("expression", "0", "0|0x"),
    ("expression", "1/2x", "x/2|0.5x|(1/2)x|1/2*x|2x/4"),
]
WRONG: list[tuple[Form, str, str]] = [
    ("number", "3/4", "3|3/0|1 + 2|2*3/8|nan|inf|1e9|0x1|٣/٤|3/4 or 5|three||-|3//4|1,0|--3/4|y = 3/4|3/4x"),
    ("numbers", "-7 and 9", "-7|9|-7, 9, 1|-7 9|all numbers"),
    (
        "expression",
        "2x^2 - 3x + 1",
        "(2x-1)(x-1)|(2x^2-3x+1)|x^2+x^2-3x+1|2x^2-3x|2x^2-3y+1|f(x)|2x^2-3x+1=0",
    ),
]
HOSTILE = [
    "9^9^9^9", "x^" + "9" * 150, "(" * 199, "(" * 90 + "x" + ")" * 90, "-" * 200, "9" * 200, "1/" + "9" * 190,
    "(x+y+z+a+b+c)^12", "(((((x^12)^12)^12)^12)^12)", "(9^12)^12*(9^12)^12", "1e999999999", "1/0", "x/0", "x/(x-x)",
    "__import__('os').system('touch CANARY')", "[].__class__", "x" * MAX_LENGTH, "x" * 1_000_000, "\x00", "\ud800",
    "1_000", "０", "²³", "^2", "x^-1", "2^0.5", "%%", "$" * 200, "\\boxed{" * 20, "1," * 100, "lambda: 1", "∞", "½",
]  # fmt: skip


@pytest.mark.parametrize(("form", "right", "answers"), RIGHT)
def test_equal_forms_are_right(form: Form, right: str, answers: str) -> None:
    for answer in answers.split("|"):
        assert judge(answer, right, form, "x").is_right, answer


@pytest.mark.parametrize(("form", "right", "answers"), WRONG)
def test_other_answers_are_not(form: Form, right: str, answers: str) -> None:
    for answer in answers.split("|"):
        judged = judge(answer, right, form, "x")
        assert not judged.is_right and judged.message, answer


def test_hostile_answers_end_at_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.process_time()
    for right, form in (("0", "number"), ("1 and 2", "numbers"), ("x", "expression")):
        for answer in HOSTILE:
            assert not judge(answer, right, form).is_right, answer  # type: ignore[arg-type]
    assert time.process_time() - began < 2 and not list(tmp_path.iterdir())


def test_what_is_spelt_is_read_as_the_same() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        value = {
            tuple(
                (letter, int(power)) for letter, power in zip("xy", powers, strict=True) if power
            ): Fraction(int(rng.integers(1, 9)), int(rng.integers(1, 4)))
            for powers in rng.integers(0, 4, size=(3, 2))
        }
        assert parse_expression(format_polynomial(value)) == value, format_polynomial(value)


def test_the_contract_and_a_question_by_hand() -> None:
    check_env(lambda split: Maths(split=split), episodes=4)
    env = Maths(topics=["linear"], levels=[1], tries=2)
    told, _ = env.reset(seed=3)
    found = re.fullmatch(r"Solve (-?\d*)x ([+-]) (\d+) = (-?\d+) for x\.", told)
    assert found is not None
    factor = int(found[1]) if found[1] not in ("", "-") else int(f"{found[1]}1")
    answer = Fraction(int(found[4]) - int(f"{found[2]}{found[3]}"), factor)
    told, points, over, _, info = env.step(f"{answer + 1}")
    assert told.startswith(f"Your answer is {answer + 1}, but it is not right.\nSolve ")
    assert (points, over, info["success"]) == (0.0, False, False)
    state = env.state_dict()
    told, points, over, _, info = env.step(f"x = {answer}")
    assert (told.splitlines()[0], points, over, info["success"]) == ("Right.", 1.0, True, True)
    env.load_state_dict(state)
    assert env.step("y" * 500)[2] and len(env._observe()) < 300, "the last try"


def test_levels_are_shipped() -> None:
    levels = find_levels(load_task_yaml("maths"), "test")
    assert levels.oracle_success == 1.0 and (levels.chance_success or 0) < 0.1 and levels.episodes >= 1000


@pytest.mark.parametrize(
    "options", [{"topics": ["poetry"]}, {"topics": []}, {"topics": "linear"}, {"levels": [0]}, {"tries": 0}]
)
def test_bad_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))}="):
        Maths(**options)


@pytest.mark.slow
@pytest.mark.sweep
def test_gold_solves_and_another_process_sees_the_same() -> None:
    for split in SPLITS:
        env, met = Maths(split=split), Counter[tuple[str, int]]()
        for seed in range(1000):
            env.reset(seed=seed)
            met[env._topic, env._level] += 1
            assert env.step((env.optimal_actions(horizon=1) or [""])[0])[1] == 1.0
        assert len(met) == 3 * len(TOPICS)
    printed_alike(
        "from lit_agentrl.envs.tasks.maths import Maths\nenv = Maths()\n"
        "for seed in range(99): print(env.reset(seed=seed), env.optimal_actions(horizon=1), env.state_key())"
    )


@pytest.mark.slow
@pytest.mark.sweep
def test_answers_are_those_of_sympy() -> None:
    import sympy as sp

    x, y = sp.symbols("x y")

    def read(text: str) -> Any:
        text = re.sub(r"(\d|\))(?=[xy(])", r"\1*", text.replace("^", "**"))
        return sp.sympify(re.sub(r"(\d+)(?=[/)\s]|$)", r"Integer(\1)", text), rational=True)

    def solved(topic: str, question: str, unknown: str) -> Any:
        told = question[:-1].replace(" as one number", "")
        if topic in ("arithmetic", "fractions"):
            return read(told.removeprefix("Work out "))
        if topic in ("expand", "collect"):
            return sp.expand(read(told.removeprefix("Multiply out ").removeprefix("Simplify ")))
        if topic == "derivative":
            return sp.diff(read(told.split(" with ")[0].removeprefix("Differentiate ")), x)
        if topic == "system":
            lines = told.split(". ")[0].split(" and ")
            equations = [sp.Eq(*(read(side) for side in line.split(" = "))) for line in lines]
            return sp.solve(equations, [x, y])[sp.Symbol(unknown)]
        left, right = told.removeprefix("Solve ").removesuffix(" for x").split(" = ")
        return {*sp.solve(sp.Eq(read(left), read(right)), x)}

    topics = ("arithmetic", "fractions", "expand", "collect", "derivative", "system", "linear", "roots")
    for topic in topics:
        for number in range(40):
            problem = TOPICS[topic](Sampler(keyed_rng(number, 0, 1), 1 + number % 3))
            found = solved(topic, problem.question, problem.unknown)
            if isinstance(found, set):
                assert found == {sp.Rational(each) for each in problem.answer.split(" and ")}, problem
            else:
                assert sp.expand(found - read(problem.answer)) == 0, problem
