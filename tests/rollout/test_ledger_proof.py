"""Nothing is decoded, nothing re-tokenised: what was sampled is what is trained on, log-probs included."""

from __future__ import annotations

import pytest
import torch

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native import NativeEngine
from lit_agentrl.models.logprobs import score_tokens
from lit_agentrl.rollout.batch import pack
from lit_agentrl.rollout.sampler import EpisodeSpec, Sampler
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.ledger import AnswerStop, check_ledger
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.types import EndReason, Segment
from tests.conftest import load_task_yaml, tiny_policy


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("force_think", [False, True])
def test_recorded_log_probs_equal_a_fresh_forward_of_the_packed_batch(family: str, force_think: bool) -> None:
    policy = tiny_policy(family)
    chat = ChatRenderer(policy.tokenizer, force_think=force_think)
    engine = NativeEngine(
        policy.network, stop=AnswerStop(policy.tokenizer), end_of_turn_ids=chat.end_of_turn_ids, num_slots=5,
        max_context_tokens=300,
    )  # fmt: skip
    results = []
    poll = engine.poll
    engine.poll = lambda timeout=None: [results.append(r) or r for r in poll(timeout)]  # type: ignore[method-assign]
    sampler = Sampler(
        engine, tasks=[load_task_yaml(n) for n in ("sokoban", "frozen_lake", "bandit")], split="train",
        prompt=Prompt(style="compact", force_think=force_think), chat=chat,
        params=SamplingParams(max_reply_tokens=9, max_context_tokens=300), seed=3,
    )  # fmt: skip
    episodes = sampler.play([EpisodeSpec(0, g, m, g % 3, 50 + g) for g in range(6) for m in range(3)])
    batch = pack(episodes)
    with torch.no_grad():
        fresh = score_tokens(policy.network, tokens_BT=batch.tokens_BT, is_action_BT=batch.is_action_BT)
    torch.testing.assert_close(fresh.logp_BT, batch.sampler_logp_BT, atol=1e-4, rtol=0)

    assert any(e.end is EndReason.CONTEXT_LIMIT for e in episodes), "truncated episodes are among them"
    lengths = batch.is_real_BT.sum(1)
    assert lengths.min() < lengths.max() and max(len(e.turns) for e in episodes) > 2, "ragged and multi-turn"
    for episode in episodes:
        check_ledger(episode)
    # the engine's own ids, bit for bit, although they would not survive text
    sampled = sorted(tuple(r.tokens) for r in results if r.tokens)
    rows = []
    for b in range(batch.num_rows):
        for k in range(int(batch.turn_BT[b].max()) + 1):
            chosen = batch.is_action_BT[b] & (batch.turn_BT[b] == k)
            rows.append(tuple(batch.tokens_BT[b][chosen].tolist()))
    assert sorted(rows) == sampled
    encode = lambda text: policy.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    assert any(list(ids) != encode(chat.decode(ids)) for ids in sampled), "text would have changed some"


def test_only_sampled_tokens_are_actions() -> None:
    policy = tiny_policy()
    chat = ChatRenderer(policy.tokenizer, force_think=True)
    engine = NativeEngine(
        policy.network, stop=AnswerStop(policy.tokenizer), end_of_turn_ids=chat.end_of_turn_ids, num_slots=2,
        max_context_tokens=300,
    )  # fmt: skip
    sampler = Sampler(
        engine, tasks=[load_task_yaml("sokoban")], split="train", prompt=Prompt(style="compact", force_think=True),
        chat=chat, params=SamplingParams(max_reply_tokens=5, max_context_tokens=300), seed=0,
    )  # fmt: skip
    episodes = sampler.play([EpisodeSpec(0, 0, m, 0, 1) for m in range(2)])
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
