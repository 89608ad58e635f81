"""Reward parts against trl's reward functions, on random episodes."""

from __future__ import annotations

import random

import pytest
import torch

from lit_agentrl.actions import Actions
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.shaping.format import Format
from lit_agentrl.rewards.shaping.overlong import Overlong
from lit_agentrl.rewards.shaping.repetition import Repetition
from lit_agentrl.text.dialects.answer import ANSWER
from tests.oracle.batches import NUM_BATCHES
from tests.oracle.oracles import load
from tests.rewards.conftest import episode, turn

pytestmark = pytest.mark.oracle
PIECES = ("<think>", "</think>", "<answer>", "</answer>", "Up", " go ", "\n", "Up || Down")


def random_episodes(rng: random.Random, vocabulary: int) -> list[Episode]:
    """Ragged: 1 to 8 episodes of 1 to 4 turns of 0 to 30 tokens."""

    def sampled() -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(rng.randint(0, 30))]

    return [
        episode([turn(sampled=sampled()) for _ in range(rng.randint(1, 4))]) for _ in range(rng.randint(1, 8))
    ]


def flat(points: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in points for x in row])


def test_overlong(agree):
    make = load("trl.rewards").get_soft_overlong_punishment
    for seed in range(NUM_BATCHES):
        rng = random.Random(seed)
        episodes = random_episodes(rng, 9)
        max_tokens = rng.randint(1, 30)
        part = Overlong(max_tokens=max_tokens, buffer=rng.randint(1, max_tokens))
        theirs = make(part.max_tokens, part.buffer)(
            [t.reply_tokens.tolist() for e in episodes for t in e.turns]
        )
        ours = flat(part.score(episodes, iteration=0))
        pair = ("rewards.overlong.Overlong", "get_soft_overlong_punishment")
        agree(ours, torch.tensor(theirs), seed=seed, pair=pair, tolerance=1e-9)


def test_repetition(agree):
    make = load("trl.rewards").get_repetition_penalty_reward
    for seed in range(NUM_BATCHES):
        rng = random.Random(seed)
        episodes = random_episodes(rng, rng.choice([1, 2, 5]))
        n = rng.randint(1, 4)
        theirs = make(n)([t.reply_tokens.tolist() for e in episodes for t in e.turns])
        ours = flat(Repetition(n=n).score(episodes, iteration=0))
        pair = ("rewards.repetition.Repetition", "get_repetition_penalty_reward")
        agree(ours, torch.tensor(theirs), seed=seed, pair=pair, tolerance=1e-9)


def test_think_format(agree):
    """Replies that begin with a think tag, and have one: trl asks for no answer, we for one, in order."""
    rule, num_stricter, num_good = load("trl.rewards").think_format_reward, 0, 0
    names = Actions("names", ("Up", "Down"))
    for seed in range(NUM_BATCHES):
        rng = random.Random(seed)
        texts = ["<think>" + "".join(rng.choices(PIECES[1:], k=rng.randint(0, 7))) for _ in range(20)]
        texts += ["<think>a</think><answer>Up</answer>", "<think>a<answer>Up</answer>", "<answer>Up</answer>"]
        replies = [ANSWER.parse(text, names, think=True) for text in texts]
        turns = [
            turn(is_valid=r.is_valid, is_well_formed=r.is_well_formed, has_think=r.has_think) for r in replies
        ]
        ours = flat(Format(rule="think").score([episode(turns)], iteration=0))
        theirs = torch.tensor(rule([[{"content": text}] for text in texts]))
        is_stricter = (ours == 0) & (theirs == 1)
        num_stricter, num_good = num_stricter + int(is_stricter.sum()), num_good + int(ours.sum())
        pair = ("rewards.format.Format", "think_format_reward")
        agree(ours, torch.where(is_stricter, 0.0, theirs), seed=seed, pair=pair, tolerance=0.0)
    assert num_stricter > 100 and num_good >= NUM_BATCHES
