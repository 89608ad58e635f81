"""Programs behind the gateway: whatever one does, its episode has one recorded end, and none is trained on in part."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.build.games import check_prompts
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.served.openai import OpenAIEngine
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import EndReason
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.gateway.exchange import Exchange
from lit_agentrl.experimental.gateway.play import ProgramInPlay
from lit_agentrl.experimental.gateway.server import open_gateway
from lit_agentrl.experimental.gateway.task import ProgramTask
from lit_agentrl.experimental.gateway.world import AgentProgram
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer, tiny_policy
from tests.engines.server import Model, serving

PARAMS = SamplingParams(max_reply_tokens=6, max_context_tokens=200)
# plain HTTP, as a program of any language would speak it
HEAD = """
import json, os, signal, socket, sys, threading, time, urllib.error, urllib.request
URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
TASK = json.loads(os.environ["LIT_AGENTRL_TASK"])
def post(body, key=KEY):
    head = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + "/chat/completions", data, head)) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code
def ask(*texts, **more):
    messages = [{"role": "user", "content": text} for text in texts]
    return post({"model": "policy", "messages": messages, **more})
def pause(gate):
    while not os.path.exists(gate):
        time.sleep(0.01)
def win(reward=1):
    print("done"); print(json.dumps({"reward": reward}))
"""


def make_world(script: str, **options: Any) -> AgentProgram:
    return AgentProgram(
        mode="command", command=[sys.executable, "-c", HEAD + script], timeout_s=20.0, **options
    )


def make_reply(text: str = "Up") -> str:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    message = {"role": "assistant", "content": text}
    reply = {
        "message": message,
        "finish_reason": "stop",
        "usage": usage,
        "token_ids": [1],
        "logprobs": [-1.0],
    }
    return json.dumps({"reply": {**reply, "prompt_token_ids": [1, 2, 3]}})


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.02)


def play(script: str, **options: Any) -> tuple[float, dict[str, Any], list[dict[str, Any]]]:
    """The reward, info and requests of an episode in which every reply is Up."""
    with closing(make_world(script, **options)) as world:
        observation, info = world.reset(seed=4)
        requests, is_over, reward = [], False, 0.0
        while not is_over:
            requests.append(json.loads(observation)["request"])
            observation, reward, is_over, _, info = world.step(make_reply())
        return reward, info, requests


def test_a_program_reads_its_task_and_gives_its_reward() -> None:
    reward, info, requests = play('assert TASK["seed"] == 4\nask("go", temperature=0.1)\nask("on")\nwin(0.5)')
    assert (reward, info["success"]) == (0.5, True)
    assert [each["messages"][0]["content"] for each in requests] == ["go", "on"]
    assert requests[0]["overruled"] == ["temperature=0.1"]


def test_a_reward_may_be_written_to_a_file() -> None:
    script = (
        'ask("go")\nopen(os.environ["LIT_AGENTRL_RESULT"], "w").write(\'{"reward": 2, "success": false}\')'
    )
    reward, info, _ = play(script)
    assert (reward, info["success"]) == (2.0, False)


FAILURES = {
    "killed": ('ask("go")\nos.kill(os.getpid(), 9)', "killed by signal 9"),
    "raised": ('ask("go")\nraise RuntimeError("no such file")', "exited with code 1.*no such file"),
    "silent": ('ask("go")', "names no reward"),
    "no number": ('ask("go")\nprint(json.dumps({"points": 1}))', "the result must be a number"),
    "no call": ("win()", "ended without a call"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_one_recorded_error(name: str) -> None:
    script, reason = FAILURES[name]
    with pytest.raises(ValueError, match=reason):
        play(script)


REFUSALS = {
    "too large": ('post(b"x" * 10_000_000)', 413),
    "no JSON": ('post(b"{")', 400),
    "another's key": ('post({"messages": [{"role": "user", "content": "go"}]}, key="0" * 32)', 401),
    "equal ids": (
        'post({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": '
        '{"name": "f", "arguments": "{}"}}] * 2}, {"role": "user", "content": "go"}]})',
        400,
    ),
}


@pytest.mark.parametrize("path", ["/responses", "/v1/chat/completions"])
def test_a_path_that_is_not_served_is_refused_with_those_that_are(path: str) -> None:
    gateway = open_gateway()
    token = gateway.open(Exchange(is_parallel=False), max_bytes=1000)
    request = urllib.request.Request(gateway.url + path, b"{}", {"Authorization": f"Bearer {token}"})
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        urllib.request.urlopen(request)
    assert f"POST /v1{path} is not served here, but POST /v1/chat/completions" in caught.value.read().decode()
    gateway.close(token)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_request_leaves_the_episode_whole(name: str) -> None:
    call, status = REFUSALS[name]
    reward, _, requests = play(f'status = {call}\nassert status == {status}, status\nask("go")\nwin()')
    assert reward == 1.0 and len(requests) == 1


def test_a_program_that_hangs_is_ended() -> None:
    with closing(make_world('ask("go")\ntime.sleep(60)')) as world:
        world.reset(seed=0)
        world._timeout_s = 0.2
        started = time.monotonic()
        with pytest.raises(TimeoutError, match="timeout_s"):
            world.step(make_reply())
        assert time.monotonic() - started < 10


@pytest.fixture(params=["step", "reset"])
def meet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Play a script that breaks its episode when `GATE` opens: in ``step``, or before ``reset`` has returned."""
    gate = tmp_path / "gate"

    def take(exchange: Exchange, timeout_s: float, take: Any = take_when_broken) -> Any:
        wait_until(lambda: bool(exchange._waiting))
        gate.touch()
        return take(exchange, timeout_s)

    if request.param == "reset":
        monkeypatch.setattr(Exchange, "take_next", take)
    with closing(make_world("")) as world:

        def play(script: str, reason: str) -> None:
            world._make = make_world(f"GATE = {str(gate)!r}\n{script}")._make
            if request.param == "step":
                world.reset(seed=0)
                gate.touch()
                assert world._exchange is not None
                wait_until_broken(world._exchange)
                with pytest.raises(ValueError, match=reason):
                    world.step(make_reply())
            else:
                with pytest.raises(ValueError, match=reason):
                    world.reset(seed=0)
            assert world._exchange is None  # and no program runs on

        yield play


def take_when_broken(exchange: Exchange, timeout_s: float, take: Any = Exchange.take_next) -> Any:
    """Wait until the episode is broken, as on a busy machine, before the next request is taken."""
    wait_until_broken(exchange)
    return take(exchange, timeout_s)


def wait_until_broken(exchange: Exchange) -> None:
    wait_until(lambda: bool(exchange._broken))
    assert exchange._broken


DROP = """
host, port = URL.split("/")[2].split(":")
body = json.dumps({"messages": [{"role": "user", "content": "go"}]})
with socket.create_connection((host, int(port))) as line:
    line.sendall(f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {KEY}\\r\\n"
                 f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}".encode())
    pause(GATE)
time.sleep(0.1)
win()
"""
TWO = """
threading.Thread(target=ask, args=("go",), daemon=True).start()
pause(GATE)
ask("go")
time.sleep(20)
"""


def test_a_dropped_connection_ends_the_episode(meet: Any) -> None:
    meet(DROP, "dropped a connection")


def test_two_calls_at_once_end_an_episode_that_makes_one_at_a_time(meet: Any) -> None:
    meet(TWO, "two calls at once; set env.game.parallel=true")


@pytest.mark.slow
def test_an_episode_that_breaks_before_its_first_request_is_one_error(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Exchange, "take_next", take_when_broken)
    episodes = scheduler(make_rules("ask_twice")).play(Wave("train", 0, PARAMS, specs(2)))
    assert [(e.end, len(e.turns)) for e in episodes] == [(EndReason.ERROR, 0)] * 2
    assert all("two calls at once" in episode.error for episode in episodes)


def test_a_call_after_the_end_is_refused() -> None:
    with closing(make_world('ask("go")\nwin()')) as world:
        world.reset(seed=0)
        token = world._token
        world.step(make_reply())
        body = json.dumps({"messages": [{"role": "user", "content": "go"}]}).encode()
        request = urllib.request.Request(
            f"{open_gateway().url}/chat/completions", body, {"Authorization": f"Bearer {token}"}
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request)


def test_the_call_beyond_the_limit_ends_the_episode_without_a_reward() -> None:
    reward, info, requests = play('while True: ask("go")', max_calls=3)
    assert (reward, info, len(requests)) == (0.0, {"success": False}, 3)


def test_several_calls_at_once_where_they_are_allowed() -> None:
    script = """
threads = [threading.Thread(target=ask, args=(text,)) for text in ("a", "b", "c")]
[each.start() for each in threads]
[each.join() for each in threads]
win()
"""
    reward, _, requests = play(script, parallel=True)
    assert reward == 1.0 and sorted(each["messages"][0]["content"] for each in requests) == ["a", "b", "c"]


def make_rules(function: str, *, context: Any = None, **game: Any) -> Rules:
    world = partial(
        AgentProgram,
        mode="function",
        function=f"tests.experimental.gateway_agents.{function}",
        timeout_s=30.0,
        **game,
    )
    task = ProgramTask(
        "program", world, max_turns=20, max_actions_per_turn=1, max_actions=20, invalid_penalty=0.0,
        hosting=Hosting(where="thread", workers=2),
    )  # fmt: skip
    return Rules(
        tasks=[task], prompt=Prompt(style="bare"), chat=ChatRenderer(nano_tokenizer()), context=context or Calls(),
        engine=partial(NativeEngine, num_slots=4), max_context_tokens=200,
    )  # fmt: skip


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> Iterator[Any]:
    opened = []

    def make(rules: Rules) -> Scheduler:
        policy = tiny_policy()
        opened.append(Scheduler(rules, rules.open_engine(policy.network)))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def specs(members: int) -> tuple[EpisodeSpec, ...]:
    return tuple(EpisodeSpec(0, 0, member, 0, 5) for member in range(members))


@pytest.mark.slow
def test_rows_of_a_program_are_packed_as_one_trajectory(scheduler: Any) -> None:
    episodes = scheduler(make_rules("wander")).play(Wave("train", 0, PARAMS, specs(2)))
    for episode in episodes:
        assert episode.end is EndReason.SUCCESS and not episode.error
        check_ledger(episode)
    batch = pack(episodes)
    assert len(batch.tokens_BT) == 6 and len(batch.trajectory_B.unique()) == 2  # three rows each
    assert batch.return_B.tolist() == [1.0] * 6 and batch.reward_BT.sum() == 2.0
    again = scheduler(make_rules("wander")).play(Wave("train", 0, PARAMS, specs(2)))
    assert [e.turns for e in again] == [e.turns for e in episodes]


@pytest.mark.slow
def test_a_program_before_a_server_of_tokens_plays_as_before_the_native_engine() -> None:
    greedy = replace(PARAMS, temperature=0.0)
    wave, network = Wave("val", 0, greedy, specs(2)), tiny_policy().network
    native = make_rules("wander")
    with serving(Model(network, native.chat.end_of_turn_ids)) as url:
        remote = replace(native, engine=partial(OpenAIEngine, url=url, mode="tokens", model=""))
        played = []
        for rules in (native, remote):
            with closing(Scheduler(rules, rules.open_engine(network))) as scheduler:
                played.append(scheduler.play(wave))
    for ours, theirs in zip(*played, strict=True):
        assert theirs.end is EndReason.SUCCESS and ours.total_reward == theirs.total_reward == 1.0
        for one, other in zip(ours.turns, theirs.turns, strict=True):
            assert one.prefix_tokens.tolist() == other.prefix_tokens.tolist()
            assert one.reply_tokens.tolist() == other.reply_tokens.tolist()
            assert one.reply_logps == pytest.approx(other.reply_logps, abs=1e-5)


@pytest.mark.slow
def test_an_agent_that_raises_fails_its_own_episode_alone(scheduler: Any) -> None:
    first, second = scheduler(make_rules("fail_first")).play(Wave("train", 0, PARAMS, specs(2)))
    failed, whole = sorted([first, second], key=lambda episode: not episode.failed)
    assert failed.end is EndReason.ERROR and "no luck" in failed.error and whole.end is EndReason.SUCCESS
    with pytest.raises(ValueError, match="not trainable"):
        pack([failed])


@pytest.mark.slow
def test_what_the_run_overrules_is_noted_once(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lit_agentrl.experimental.gateway.play._said", set())
    [episode] = scheduler(make_rules("insist")).play(Wave("train", 0, PARAMS, specs(1)))
    assert not episode.error
    noted = capsys.readouterr().out
    assert noted.count("the program's temperature=0.25 has no effect") == 1
    assert noted.count("max_tokens=999, and rollout.max_reply_tokens=6 bounds it") == 1
    assert all(len(turn.reply_tokens) <= 6 for turn in episode.turns)


def test_a_prompt_that_does_not_fit_is_refused_and_the_program_goes_on(scheduler: Any) -> None:
    [episode] = scheduler(make_rules("overflow")).play(Wave("train", 0, PARAMS, specs(1)))
    assert episode.end is EndReason.SUCCESS and len(episode.turns) == 2
    check_ledger(episode)


def test_a_program_that_always_fails_is_told_without_advice_on_games() -> None:
    world = partial(AgentProgram, mode="command", command=["no-such-program"])
    limits = {"max_turns": 2, "max_actions_per_turn": 1, "max_actions": 2, "invalid_penalty": 0.0}
    task = ProgramTask("program", world, **limits, hosting=Hosting(where="thread", workers=1))
    rules = Rules(
        tasks=[task], prompt=Prompt(style="compact"), chat=ChatRenderer(nano_tokenizer()), context=Calls(),
        engine=partial(NativeEngine, num_slots=1), max_context_tokens=200,
    )  # fmt: skip
    with pytest.raises(ValueError, match="cannot be started.*; repair the program, or the option") as caught:
        check_prompts(rules)
    assert "check_env" not in str(caught.value)


def test_another_context_is_refused() -> None:
    from lit_agentrl.episode import Episode

    with pytest.raises(ValueError, match="context=program"):
        ProgramInPlay(Episode(0, 0, 0, 0, "program", 0), make_rules("walk", context=FULL))


@pytest.mark.slow
def test_the_openai_sdk_asks_plainly_and_streaming() -> None:
    pytest.importorskip("openai")
    script = """
import openai
client = openai.OpenAI()
messages = [{"role": "user", "content": "go"}]
first = client.chat.completions.create(model="policy", messages=messages)
messages += [first.choices[0].message, {"role": "user", "content": "on"}]
parts = list(client.chat.completions.create(
    model="policy", messages=messages, stream=True, stream_options={"include_usage": True}))
text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
assert text == "Up" and parts[-1].usage.total_tokens == 4, parts
assert client.models.list().data[0].id == "policy"
win()
"""
    reward, _, requests = play(script)
    assert reward == 1.0
    assert [(m["role"], m["content"]) for m in requests[1]["messages"]] == [
        ("user", "go"), ("assistant", "Up"), ("user", "on"),
    ]  # fmt: skip
