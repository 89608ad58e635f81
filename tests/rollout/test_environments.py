"""What a game says is data: what is no text or no number fails its own episode, and names what it was."""

from __future__ import annotations

import queue
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from examples.own_tools.vault import Vault
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.envs.world import World
from lit_agentrl.rollout.worlds.child import Child
from lit_agentrl.rollout.worlds.environments import Call, Environments
from lit_agentrl.rollout.worlds.pool import WorkerPool


class Odd(World):
    """Shows and pays what it is told to."""

    closed = 0

    def __init__(
        self,
        *,
        split: str,
        shows: Any = "a",
        pays: Any = 0.0,
        says: Any = "",
        opening: threading.Event | None = None,
    ) -> None:
        super().__init__(split=split)
        if opening is not None:
            opening.wait(20)
        self._shows, self._pays, self._says = shows, pays, says

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return "a", {}

    def step(self, action: str) -> Any:
        if self._shows is SystemExit:
            sys.exit("enough")
        if self._says != "":
            return self._says
        return self._shows, self._pays, False, False, {"success": False}

    def close(self) -> None:
        Odd.closed += 1


def task(hosting: Hosting | None = None, **options: Any) -> Task:
    return Task("odd", partial(Odd, **options), max_actions=5, hosting=hosting or Hosting())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"shows": None}, "ValueError: the observation must be a str, not None"),
        ({"pays": float("nan")}, "ValueError: reward=nan must be finite"),
        ({"pays": None}, "ValueError: reward must be one number, not None"),
        ({"pays": np.ones(2)}, "ValueError: reward must be one number, not ndarray array([1., 1.])"),
        ({"says": None}, "ValueError: step must return (observation, reward, terminated, truncated, info)"),
        ({"says": ("a", 0.0, False, False, None)}, "ValueError: the info of step must be a dict, not None"),
        ({"says": ("a", 0.0, True, False, {})}, "ValueError: the info of the last step must say whether"),
        ({"says": ("a", 0.0, False, False, {"reward_parts": 3})}, "ValueError: info['reward_parts'] must be"),
        ({"shows": SystemExit}, "SystemExit: enough"),
    ],
)
def test_it_fails_its_own_episode(options: dict[str, Any], error: str) -> None:
    seats = Environments(task(**options), {})
    assert not seats.reset(0, "train", 0, 0).error
    assert seats.step(0, ["b"]).error.startswith(error)


def test_half_a_character_is_shown_as_none() -> None:
    seats = Environments(task(shows="a\ud800", pays=np.float32(0.5)), {})
    seats.reset(0, "train", 0, 0)
    answer = seats.step(0, ["b"])
    assert answer.observation == "a?" and type(answer.steps[0].reward) is float


@pytest.mark.slow
def test_an_environment_whose_reset_failed_is_closed_in_its_process_too() -> None:
    child = Child(task(Hosting(where="process")), {}, lambda: True)
    try:
        assert child(Call("reset", 0, ("nowhere", 0, 0))).error  # type: ignore[union-attr]
        assert 0 in child._held and child(Call("release", 0, (True,))) is None
    finally:
        child.close()


def test_a_game_that_cannot_be_sent_is_named_before_a_process_starts() -> None:
    child = Child(task(Hosting(where="process"), shows=threading.Lock()), {}, lambda: True)
    answer = child(Call("reset", 0, ("train", 0, 0)))
    assert answer is not None and answer.error.startswith("hosting.where=process: the game cannot be sent")
    assert child._process is None


def test_a_game_that_hangs_while_it_is_made_is_given_up_and_reaches_no_later_episode() -> None:
    opening: threading.Event = threading.Event()
    inbox: Any = queue.SimpleQueue()
    pool = WorkerPool(task(Hosting(where="thread", reset_timeout_s=0.05), opening=opening), {}, inbox)
    try:
        pool.ask(Call("reset", 0, ("train", 0, 0)))
        while inbox.empty():
            pool.check()
        key, answer = inbox.get()
        assert key == 0 and answer.timed_out
        pool.ask(Call("release", 0, (True,)))
        opening.set()
        pool.ask(Call("reset", 0, ("train", 0, 0)))
        key, answer = inbox.get(timeout=20)
        assert key == 0 and not answer.error
    finally:
        opening.set()
        pool.close()


def test_of_several_calls_each_result_is_shown() -> None:
    seats = Environments(Task("it", Vault, max_actions=9), {})
    seats.reset(0, "train", 3, 0)
    call = '{"name": "read", "arguments": {"note": "%s"}}'
    answer = seats.step(0, [call % "red", call % "blue"])
    shown = (answer.observation or "").splitlines()
    assert [line[:13] for line in shown] == ["The red note ", "The blue note"] and len(answer.steps) == 2


def test_a_game_that_says_that_it_takes_too_long_has_timed_out() -> None:
    class Late(Vault):
        def _play(self, action: str) -> Any:
            raise TimeoutError("no answer")

    seats = Environments(Task("it", Late, max_actions=9), {})
    seats.reset(0, "train", 3, 0)
    answer = seats.step(0, ['{"name": "read", "arguments": {"note": "red"}}'])
    assert answer.timed_out and answer.error == "TimeoutError: no answer"
