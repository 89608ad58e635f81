"""A game of an OpenEnv server: names, text and calls; what hangs, lies or dies harms one episode and is told."""

from __future__ import annotations

import json
import logging
import pickle
import re
import sys
from functools import partial
from typing import Any

import pytest

from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.hosted.openenv import OpenEnv
from lit_agentrl.envs.levels import make_level_key
from lit_agentrl.rollout.worlds.environments import Environments
from tests.envs.openenv_raw import serving


@pytest.mark.slow
def test_a_game_of_names_keeps_the_contract_and_is_played_by_hand() -> None:
    with serving() as url:
        make = partial(OpenEnv, url=url)
        check_env(lambda split: make(split=split), episodes=1)
        env = make(split="val")
        first, info = env.reset(seed=3)
        assert re.fullmatch(r"\d+ \d+", first) and info["instance_id"].startswith("OpenEnv-")
        assert (env.rules, env.action_names()) == ("Go to the door.", ["Left", "Right"])
        at, door = map(int, first.split())
        copy = pickle.loads(pickle.dumps(env))
        for number in range(abs(door - at)):
            move = "Left" if door < at else "Right"
            found = env.step(move)
            assert copy.step(move) == found
            assert found[1:3] == ((1.0, True) if number + 1 == abs(door - at) else (0.0, False))
        assert found[4]["success"]
        env.close()
        copy.close()


def test_one_field_of_text_is_free_text_and_what_the_server_refuses_is_told() -> None:
    with serving("say") as url:
        env = OpenEnv(url=url, show=["echoed"], told="Say it.")
        env.reset(seed=0)
        assert (env.rules, env.action_format()) == ("Say it.", "text")
        assert env.step("a || b  ")[0] == "a || b  "
        told, points, over, _, info = env.step("bad")
        assert (
            told == r"error: no\nsuch word" and (points, over) == (0.0, False) and not info["action_is_valid"]
        )
        saved = json.loads(json.dumps(env.state_dict()))
        assert env.step("c")[1:3] == (1.0, True)
        env.load_state_dict(saved)
        assert env.step("d")[:3] == ("d", 1.0, True)
        env.close()


@pytest.mark.parametrize(
    ("what", "call", "wrong", "gives"),
    [
        (
            "pay",
            {"name": "act", "arguments": {"to": "Ann", "amount": 3}},
            {"to": "Ann"},
            "echoed : Ann\nlength : 1",
        ),
        ("call", {"name": "add", "arguments": {"a": 100}}, {"a": "x"}, r"1\d\d"),
    ],
)
def test_an_action_of_several_fields_is_a_call(what: str, call: Any, wrong: Any, gives: str) -> None:
    with serving(what) as url:
        env = OpenEnv(url=url)
        env.reset(seed=1)
        assert [tool.name for tool in env.tools()] == [call["name"]] and env.action_format() == "tools"
        assert not env.step(json.dumps({**call, "arguments": wrong}))[4]["action_is_valid"]
        assert re.fullmatch(gives, env.step(json.dumps(call))[0])
        env.close()


def test_a_server_that_was_started_again_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as url:
        env, other = OpenEnv(url=url, patience_s=5), OpenEnv(url=url)
        far = (s for s in range(99) if abs(int.__sub__(*map(int, env.reset(seed=s)[0].split()))) > 3)
        seed = next(far)  # it is not over too soon
        assert env.reset(seed=seed) == other.reset(seed=seed)
        assert env.step("Left") == other.step("Left")
        expected = other.step("Right"), other.state_key()
    with serving(port=int(url.rpartition(":")[2])), caplog.at_level(logging.WARNING):
        assert (env.step("Right"), env.state_key()) == expected
        assert "had lost an episode, which was played again (1 so far)" in caplog.text
    with (
        serving("unseeded", port=int(url.rpartition(":")[2])),
        pytest.raises(ValueError, match="has lost the episode, and played again it shows something else"),
    ):
        env.step("Right")
    gone = OpenEnv.__new__(OpenEnv)
    gone.__dict__.update(env.__dict__)
    gone._session, gone._session_options = None, {**env._session_options, "patience_s": 0}
    with pytest.raises(ValueError, match=r"cannot be reached \(ConnectionRefusedError"):
        gone.reset(seed=0)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("unseeded", {}, "begins two games with the same seed"),
        ("lie", {}, "gave an unusable answer to step: data="),
        ("nan", {}, "NaN is no number of JSON"),
        ("", {"max_mb": 0.00001}, "more than 1e-05 MB|env.game.url|max_mb"),
        ("", {"show": ["board"]}, r"show=board must be one of corridor, metadata"),
        pytest.param("same", {"split": "val"}, "set env.game.instances=1", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_played_is_told_in_one_line(what: str, options: Any, message: str) -> None:
    with serving(what) as url, pytest.raises(ValueError, match=message) as error:
        env = OpenEnv(url=url, **options)
        env.reset(seed=0)
        for _ in range(9):
            env.step("Left")
    assert "\n" not in str(error.value)


def test_one_start_is_shared_by_all_splits_and_room_is_asked_for() -> None:
    with serving("same", most=1) as url:
        env = OpenEnv(url=url, instances=1, split="test")
        assert env.reset(seed=0)[0] == env.reset(seed=9)[0] == "3 7"
        other = OpenEnv(url=url, instances=1)
        with pytest.raises(ValueError, match="all are used; start it with more max_concurrent_envs"):
            other.reset(seed=0)
        env.close()


@pytest.mark.slow
def test_what_hangs_is_a_timeout_of_its_episode() -> None:
    with serving("hang") as url:
        seats = Environments(Task("it", partial(OpenEnv, url=url, timeout_s=2.0), max_actions=9), {})
        assert not seats.reset(0, "train", 0, 0).error
        answer = seats.step(0, ["Left"])
        assert answer.timed_out and "did not answer within timeout_s=2" in answer.error
        seats.release(0, is_broken=True)
        seats.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ws://127.0.0.1:1"}, "^url="),
        ({"url": "http://127.0.0.1:9"}, r"^url=http://127.0.0.1:9 does not answer"),
        ({"field": "to"}, "field=to must be null or one of move"),
        ({"instances": 2}, "instances=2 must be null or 1"),
        ({"timeout_s": 0}, "timeout_s=0 must be a number > 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with serving() as url, pytest.raises(ValueError, match=message):
        OpenEnv(**{"url": url, **options})


def test_levels_belong_to_what_is_served_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as one, serving() as two, serving("say") as other:
        keys = [make_level_key(Task("it", partial(OpenEnv, url=url)), "val") for url in (one, two, other)]
        assert keys[0] == keys[1] != keys[2]
        monkeypatch.setitem(sys.modules, "websockets", None)
        with pytest.raises(ValueError, match=r"needs websockets .*pip install 'lit-agentrl\[openenv\]'$"):
            OpenEnv(url=one).reset(seed=0)
