"""Games small enough to know every reply's outcome."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.base import Outcome, Task, TextEnv
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer


class Count(TextEnv):
    """Say Up until the counter reaches the goal; Down fails; Left raises. Reward 1 an Up, 10 at the goal."""

    def __init__(
        self, *, split: str = "train", goal: int = 3, breaks_on_reset: bool = False, says: str = "P"
    ) -> None:
        super().__init__(split=split)
        self.goal, self.breaks_on_reset, self.says, self.count = goal, breaks_on_reset, says, 0

    @property
    def rules(self) -> str:
        return "count"

    def action_names(self) -> list[str]:
        return ["Up", "Down", "Left"]

    def _draw_instance(self, seed: int) -> str:
        if self.breaks_on_reset:
            raise RuntimeError("no such level")
        self.count = 0
        return str(seed)

    def _observe(self) -> str:
        return f"{self.says} {self.count}"

    def _play(self, action: str) -> Outcome:
        if action == "Left":
            raise RuntimeError("the game broke")
        if action == "Down":
            return Outcome({"fall": -5.0}, terminated=True)
        self.count += 1
        done = self.count == self.goal
        return Outcome({"step": 1.0, **({"goal": 10.0} if done else {})}, terminated=done, success=done)

    def _get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


def reply(*actions: str) -> str:
    return f"<think> go </think> <answer> {' || '.join(actions)} </answer>"


@pytest.fixture
def play():
    """``play(script, members=1, **limits)`` -> episodes of the counting game."""

    def run(
        script,
        *,
        members=1,
        groups=1,
        goal=3,
        breaks_on_reset=False,
        says="P",
        params=None,
        probes=None,
        context=FULL,
        engine=None,
        dialect=ANSWER,
        **limits,
    ):
        tokenizer = nano_tokenizer()
        game = partial(Count, goal=goal, breaks_on_reset=breaks_on_reset, says=says)
        task = Task(
            name="count", game=game, **{"max_turns": 4, "max_actions": 8, "max_actions_per_turn": 3, **limits}
        )
        engine = (engine or ScriptedEngine)(
            script, encode=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], capacity=2
        )
        rules = Rules(
            tasks=[task], prompt=Prompt(style="compact"), chat=ChatRenderer(tokenizer, dialect=dialect),
            engine=lambda **_: engine, probes=probes or {}, context=context,
        )  # fmt: skip
        run.scheduler = Scheduler(rules, engine)
        specs = tuple(EpisodeSpec(0, g, m, 0, 7 + g) for g in range(groups) for m in range(members))
        params = params or SamplingParams(max_reply_tokens=40, max_context_tokens=300)
        return run.scheduler.play(Wave("train", 0, params, specs))

    return run
