"""Hundreds of hostile programs at once: one outcome each, and no token that the engine did not read or write."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import closing
from functools import partial

import pytest

from lit_agentrl.engines.base import SamplingParams, TurnRequest, TurnResult
from lit_agentrl.engines.scripted import ScriptedEngine
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.gateway.task import ProgramTask
from lit_agentrl.rollout.pack import pack, split_rows
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.prompts import Prompt
from tests.conftest import nano_tokenizer
from tests.experimental.gateway_hostile import SCENARIOS, WHOLE, HostileThread, HostileWorld, hang

PARAMS = SamplingParams(max_reply_tokens=6, max_context_tokens=2000)


class RecordingEngine(ScriptedEngine):
    """An engine that writes random tokens, and records what it read before each reply."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        drawn = random.Random(seed)
        super().__init__(
            lambda episode, turn: " ".join(
                str(drawn.randrange(vocabulary)) for _ in range(drawn.randint(1, 6))
            ),
            encode=lambda text: [int(token) for token in text.split()],
            capacity=24,
        )
        self._read: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
        self.written: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()

    def _reply(self, request: TurnRequest) -> TurnResult:
        result = super()._reply(request)
        prompt = (*self._read[request.episode], *request.prefix)
        self.written.add((prompt, tuple(result.tokens)))
        self._read[request.episode] = (*prompt, *result.tokens)
        return result

    def close(self, episode: int) -> None:
        super().close(episode)
        self._read.pop(episode, None)


def play(sessions: int, seed: int) -> tuple[list[Episode], RecordingEngine]:
    chat = ChatRenderer(nano_tokenizer())
    task = ProgramTask(
        "program", partial(HostileWorld), max_turns=20, max_actions_per_turn=1, max_actions=20, invalid_penalty=0.0,
        hosting=Hosting(where="thread", workers=16),
    )  # fmt: skip
    engine = RecordingEngine(len(chat.tokenizer), seed)
    rules = Rules(
        tasks=[task], prompt=Prompt(style="bare"), chat=chat, context=Calls(), engine=lambda *_: engine,
        max_context_tokens=2000,
    )  # fmt: skip
    order = list(range(sessions))
    random.Random(seed).shuffle(order)
    specs = tuple(EpisodeSpec(0, group, 0, 0, number) for group, number in enumerate(order))
    with closing(Scheduler(rules, engine)) as scheduler:
        return scheduler.play(Wave("train", 0, PARAMS, specs)), engine


def check_sessions(sessions: int, seed: int) -> None:
    episodes, engine = play(sessions, seed)
    for thread in HostileThread.running:
        thread.join(10)
    assert not HostileThread.problems
    assert len(episodes) == sessions and engine.num_pending == 0
    for episode in episodes:
        scenario = SCENARIOS[episode.instance_seed % len(SCENARIOS)]
        whole = {True: [True], False: [False], None: [True, False]}[WHOLE[scenario]]
        where = f"{scenario.__name__}: {episode.end} {episode.error}"
        assert (not episode.failed) in whole and bool(episode.error) == episode.failed, where
        assert (episode.end is EndReason.ENV_TIMEOUT) == (scenario is hang), where
        assert "\n" not in episode.error and "AssertionError" not in episode.error, where
        if episode.failed:
            with pytest.raises(ValueError, match="not trainable"):
                pack([episode])
            continue
        check_ledger(episode)
        for _, turns in split_rows(episode):
            read: tuple[int, ...] = ()
            for turn in turns:
                read += tuple(turn.prefix_tokens.tolist())
                reply = tuple(turn.reply_tokens.tolist())
                assert (read, reply) in engine.written, where
                read += reply
    whole_ones = [episode for episode in episodes if not episode.failed]
    batch = pack(whole_ones)
    sampled = sum(len(turn.reply_tokens) for episode in whole_ones for turn in episode.turns)
    assert int(batch.is_action_BT.sum()) == sampled
    assert len(batch.trajectory_B.unique()) == len(whole_ones)


def test_hostile_sessions_end_in_one_outcome_each() -> None:
    check_sessions(len(SCENARIOS), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_300_hostile_sessions_end_in_one_outcome_each(seed: int) -> None:
    check_sessions(300, seed)
