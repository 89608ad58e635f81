"""Breakdown of the time of a rollout.

    python -m scripts.bench.rollout_parts --threads 1     # the work of one of several single-thread processes
    python -m scripts.bench.rollout_parts --threads 2 --episodes 128

The embedded policy plays Sokoban in groups of 8 a few times; then torch's profiler sums one rollout by operators.  The
rest of the unprofiled seconds is Python.  The distinct positions are those that sampled tokens attend to if the
episodes of a group share their first message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hydra import compose
from hydra.utils import instantiate
from torch.profiler import ProfilerActivity, profile

from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.episode import Episode
from lit_agentrl.models.onednn import bound_caches
from lit_agentrl.models.policy import load_nano
from lit_agentrl.text.chat import ChatRenderer
from scripts.bench.common import Measured, alternate, format_table, make_parser, parse, summarise, write_json
from scripts.bench.rollout_speed import make_engine, play_ours

MEMBERS = 8
PARTS = {  # parts by prefixes of operator names
    "matrix products": ("mkldnn::_linear", "aten::mm", "aten::addmm"),
    "attention over the store": ("aten::bmm",),
    "attention of messages": ("aten::_scaled_dot_product",),
}


def measure_parts(play: Any) -> Counter[str]:
    """Measure the seconds of one rollout by parts, from operators' own times."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        play()
    seconds: Counter[str] = Counter()
    for each in trace.key_averages():
        name = next(
            (part for part, starts in PARTS.items() if each.key.startswith(starts)), "other operators"
        )
        seconds[name] += each.self_cpu_time_total / 1e6
    return seconds


def compute_distinct_share(episodes: Sequence[Episode]) -> float:
    """Compute the distinct share of the positions that sampled tokens attend to.

    The first message of a group is counted once.
    """
    read = shared = 0
    for episode in episodes:
        first, before = len(episode.turns[0].prefix_tokens), 0
        for turn in episode.turns:
            before += len(turn.prefix_tokens)
            length = len(turn.reply_tokens)
            read += length * before + length * (length - 1) // 2
            shared += length * first
            before += length
    return 1 - shared * (1 - 1 / MEMBERS) / read


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=7)
    parser.add_argument("--episodes", type=int, default=64)
    options = parse(parser)
    bound_caches()
    policy = load_nano()
    chat = ChatRenderer(policy.tokenizer)
    with initialize_hydra():
        task = instantiate(compose("env/sokoban").env)
    engine = make_engine(policy, chat, options.episodes)

    def play(number: int = 0) -> tuple[list[Episode], float]:
        return play_ours(engine, task, chat, options.episodes, 0, MEMBERS)

    def measure(number: int) -> Measured:
        return {"seconds": play()[1]}

    rounds = alternate({"rollout": measure}, repeats=options.repeats)
    seconds = summarise(rounds, "rollout", "seconds")
    parts = measure_parts(play)
    parts["Python"] = seconds.median - sum(parts.values())
    print(f"{options.episodes} episodes: {seconds.show(2)} s")
    print(format_table(["part", "seconds"], [[part, f"{found:.2f}"] for part, found in parts.items()]))
    distinct = compute_distinct_share(play()[0])
    print(f"distinct positions over all positions that are read: {distinct:.2f}")
    write_json(options.out, {"rounds": rounds, "parts": parts, "distinct": distinct}, options)


if __name__ == "__main__":
    main()
