"""Texts written backwards: what is right, what is partly right, and splits."""

from __future__ import annotations

import pytest

from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.levels import measure
from lit_agentrl.envs.tasks.reverse_text import WORDS, ReverseText
from tests.conftest import load_task_yaml


def test_the_contract() -> None:
    check_env(load_task_yaml("reverse_text").make)
    check_env(lambda split: ReverseText(split=split, unit="words", min_words=2))


def test_words_differ() -> None:
    assert len(set(WORDS)) == len(WORDS) and all(word.isalpha() and word.islower() for word in WORDS)


@pytest.mark.parametrize(
    ("unit", "answer", "reward"),
    [
        ("characters", "puc eci", 1.0),
        ("characters", "  puc eci\n", 1.0),
        ("characters", "", 0.0),
        ("characters", "puc", 2 * 3 / (3 + 7)),
        ("characters", "puc eci" * 9, 2 * 7 / (28 + 7)),  # cut at four times the length
        ("words", "cup ice", 1.0),
        ("words", "cup", 2 * 3 / (3 + 7)),
    ],
)
def test_rewards(unit: str, answer: str, reward: float) -> None:
    for partial in (True, False):
        env = ReverseText(unit=unit, min_words=2, max_words=2, partial=partial)
        env.reset(seed=0)
        env.load_state_dict({**env.state_dict(), "game": {"text": "ice cup", "is_answered": False}})
        _, found, terminated, _, info = env.step(answer)
        assert terminated and info["success"] == (reward == 1)
        assert found == pytest.approx(reward if partial else float(reward == 1))


def test_sizes_and_splits() -> None:
    texts = {split: set[str]() for split in ("train", "val", "test")}
    for split, seen in texts.items():
        env = ReverseText(split=split)
        seen |= {env.reset(seed=seed)[0] for seed in range(200)}
        assert {len(text.split()) for text in seen} == {1, 2, 3}
    assert not texts["train"] & texts["val"] and not texts["val"] & texts["test"]


def test_levels() -> None:
    levels = measure(load_task_yaml("reverse_text"), "val", 200, 0)
    assert levels.oracle_success == levels.oracle_return == 1
    assert levels.chance_success is not None and levels.chance_success < 0.1
    assert levels.chance_return is not None and 0.1 < levels.chance_return < 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "lines"}, "unit=lines must be one of characters, words"),
        ({"min_words": 4}, "min_words=4 must be a whole number from 1 to 3"),
        ({"unit": "words"}, "min_words=1 must be a whole number from 2 to 3"),
        ({"max_words": 0}, "max_words=0 must be a whole number from 1 to 50"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ReverseText(**options)  # type: ignore[arg-type]
