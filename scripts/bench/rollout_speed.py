"""Speed of multi-turn rollouts: the native engine against ``generate`` with re-encoded histories.

    python -m scripts.bench.rollout_speed [--episodes 128] [--members 1] [--repeats 5]
    python -m scripts.bench.rollout_speed --device cuda --model 0.5b-random --peers generate generate_batch

All sides have the same policy in one process; the figure is the median of the paired ratios of action tokens a second.
Trainers that call ``generate`` with the whole conversation at each turn re-encode the history in this way.
``generate_batch`` is transformers' continuous batching, called in the same way.  ``vllm`` is ``engine=vllm``, which
plays the games too; it is left out where vLLM is not installed.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from transformers import ContinuousBatchingConfig, GenerationConfig

from lit_agentrl.engines.base import Engine, SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.engines.served.vllm import VLLMEngine
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import Policy, get_plain_parameters
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


def make_vllm(policy: Policy, chat: ChatRenderer, episodes: int) -> VLLMEngine:
    """Make vLLM with the weights of the policy, and play nothing yet."""
    engine = VLLMEngine(
        policy.network, stop=ANSWER.stop(policy.tokenizer), end_of_turn_ids=chat.end_of_turn_ids,
        num_slots=episodes, max_context_tokens=512, sleep=0,
    )  # fmt: skip
    engine.load(get_plain_parameters(policy.network), 0)
    return engine


def play_ours(
    engine: Engine,
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


VLLM = "vllm"
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
    parser.add_argument("--peers", nargs="+", default=["generate"], choices=[*PEERS, VLLM])
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
    if VLLM in options.peers and importlib.util.find_spec("vllm") is None:
        print("vllm: left out, since it is not installed")
        options.peers = [name for name in options.peers if name != VLLM]
    vllm = make_vllm(policy, chat, options.episodes) if VLLM in options.peers else None

    def play(player: Engine, repeat: int) -> tuple[list[Episode], float, float]:
        """Play a wave; return its episodes, their sampled tokens and the seconds."""
        played, seconds = play_ours(
            player, task, chat, options.episodes, 1 + abs(repeat), options.members, options.reply_tokens
        )
        return played, float(sum(e.num_action_tokens for e in played)), seconds

    def measure(repeat: int) -> Measured:
        """Measure all sides; generation alone needs the lengths of the first."""
        played, tokens, seconds = play(engine, repeat)
        peers = {name: PEERS[name](policy, played, options.device) for name in options.peers if name != VLLM}
        if vllm is not None:  # roundings give it other replies: the seconds are those of as many tokens
            _, its_tokens, its_seconds = play(vllm, repeat)
            peers[VLLM] = its_seconds * tokens / its_tokens
        return {"tokens": tokens, "ours": seconds, **peers}

    rounds = alternate({"both": measure}, repeats=options.repeats)
    rates = {}
    for side in ("ours", *options.peers):
        each_rate = [{"both": {"rate": each["both"]["tokens"] / each["both"][side]}} for each in rounds]
        rates[side] = summarise(each_rate, "both", "rate")
        what = "with the games" if side in ("ours", VLLM) else "generation alone"
        print(f"{side} ({what}): {rates[side].show(0)} action tokens/s")
    sides = [{name: {"s": each["both"][name]} for name in rates} for each in rounds]
    ratios = {name: compute_ratio(sides, "s", of=name, to="ours") for name in options.peers}
    for name, ratio in ratios.items():
        print(f"ours relative to {name}: {ratio.show()}")
    steps = engine.window.steps if engine.window else 0
    write_json(options.out, {"window": steps, "rounds": rounds, "rates": rates, "ratio": ratios}, options)


if __name__ == "__main__":
    main()
