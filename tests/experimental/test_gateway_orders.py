"""Programs that call in any order: one recorded outcome each, and rows of what the engine read and wrote alone."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_agentrl.engines.base import SamplingParams, TurnResult
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.experimental.gateway import exchange as exchange_module
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.gateway.exchange import Exchange, Over, Pending, ProgramEnd
from lit_agentrl.experimental.gateway.messages import BadRequest, read_request
from lit_agentrl.experimental.gateway.play import ProgramInPlay
from lit_agentrl.experimental.gateway.rewards import read_posted
from lit_agentrl.experimental.gateway.task import ProgramTask
from lit_agentrl.experimental.gateway.world import AgentProgram
from lit_agentrl.rollout.pack import pack, split_rows
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.environments import Environments
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer

CHAT = ChatRenderer(nano_tokenizer())
LIMIT = 400  # tokens of a prompt
MOST_CALLS = 6
PARAMS = SamplingParams(max_reply_tokens=4, max_context_tokens=LIMIT)
WORDS = ["go", "up", "P _"]
MALFORMED: list[Any] = [
    None, [], {}, {"messages": []}, {"messages": [{"role": "user", "content": "go"}], "n": 2},
    {"messages": [{"role": "assistant", "content": "go"}]}, {"messages": [{"role": "user", "content": "\ud800"}]},
]  # fmt: skip
RESULTS: dict[str, tuple[ProgramEnd, bool]] = {
    "won": (ProgramEnd(1.0), True),
    "lost": (ProgramEnd({"reward": 0.0, "success": False}), True),
    "nothing": (ProgramEnd(None), False),
    "a text": (ProgramEnd("1"), False),
    "killed": (ProgramEnd(problem="the program was killed by signal 9"), False),
}
WHICH, WORD = st.integers(0, 7), st.sampled_from(WORDS)
CALLS = st.tuples(
    st.sampled_from(["continue", "continue", "begin", "edit", "repeat", "overflow"]), WHICH, WORD
)
REWARDS = st.tuples(
    st.just("reward"), st.sampled_from([-1, 1, 1, 2, 9]), st.sampled_from([None, "a", "a", "b"])
)
REFUSED = st.tuples(st.just("malformed"), st.integers(0, len(MALFORMED) - 1), st.none())
BREAKS = st.tuples(st.sampled_from(["two", "drop", "leave"]), WHICH, WORD)
ENDS = st.tuples(st.just("end"), st.sampled_from([*RESULTS, "won", "lost"]), st.none())
# calls and rewards, at times one thing that may break the episode, and the end, with what is done after it
OPERATIONS = st.builds(
    lambda *parts: [each for part in parts for each in part],
    st.lists(st.one_of(CALLS, CALLS, REWARDS, REFUSED), max_size=8),
    st.one_of(st.just([]), st.just([]), st.lists(BREAKS, max_size=1)),
    st.lists(st.one_of(CALLS, REWARDS), max_size=3),
    st.lists(ENDS, min_size=1, max_size=2),
    st.lists(st.one_of(CALLS, REWARDS, BREAKS), max_size=2),
) | st.lists(st.one_of(CALLS, CALLS, REWARDS, ENDS), max_size=12)


@dataclass
class Agent:
    """A program in this thread: it goes on when all its calls have their replies.

    It notes what it did, and what must follow.
    """

    operations: list[Any]
    is_parallel: bool
    posted: list[Pending] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)  # how often each of its calls was answered
    statuses: dict[int, int] = field(default_factory=dict)
    dialogues: list[list[dict[str, Any]]] = field(default_factory=list)  # with their replies
    tokens: dict[str, list[list[int]]] = field(
        default_factory=dict
    )  # of each dialogue: what was read and written
    ids: list[str] = field(default_factory=list)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    named: dict[str, tuple[float, int]] = field(default_factory=dict)
    num_waiting: int = 0
    is_broken: bool = False
    end: str = ""

    def start(self, exchange: Exchange, task: str, url: str, token: str) -> None:
        """See `Program`."""
        self.exchange = exchange
        self.go_on()

    def stop(self) -> None:
        """See `Program`."""

    close = stop

    def go_on(self) -> None:
        while self.operations and not self.num_waiting:
            name, which, more = self.operations.pop(0)
            getattr(self, f"do_{name}")(which, more)

    def post(self, messages: list[dict[str, Any]], *, leaves: bool = False) -> bool:
        """Make a call; whether a reply will come."""
        number = len(self.posted)

        def settle(status: int, body: Mapping[str, Any]) -> None:
            self.answers[number] += 1
            self.statuses[number] = status
            if pending.is_dropped:
                return
            self.num_waiting -= 1
            if leaves:
                self.drop(pending)
                return
            self.exchange.record_delivery()
            if status == 200:
                self.check_prompt(messages, body["prompt_token_ids"])
                self.dialogues.append([*messages, body["message"]])
                read = [*body["prompt_token_ids"], *body["token_ids"]]
                self.tokens.setdefault(json.dumps(self.dialogues[-1]), []).append(read)
                self.ids.append(body["id"])
            self.go_on()

        pending = Pending(read_request({"messages": messages}), settle)
        try:
            self.exchange.post(pending)
        except BadRequest:
            assert not self.is_parallel
            self.is_broken = True
            return False
        except Over:
            assert self.is_over
            return False
        self.posted.append(pending)
        self.num_waiting += 1
        return True

    def check_prompt(self, messages: list[dict[str, Any]], prompt: list[int]) -> None:
        """The prompt begins with the tokens of the longest dialogue that its messages continue."""
        for size in range(len(messages) - 1, 0, -1):
            if known := self.tokens.get(json.dumps(messages[:size])):
                assert any(prompt[: len(read)] == read for read in known)
                return
        assert prompt == CHAT.render_opening(messages).tokens

    @property
    def is_over(self) -> bool:
        return bool(self.end) or self.exchange._is_closed

    def drop(self, pending: Pending) -> None:
        if not self.exchange._is_closed:
            self.is_broken = True
        self.exchange.drop(pending)

    def pick(self, which: int, word: str) -> list[dict[str, Any]]:
        """A dialogue that it has held, with a new message, or a new one."""
        before = self.dialogues[which % len(self.dialogues)] if self.dialogues else []
        return [*before, {"role": "user", "content": word}]

    def do_continue(self, which: int, word: str) -> None:
        self.post(self.pick(which, word))

    def do_begin(self, which: int, word: str) -> None:
        self.post([{"role": "user", "content": f"{word} {which}"}])

    def do_edit(self, which: int, word: str) -> None:
        messages = self.pick(which, word)
        edited = which % len(messages)
        self.post([*messages[:edited], {**messages[edited], "content": "edited"}, *messages[edited + 1 :]])

    def do_repeat(self, which: int, word: str) -> None:
        messages = self.dialogues[which % len(self.dialogues)][:-1] if self.dialogues else self.pick(0, word)
        self.post(messages)

    def do_overflow(self, which: int, word: str) -> None:
        self.post(self.pick(which, "up " * (LIMIT if which % 2 else 64 * LIMIT)))

    def do_two(self, which: int, word: str) -> None:
        self.post(self.pick(which, word))
        self.post(self.pick(which + 1, word))

    def do_drop(self, which: int, word: str) -> None:
        if self.post(self.pick(which, word)):
            self.num_waiting -= 1
            self.drop(self.posted[-1])

    def do_leave(self, which: int, word: str) -> None:
        self.post(self.pick(which, word), leaves=True)

    def do_malformed(self, which: int, more: None) -> None:
        with pytest.raises(BadRequest):
            read_request(MALFORMED[which])

    def do_reward(self, which: int, name: str | None) -> None:
        """Post a reward for a reply, perhaps one that was never given or with a name that was used."""
        reward, reply = 0.1 * (which + 2), f"chatcmpl-{which}" if which >= 0 else None
        is_named = reply is None and bool(self.ids) and not self.is_parallel
        try:
            posted = read_posted({"reward": reward, "completion_id": reply, "reward_id": name})
            found, total = self.exchange.add_reward(posted)
        except Over:
            assert self.is_over or self.is_broken
            return
        except BadRequest:
            is_other = name in self.named and self.named[name or ""] != (reward, which)
            assert is_other or not (is_named or reply in self.ids)
            return
        assert found == reply or (reply is None and found in self.ids)
        if name is None or name not in self.named:
            self.rewards.setdefault(found, []).append(reward)
        if name is not None:
            assert self.named.setdefault(name, (reward, which)) == (reward, which)
        assert total == fsum(self.rewards[found])

    def do_end(self, result: str, more: None) -> None:
        if not self.is_over:
            self.end = result
            self.exchange.finish(RESULTS[result][0])


class FakeGateway:
    """A server without a socket."""

    url = ""

    def open(self, exchange: Exchange, *, max_bytes: int) -> str:
        """Keep the only episode."""
        self.exchange = exchange
        return "token"

    def close(self, token: str) -> None:
        """End it."""
        self.exchange.close()


class AgentWorld(AgentProgram):
    """A world whose program is an `Agent`."""

    def __init__(self, agent: Agent, **options: Any) -> None:
        super().__init__(
            mode="command",
            command="unused",
            timeout_s=0.002,
            max_calls=MOST_CALLS,
            parallel=agent.is_parallel,
            **options,
        )
        gateway = FakeGateway()
        self._make, self._open_gateway = lambda: agent, lambda: gateway  # type: ignore[assignment]


class Play(ProgramInPlay):
    """An episode that counts its outcomes."""

    num_ends = 0

    def _end(self, *arguments: Any, **options: Any) -> None:
        self.num_ends += 1
        super()._end(*arguments, **options)


def play(agent: Agent) -> tuple[Play, list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Play an episode; return it with what the engine read and wrote."""
    task = ProgramTask(
        "program", lambda **options: AgentWorld(agent, **options), max_turns=MOST_CALLS, max_actions_per_turn=1,
        max_actions=MOST_CALLS, invalid_penalty=0.0, hosting=Hosting(where="thread", workers=1),
    )  # fmt: skip
    rules = Rules(
        tasks=[task], prompt=Prompt(style="bare"), chat=CHAT, context=Calls(), engine=lambda *_: None,
        max_context_tokens=LIMIT,
    )  # fmt: skip
    environments = Environments(task, {})
    played = Play(Episode(0, 0, 0, 0, "program", 0), rules)
    held: tuple[int, ...] = ()
    written = []
    played.begin(environments.reset(0, "train", 3, 4))
    while not played.is_over:
        request = played.make_request(PARAMS)
        held = (() if request.is_new else held) + tuple(request.tokens)
        drawn = random.Random(f"{request.address}/{held}")
        reply = (
            []
            if len(held) >= LIMIT
            else [drawn.randrange(len(CHAT.tokenizer)) for _ in range(drawn.randint(1, 4))]
        )
        if reply:
            written.append((held, tuple(reply)))
            held += tuple(reply)
        result = TurnResult(0, list(reply), [-1.0] * len(reply), [0.5] * len(reply))
        actions = played.receive_reply(result)
        if not played.is_over:
            played.continue_play(environments.step(0, actions))
    environments.release(0, is_broken=played.episode.failed)
    environments.close()
    return played, written


@pytest.fixture(scope="module", autouse=True)
def _no_patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange_module, "_EXIT_S", 0.0)
        yield


def check_orders(operations: list[Any], is_parallel: bool) -> None:
    agent = Agent(list(operations), is_parallel)
    played, written = play(agent)
    episode = played.episode
    assert played.num_ends == 1 and agent.exchange._is_closed
    assert "\n" not in episode.error and bool(episode.error) == episode.failed
    for number, pending in enumerate(agent.posted):  # nobody waits on, and nobody is answered twice
        assert agent.answers[number] == 1 or (pending.is_dropped and agent.answers[number] == 0), (
            agent.answers
        )
    with pytest.raises(Over):
        agent.exchange.post(Pending(read_request({"messages": [{"role": "user", "content": "go"}]}), print))

    is_beyond = len(agent.posted) > MOST_CALLS and not agent.is_broken
    if agent.is_broken:
        assert episode.end is EndReason.ERROR
    elif not agent.ids:
        assert episode.failed
    elif is_beyond:
        assert episode.end is EndReason.TURN_LIMIT
    elif not agent.end:
        assert episode.end is EndReason.ENV_TIMEOUT
    else:
        assert episode.failed != RESULTS[agent.end][1], episode.error
    if episode.failed:
        with pytest.raises(ValueError, match="not trainable"):
            pack([episode])
        return
    check_record(episode, written)
    rewards = [reward for each in agent.rewards.values() for reward in each]
    final = 1.0 if episode.end is not EndReason.TURN_LIMIT and agent.end == "won" else 0.0
    assert sum(turn.reward for turn in episode.turns) == pytest.approx(fsum(rewards) + final)


def check_record(episode: Episode, written: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Each reply that the engine wrote stands once in a row that begins with what it read, and is trained on once."""
    check_ledger(episode)
    found = []
    for _, turns in split_rows(episode):
        read: tuple[int, ...] = ()
        for turn in turns:
            read += tuple(turn.prefix_tokens.tolist())
            reply = tuple(turn.reply_tokens.tolist())
            found.append((read, reply))
            read += reply
    assert Counter(found) == Counter(written)
    batch = pack([episode])
    assert int(batch.is_action_BT.sum()) == sum(len(reply) for _, reply in written)


@settings(max_examples=50, deadline=None)
@given(OPERATIONS, st.booleans())
def test_any_order_of_calls_has_one_outcome(operations: list[Any], is_parallel: bool) -> None:
    check_orders(operations, is_parallel)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(OPERATIONS, st.booleans())
def test_a_thousand_orders_of_calls_have_one_outcome_each(operations: list[Any], is_parallel: bool) -> None:
    check_orders(operations, is_parallel)
