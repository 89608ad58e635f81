"""Agents that run elsewhere: the same episodes as programs that are started here, and one line for each failure."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest

from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.gateway.remote import KEY
from lit_agentrl.experimental.gateway.server import Gateway
from lit_agentrl.experimental.gateway.service import Service
from lit_agentrl.experimental.gateway.task import ProgramTask
from lit_agentrl.experimental.gateway.world import AgentProgram
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from tests.conftest import ROOT, nano_tokenizer, tiny_policy
from tests.experimental.test_gateway_programs import PARAMS, make_reply

AGENTS = "tests.experimental.gateway_agents"
# a program of its own that plays the same function
PLAY = f"""
import json, os, sys
sys.path[:] = {sys.path!r}
from lit_agentrl.experimental.gateway.client import Client
from {AGENTS} import wander
client = Client(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
print(json.dumps(wander(json.loads(os.environ["LIT_AGENTRL_TASK"]), client)))
"""


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "secret")


@pytest.fixture
def serve() -> Iterator[Any]:
    services: list[Service] = []

    def start(function: str, key: str = "secret") -> str:
        services.append(Service(("127.0.0.1", 0), f"{AGENTS}.{function}", key))
        threading.Thread(
            target=services[-1].serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return f"http://127.0.0.1:{services[-1].server_port}/"

    yield start
    for service in services:
        service.shutdown()
        service.server_close()


def play(members: int = 2, **game: Any) -> list[Episode]:
    task = ProgramTask(
        "program", partial(AgentProgram, timeout_s=30.0, **game), max_turns=20, max_actions_per_turn=1, max_actions=20,
        invalid_penalty=0.0, hosting=Hosting(where="thread", workers=2),
    )  # fmt: skip
    rules = Rules(
        tasks=[task], prompt=Prompt(style="bare"), chat=ChatRenderer(nano_tokenizer()), context=Calls(),
        engine=partial(NativeEngine, num_slots=4), max_context_tokens=200,
    )  # fmt: skip
    specs = tuple(EpisodeSpec(0, 0, member, 0, 5) for member in range(members))
    with closing(Scheduler(rules, rules.open_engine(tiny_policy().network))) as scheduler:
        return scheduler.play(Wave("train", 0, PARAMS, specs))


def make_world(url: str, *, timeout_s: float = 20.0, **options: Any) -> AgentProgram:
    return AgentProgram(mode="remote", url=url, timeout_s=timeout_s, **options)


def test_a_remote_agent_plays_the_episodes_of_a_program_to_the_bit(serve: Any) -> None:
    here = play(mode="command", command=[sys.executable, "-c", PLAY])
    there = play(mode="remote", url=serve("wander"))
    assert [episode.end for episode in here] == [EndReason.SUCCESS] * 2
    assert [episode.turns for episode in there] == [episode.turns for episode in here]


def test_an_agent_that_raises_fails_its_own_episode_alone(serve: Any) -> None:
    failed, whole = sorted(play(mode="remote", url=serve("fail_first")), key=lambda each: not each.failed)
    assert failed.end is EndReason.ERROR and "status 500" in failed.error and "no luck" in failed.error
    assert whole.end is EndReason.SUCCESS


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_service_that_cannot_be_reached_is_named() -> None:
    with (
        closing(make_world(f"http://127.0.0.1:{find_port()}/", timeout_s=0.4)) as world,
        pytest.raises(
            ValueError, match=r"env.game.url=http.* cannot be reached \(.*refused\); start the agent's"
        ),
    ):
        world.reset(seed=0)


def test_a_killed_service_fails_its_episode_and_plays_the_next_once_it_is_back() -> None:
    port = find_port()

    def start() -> subprocess.Popen[bytes]:
        module = "lit_agentrl.experimental.gateway.service"
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        return subprocess.Popen(
            [sys.executable, "-m", module, f"{AGENTS}.guess", "--port", str(port)],
            env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    service = start()  # still starts when it is first asked
    try:
        with closing(make_world(f"http://127.0.0.1:{port}/", timeout_s=60.0)) as world:
            world.reset(seed=0)
            service.kill()
            service.wait()
            with pytest.raises(ValueError, match=r"left before it answered|dropped a connection"):
                world.step(make_reply())
                world.step(make_reply())
            service = start()
            observation, _ = world.reset(seed=1)
            assert "You 0" in json.loads(observation)["request"]["messages"][0]["content"]
            _, reward, is_over, _, _ = world.step(make_reply())
            assert (reward, is_over) == (1.0, True)
    finally:
        service.kill()
        service.wait()


def test_an_episode_that_ends_early_cuts_the_line(serve: Any) -> None:
    with closing(make_world(serve("walk"), max_calls=1)) as world:
        world.reset(seed=0)
        _, reward, is_over, _, info = world.step(make_reply())
        assert (reward, is_over, info) == (0.0, True, {"success": False})
        assert world._program is not None and world._program._connection is None  # type: ignore[attr-defined]


def test_a_key_is_required_on_both_sides(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        closing(make_world(serve("guess", key="other"))) as world,
        pytest.raises(ValueError, match=f"status 401: .*the key is not that of {KEY}"),
    ):
        world.reset(seed=0)
    monkeypatch.delenv(KEY)
    with pytest.raises(ValueError, match=f"set the variable {KEY}"):
        make_world("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mode": "remote"}, "url=None must be the address of a service"),
        ({"mode": "remote", "url": "ftp://a/"}, "url=ftp://a/ must be the address"),
        ({"mode": "remote", "url": "http://a/", "command": ["a"]}, "command=.* has no effect with mode=remote"),
        ({"mode": "command", "command": ["a"], "url": "http://a/"}, "url=http://a/ has no effect with mode=command"),
        ({"mode": "command", "command": ["a"], "host": "10.0.0.1"}, "host=10.0.0.1 has no effect with mode=command"),
        ({"mode": "url", "url": "http://a/"}, "mode=url must be command, function or remote"),
    ],
)  # fmt: skip
def test_options_of_another_mode_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AgentProgram(**options)


def test_the_endpoint_listens_where_it_is_told_alone(serve: Any) -> None:
    for host in ("0.0.0.0", "192.0.2.1"):
        with pytest.raises(ValueError, match=f"env.game.host={host} must be an address of this machine"):
            Gateway(host)
    if not sys.platform.startswith("linux"):
        pytest.skip("other systems have one address of loopback")
    with closing(make_world(serve("guess"), host="127.0.0.2")) as world:
        world.reset(seed=0)
        _, reward, _, _, _ = world.step(make_reply())
        assert reward == 1.0 and world._open_gateway().url.startswith("http://127.0.0.2:")


def test_answers_are_sent_without_delay() -> None:
    """Else each call of a connection that is kept waits for a delayed acknowledgement, 40 ms."""
    gateway = Gateway()
    with closing(HTTPConnection(gateway.url.split("/")[2])) as line:
        line.request("GET", "/v1/models")
        line.getresponse().read()
        [kept] = gateway._server.server_state.connections
        place = kept.transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert place.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
