"""Slow and hostile games: the same tokens whatever hosts them, and none that stops the others."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.worlds.pool import Worlds
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from scripts.bench.slow_worlds import EPISODES, TURNS, list_tokens, play
from tests.conftest import nano_tokenizer
from tests.rollout.hostile import Hostile


@pytest.mark.slow
@pytest.mark.parametrize(
    "delay", [pytest.param(0, marks=pytest.mark.slow), 7, pytest.param(40, marks=pytest.mark.slow)]
)
def test_tokens_depend_neither_on_where_nor_on_the_number_of_workers(delay: int) -> None:
    worlds = Worlds(delay=delay)
    inline, _ = play(Hosting(), seconds=0.0, worlds=worlds)
    assert len(inline) == EPISODES and all(len(e.turns) == TURNS for e in inline)
    assert len({len(reply) for episode in list_tokens(inline) for reply in episode}) > 4
    places = [Hosting(where="thread", workers=workers) for workers in (1, 5, 16)]
    for hosting in [*places, Hosting(where="process", workers=2)][: None if delay == 7 else 3]:
        played, _ = play(hosting, seconds=0.001, worlds=worlds)
        assert list_tokens(played) == list_tokens(inline)
        assert [e.env_calls for e in played] == [1 + TURNS] * EPISODES


def test_without_waiting_every_episode_is_played() -> None:
    played, _ = play(Hosting(where="thread", workers=4), seconds=0.001, worlds=Worlds(wait=False))
    assert [len(e.turns) for e in played] == [TURNS] * EPISODES


def hostile(action: str, hosting: Hosting, *, waves: int = 1) -> list[Episode]:
    tokenizer = nano_tokenizer()
    task = Task(
        "hostile",
        partial(Hostile, seconds=0),
        max_turns=3,
        max_actions_per_turn=1,
        max_actions=3,
        hosting=hosting,
    )
    text = f"<think></think><answer>{action}</answer>"
    engine = ScriptedEngine(lambda e, k: text, encode=lambda t: tokenizer.encode(t, add_special_tokens=False))
    chat = ChatRenderer(tokenizer)
    chat.decode = lambda tokens: text  # type: ignore[method-assign]  # the vocabulary lacks such words
    rules = Rules(tasks=[task], prompt=Prompt("compact"), chat=chat, engine=lambda **_: engine)
    scheduler, specs = Scheduler(rules, engine), tuple(EpisodeSpec(0, e, 0, 0, e) for e in range(4))
    played: list[Episode] = []
    for _ in range(waves):
        played += scheduler.play(
            Wave("train", 0, SamplingParams(max_reply_tokens=40, max_context_tokens=300), specs)
        )
    scheduler.close()
    return played


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_game_that_hangs_is_given_up_and_the_others_play_on(where: Any) -> None:
    found = hostile("hang", Hosting(where=where, workers=1, step_timeout_s=2.0))
    assert [e.end for e in found] == [
        EndReason.ACTION_LIMIT, EndReason.ENV_TIMEOUT, EndReason.ACTION_LIMIT, EndReason.ACTION_LIMIT,
    ]  # fmt: skip
    assert found[1].failed and "hosting.step_timeout_s=2 passed" in found[1].error
    calm = hostile("wait", Hosting())
    for mine, theirs in zip(found, calm, strict=True):
        if not mine.failed:  # also those that were played again in another process
            assert [t.message for t in mine.turns] == [t.message for t in theirs.turns]
            assert [t.reward for t in mine.turns] == [1.0, 2.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize(("action", "cause"), [("die", "exit code 3"), ("grow", "MemoryError")])
def test_a_process_that_dies_or_grows_fails_its_episode_only(action: str, cause: str) -> None:
    found = hostile(action, Hosting(where="process", workers=2, max_memory_mb=1024))
    assert [e.failed for e in found] == [False, True, False, False]
    assert found[1].end is EndReason.ERROR and cause in found[1].error
    assert [e.total_reward for e in found if not e.failed] == [6.0] * 3


@pytest.mark.slow
def test_workers_are_replaced_so_many_times() -> None:
    found = hostile("die", Hosting(where="process", workers=1, restarts=1), waves=2)
    assert [e.failed for e in found[:4]] == [False, True, False, False]
    assert sum(e.failed for e in found[4:]) >= 3  # those that were ready before it died again may be over
    assert "hosting.restarts=1 workers were replaced" in found[-1].error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "remote"}, "where=remote must be one of inline, thread, process"),
        ({"workers": 2}, "workers=2 must be a whole number from 1 to 1"),
        ({"step_timeout_s": 1.0}, "null where hosting.where=inline"),
        ({"where": "thread", "step_timeout_s": 0}, "a number > 0"),
        ({"where": "thread", "max_memory_mb": 100}, "null unless hosting.where=process"),
    ],
)
def test_hosting_refuses_what_nothing_would_read(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hosting(**options)
    with pytest.raises(ValueError, match="means nothing where wait=false"):
        Worlds(delay=3, wait=False)
