"""Calls of an agent program: each continues what it must, and no token is lost, doubled or made again."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from lit_agentrl import seeds
from lit_agentrl.engines.base import TurnResult
from lit_agentrl.episode import Episode, Segment
from lit_agentrl.experimental.gateway.messages import BadRequest, ChatRequest, read_request
from lit_agentrl.experimental.gateway.session import Call, ChatSession
from lit_agentrl.models.policy import NANO_FOLDER
from lit_agentrl.rollout.pack import split_rows
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import Answer
from lit_agentrl.text.dialects.tool_call import ToolCalls
from lit_agentrl.text.ledger import check_ledger
from tests.conftest import nano_tokenizer

CHAT = ChatRenderer(nano_tokenizer(), dialect=Answer())
VOCABULARY = len(CHAT.tokenizer)


def sample(call: Call) -> list[int]:
    """Tokens that depend on the prompt and on the address of the draws alone, as an engine's do."""
    drawn = random.Random(f"{call.address}/{call.prompt}")
    return [drawn.randrange(VOCABULARY) for _ in range(drawn.randint(1, 5))]


def answer(session: ChatSession, call: Call, tokens: list[int] | None = None) -> dict[str, Any]:
    tokens = sample(call) if tokens is None else tokens
    reply = session.receive(call, TurnResult(0, tokens, [-1.0] * len(tokens), [0.5] * len(tokens)))
    message: dict[str, Any] = reply["message"]
    return message


def ask(session: ChatSession, messages: list[dict[str, Any]], **options: Any) -> Call:
    return session.ask(read_request({"messages": messages, **options}))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# a program as a tree of calls: what each continues (of those before it), its words, and an edit of the history
NODES = st.lists(
    st.tuples(st.integers(-1, 8), st.sampled_from(["go", "up", "P _"]), st.booleans()), min_size=1, max_size=8
)


def play(nodes: Any, order: list[int], *, is_parallel: bool) -> tuple[ChatSession, dict[int, Call]]:
    """The calls of a program in this order; a call comes after that which it continues."""
    session, calls, replies = ChatSession(CHAT, is_parallel=is_parallel, max_tokens=1000), {}, {}
    histories: dict[int, list[dict[str, Any]]] = {}
    for index in order:
        parent, words, is_edited = nodes[index]
        parent = parent if 0 <= parent < index else None
        history = [] if parent is None else [*histories[parent], replies[parent]]
        if is_edited and history:
            history = [{**history[0], "content": history[0]["content"] + " edited"}, *history[1:]]
        histories[index] = [*history, user(words)]
        calls[index] = ask(session, histories[index])
        replies[index] = answer(session, calls[index])
    return session, calls


def rows(session: ChatSession) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    episode = Episode(0, 0, 0, 0, "program", 0, turns=session.make_turns())
    return [
        [(tuple(turn.prefix_tokens.tolist()), tuple(turn.reply_tokens.tolist())) for turn in turns]
        for _, turns in split_rows(episode)
    ]


@settings(max_examples=25)
@given(NODES, st.booleans())
def test_rows_hold_what_the_engine_read_and_wrote_once(nodes: Any, is_parallel: bool) -> None:
    session, calls = play(nodes, list(range(len(nodes))), is_parallel=is_parallel)
    wanted = Counter((tuple(call.prompt), tuple(call.turn.reply_tokens.tolist())) for call in calls.values())
    found: Counter[Any] = Counter()
    for row in rows(session):
        read: tuple[int, ...] = ()
        for prefix, reply in row:
            read += prefix
            found[read, reply] += 1
            read += reply
    assert found == wanted
    for turn in session.make_turns():
        assert len(turn.prefix_tokens) == len(turn.prefix_segments)
    check_ledger(Episode(0, 0, 0, 0, "program", 0, turns=session.make_turns()))


@settings(max_examples=25)
@given(NODES)
def test_what_is_continued_is_kept_to_the_bit(nodes: Any) -> None:
    session, calls = play(nodes, list(range(len(nodes))), is_parallel=False)
    for index, (parent, words, is_edited) in enumerate(nodes):
        call = calls[index]
        if not 0 <= parent < index:
            assert call.parent is None
            assert call.prompt == CHAT.render_opening([user(words)]).tokens
        elif not is_edited:
            before = calls[parent]
            reply = before.turn.reply_tokens.tolist()
            assert call.prompt[: len(before.prompt) + len(reply)] == [*before.prompt, *reply] or (
                call.parent is not None and call.parent.request == before.request
            )  # the latter: the same was asked twice and answered with the same words
        else:
            assert call.parent is None or call.parent.request.messages != calls[parent].request.messages


@settings(max_examples=25)
@given(NODES, st.randoms(use_true_random=False))
def test_the_order_of_calls_changes_nothing(nodes: Any, chance: random.Random) -> None:
    order, ready = [], list(range(len(nodes)))
    while ready:
        index = chance.choice([i for i in ready if not 0 <= nodes[i][0] < i or nodes[i][0] in order])
        ready.remove(index)
        order.append(index)
    # which of two equal prompts is asked first is nothing that a program could tell
    nodes = [
        (parent, " ".join([words] * (1 + index)), edit) for index, (parent, words, edit) in enumerate(nodes)
    ]
    first, _ = play(nodes, list(range(len(nodes))), is_parallel=True)
    second, _ = play(nodes, order, is_parallel=True)
    assert {call.address for call in first.calls} == {call.address for call in second.calls}
    assert rows(first) == rows(second)


def test_a_plain_loop_is_one_row_with_the_keys_of_turns() -> None:
    session = ChatSession(CHAT, is_parallel=False, max_tokens=1000)
    messages = [user("go")]
    for _ in range(3):
        messages += [answer(session, ask(session, messages)), user("up")]
    assert [call.address for call in session.calls] == [(0,), (1,), (2,)]
    assert len(rows(session)) == 1


def test_an_equal_prompt_has_other_draws_each_time() -> None:
    session = ChatSession(CHAT, is_parallel=False, max_tokens=1000)
    calls = [ask(session, [user("go")]) for _ in range(3)]
    keys = {seeds.make_key(0, "token", *call.address) for call in calls}
    assert len(keys) == 3 and len({tuple(call.prompt) for call in calls}) == 1
    for call in calls:
        answer(session, call)
    assert len(rows(session)) == 3


def test_a_fork_begins_with_copies_that_are_not_trained_on() -> None:
    session = ChatSession(CHAT, is_parallel=False, max_tokens=1000)
    first = ask(session, [user("go")])
    said = answer(session, first)
    for words in ("up", "P _"):
        answer(session, ask(session, [user("go"), said, user(words)]))
    shared, fork = rows(session)
    assert len(shared) == 2 and len(fork) == 1
    turn = session.make_turns()[2]
    copies = (turn.prefix_segments == Segment.PAST).sum()
    assert turn.starts_row and copies == len(first.turn.reply_tokens)
    assert list(turn.prefix_tokens) == session.calls[2].prompt


def test_a_text_that_cannot_fit_is_not_tokenised() -> None:
    session = ChatSession(CHAT, is_parallel=False, max_tokens=20)
    said = answer(session, ask(session, [user("go")]))
    history = [user("go"), said]
    assert not ask(session, [*history, user("u" * 64 * 20)]).is_too_long
    long = ask(session, [*history, user("u" * (64 * 20 + 1))])
    assert long.is_too_long and len(long.new.tokens) == len(long.new.segments) == 21
    assert ask(session, [*history, user("up")]).parent is session.calls[0]
    assert len(rows(session)) == 1


def test_a_stop_text_ends_the_record_at_its_token() -> None:
    session = ChatSession(CHAT, is_parallel=False, max_tokens=1000)
    call = ask(session, [user("go")], stop=["Up"])
    tokens = [token for word in ("Down", "Up", "Left") for token in CHAT.encode(word)]
    said = answer(session, call, tokens)
    assert "Up" not in said["content"] and "Down" in said["content"]
    kept = call.turn.reply_tokens.tolist()
    assert kept == tokens[: len(kept)] and "Up" in CHAT.decode(kept) and "Left" not in CHAT.decode(kept)
    following = ask(session, [user("go"), said, user("up")])
    assert following.parent is call and following.prompt[: len(call.prompt) + len(kept)] == [
        *call.prompt,
        *kept,
    ]


TOOL = {
    "type": "function",
    "function": {"name": "move", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}},
}


def test_tools_that_the_policy_knows_are_not_shown_and_still_called() -> None:
    tokenizer = AutoTokenizer.from_pretrained(NANO_FOLDER.parent / "nano_tools")
    chat = ChatRenderer(tokenizer, dialect=ToolCalls())
    plain = chat.render_opening([user("go")]).tokens
    session = ChatSession(chat, is_parallel=False, max_tokens=1000, show_tools=False)
    call = ask(session, [user("go")], tools=[TOOL])
    assert call.prompt == plain
    text = chat.dialect.write(['{"name": "move", "arguments": {"to": "door"}}'], thought=None)
    assert answer(session, call, chat.encode(text))["tool_calls"][0]["function"]["name"] == "move"
    shown = ChatSession(chat, is_parallel=False, max_tokens=1000)
    assert "move" in chat.decode(ask(shown, [user("go")], tools=[TOOL]).prompt)


def test_calls_of_tools_are_read_by_the_dialect_and_continued_by_their_ids() -> None:
    tokenizer = AutoTokenizer.from_pretrained(NANO_FOLDER.parent / "nano_tools")
    chat = ChatRenderer(tokenizer, dialect=ToolCalls())
    session = ChatSession(chat, is_parallel=False, max_tokens=1000)
    first = ask(session, [user("go")], tools=[TOOL])
    text = chat.dialect.write(['{"name": "move", "arguments": {"to": "door"}}'], thought=None)
    said = answer(session, first, chat.encode(text))
    [call] = said["tool_calls"]
    assert call["function"] == {"name": "move", "arguments": '{"to": "door"}'}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "open"}
    echoed = {**said, "refusal": None, "annotations": [], "function_call": None}  # as SDKs send it back
    following = ask(session, [user("go"), echoed, result], tools=[TOOL])
    assert following.parent is first
    for arguments, parent in (
        ('{"to":"\\u0064oor"}', first),
        ('{"to": "wall"}', None),
    ):  # written anew; edited
        written = {**call, "function": {"name": "move", "arguments": arguments}}
        anew = ask(session, [user("go"), {**echoed, "tool_calls": [written]}, result], tools=[TOOL])
        assert anew.parent is parent


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n": 2}, "n=2"),
        ({"banana": 1}, "banana"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "surrogate"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "parts of type text"),
        ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "assistant"),
        ({"messages": [user("a"), {"role": "tool", "content": "b", "tool_call_id": "x"}]}, "names no call"),
        (
            {
                "messages": [
                    user("a"),
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                        ]
                        * 2,
                    },
                    user("b"),
                ]
            },
            "names two calls",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_obeyed_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        read_request({"messages": [user("go")], **changes})


def test_what_the_run_decides_is_named() -> None:
    request = read_request({"messages": [user("go")], "temperature": 0.2, "seed": 1, "user": "me"})
    assert request.overruled == ("temperature=0.2", "seed=1")
    assert ChatRequest.from_plain(request.to_plain()) == request
    named = read_request({"messages": [user("go") | {"name": "ann"}, user("on") | {"name": "ann"}]})
    assert named.overruled == ('messages.name="ann"',)
