"""A served game is the local one to the bit; a server that is gone, hangs or talks nonsense harms one episode."""

from __future__ import annotations

import http.client
import json
import logging
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from examples.own_tools.vault import Vault
from lit_agentrl.cli.serve_env import main
from lit_agentrl.envs.adapters.reasoning_gym import ReasoningGym
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.games.frozen_lake import FrozenLake
from lit_agentrl.envs.hosted.remote import Remote
from lit_agentrl.envs.hosted.session_requests import RequestError
from lit_agentrl.envs.hosted.sessions import Sessions
from lit_agentrl.envs.levels import make_level_key
from lit_agentrl.envs.world import World
from lit_agentrl.rollout.scheduler import Scheduler
from tests.conftest import load_task_yaml, thinned, tiny_network
from tests.envs.served import Served, saying, start
from tests.rollout.test_process import rules, wave

GAMES = thinned([FrozenLake, Vault, partial(ReasoningGym, tasks=["gcd"], tries=3)])


def played(env: World) -> list[Any]:
    """All that three episodes show, say and keep."""
    found: list[Any] = [env.max_solution, env.instances, env.has_state]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        found += [env.reset(seed=seed, options={"noise_seed": 5}), env.rules, env.system_text]
        for number in range(4):
            action = env.random_action(rng)
            if action is None:
                action = '{"name": "read", "arguments": {"note": "A"}}'
            found += [
                env.actions(),
                env.optimal_actions(horizon=6),
                action,
                env.step(action),
                env.state_key(),
            ]
            if found[-2][2]:
                break
            if number == 1:
                env.rekey(9)
    return json.loads(json.dumps(found, default=str))


@pytest.mark.parametrize("game", GAMES, ids=["names", "tools", "text"])
def test_a_served_game_says_what_the_local_one_says(game: Any) -> None:
    there = start(Task("it", game))
    make = partial(Remote, url=there.url)
    assert played(make(split="val")) == played(game(split="val"))
    check_env(lambda split: make(split=split), episodes=1)
    there.stop()


@pytest.mark.slow
def test_episodes_of_a_served_game_are_those_of_the_local_one() -> None:
    there = start(load_task_yaml("frozen_lake"))
    task = load_task_yaml("frozen_lake")
    remote = Task("frozen_lake", partial(Remote, url=there.url), hosting=load_task_yaml("remote").hosting)
    found = []
    for each in (task, remote):
        asked = rules(tasks=[each])
        scheduler = Scheduler(asked, asked.open_engine(tiny_network()))
        found.append(scheduler.play(wave()))
        scheduler.close()
    for local, served in zip(*found, strict=True):
        for turn, other in zip(local.turns, served.turns, strict=True):
            assert turn.reply_tokens.tolist() == other.reply_tokens.tolist()
            assert (turn.message, turn.reward, turn.state_key) == (
                other.message,
                other.reward,
                other.state_key,
            )
        assert (local.end, local.instance_id, local.error) == (served.end, served.instance_id, "")
    there.stop()


def test_a_server_that_was_started_again_goes_on_where_the_other_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = Task("it", partial(FrozenLake, success_rate=0.5))
    there, local = start(task), task.make("train")
    remote = Remote(url=there.url, patience_s=60)
    assert local.reset(seed=3) == remote.reset(seed=3)
    for env in (local, remote):
        env.step("Left")
        env.rekey(4)
    copy = pickle.loads(pickle.dumps(remote))
    assert copy.state_dict() == remote.state_dict()
    there.stop()
    threading.Timer(0.3, lambda: again.append(start(task, port=there.port))).start()
    again: list[Served] = []
    with caplog.at_level(logging.WARNING):
        assert local.step("Up") == remote.step("Up")
    assert "had lost an episode, which was played again" in caplog.text
    assert local.state_dict()["game"] == remote.state_dict()["game"]["game"]
    again[0].stop()
    other = start(Task("it", partial(FrozenLake, size=5)), port=there.port)
    with pytest.raises(
        ValueError, match=f"^the game at {there.url} has lost the episode, and played again it"
    ):
        remote.step("Up")
    other.stop()
    gone = Remote(url=start(task).url, patience_s=0.0)
    assert gone.has_state
    remote._patience_s = 0.0
    with pytest.raises(ValueError, match=r"is gone \(.*\), and was waited for patience_s=0$"):
        remote.reset(seed=1)
    remote.close()
    with pytest.raises(ResetNeeded):
        remote.step("Up")


class Slow(FrozenLake):
    """Goes on when its class lets it."""

    goes_on = threading.Event()

    def _play(self, action: str) -> Any:
        self.goes_on.wait(60)
        return super()._play(action)


class Ends(FrozenLake):
    """Plays when its test lets it, and counts how often it was closed."""

    num_closed = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def _play(self, action: str) -> Any:
        self.begun.set()
        self.goes_on.wait(60)
        return super()._play(action)

    def close(self) -> None:
        self.num_closed += 1


class ToldLock:
    """A lock that says when somebody waits for it, and calls a function once it was found taken."""

    def __init__(self, when_taken: Callable[[], object]) -> None:
        self._lock, self._when_taken, self.waits = threading.Lock(), when_taken, threading.Event()
        self.release = self._lock.release

    def acquire(self, timeout: float) -> bool:
        if self._lock.locked():
            self.waits.set()
        return self._lock.acquire(timeout=timeout)

    def locked(self) -> bool:
        is_taken = self._lock.locked()
        self._when_taken()
        return is_taken


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_session_closed_while_its_game_works_ends_its_game_once(is_awaited: bool) -> None:
    sessions = Sessions(Task("it", Ends), most=1, idle_s=60)
    name = sessions.answer("/reset", {"split": "train", "seed": 1, "noise_seed": 1})["session"]
    session, said = sessions._sessions_by_id[name], list[Any]()

    def ask(number: int) -> None:
        try:
            said.append(sessions.answer("/step", {"session": name, "number": number, "action": "Up"}))
        except RequestError as error:
            said.append(error.status)

    playing, waiting = (threading.Thread(target=ask, args=(number,)) for number in (1, 2))

    def end_play() -> None:  # the request ends after its session was found at work
        session.env.goes_on.set()
        playing.join(0.05)

    session.lock = ToldLock(end_play)  # type: ignore[assignment]
    playing.start()
    session.env.begun.wait(60)
    if is_awaited:
        waiting.start()
        session.lock.waits.wait(60)
    sessions.answer("/close", {"session": name})
    for thread in (playing, waiting) if is_awaited else (playing,):
        thread.join(60)
    assert said[0]["now"] and said[1:] == [404] * is_awaited
    assert session.env.num_closed == 1 and session.env not in sessions._spare_envs["train"]


def test_what_hangs_costs_its_episode_alone() -> None:
    there = start(Task("it", Slow))
    hanging, other = (Remote(url=there.url, timeout_s=seconds) for seconds in (2, 60))
    hanging.reset(seed=1)
    other.reset(seed=1)
    with pytest.raises(ValueError, match=r"did not answer within timeout_s=2 \(/step\)$"):
        hanging.step("Up")
    hanging.close()  # at once
    Slow.goes_on.set()
    assert other.step("Up")[0]
    there.stop()
    drip = b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"a'
    with saying([drip], pause_s=0.05) as url, pytest.raises(ValueError, match="did not answer within"):
        Remote(url=url, timeout_s=0.2)


def reply(text: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()


def test_nonsense_is_told_in_one_line(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    bad = [
        (b"SSH-2.0-hello\r\n", "speaks no HTTP"),
        (reply("<html>"), "is no JSON"),
        (reply("[" * 100_000), "is no JSON"),
        (reply("[]"), "is no JSON object"),
        (reply('{"protocol": NaN}'), "NaN is no number"),
        (reply("{}"), "speaks protocol='None'; this version speaks 1"),
        (reply('{"protocol": 1, "game": "x"}'), "game=x must be an object"),
        (reply('{"protocol": 1, "game": {"max_solution": "x"}}'), "max_solution=x must be a whole number"),
        (reply('{"error": "a\\nb"}', "500 No"), r"refused with status 500: a\\nb"),
        (reply(json.dumps({"protocol": code})), "speaks protocol"),
        (reply(pickle.dumps(code).decode("latin-1")), "is no JSON"),
        (reply("x" * 2**20), r"answered more than 0.5 MB \(max_mb\)"),
    ]
    with saying([each for each, _ in bad]) as url:
        for _, message in bad:
            with pytest.raises(ValueError, match=message) as caught:
                Remote(url=url, timeout_s=5, max_mb=0.5)
            assert "\n" not in str(caught.value)
    health = reply('{"protocol": 1}')
    begun = {"session": "s", "observation": "o"}
    later = [
        ({**begun, "now": {"tools": [{"name": "t"}]}}, "^tools=.* are none"),
        ({**begun, "now": {"tools": [{"name": "t", "description": "", "schema": {
            "type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}}]}}, "refers to another document"),
        ({**begun, "now": {"format": "code"}}, "^format=code must be one of names, text, tools$"),
        ({**begun, "now": {"state_key": -1}}, "^state_key=-1 must be"),
        ({**begun, "observation": 3}, "^observation='3' must be a text"),
        ({"observation": "o"}, "^session=None must be a text"),
    ]  # fmt: skip
    for answer, message in later:
        with saying([health, reply(json.dumps(answer))]) as url, pytest.raises(ValueError, match=message):
            Remote(url=url, timeout_s=5).reset(seed=1)
    with pytest.raises(
        ValueError, match="does not answer .*; start the game there: lit-agentrl serve-env env=NAME$"
    ):
        Remote(url=url)
    for url in ("ftp://x", "http://", "http://u:p@x", "http://x:port", "http://x?y=1", "http://a b", "x"):
        with pytest.raises(ValueError, match="^url=.* must be http://HOST:PORT"):
            Remote(url=url)
    assert not trap.exists()


def test_what_a_stranger_sends_is_refused_and_the_server_lives_on(tmp_path: Path) -> None:
    there = start(Task("it", FrozenLake), most=2, mb=0.01)

    def ask(path: str, body: Any, kind: str = "application/json") -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", there.port, timeout=5)
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, text, {"Content-Type": kind})
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found

    seeds = {"split": "train", "seed": 1, "noise_seed": 1}
    status, begun = ask("/reset", seeds)
    own = {"session": begun["session"]}
    assert status == 200 and ask("/reset", seeds)[0] == 200
    trap = tmp_path / "trap"
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    refused = [
        (503, "/reset", seeds),
        (400, "/reset", {**seeds, "split": code}),
        (400, "/reset", {**seeds, "seed": 1.5}),
        (404, "/../etc/passwd", own),
        (404, "/step", {"session": "guess", "number": 1, "action": "Up"}),
        (404, "/step", {"session": [], "number": 1, "action": "Up"}),
        (409, "/step", {**own, "number": 2, "action": "Up"}),
        (400, "/step", {**own, "number": 1, "action": 5}),
        (400, "/random", {**own, "rng": {"bit_generator": code}}),
        (400, "/load", {**own, "state": code}),
        (400, "/best", {**own, "horizon": "9"}),
        (400, "/step", b"[" * 9000),
        (400, "/step", pickle.dumps(code)),
        (413, "/step", b"x" * 20_000),
    ]  # fmt: skip
    for expected, path, body in refused:
        status, answer = ask(path, body)
        assert (status, "\n" in answer["error"]) == (expected, False), (path, body, answer)
    assert ask("/step", {**own, "number": 1, "action": "Up"}, kind="text/plain")[0] == 411
    first = ask("/step", {**own, "number": 1, "action": "Up"})
    assert first[0] == 200 and ask("/step", {**own, "number": 1, "action": "Up"}) == first, "played once"
    assert ask("/load", {**own, "state": {"game": code}})[0] == 500
    assert ask("/close", own) == (200, {}) and ask("/close", own)[0] == 404
    assert ask("/reset", seeds)[0] == 200 and not trap.exists()
    there.server.sessions._idle_s = 0.0
    there.server.sessions.close_idle()
    assert there.server.sessions.expired == 2 and ask("/reset", seeds)[0] == 200
    there.stop()


def test_levels_belong_to_what_is_served_wherever_it_is() -> None:
    tasks = [Task("it", FrozenLake), Task("it", FrozenLake), Task("it", partial(FrozenLake, size=5))]
    served = [start(task) for task in tasks]
    keys = [make_level_key(Task("it", partial(Remote, url=each.url)), "val") for each in served]
    assert keys[0] == keys[1] != keys[2]
    for each in served:
        each.stop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "env=null must be the name of a game"),
        (
            "env=sokoban env.max_turns=3",
            "env.max_turns=3 belongs to the run that plays the game, with env=remote",
        ),
        ("env=sokoban --port 70000", "--port=70000 must be a whole number from 0 to 65535"),
        ("env=sokoban --sessions 0", "--sessions=0 must be"),
        ("env=sokoban --host 203.0.113.1", "--host 203.0.113.1 --port 8100: cannot listen there"),
    ],
)
def test_commands_that_cannot_serve_end_with_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    told = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 1 and message in told and "Traceback" not in told


@pytest.mark.slow
@pytest.mark.sweep
def test_the_command_serves_until_it_is_ended() -> None:
    command = [sys.executable, "-m", "lit_agentrl", "serve-env", "env=frozen_lake", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        found = re.search(r"at (http://127\.0\.0\.1:\d+); play it with", process.stdout.readline())
        assert found and f"env.game.url={found[1]} env.max_turns=5" in process.stdout.readline()
        assert played(Remote(url=found[1])) == played(FrozenLake())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0 and "ended; 3 episodes were started" in process.stderr.read()
