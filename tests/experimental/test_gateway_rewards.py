"""Rewards that programs post: each credits one call, and what is malformed changes nothing."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from lit_agentrl.episode import EndReason
from lit_agentrl.experimental.gateway.exchange import Exchange, Over, Pending, ProgramEnd
from lit_agentrl.experimental.gateway.messages import BadRequest, ChatRequest
from lit_agentrl.experimental.gateway.rewards import MOST_REWARDS, PostedReward, read_posted, read_result
from lit_agentrl.rl.credit.advantages import mc_return
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.scheduler import Wave
from lit_agentrl.text.ledger import check_ledger
from tests.experimental.test_gateway_programs import PARAMS, make_rules, play, scheduler, specs

__all__ = ["scheduler"]  # a fixture

POST = """
def reward(body, key=KEY, **more):
    head = {"Authorization": "Bearer " + key, **{name.replace("_", "-"): value for name, value in more.items()}}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(URL + "/rewards", data, head)) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code
"""


def make_exchange(replies: int, *, is_parallel: bool = False) -> Exchange:
    """An exchange in which so many calls have had their replies."""
    exchange = Exchange(is_parallel)
    for number in range(1, replies + 1):
        exchange.post(Pending(ChatRequest(()), lambda *_: None))
        exchange.take_next(1.0)
        exchange.answer(200, {"id": f"chatcmpl-{number}"})
        exchange.record_delivery()
    return exchange


def test_a_program_posts_rewards_and_ends_with_one() -> None:
    script = """
ask("go")
assert reward({"reward": 0.25}) == {"completion_id": "chatcmpl-1", "reward": 0.25}
second = ask("on")["id"]
assert reward({"reward": -1, "completion_id": "chatcmpl-1"}) == {"completion_id": "chatcmpl-1", "reward": -0.75}
assert reward({"reward": 2, "completion_id": second})["completion_id"] == second == "chatcmpl-2"
win(0)
"""
    final, info, _ = play(POST + script)
    assert (final, info["success"]) == (0.0, True)  # the sum of all is above 0


@pytest.mark.slow
def test_each_reward_is_that_of_its_call(scheduler: Any) -> None:
    """The second call has two rewards, the last one of the record the final reward besides."""
    [episode] = scheduler(make_rules("earn")).play(Wave("train", 0, PARAMS, specs(1)))
    assert (episode.end, episode.error) == (EndReason.SUCCESS, "")
    assert [turn.reward for turn in episode.turns] == [0.25, 0.0, 4.0 - 1.0 + 8.0]
    assert [turn.reward_parts for turn in episode.turns] == [
        {"reward": turn.reward} for turn in episode.turns
    ]
    check_ledger(episode)
    batch = pack([episode])
    to_go = mc_return(
        return_B=batch.return_B, trajectory_B=batch.trajectory_B, first_turn_B=batch.first_turn_B,
        is_action_BT=batch.is_action_BT, reward_BT=batch.reward_BT,
    ).advantage_BT  # fmt: skip
    assert [to_go[batch.turn_BT.eq(k) & batch.is_action_BT].unique().tolist() for k in range(3)] == [
        [11.25], [11.0], [11.0],
    ]  # fmt: skip


@pytest.mark.slow
def test_the_final_reward_is_in_the_return_of_every_row(scheduler: Any) -> None:
    """The last call continues the first row, and another row was begun between."""
    [episode] = scheduler(make_rules("return_to_first")).play(Wave("train", 0, PARAMS, specs(1)))
    assert [turn.starts_row for turn in episode.turns] == [True, False, True]
    assert [turn.reward for turn in episode.turns] == [0.0, 0.0, 1.0]


MALFORMED: dict[str, tuple[Any, int]] = {
    "text": ({"reward": "1"}, 400),
    "truth": ({"reward": True}, 400),
    "nothing": ({"reward": None}, 400),
    "no reward": ({}, 400),
    "a number alone": (1, 400),
    "not a number": (b'{"reward": NaN}', 400),
    "endless": (b'{"reward": -Infinity}', 400),
    "large": (b'{"reward": 1e31}', 400),
    "many digits": (b'{"reward": 1' + b"0" * 400 + b"}", 400),
    "unknown reply": ({"reward": 1, "completion_id": "chatcmpl-2"}, 400),
    "number as id": ({"reward": 1, "completion_id": 1}, 400),
    "number as name": ({"reward": 1, "reward_id": 1}, 400),
    "empty name": ({"reward": 1, "reward_id": ""}, 400),
    "long name": ({"reward": 1, "reward_id": "x" * 201}, 400),
    "unknown key": ({"reward": 1, "turn": 1}, 400),
    "no JSON": (b"{", 400),
    "half a character": (b'{"reward": 1, "completion_id": "\\ud800"}', 400),
    "bytes": (b"x" * 5000, 413),
}


def test_a_malformed_reward_is_refused_and_changes_nothing() -> None:
    script = f"""
assert reward({{"reward": 1}}) == 400  # no call had a reply
ask("go")
for name, (body, status) in {MALFORMED!r}.items():
    assert reward(body) == status, name
assert reward({{"reward": 1}}, key="0" * 32) == 401
assert reward({{"reward": 0.5}}) == {{"completion_id": "chatcmpl-1", "reward": 0.5}}
win(-1)
"""
    final, info, _ = play(POST + script)
    assert (final, info["success"]) == (-1.0, False)


def test_a_reward_that_is_posted_again_counts_once() -> None:
    script = """
ask("go")
once = {"reward": 0.25, "reward_id": "a"}
assert reward(once) == reward(once) == {"completion_id": "chatcmpl-1", "reward": 0.25}
assert reward({"reward": 0.5}, Idempotency_Key="b")["reward"] == 0.75
assert reward({"reward": 0.5, "reward_id": "b"}, X_Stainless_Retry_Count="1")["reward"] == 0.75
assert reward({"reward": 0.5}, X_Stainless_Retry_Count="1") == 400  # a retry that may have counted
assert reward({"reward": 0.5}, X_Stainless_Retry_Count="0")["reward"] == 1.25  # the first try
assert reward({"reward": 0.5, "reward_id": "c"}, Idempotency_Key="b") == 400
ask("on")
assert reward(once) == {"completion_id": "chatcmpl-1", "reward": 1.25}  # still the first reply's
assert reward({**once, "completion_id": "chatcmpl-1"})["reward"] == 1.25
assert reward({**once, "completion_id": "chatcmpl-2"}) == reward({**once, "reward": 0.5}) == 400
win(-1.25)
"""
    final, info, _ = play(POST + script)
    assert (final, info["success"]) == (-1.25, False)


def test_a_repeated_reward_is_known_where_a_new_one_would_be_refused() -> None:
    """While a call waits, and when no more rewards are taken."""
    exchange = make_exchange(1)
    once = PostedReward(1.0, None, "a")
    exchange.add_reward(once)
    for _ in range(MOST_REWARDS - 1):
        exchange.add_reward(PostedReward(0.0))
    exchange.post(Pending(ChatRequest(()), lambda *_: None))
    assert exchange.add_reward(once) == ("chatcmpl-1", 1.0)
    exchange.finish(ProgramEnd(1.0))
    with pytest.raises(Over):
        exchange.add_reward(once)


@pytest.mark.slow
def test_the_sdk_names_a_reward_in_the_body() -> None:
    pytest.importorskip("openai")
    script = """
import openai
client = openai.OpenAI()
reply = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "go"}])
body = {"reward": 0.5, "completion_id": reply.id, "reward_id": "a"}
for _ in range(2):
    answer = client.post("/rewards", body=body, cast_to=object)
    assert answer == {"completion_id": reply.id, "reward": 0.5}, answer
win(0)
"""
    assert play(script)[1]["success"]


def test_the_order_of_rewards_changes_no_bit_of_their_sum() -> None:
    for order in itertools.permutations([0.1, 0.2, 0.3, 1e16, -1e16]):
        exchange = make_exchange(1, is_parallel=True)
        for reward in order:
            exchange.add_reward(PostedReward(reward, "chatcmpl-1"))
        assert exchange.sum_rewards() == {"chatcmpl-1": 0.6}


def test_a_reward_without_a_name_needs_an_order_of_calls() -> None:
    exchange = make_exchange(2)
    assert exchange.add_reward(PostedReward(1.0)) == ("chatcmpl-2", 1.0)
    exchange.post(Pending(ChatRequest(()), lambda *_: None))
    with pytest.raises(BadRequest, match="completion_id"):
        exchange.add_reward(PostedReward(1.0))
    assert exchange.add_reward(PostedReward(1.0, "chatcmpl-1")) == ("chatcmpl-1", 1.0)
    with pytest.raises(BadRequest, match="completion_id"):
        make_exchange(2, is_parallel=True).add_reward(PostedReward(1.0))


def test_rewards_are_bounded_in_number_and_end_with_the_episode() -> None:
    exchange = make_exchange(1)
    for _ in range(MOST_REWARDS):
        exchange.add_reward(PostedReward(1e30))
    with pytest.raises(BadRequest, match=f"{MOST_REWARDS} rewards"):
        exchange.add_reward(PostedReward(1.0))
    ended, closed = make_exchange(1), make_exchange(1)
    ended.finish(ProgramEnd(1.0))
    closed.close()
    for over in (ended, closed):
        with pytest.raises(Over):
            over.add_reward(PostedReward(1.0))


def test_the_keys_of_a_reward_are_read() -> None:
    assert read_posted({"reward": 1, "completion_id": None}) == PostedReward(1.0)
    assert read_posted({"reward": -0.5, "completion_id": "a"}) == PostedReward(-0.5, "a")


@pytest.mark.parametrize(
    "result",
    [
        "1", None, [1], {}, {"points": 1}, {"reward": "1"}, {"reward": None}, {"reward": float("nan")},
        {"reward": 1, "success": "false"}, {"reward": 1, "success": 1}, {"reward": 1, "cost": "0"},
        {"reward": 1, "reward_parts": {"a": "1"}}, {"reward": 1, "reward_parts": [1]}, {"reward": 10**400},
    ],
)  # fmt: skip
def test_a_result_of_a_wrong_type_is_an_error(result: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        read_result(result, 0.0)


def test_a_result_is_a_number_or_an_object() -> None:
    assert read_result(True, 0.0) == (1.0, {"success": True})
    assert read_result({"reward": False}, 0.0) == (0.0, {"success": False})
    assert read_result(json.loads("0"), 0.5) == (0.0, {"success": True})
    full = {"reward": 1, "success": False, "reward_parts": {"a": 1}, "cost": 2}
    assert read_result(full, 0.0) == (1.0, {"success": False, "reward_parts": {"a": 1.0}, "cost": 2.0})
