"""Servers: by token ids what the native engine writes, by messages texts; and faults, none of them unheard."""

from __future__ import annotations

import json
import random
import re
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.engines.base import SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.served.http import Server, ServerError
from lit_agentrl.engines.served.openai import OpenAIEngine
from lit_agentrl.episode import EndReason, FinishReason
from lit_agentrl.models.remote import load_remote
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.sync import WeightSync
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.tool_call import ToolCalls
from lit_agentrl.text.prompts import Prompt
from tests.conftest import ROOT, nano_tokenizer, tiny_network
from tests.engines.server import SLOW_S, Faults, Model, SGLang, answer_of, chat_of, serving
from tests.engines.test_native import AfterToken, Never
from tests.envs.served import saying
from tests.rollout.test_process import rules
from tests.rollout.test_sync import WARM, moved

QUICK = {"retries": 8, "backoff_s": 0.001, "timeout_s": 30.0}
GREEDY = SamplingParams(temperature=0.0, max_reply_tokens=6, max_context_tokens=300)


def engine(url: str, network: Any = None, **options: Any) -> OpenAIEngine:
    given = {
        "mode": "tokens",
        "model": "m",
        "stop": Never(),
        "end_of_turn_ids": (),
        "max_context_tokens": 300,
    }
    return OpenAIEngine(network or tiny_network(), url=url, **{**given, **QUICK, **options})


def remote(url: str, **options: Any) -> Rules:
    """Of frozen lake, played through a server."""
    return replace(
        rules(), engine=partial(OpenAIEngine, **{"url": url, "mode": "tokens", "model": "", **options})
    )


def replies(eng: Any, *requests: TurnRequest) -> list[Any]:
    for request in requests:
        eng.submit(request)
    found: list[Any] = []
    while eng.num_pending:
        found += eng.poll()
    return sorted(found, key=lambda result: result.episode)


# ------------------------------------------------------------------ ids in, ids out
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_episodes_are_those_of_the_native_engine(temperature: float) -> None:
    """Two turns, a stop rule, an end of turn; keyed draws, since this server draws by the seed it is sent."""
    network = tiny_network()
    params = SamplingParams(temperature, max_reply_tokens=9, max_context_tokens=60)
    stop, end = AfterToken(7), (5,)
    native = NativeEngine(network, stop=stop, end_of_turn_ids=end, num_slots=4, max_context_tokens=60)
    first = [TurnRequest(e, [3 + e, 8, 9 + 2 * e, 11], 100 + e, params) for e in range(4)]
    later = [TurnRequest(e, [12, 13 + e], 200 + e, params) for e in range(4)]
    with serving(Model(network, end)) as url:
        eng = engine(url, network, stop=stop, end_of_turn_ids=end)
        for requests in (first, later):
            ours, theirs = replies(native, *requests), replies(eng, *requests)
            for a, b in zip(ours, theirs, strict=True):
                assert (a.tokens, a.finish) == (b.tokens, b.finish)
                assert b.logps == pytest.approx(a.logps, abs=1e-5) and len(b.entropies) == len(b.tokens)
        assert eng.num_steps == eng.meter()["tokens_out"]


@pytest.mark.slow
def test_a_whole_game_is_that_of_the_native_engine() -> None:
    network, specs = tiny_network(), tuple(EpisodeSpec(0, g, 0, 0, g) for g in range(4))
    wave = Wave("val", 0, GREEDY, specs)
    held = rules()
    native = Scheduler(held, held.open_engine(network)).play(wave)
    with serving(Model(network, held.chat.end_of_turn_ids)) as url:
        made = remote(url, **QUICK)
        played = Scheduler(made, made.open_engine(network)).play(wave)
    assert [[t.reply_tokens.tolist() for t in e.turns] for e in played] == [
        [t.reply_tokens.tolist() for t in e.turns] for e in native
    ]
    assert [(e.end, e.total_reward) for e in played] == [(e.end, e.total_reward) for e in native]


def test_a_fork_begins_where_its_parent_stood_and_a_full_context_is_told() -> None:
    with serving(lambda path, body: answer_of(body["prompt"], [sum(body["prompt"]) % 50], [-1.0])) as url:
        eng = engine(url, max_context_tokens=8)
        replies(eng, TurnRequest(0, [1, 2, 3], 0, GREEDY))
        eng.fork(0, 1, 2)
        assert [r.tokens for r in replies(eng, TurnRequest(0, [5], 0, GREEDY), TurnRequest(1, [9], 0, GREEDY))] == [
            [(6 + 6 + 5) % 50], [12],
        ]  # fmt: skip
        assert replies(eng, TurnRequest(0, [1, 1, 1], 0, GREEDY))[0].finish is FinishReason.CONTEXT
        with pytest.raises(ValueError, match="fork at 9: episode 1 has 4 tokens"):
            eng.fork(1, 2, 9)
        eng.submit(TurnRequest(1, [1], 0, GREEDY))
        eng.close(1)
        assert eng.num_pending == 0 and eng.poll() == []


# ------------------------------------------------------------------ faults
KINDS = ["timeout", "429", "500", "503", "truncated", "other_prompt", "unknown_ids", "no_logps", "drop"]


@pytest.mark.parametrize("many", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_faults_are_each_retried_or_told_and_nothing_of_them_is_trained_on(many: int) -> None:
    """Replies depend on the prompt alone, so that an episode with retries equals the one without."""
    tokens = nano_tokenizer()("<answer>Up</answer>", add_special_tokens=False)["input_ids"]

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return answer_of(
            body["prompt"], tokens[: body["max_tokens"]], [-0.5] * min(len(tokens), body["max_tokens"])
        )

    chance = random.Random(0)
    drawn = chance.sample(range(3 * many // 2), many - 10)
    plan = {n: KINDS[i % len(KINDS)] for i, n in enumerate(drawn)}
    plan |= {3 * many // 2 + n: "500" for n in range(10)}  # more in a row than one request is asked again
    params = SamplingParams(max_reply_tokens=24, max_context_tokens=300)
    wave = Wave("train", 0, params, tuple(EpisodeSpec(0, g, 0, 0, g) for g in range(6 + 3 * many // 10)))

    def played(faults: Faults | None, **options: Any) -> tuple[Any, dict[str, float]]:
        with serving(answer, faults) as url:
            made = remote(url, **options)
            eng: Any = made.open_engine(tiny_network())
            return Scheduler(made, eng).play(wave), eng.meter()

    whole, _ = played(None, **QUICK)
    faults = Faults(plan)
    found, meter = played(
        faults, **{**QUICK, "retries": 3, "timeout_s": SLOW_S / 2, "concurrency": max(2, many // 12)}
    )
    assert sum(faults.happened.values()) == many and set(faults.happened) == set(KINDS)
    given_up = [e for e in found if e.failed]
    # a busy machine may answer too late by itself
    assert meter["retried"] + meter["failed"] >= many and meter["failed"] == len(given_up) > 0
    for before, after in zip(whole, found, strict=True):
        if after.failed:
            assert after.end is EndReason.ERROR and "asked 4 times" in after.error and "\n" not in after.error
            assert not len(after.turns[-1].reply_tokens)
        else:
            assert [t.reply_tokens.tolist() for t in after.turns] == [
                t.reply_tokens.tolist() for t in before.turns
            ]


def test_a_dead_server_is_one_line() -> None:
    eng = engine("http://127.0.0.1:9", retries=1)
    [result] = replies(eng, TurnRequest(0, [1], 0, GREEDY))
    assert result.finish is FinishReason.ERROR and result.tokens == []
    assert result.error.startswith("engine.url=http://127.0.0.1:9: /v1/completions: ConnectError")
    assert result.error.endswith("asked 2 times")


def test_what_a_server_refuses_is_not_asked_again_and_a_key_is_never_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    said: list[Any] = []
    with serving(lambda path, body: {}, Faults({0: "401"}), said) as url:
        eng = engine(url, key_variable="MY_KEY")
        [result] = replies(eng, TurnRequest(0, [1], 0, GREEDY))
    assert "status 401: no: Bearer ***" in result.error and "sk-secret" not in result.error
    assert len(said) == 1 and said[0][2]["Authorization"] == "Bearer sk-secret-1"
    assert "sk-secret" not in json.dumps(said[0][1])


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_told_at_the_first_contact(status: int) -> None:
    answer = f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode()
    with (
        saying([answer]) as url,
        Server(url, key_variable=None, timeout_s=5, retries=0, backoff_s=0) as server,
        pytest.raises(ServerError, match=f"/v1/models: status {status}, the key is refused"),
    ):
        server.probe()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "ftp://x"}, "url=ftp://x must be http"),
        ({"url": "http://me:hidden@x"}, "url holds a user, a password"),
        ({"key_variable": "NO_SUCH_KEY"}, "key_variable=NO_SUCH_KEY: the environment has no such variable"),
        ({"mode": "text"}, "mode=text must be one of tokens, chat"),
        ({"weights_folder": "/no/such"}, "weights_folder=/no/such is not a folder"),
        ({"weights_folder": "/tmp", "push": [{"url": "x"}]}, "must be {path"),
        ({"weights_folder": "/tmp"}, r"push=\[\] tells the server nothing"),
        ({"concurrency": 0}, "concurrency=0"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        engine(**{"url": "http://x", **options})
    assert "hidden" not in str(error.value)


def test_a_pause_that_the_server_asks_for_holds_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("lit_agentrl.engines.served.http.time.sleep", slept.append)
    eng = engine("http://x")
    assert eng._server._set_wait("3") == 3.0 and eng._server._not_before > 0
    assert (
        eng._server._set_wait("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0 and eng._server._set_wait("soon") == 0.0
    )


# ------------------------------------------------------------------ weights
def test_weights_are_put_where_the_server_sees_them(tmp_path: Path) -> None:
    network, other = tiny_network(), tiny_network(seed=1)
    model = Model(network)
    push = [{"path": "/load", "json": {"folder": "{folder}", "version": "{version}"}}]
    said: list[Any] = []
    with serving(model, None, said) as url:
        eng = engine(url, network, weights_folder=str(tmp_path), push=push)
        assert eng.capabilities.weights == "given"
        for version, source in enumerate([network, other, network]):
            eng.load(dict(source.named_parameters()), version)
            assert [body["version"] for path, body, _ in said if path == "/load"][-1] == str(version)
            for mine, theirs in zip(source.parameters(), model.network.parameters(), strict=True):
                assert mine.equal(theirs)
        assert len(eng.score([4, 5, 6])) == 2
        assert len(list(tmp_path.glob("*/version_*"))) == 1  # older ones are gone
        with (
            pytest.raises(ServerError, match=r"/load: status 404"),
            serving(model, Faults({0: "404"})) as other_url,
        ):
            engine(other_url, network, weights_folder=str(tmp_path), push=push).load({}, 3)


@pytest.mark.slow
@pytest.mark.sweep
def test_sglang_takes_weights_and_passes_the_probe(tmp_path: Path) -> None:
    """As far as its code says how it answers: it has not been run."""
    network = tiny_network()
    push = [{"path": "/update_weights_from_disk", "json": {"model_path": "{folder}"}}]
    with serving(SGLang(network)) as url:
        made = remote(url, weights_folder=str(tmp_path), push=push, **QUICK)
        eng: Any = made.open_engine(network)
        sync = WeightSync(eng, network, made, nullcontext)
        for version in range(3):
            moved(network, version)
            sync.load(None, version)
            assert sync.probe(WARM)["engine/sync_gap"] < 1e-5
        eng.stop()


# ------------------------------------------------------------------ messages
def test_a_chat_gets_messages_and_its_text_is_recorded() -> None:
    said: list[Any] = []
    with serving(
        lambda path, body: chat_of("<think>é 🙂</think><answer>Up</answer> and more"), None, said
    ) as url:
        made = remote(url, mode="chat", model="gpt", body={"max_tokens": None}, **QUICK)
        made = replace(made, chat=ChatRenderer(load_remote().tokenizer))
        eng: Any = made.open_engine(None)  # type: ignore[arg-type]
        [episode] = Scheduler(made, eng).play(Wave("test", 0, GREEDY, (EpisodeSpec(0, 0, 0, 0, 1),)))
    path, body, _ = said[1]
    assert path == "/v1/chat/completions" and body["model"] == "gpt" and "max_tokens" not in body
    roles = [message["role"] for message in body["messages"]]
    assert (
        roles == ["user", "assistant", "user"]
        and body["messages"][1]["content"] == episode.turns[0].reply_text
    )
    assert episode.turns[0].actions and episode.turns[0].is_valid
    assert episode.turns[0].reply_text.endswith("</answer>")  # as where a rule stops the sampling
    assert eng.meter() | {"tokens_in": 10.0 * len(said)} == eng.meter()


# every world: test_an_api_is_measured_on_every_world_or_refused_in_one_line
@pytest.mark.parametrize("name", ["sokoban", "guess_number", "dataset"])  # named actions, numbers, free text
@pytest.mark.parametrize("prompt", ["compact", "full"])
def test_a_game_is_played_by_messages(name: str, prompt: str) -> None:
    said: list[Any] = []
    config = OmegaConf.load(CONFIG_DIR / "env" / f"{name}.yaml")
    if name == "dataset":
        config.game.path = str(ROOT / "examples/own_data/problems.jsonl")
    wording: Prompt = instantiate(OmegaConf.load(CONFIG_DIR / "prompt" / f"{prompt}.yaml"))
    with serving(lambda path, body: chat_of("<think>é</think><answer>Up</answer>"), None, said) as url:
        made = remote(url, mode="chat", model="gpt", **QUICK)
        chat = ChatRenderer(load_remote().tokenizer)
        made = replace(made, chat=chat, tasks=[instantiate(config)], prompt=wording, max_context_tokens=8192)
        eng: Any = made.open_engine(None)  # type: ignore[arg-type]
        params = replace(GREEDY, max_context_tokens=8192)
        found = Scheduler(made, eng).play(
            Wave("test", 0, params, (EpisodeSpec(0, 0, 0, 0, 1), EpisodeSpec(0, 1, 0, 0, 2)))
        )
        eng.stop()
    assert [episode.error for episode in found] == ["", ""]
    assert sum(len(episode.turns) for episode in found) == len(said)
    for _, body, _ in said:
        roles = [message["role"] for message in body["messages"]]
        assert roles[-1] == "user" and all(message["content"] for message in body["messages"])


def test_tools_of_a_game_are_sent_and_calls_are_played() -> None:
    """Both ways, with ``dialect=tool_call``; what a call did stands in the next request."""
    said: list[Any] = []

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        seen = body["messages"][-1]["content"]
        if number := re.search(r"note says (\d+)", seen):
            name, arguments = "unlock", {"code": int(number[1])}
        else:
            name, arguments = "read", {"note": re.search(r"wants the (\w+) note", seen)[1]}  # type: ignore[index]
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        return chat_of(None, tool_calls=[call])

    with serving(answer, None, said) as url:
        made = remote(url, mode="chat", model="gpt", **QUICK)
        task = instantiate(OmegaConf.load(ROOT / "examples/own_tools/conf/env/vault.yaml"))
        chat = ChatRenderer(load_remote().tokenizer, dialect=ToolCalls())
        made = replace(made, chat=chat, tasks=[task], max_context_tokens=8192)
        eng: Any = made.open_engine(None)  # type: ignore[arg-type]
        params = replace(GREEDY, max_context_tokens=8192)
        [episode] = Scheduler(made, eng).play(Wave("test", 0, params, (EpisodeSpec(0, 0, 0, 0, 1),)))
    assert {tool["function"]["name"] for tool in said[0][1]["tools"]} == {"read", "unlock"}
    assert episode.error == "" and episode.success and len(said) == 2
    assert '"name": "read"' in said[1][1]["messages"][-2]["content"]  # what it called is in the dialogue


def test_a_redirect_is_not_followed_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    elsewhere: list[Any] = []
    with ExitStack() as servers:
        other = servers.enter_context(serving(lambda path, body: chat_of("x"), None, elsewhere))
        url = servers.enter_context(serving(lambda path, body: {}, Faults({0: f"307 {other}"})))
        eng = engine(url, key_variable="MY_KEY")
        [result] = replies(eng, TurnRequest(0, [1], 0, GREEDY))
    assert "status 307" in result.error and not elsewhere


def test_calls_of_tools_and_prices_are_passed_through() -> None:
    call = {"function": {"name": "go", "arguments": '{"to": 1}'}}
    with serving(lambda path, body: chat_of(None, tool_calls=[call])) as url:
        eng = engine(url, mode="chat", price_in=2.0, price_out=5.0)
        request = TurnRequest(0, [1], 0, GREEDY, messages=[{"role": "user", "content": "?"}])
        [result] = replies(eng, request)
    assert (result.text, result.calls) == ("", ['{"name": "go", "arguments": {"to": 1}}'])
    assert eng.meter()["cost"] == pytest.approx((10 * 2 + 4 * 5) / 1e6)
    assert eng.meter()["requests"] == 1
