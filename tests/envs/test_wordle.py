"""Wordle: marks of repeated letters, best play of every word, rewards, invalid guesses."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.games.wordle import WORDS, Wordle, mark
from lit_agentrl.envs.levels import measure
from tests.conftest import load_task_yaml


def start(word: str, **options: object) -> Wordle:
    env = Wordle(**options)  # type: ignore[arg-type]
    env.reset(seed=0)
    env.load_state_dict({**env.state_dict(), "game": {"word": word, "guesses": []}})
    return env


@pytest.mark.slow
def test_the_contract() -> None:
    check_env(load_task_yaml("wordle").make)
    check_env(lambda split: Wordle(split=split, guesses="list", partial=True), episodes=5)


def test_words_differ() -> None:
    assert len(WORDS) == len(set(WORDS)) == 778 and list(WORDS) == sorted(WORDS)
    assert all(len(word) == 5 and word.isascii() and word.isalpha() and word.islower() for word in WORDS)
    answers = [set(Wordle(split=split)._answers) for split in ("train", "val", "test")]
    assert [len(words) for words in answers] == [617, 78, 83] and set.union(*answers) == set(WORDS)


@pytest.mark.parametrize(
    ("guess", "word", "marks"),
    [
        ("stone", "stone", "GGGGG"),
        ("crane", "light", "_____"),
        ("notes", "stone", "YYYYY"),
        ("spoon", "stone", "G_G_Y"),  # as in the rules
        ("geese", "eagle", "YY__G"),
        ("geese", "eight", "YY___"),  # one e: the first of three
        ("alloy", "llama", "YGY__"),
        ("llama", "allow", "YGY__"),
        ("sassy", "glass", "YY_G_"),  # the s in place is counted first
    ],
)
def test_marks(guess: str, word: str, marks: str) -> None:
    assert mark(guess, word) == marks


def test_marks_follow_their_definition() -> None:
    rng = np.random.default_rng(0)
    for word in WORDS:
        guess = "".join("aelrst"[int(i)] for i in rng.integers(6, size=5))
        left = Counter(b for a, b in zip(guess, word, strict=True) if a != b)
        expected = ""
        for a, b in zip(guess, word, strict=True):
            expected += "G" if a == b else "Y" if left[a] > 0 else "_"
            left[a] -= a != b
        assert mark(guess, word) == expected


def test_best_play_finds_every_word_in_time() -> None:
    needed = Counter[int]()
    for word in WORDS:
        env = start(word)
        for count in range(1, 7):
            plan = env.optimal_actions(horizon=1)
            assert plan is not None
            if env.step(plan[0])[2]:
                needed[count] += 1
                break
    assert needed.total() == len(WORDS) and max(needed) == Wordle.max_solution
    assert sum(count * times for count, times in needed.items()) / len(WORDS) < 3.1
    assert env.optimal_actions(horizon=1) is None


def test_what_is_shown() -> None:
    env = start("stone")
    assert env.step("CRANE")[0] == "guess: c r a n e\nmarks: _ _ _ G G"
    assert env.best_thought() == "_ _ _ n e, without a c r"
    assert env.step(" n o t e s\n")[:3] == ("guess: n o t e s\nmarks: Y Y Y Y Y", 0.0, False)
    assert env.best_thought() == "_ _ _ n e, with o s t, without a c r"
    for wrong in ("", "x", "stones", "st0ne", "ſtone", "stone.", "a" * 5000):
        seen, reward, terminated, _, info = env.step(wrong)
        assert (reward, terminated, info["action_is_valid"]) == (0.0, False, False)
        assert seen == "guess: n o t e s\nmarks: Y Y Y Y Y"
    assert env.step("qqqqq")[4]["action_is_valid"]
    seen, reward, terminated, _, info = env.step("stone")
    assert (reward, terminated, info["success"]) == (1.0, True, True) and seen.endswith("G G G G G")


def test_a_listed_guess_is_asked_for() -> None:
    env = start("stone", guesses="list")
    assert not env.step("qqqqq")[4]["action_is_valid"] and env.step("ghost")[4]["action_is_valid"]


def test_parts_of_the_word_are_paid_once() -> None:
    env = start("stone", partial=True)
    paid = [env.step(guess)[1] for guess in ("light", "light", "store", "notes", "stone")]
    assert paid == pytest.approx([0.1, 0.0, 0.7, 0.0, 0.2]) and sum(paid) == pytest.approx(1)


def test_levels() -> None:
    levels = measure(load_task_yaml("wordle"), "test", 300, 0)
    assert levels.oracle_success == 1
    assert levels.chance_success == pytest.approx(6 / len(WORDS), abs=0.02)


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match="^guesses=all must be"):
        Wordle(guesses="all")
    with pytest.raises(ValueError, match="^partial=no must be true or false"):
        Wordle(partial="no")  # type: ignore[arg-type]
