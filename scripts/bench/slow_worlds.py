"""Speed of slow games by number of workers: 16 episodes with 50 ms a step.

    python -m scripts.bench.slow_worlds                     # prints seconds and ratios; tokens must be the same
    python -m scripts.bench.slow_worlds --where process
    python -m scripts.bench.slow_worlds --spread 0.9        # steps of 5 to 95 ms

The scheduler plays episodes of 4 turns.  The policy is a small random network with replies of unequal length; every
reply is one action.  The same episodes are also played inline, one step after the other, and with gymnasium's
AsyncVectorEnv, where all games wait for the last reply and all replies for the last game.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gymnasium.vector import AsyncVectorEnv
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from lit_agentrl import seeds
from lit_agentrl.actions import Actions
from lit_agentrl.engines.base import Engine, SamplingParams, TurnRequest
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosting import Hosting
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import load_nano
from lit_agentrl.rollout.episode import EpisodeInPlay
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.rollout.worlds.environments import Answer as Said
from lit_agentrl.rollout.worlds.environments import Step
from lit_agentrl.rollout.worlds.pool import Worlds
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import Answer
from lit_agentrl.text.dialects.base import Reply
from lit_agentrl.text.prompts import Prompt
from scripts.bench.slow_game import Slow

EPISODES, TURNS = 16, 4


@dataclass(frozen=True)
class Verbatim(Answer):
    """A dialect in which the whole reply is the action."""

    def parse(self, text: str, actions: Actions, *, think: bool) -> Reply:
        return Reply(True, (text,), "", "")


def make_engine(tokenizer: PreTrainedTokenizerBase, **given: Any) -> Engine:
    """Make an engine whose replies end at one token in eight, so lengths vary."""
    return NativeEngine(**{**given, "end_of_turn_ids": range(6, len(tokenizer), 8)}, num_slots=EPISODES)


def make_network(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Make a small network with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=2048, pad_token_id=0, bos_token_id=None, eos_token_id=5,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


DELAY = Worlds(delay=32)
PARAMS = SamplingParams(max_reply_tokens=8, max_context_tokens=512)


def open_engine(game: partial[Slow], hosting: Hosting, worlds: Worlds) -> tuple[Rules, Engine]:
    """Make the rules of play, and open an engine with the network."""
    tokenizer = load_nano().tokenizer
    task = Task(
        "slow", game, max_turns=TURNS, max_actions_per_turn=1, max_actions=TURNS, hosting=hosting,
    )  # fmt: skip
    chat = ChatRenderer(tokenizer, dialect=Verbatim())
    rules = Rules(
        tasks=[task], prompt=Prompt("compact", think=False), chat=chat, engine=partial(make_engine, tokenizer),
        worlds=worlds,
    )  # fmt: skip
    writing = rules.open_engine(make_network(tokenizer))
    writing.load(None, 0)
    return rules, writing


def play(
    hosting: Hosting, *, seconds: float = 0.05, spread: float = 0.0, worlds: Worlds = DELAY
) -> tuple[list[Episode], float]:
    """Play all episodes, and return them with their seconds."""
    scheduler = Scheduler(*open_engine(partial(Slow, seconds=seconds, spread=spread), hosting, worlds))
    specs = tuple(EpisodeSpec(0, e, 0, 0, e) for e in range(EPISODES))
    scheduler.play(Wave("train", 0, PARAMS, specs))  # starts the workers
    started = time.perf_counter()
    episodes = scheduler.play(Wave("train", 1, PARAMS, specs))
    seconds = time.perf_counter() - started
    scheduler.close()
    return episodes, seconds


def play_vector(*, seconds: float = 0.05, spread: float = 0.0) -> tuple[list[Episode], float]:
    """Play the same in a process per game, stepped together by AsyncVectorEnv."""
    game = partial(Slow, seconds=seconds, spread=spread)
    rules, writing = open_engine(game, Hosting(), Worlds())
    # its shared memory does not hold texts
    vector = AsyncVectorEnv([game] * EPISODES, shared_memory=False, context="fork")
    for _ in range(2):  # the first round starts the workers, as above
        started = time.perf_counter()
        plays = [EpisodeInPlay(Episode(0, e, 0, 0, "slow", e), rules) for e in range(EPISODES)]
        actions = game().actions()
        shown, _ = vector.reset(seed=list(range(EPISODES)))
        for e, each in enumerate(plays):
            each.take(Said(shown[e], actions))
        for turn in range(TURNS):
            for e, each in enumerate(plays):
                key = seeds.make_key(rules.seed, "train/token", 0, 0, e, 0, turn)
                writing.submit(TurnRequest(e, each.episode.turns[-1].prefix_tokens.tolist(), key, PARAMS))
            replies: dict[int, str] = {}
            while len(replies) < EPISODES:
                replies |= {
                    found.episode: plays[found.episode].receive_reply(found)[0] for found in writing.poll()
                }
            said = tuple(replies[e] for e in range(EPISODES))
            shown, rewards, *_ = vector.step(said)
            for e, each in enumerate(plays):
                step = Step(said[e], float(rewards[e]), {}, True)
                each.take(Said(shown[e], actions, steps=[step]))
        for e in range(EPISODES):
            writing.close(e)
        seconds = time.perf_counter() - started
    vector.close()
    return [each.episode for each in plays], seconds


def list_tokens(episodes: Sequence[Episode]) -> list[list[list[int]]]:
    """Return the sampled tokens."""
    return [[turn.reply_tokens.tolist() for turn in episode.turns] for episode in episodes]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--where", default="thread", choices=("thread", "process"))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--delay", type=int, default=32, help="worlds.delay, decode steps")
    parser.add_argument(
        "--spread", type=float, default=0.0, help="of the time of a step, as a share of 50 ms"
    )
    args = parser.parse_args()
    how: dict[str, Any] = {"spread": args.spread, "worlds": Worlds(delay=args.delay)}
    at_once, inline = play(Hosting(), **how)
    expected = list_tokens(at_once)
    lengths = [len(reply) for episode in expected for reply in episode]
    print(f"replies of {min(lengths)} to {max(lengths)} tokens")
    print(f"inline: {inline:.2f} s")
    first = None
    for workers in args.workers:
        episodes, seconds = play(Hosting(where=args.where, workers=workers), **how)
        first = first or seconds
        print_line(
            f"{workers} workers", seconds, list_tokens(episodes) == expected, first=first, inline=inline
        )
    _, seconds = play(
        Hosting(where=args.where, workers=EPISODES), spread=args.spread, worlds=Worlds(wait=False)
    )
    print(
        f"{EPISODES} workers, worlds.wait=false: {seconds:.2f} s, {inline / seconds:.1f} times as fast as inline"
    )
    episodes, seconds = play_vector(spread=args.spread)
    print_line("AsyncVectorEnv", seconds, list_tokens(episodes) == expected, first=first, inline=inline)


def print_line(name: str, seconds: float, is_same: bool, *, first: float, inline: float) -> None:
    """Print a line of the table."""
    print(
        f"{name}: {seconds:.2f} s, 1/{first / seconds:.1f} of 1 worker, {inline / seconds:.1f} times as fast as "
        f"inline, tokens {'the same' if is_same else 'DIFFER'}"
    )


if __name__ == "__main__":
    main()
