"""Which worlds a tokenizer has no words for."""

from __future__ import annotations

import pytest

from lit_agentrl.models.policy import load_nano
from lit_agentrl.text.known_words import count_tokens_per_letter, is_spelt
from tests.conftest import load_task_yaml


@pytest.mark.parametrize(
    ("model", "known", "unknown"),
    [
        (
            "nano",
            ["bandit", "bandit_reversed", "sokoban", "frozen_lake"],
            ["maths", "code", "webshop", "reverse_text"],
        ),
        ("nano_tools", ["gymnasium", "sokoban"], ["maths", "code", "webshop", "guess_number"]),
    ],
)
def test_the_embedded_policies_know_their_own_worlds(
    model: str, known: list[str], unknown: list[str]
) -> None:
    tokenizer = load_nano(name=model).tokenizer
    for name in (*known, *unknown):
        env = load_task_yaml(name).make("train")
        shown = [env.reset(seed=seed)[0] for seed in range(4)]
        assert is_spelt(tokenizer, shown) == (name in unknown), (
            name,
            count_tokens_per_letter(tokenizer, shown),
        )
    assert count_tokens_per_letter(tokenizer, ["# _ P"]) == 0
