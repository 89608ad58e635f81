"""Multi-turn rollouts: the native engine beside ``generate`` that re-encodes the history every turn.

    python benchmarks/rollout_speed.py [--episodes 128] [--members 1] [--repeats 5]

Both sides play the same games with the same policy in one process, alternately; the figure is the median of
the paired ratios of action tokens per second.  Re-encoding is what trainers do that call ``generate`` with
the whole conversation at each turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native import NativeEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import Policy, load_nano
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.prompts import Prompt

ROOT = Path(__file__).resolve().parent.parent


def make_engine(policy: Policy, chat: ChatRenderer, episodes: int) -> NativeEngine:
    return NativeEngine(
        policy.network, stop=ANSWER.stop(policy.tokenizer), end_of_turn_ids=chat.end_of_turn_ids,
        num_slots=episodes, max_context_tokens=512,
    )  # fmt: skip


def ours(
    engine: NativeEngine, task: Task, chat: ChatRenderer, episodes: int, seed: int, members: int = 1
) -> tuple[list[Episode], float]:
    engine.load(None, seed)
    rules = Rules(
        tasks=[task], prompt=Prompt(style="compact"), chat=chat, seed=seed, engine=lambda **_: engine
    )
    specs = tuple(
        EpisodeSpec(0, g, m, 0, 10_000 * seed + g) for g in range(episodes // members) for m in range(members)
    )
    params = SamplingParams(max_reply_tokens=40, max_context_tokens=512)
    started = time.perf_counter()
    played = Scheduler(rules, engine).play(Wave("train", 0, params, specs))
    return played, time.perf_counter() - started


@torch.no_grad()
def re_encoding(policy: Policy, played: list[Episode]) -> float:
    """Seconds of ``generate`` for replies of the same lengths after the same histories, all rows each turn."""
    seconds, depth = 0.0, max(len(episode.turns) for episode in played)
    pad = policy.tokenizer.pad_token_id
    for k in range(depth):
        rows = [e for e in played if len(e.turns) > k]
        histories = []
        for episode in rows:
            tokens: list[int] = []
            for turn in episode.turns[:k]:
                tokens += [*turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist()]
            histories.append(tokens + episode.turns[k].prefix_tokens.tolist())
        width = max(map(len, histories))
        ids = torch.tensor([[pad] * (width - len(h)) + h for h in histories])
        mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in histories])
        longest = max(len(e.turns[k].reply_tokens) for e in rows)
        started = time.perf_counter()
        # the turn barrier: every row waits for the longest reply, as it does when rows stop by themselves
        policy.network.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=longest,
            min_new_tokens=longest, pad_token_id=pad,
        )  # fmt: skip
        seconds += time.perf_counter() - started
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--members", type=int, default=1, help="episodes of one instance")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "benchmarks" / "rollout_speed.json")
    arguments = parser.parse_args()
    policy = load_nano()
    chat = ChatRenderer(policy.tokenizer)
    task: Task = instantiate(OmegaConf.load(ROOT / "src/lit_agentrl/conf/env/sokoban.yaml"))
    engine = make_engine(policy, chat, arguments.episodes)
    members = arguments.members
    ours(engine, task, chat, arguments.episodes, 0, members)  # warm-up
    rows = []
    for repeat in range(1, arguments.repeats + 1):
        played, seconds = ours(engine, task, chat, arguments.episodes, repeat, members)
        tokens = sum(e.num_action_tokens for e in played)
        others = re_encoding(policy, played)
        rows.append(
            {
                "tokens": tokens,
                "ours_per_s": tokens / seconds,
                "re_encoding_per_s": tokens / others,
                "ratio": others / seconds,
            }
        )
        print(
            f"{repeat}: ours {tokens / seconds:.0f} (with the games), re_encoding {tokens / others:.0f} "
            f"(generation alone) action tokens/s, ratio {others / seconds:.2f}"
        )
    ratios = [row["ratio"] for row in rows]
    print(f"ratio: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"threads": torch.get_num_threads(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
