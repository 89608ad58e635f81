"""Speed of multi-turn rollouts: the native engine against ``generate`` with re-encoded histories.

    python -m scripts.bench.rollout_speed [--episodes 128] [--members 1] [--repeats 5]

Both sides play the same games with the same policy in one process, alternately; the figure is the median of
the paired ratios of action tokens per second.  Trainers that call ``generate`` with the whole conversation at
each turn re-encode the history in this way.
"""

from __future__ import annotations

import time

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import Policy
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.prompts import Prompt
from scripts.bench import trl_games
from scripts.bench.common import (
    Measured,
    alternate,
    paired_ratio,
    parse,
    parser_for,
    spread,
    stopwatch,
    write_json,
)


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
def re_encoding(policy: Policy, played: list[Episode], device: str) -> float:
    """Measure ``generate`` on the same histories and reply lengths, with all rows each turn."""
    found: Measured = {}
    depth = max(len(episode.turns) for episode in played)
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
        ids = torch.tensor([[pad] * (width - len(h)) + h for h in histories], device=device)
        mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in histories], device=device)
        longest = max(len(e.turns[k].reply_tokens) for e in rows)
        with stopwatch(found, "seconds", device):
            # every row waits for the longest reply of the turn, as when rows stop by themselves
            policy.network.generate(
                input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=longest,
                min_new_tokens=longest, pad_token_id=pad,
            )  # fmt: skip
    return found["seconds"]


def main() -> None:
    parser = parser_for(__file__, __doc__)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--members", type=int, default=1, help="episodes of one instance")
    parser.add_argument("--model", default="nano", choices=["nano", *trl_games.SHAPES])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parse(parser)
    policy = trl_games.policy(options.model, options.dtype)
    policy.network.to(options.device)
    chat = ChatRenderer(policy.tokenizer)
    task: Task = instantiate(OmegaConf.load(CONFIG_DIR / "env/sokoban.yaml"))
    engine = make_engine(policy, chat, options.episodes)

    def measure(repeat: int) -> Measured:
        """Measure both sides; the second needs the lengths of the first."""
        played, seconds = ours(engine, task, chat, options.episodes, 1 + abs(repeat), options.members)
        return {
            "tokens": float(sum(e.num_action_tokens for e in played)),
            "ours": seconds,
            "generate": re_encoding(policy, played, options.device),
        }

    rounds = alternate({"both": measure}, repeats=options.repeats)
    for side, what in (("ours", "with the games"), ("generate", "generation alone")):
        rates = [{"both": {"rate": each["both"]["tokens"] / each["both"][side]}} for each in rounds]
        print(f"{side} ({what}): {spread(rates, 'both', 'rate').text(0)} action tokens/s")
    sides = [{name: {"s": each["both"][name]} for name in ("ours", "generate")} for each in rounds]
    ratio = paired_ratio(sides, "s", of="generate", to="ours")
    print(f"ratio: {ratio.text()}")
    write_json(options.out, {"rounds": rounds, "ratio": ratio}, options)


if __name__ == "__main__":
    main()
