"""Speed of multi-turn rollouts: the native engine against ``generate`` with re-encoded histories.

    python -m scripts.bench.rollout_speed [--episodes 128] [--members 1] [--repeats 5]
    python -m scripts.bench.rollout_speed --device cuda --model 0.5b-random --peers generate generate_batch

All sides have the same policy in one process; the figure is the median of the paired ratios of action tokens a second.
Trainers that call ``generate`` with the whole conversation at each turn re-encode the history in this way.
``generate_batch`` is transformers' continuous batching, called in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from transformers import ContinuousBatchingConfig, GenerationConfig

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
    compute_ratio,
    make_parser,
    parse,
    summarise,
    time_block,
    write_json,
)


def make_engine(
    policy: Policy, chat: ChatRenderer, episodes: int, window: int | str = "auto"
) -> NativeEngine:
    return NativeEngine(
        policy.network, stop=ANSWER.stop(policy.tokenizer), end_of_turn_ids=chat.end_of_turn_ids,
        num_slots=episodes, max_context_tokens=512, window=window,
    )  # fmt: skip


def play_ours(
    engine: NativeEngine,
    task: Task,
    chat: ChatRenderer,
    episodes: int,
    seed: int,
    members: int = 1,
    reply_tokens: int = 40,
) -> tuple[list[Episode], float]:
    engine.load(None, seed)
    rules = Rules(
        tasks=[task], prompt=Prompt(style="compact"), chat=chat, seed=seed, engine=lambda **_: engine
    )
    specs = tuple(
        EpisodeSpec(0, g, m, 0, 10_000 * seed + g) for g in range(episodes // members) for m in range(members)
    )
    params = SamplingParams(max_reply_tokens=reply_tokens, max_context_tokens=512)
    started = time.perf_counter()
    played = Scheduler(rules, engine).play(Wave("train", 0, params, specs))
    return played, time.perf_counter() - started


def iterate_turns(played: list[Episode]) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Yield the histories of the episodes that have each turn, and their reply lengths."""
    for k in range(max(len(episode.turns) for episode in played)):
        rows = [e for e in played if len(e.turns) > k]
        histories = []
        for episode in rows:
            tokens: list[int] = []
            for turn in episode.turns[:k]:
                tokens += [*turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist()]
            histories.append(tokens + episode.turns[k].prefix_tokens.tolist())
        yield histories, [len(e.turns[k].reply_tokens) for e in rows]


@torch.no_grad()
def measure_generate(policy: Policy, played: list[Episode], device: str) -> float:
    """Measure ``generate`` on the same histories and reply lengths, turn by turn."""
    found: Measured = {}
    pad = policy.tokenizer.pad_token_id
    for histories, lengths in iterate_turns(played):
        width = max(map(len, histories))
        ids = torch.tensor([[pad] * (width - len(h)) + h for h in histories], device=device)
        mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in histories], device=device)
        longest = max(lengths)
        with time_block(found, "seconds", device):
            # every row waits for the longest reply of the turn, as when rows stop by themselves
            policy.network.generate(
                input_ids=ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=longest,
                min_new_tokens=longest, pad_token_id=pad,
            )  # fmt: skip
    return found["seconds"]


@torch.no_grad()
def measure_generate_batch(policy: Policy, played: list[Episode], device: str) -> float:
    """Measure ``generate_batch`` on the same histories, with replies of the longest length of each turn.

    Raises:
        RuntimeError: a reply is shorter than requested, so the seconds could not be compared.
    """
    found: Measured = {}
    # by default it takes nine tenths of what is free, which on a CPU is the whole machine
    store = ContinuousBatchingConfig(max_memory_percent=0.05 if device == "cpu" else 0.5)
    for histories, lengths in reversed([*iterate_turns(played)]):  # the first call sizes the store
        longest = max(lengths)
        settings = GenerationConfig(
            do_sample=True, top_k=0, max_new_tokens=longest, eos_token_id=-1,
            pad_token_id=policy.tokenizer.pad_token_id,
        )  # fmt: skip
        with time_block(found, "seconds", device):
            written = policy.network.generate_batch(
                histories,
                generation_config=settings,
                continuous_batching_config=store,
                persistent_manager=True,
            )
        short = [len(each.generated_tokens) for each in written.values()]
        if len(short) != len(histories) or min(short) != longest:
            raise RuntimeError(
                f"generate_batch wrote {len(short)} replies of {min(short, default=0)} tokens or more"
            )
    return found["seconds"]


PEERS: Mapping[str, Callable[[Policy, list[Episode], str], float]] = {
    "generate": measure_generate,
    "generate_batch": measure_generate_batch,
}


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--members", type=int, default=1, help="episodes of one instance")
    parser.add_argument("--model", default="nano", choices=["nano", *trl_games.SHAPES])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--reply-tokens", type=int, default=40, help="tokens of a reply at most")
    parser.add_argument("--turns", type=int, default=0, help="turns of an episode; 0: as the game has")
    parser.add_argument("--peers", nargs="+", default=["generate"], choices=PEERS)
    parser.add_argument(
        "--window", default="auto", help="engine.window: decode steps between two looks, or auto"
    )
    options = parse(parser)
    policy = trl_games.policy(options.model, options.dtype)
    policy.network.to(options.device)
    chat = ChatRenderer(policy.tokenizer)
    described = OmegaConf.load(CONFIG_DIR / "env/sokoban.yaml")
    described["max_turns"] = options.turns or described["max_turns"]
    task: Task = instantiate(described)
    window = options.window if options.window == "auto" else int(options.window)
    engine = make_engine(policy, chat, options.episodes, window)

    def measure(repeat: int) -> Measured:
        """Measure all sides; the others need the lengths of the first."""
        played, seconds = play_ours(
            engine, task, chat, options.episodes, 1 + abs(repeat), options.members, options.reply_tokens
        )
        tokens = float(sum(e.num_action_tokens for e in played))
        peers = {name: PEERS[name](policy, played, options.device) for name in options.peers}
        return {"tokens": tokens, "ours": seconds, **peers}

    rounds = alternate({"both": measure}, repeats=options.repeats)
    rates = {}
    for side in ("ours", *options.peers):
        each_rate = [{"both": {"rate": each["both"]["tokens"] / each["both"][side]}} for each in rounds]
        rates[side] = summarise(each_rate, "both", "rate")
        what = "with the games" if side == "ours" else "generation alone"
        print(f"{side} ({what}): {rates[side].show(0)} action tokens/s")
    sides = [{name: {"s": each["both"][name]} for name in rates} for each in rounds]
    ratios = {name: compute_ratio(sides, "s", of=name, to="ours") for name in options.peers}
    for name, ratio in ratios.items():
        print(f"ours relative to {name}: {ratio.show()}")
    steps = engine.window.steps if engine.window else 0
    write_json(options.out, {"window": steps, "rounds": rounds, "rates": rates, "ratio": ratios}, options)


if __name__ == "__main__":
    main()
