"""A game is tried at start where its hosting says."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.rehearsal import rehearse
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.pool import GamePools
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from tests.conftest import load_task_yaml, nano_tokenizer
from tests.rollout.hostile import Unwilling, where_it_is


def rehearsed(how: str, **hosting: Any) -> Episode:
    task = Task("unwilling", partial(Unwilling, how=how), hosting=Hosting(**hosting))
    rules = Rules(
        tasks=[task], prompt=Prompt("compact"), chat=ChatRenderer(nano_tokenizer()), engine=NativeEngine
    )
    [episode] = rehearse(rules, 0, episodes=1)
    return episode


def test_a_game_that_hangs_does_not_hang_the_start() -> None:
    started = time.monotonic()
    found = rehearsed("hang", where="thread", reset_timeout_s=0.05)
    assert "hosting.reset_timeout_s=0.05 passed" in found.error and time.monotonic() - started < 10


@pytest.mark.slow
def test_a_game_that_dies_does_not_end_the_start() -> None:
    assert "WorkerDied: exit code 3 during reset" in rehearsed("die", where="process").error


@pytest.mark.slow
def test_a_game_is_looked_at_where_it_lives() -> None:
    task = replace(load_task_yaml("bandit"), hosting=Hosting(where="process"))
    with closing(GamePools([task], {})) as pools:
        pools.reset(0, 0, split="train", seed=0, noise_seed=0)
        pools.take(0)
        pools.look(0, where_it_is)
        name, pid = str(pools.take(0).result).split()
    assert name == "Bandit" and pid != str(os.getpid())
