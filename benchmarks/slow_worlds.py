"""Slow games under the scheduler: 16 episodes of 4 turns whose game takes 50 ms a step, by number of workers.

    python -m benchmarks.slow_worlds                     # prints seconds and ratios; tokens must be the same
    python -m benchmarks.slow_worlds --where process

The policy is a small random network, its replies of unequal length; every reply is one action.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from benchmarks.slow_game import Slow
from lit_agentrl.actions import Actions
from lit_agentrl.engines.base import Engine, SamplingParams
from lit_agentrl.engines.native import NativeEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import load_nano
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.worlds import Worlds
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import Answer
from lit_agentrl.text.dialects.base import Reply
from lit_agentrl.text.prompts import Prompt

EPISODES, TURNS = 16, 4


@dataclass(frozen=True)
class Verbatim(Answer):
    """The whole reply is the action."""

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        return Reply(True, (text,), "", "")


def engine(tokenizer: PreTrainedTokenizerBase, **given: Any) -> Engine:
    """Replies end at one token in eight: they are of unequal length."""
    return NativeEngine(**{**given, "end_of_turn_ids": range(6, len(tokenizer), 8)}, num_slots=EPISODES)


def network(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Small, with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=2048, pad_token_id=0, bos_token_id=None, eos_token_id=5,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


DELAY = Worlds(delay=32)


def play(hosting: Hosting, *, seconds: float = 0.05, worlds: Worlds = DELAY) -> tuple[list[Episode], float]:
    """The episodes, and the seconds that they took."""
    tokenizer = load_nano().tokenizer
    task = Task(
        "slow", partial(Slow, seconds=seconds), max_turns=TURNS, max_actions_per_turn=1, max_actions=TURNS,
        hosting=hosting,
    )  # fmt: skip
    chat = ChatRenderer(tokenizer, dialect=Verbatim())
    rules = Rules(
        tasks=[task], prompt=Prompt("compact", think=False), chat=chat, engine=partial(engine, tokenizer),
        worlds=worlds,
    )  # fmt: skip
    opened = rules.open_engine(network(tokenizer))
    opened.load(None, 0)
    scheduler = Scheduler(rules, opened)
    params = SamplingParams(max_reply_tokens=8, max_context_tokens=512)
    specs = tuple(EpisodeSpec(0, e, 0, 0, e) for e in range(EPISODES))
    scheduler.play(Wave("train", 0, params, specs))  # starts the workers
    started = time.perf_counter()
    episodes = scheduler.play(Wave("train", 1, params, specs))
    seconds = time.perf_counter() - started
    scheduler.close()
    return episodes, seconds


def tokens(episodes: Sequence[Episode]) -> list[list[list[int]]]:
    """What was sampled."""
    return [[turn.reply_tokens.tolist() for turn in episode.turns] for episode in episodes]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--where", default="thread", choices=("thread", "process"))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--delay", type=int, default=32, help="worlds.delay, decode steps")
    args = parser.parse_args()
    worlds = Worlds(delay=args.delay)
    at_once, inline = play(Hosting(), worlds=worlds)
    lengths = [len(reply) for episode in tokens(at_once) for reply in episode]
    print(f"replies of {min(lengths)} to {max(lengths)} tokens; inline {inline:.2f} s")
    first = None
    for workers in args.workers:
        episodes, seconds = play(Hosting(where=args.where, workers=workers), worlds=worlds)
        first = first or seconds
        is_same = tokens(episodes) == tokens(at_once)
        print(
            f"{workers} workers: {seconds:.2f} s, 1/{first / seconds:.1f}, tokens {'the same' if is_same else 'DIFFER'}"
        )


if __name__ == "__main__":
    main()
