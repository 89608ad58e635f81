"""The start-up check of prompts: games and condensers whose words the policy cannot read, or that do not fit."""

from __future__ import annotations

import pytest

from lit_agentrl.engines.native import NativeEngine
from lit_agentrl.entry.assembly import check_prompts
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.condensers import LastActions
from lit_agentrl.text.context import FULL, Context, Single, Window
from lit_agentrl.text.prompts import Prompt
from tests.conftest import load_task_yaml, nano_tokenizer


def check(context: Context, *, prompt: Prompt | None = None, game: str = "sokoban", limit: int = 512) -> None:
    chat = ChatRenderer(nano_tokenizer(), force_think=prompt.force_think if prompt else False)
    rules = Rules(
        tasks=[load_task_yaml(game)], prompt=prompt or Prompt("compact"), chat=chat, engine=NativeEngine,
        context=context, max_context_tokens=limit,
    )  # fmt: skip
    check_prompts(rules)


@pytest.mark.parametrize("game", ["sokoban", "frozen_lake", "bandit"])
@pytest.mark.parametrize("force_think", [False, True])
def test_shipped_contexts_pass(game: str, force_think: bool) -> None:
    for context in (FULL, Window(1), Window(2), Single(LastActions())):
        check(context, prompt=Prompt("compact", force_think=force_think), game=game)


def test_words_that_a_condenser_makes_are_read_before_anything_is_played() -> None:
    with pytest.raises(
        ValueError, match=r"does not know a token of what sokoban shows after .*context\.condense"
    ):
        check(Single(lambda past: "déjà vu"))


def test_a_condenser_that_fails_on_real_turns_is_refused() -> None:
    seen = []
    with pytest.raises(ValueError, match=r"context\.condense failed: ZeroDivisionError"):
        check(Single(lambda past: seen.append(past) or str(1 / 0)))  # type: ignore[func-returns-value]
    [(turn,)] = seen
    assert len(turn.actions) == 1 and turn.is_valid and not turn.problem
    with pytest.raises(ValueError, match=r"context\.condense returned int"):
        check(Single(lambda past: len(past)))  # type: ignore[arg-type, return-value]


def test_a_prompt_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"rollout\.max_context_tokens=20 leaves no room for a reply"):
        check(Window(1), limit=20)
