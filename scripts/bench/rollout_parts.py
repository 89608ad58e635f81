"""Breakdown of the time of a rollout.

    python -m scripts.bench.rollout_parts --threads 1     # the work of one of several single-thread processes
    python -m scripts.bench.rollout_parts --threads 2 --episodes 128

The embedded policy plays Sokoban in groups of 8 a few times; then torch's profiler sums one rollout by operators.  The
rest of the unprofiled seconds is Python.  Among the positions that sampled tokens attend to, the distinct ones are
those that remain if the episodes of a group share their first message.
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
from scripts.bench.common import Measured, alternate, parse, parser_for, spread, table, write_json
from scripts.bench.rollout_speed import make_engine, ours

MEMBERS = 8
PARTS = {  # parts by prefixes of operator names
    "matrix products": ("mkldnn::_linear", "aten::mm", "aten::addmm"),
    "attention over the store": ("aten::bmm",),
    "attention of messages": ("aten::_scaled_dot_product",),
}


def parts_of(play: Any) -> Counter[str]:
    """Measure the seconds of one rollout by parts, from operators' own times."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        play()
    found: Counter[str] = Counter()
    for each in trace.key_averages():
        name = next(
            (part for part, starts in PARTS.items() if each.key.startswith(starts)), "other operators"
        )
        found[name] += each.self_cpu_time_total / 1e6
    return found


def distinct_share(episodes: Sequence[Episode]) -> float:
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
    parser = parser_for(__file__, __doc__, repeats=7)
    parser.add_argument("--episodes", type=int, default=64)
    options = parse(parser)
    bound_caches()
    policy = load_nano()
    chat = ChatRenderer(policy.tokenizer)
    with initialize_hydra():
        task = instantiate(compose("env/sokoban").env)
    engine = make_engine(policy, chat, options.episodes)

    def play(number: int = 0) -> tuple[list[Episode], float]:
        return ours(engine, task, chat, options.episodes, 0, MEMBERS)

    def measured(number: int) -> Measured:
        return {"seconds": play()[1]}

    rounds = alternate({"rollout": measured}, repeats=options.repeats)
    seconds = spread(rounds, "rollout", "seconds")
    parts = parts_of(play)
    parts["Python"] = seconds.median - sum(parts.values())
    print(f"{options.episodes} episodes: {seconds.text(2)} s")
    print(table(["part", "seconds"], [[part, f"{found:.2f}"] for part, found in parts.items()]))
    distinct = distinct_share(play()[0])
    print(f"distinct positions over those that are read: {distinct:.2f}")
    write_json(options.out, {"rounds": rounds, "parts": parts, "distinct": distinct}, options)


if __name__ == "__main__":
    main()
