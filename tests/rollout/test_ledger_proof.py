"""Nothing is decoded, nothing re-tokenised: what was sampled is what is trained on, log-probs included."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from lit_agentrl.engines.base import SamplingParams, TurnRequest, TurnResult
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.episode import EndReason, Segment
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.condensers import LastActions
from lit_agentrl.text.context import FULL, Single, Window
from lit_agentrl.text.ledger import check_ledger
from lit_agentrl.text.prompts import Prompt
from tests.conftest import load_task_yaml, thinned, tiny_policy

CONTEXTS = {  # with a limit on a row that truncates some episodes
    "full": (FULL, 300),
    "window_1": (Window(1), 125),
    "window_2": (Window(2), 200),
    "single": (Single(LastActions()), 70),
}


class Spy(NativeEngine):
    """Notes the tokens that the network has read before each reply, and the reply."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.histories: dict[int, list[int]] = {}
        self.replies: list[tuple[list[int], list[int]]] = []

    def submit(self, request: TurnRequest) -> None:
        self.histories.setdefault(request.episode, []).extend(request.prefix)
        super().submit(request)

    def close(self, episode: int) -> None:
        self.histories.pop(episode, None)
        super().close(episode)

    def poll(self, timeout: float | None = None) -> list[TurnResult]:
        results = super().poll(timeout)
        for result in results:
            if result.tokens:
                self.replies.append((list(self.histories[result.episode]), result.tokens))
                self.histories[result.episode].extend(result.tokens)
        return results


@pytest.mark.slow
@pytest.mark.parametrize("context", thinned(CONTEXTS, one_in=9))
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("force_think", [False, True])
def test_recorded_log_probs_equal_a_fresh_forward_of_the_packed_batch(
    family: str, force_think: bool, context: str
) -> None:
    policy = tiny_policy(family)
    chat = ChatRenderer(policy.tokenizer, force_think=force_think)
    strategy, limit = CONTEXTS[context]
    rules = Rules(
        tasks=[load_task_yaml(n) for n in ("sokoban", "frozen_lake", "bandit")], chat=chat, context=strategy,
        prompt=Prompt(style="compact", force_think=force_think), seed=3, max_context_tokens=limit,
        engine=partial(Spy, num_slots=5),
    )  # fmt: skip
    engine: Any = rules.open_engine(policy.network)
    specs = tuple(EpisodeSpec(0, g, m, g % 3, 50 + g) for g in range(6) for m in range(3))
    params = SamplingParams(max_reply_tokens=9, max_context_tokens=limit)
    episodes = Scheduler(rules, engine).play(Wave("train", 0, params, specs))
    batch = pack(episodes)
    with torch.no_grad():
        fresh = score_tokens(policy.network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT)
    torch.testing.assert_close(fresh.logp_BT, batch.sampler_logp_BT, atol=1e-4, rtol=0)

    assert any(e.end is EndReason.CONTEXT_LIMIT for e in episodes), "truncated episodes are among them"
    lengths = batch.is_real_BT.sum(1)
    assert lengths.min() < lengths.max() <= limit, "ragged, and within the limit on a row"
    assert max(len(e.turns) for e in episodes) > 3, "multi-turn, and longer than every window"
    for episode in episodes:
        check_ledger(episode)
    # what the engine had read and what it wrote, bit for bit, although it would not survive text
    rows = []
    for b in range(batch.num_rows):
        for k in batch.turn_BT[b][batch.is_action_BT[b]].unique().tolist():
            position = (batch.is_action_BT[b] & (batch.turn_BT[b] == k)).nonzero().squeeze(1)
            start, end = int(position[0]), int(position[-1]) + 1
            assert len(position) == end - start
            rows.append((batch.tokens_BT[b, :start].tolist(), batch.tokens_BT[b, start:end].tolist()))
    assert sorted(rows) == sorted(engine.replies)
    encode = lambda text: policy.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    assert any(ids != encode(chat.decode(ids)) for _, ids in engine.replies), "text would have changed some"


@pytest.mark.slow
def test_a_window_longer_than_the_episode_plays_and_reads_the_same() -> None:
    """Random draws are those of the full context, so equal prompts give equal episodes, cut into rows."""
    policy = tiny_policy()
    chat = ChatRenderer(policy.tokenizer)
    played = []
    for context in (FULL, Window(99)):
        rules = Rules(
            tasks=[load_task_yaml("sokoban")], prompt=Prompt(style="compact"), chat=chat, context=context,
            engine=partial(NativeEngine, num_slots=3), max_context_tokens=600,
        )  # fmt: skip
        specs = tuple(EpisodeSpec(0, 0, m, 0, 1) for m in range(4))
        wave = Wave("train", 0, SamplingParams(max_reply_tokens=9, max_context_tokens=600), specs)
        played.append(Scheduler(rules, rules.open_engine(policy.network)).play(wave))
    for whole, cut in zip(*played, strict=True):
        assert [t.reply_tokens.tolist() for t in whole.turns] == [t.reply_tokens.tolist() for t in cut.turns]
        history: list[int] = []
        for before, after in zip(whole.turns, cut.turns, strict=True):
            history += before.prefix_tokens.tolist()
            assert after.prefix_tokens.tolist() == history
            history += before.reply_tokens.tolist()
        assert whole.num_new == whole.num_prefilled + whole.num_shared == cut.num_new
        read_or_taken_over = cut.num_prefilled + cut.num_shared
        assert read_or_taken_over == sum(len(turn.prefix_tokens) for turn in cut.turns) > cut.num_new


def test_only_sampled_tokens_are_actions() -> None:
    policy = tiny_policy()
    chat = ChatRenderer(policy.tokenizer, force_think=True)
    rules = Rules(
        tasks=[load_task_yaml("sokoban")], prompt=Prompt(style="compact", force_think=True), chat=chat,
        engine=partial(NativeEngine, num_slots=2), max_context_tokens=300,
    )  # fmt: skip
    specs = tuple(EpisodeSpec(0, 0, m, 0, 1) for m in range(2))
    wave = Wave("train", 0, SamplingParams(max_reply_tokens=5, max_context_tokens=300), specs)
    episodes = Scheduler(rules, rules.open_engine(policy.network)).play(wave)
    batch = pack(episodes)
    think = policy.tokenizer.convert_tokens_to_ids("<think>")
    header = policy.tokenizer.convert_tokens_to_ids("<|assistant|>")
    forced = (batch.tokens_BT == think) & (batch.segment_BT == Segment.FORCED)
    assert forced.any() and not (forced & batch.is_action_BT).any()
    # a random policy may write a header itself; the template's, one before each reply, are no actions
    of_template = (batch.tokens_BT == header) & ~batch.is_action_BT
    assert of_template.sum() == sum(len(episode.turns) for episode in episodes)
    own = torch.isin(
        batch.segment_BT, torch.tensor([Segment.THINK, Segment.ANSWER, Segment.OTHER], dtype=torch.int8)
    )
    assert torch.equal(own, batch.is_action_BT)
