"""Few-shot prompts: solved train instances in the words of the game, the room of an episode as before."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.games.frozen_lake import FrozenLake
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.shots import with_shots
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer
from tests.rollout.conftest import Count


def rules_of(game: Any, name: str = "game", **prompt: Any) -> Rules:
    task = Task(name, game, max_turns=4, max_actions=10, max_actions_per_turn=3)
    return Rules(
        tasks=[task], prompt=Prompt(**{"style": "compact", **prompt}), chat=ChatRenderer(nano_tokenizer()),
        engine=lambda **_: None,  # type: ignore[arg-type, return-value]
        max_context_tokens=300,
    )  # fmt: skip


@pytest.mark.parametrize("game", [Sokoban, partial(FrozenLake, success_rate=0.5), Bandit])
@pytest.mark.parametrize("style", ["compact", "full"])
def test_each_shown_episode_is_played_as_it_says_and_solves_a_train_instance(game: Any, style: str) -> None:
    rules = with_shots(rules_of(game, style=style), 0, 2)
    shots = list(rules.shots["game"])
    assert [each["role"] for each in shots] == ["user", "assistant"] * (len(shots) // 2)
    starts = [k for k in range(0, len(shots), 2) if " left" not in shots[k]["content"]]  # later ones count
    if style == "full":
        assert len(starts) == 2 and starts[0] == 0
    env = game(split="train")
    if isinstance(env, FrozenLake):  # it slips
        return
    seeds = iter(range(40))
    is_over = True
    for asked, told in zip(shots[::2], shots[1::2], strict=True):
        if is_over:
            shown, _ = env.reset(seed=next(seeds))
        assert asked["content"].endswith(shown)
        reply = ANSWER.parse(told["content"], env.actions(), think=True)
        assert reply.is_valid and reply.has_think and reply.think.strip() == env.best_thought()
        assert 1 <= len(reply.actions) <= 3
        for action in reply.actions:
            shown, _, is_over, _, info = env.step(action)
    assert is_over and info["success"] and next(seeds) == 2


def test_they_stand_before_the_own_message_and_take_none_of_its_room() -> None:
    plain = rules_of(Bandit, "bandit", style="full")
    shown = with_shots(plain, 0, 3)
    played = []
    for rules in (plain, shown):
        tokenizer = rules.chat.tokenizer
        engine = ScriptedEngine(
            lambda episode, turn: "<answer>Up</answer>",
            encode=lambda text, tokenizer=tokenizer: tokenizer(text, add_special_tokens=False)["input_ids"],
        )
        params = SamplingParams(max_reply_tokens=20, max_context_tokens=rules.max_context_tokens)
        (episode,) = Scheduler(rules, engine).play(Wave("test", 0, params, (EpisodeSpec(0, 0, 0, 0, 5),)))
        played.append(episode)
    without, with_them = played
    assert with_them.opening == [*without.opening[:-1], *shown.shots["bandit"], without.opening[-1]]
    more = len(with_them.turns[0].prefix_tokens) - len(without.turns[0].prefix_tokens)
    assert shown.max_context_tokens - plain.max_context_tokens == more > 0


def test_without_thoughts_none_is_written() -> None:
    shots = with_shots(rules_of(Bandit, think=False), 0, 1).shots["game"]
    assert "think" not in shots[1]["content"]


class Half(Count):
    """Knows how to begin, and loses."""

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        return ["Up"] if not self.count else ["Down"]


def test_what_cannot_be_shown_is_one_line() -> None:
    with pytest.raises(
        ValueError, match="shots: game does not know best play, which writes the episodes; leave"
    ):
        with_shots(rules_of(Count), 0, 1)
    with pytest.raises(ValueError, match="shots: game: RuntimeError: no such level"):
        with_shots(rules_of(partial(Half, breaks_on_reset=True)), 0, 1)
    with pytest.raises(ValueError, match="solved 0 of 40 train instances of game; lower shots"):
        with_shots(rules_of(Half), 0, 2)
