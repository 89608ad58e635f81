"""Long contexts on a CPU: our engine against transformers' ``generate``.

    python -m scripts.bench.campaigns.long_contexts    # 20 minutes: Qwen2.5-0.5B's shape, bfloat16
    python -m scripts.bench.campaigns.long_contexts --model tiny-random --episodes 4    # seconds

``generate`` reads the history before each reply.  Episodes of --turns turns (8) grow by --growth tokens a turn (256),
of which --reply (32) are sampled; weights are random, and no reply stops before its limit.  Each side is a separate
process.  The results are seconds, milliseconds an action token, and the memory needed in addition to the weights.
TRL's trainer calls ``generate`` in the same way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch

from scripts.bench import trl_games
from scripts.bench.common import (
    ROOT,
    Measured,
    alternate,
    compute_ratio,
    format_table,
    make_parser,
    parse,
    summarise,
    write_json,
)
from scripts.bench.synthetic import PeakMemory, Player, Shape

HEADER = ["side", "seconds", "ms an action token", "MiB beside the weights"]
PAGE_MIB = 4096 / 2**20  # minimum memory, so that ratios do not divide by zero
NAMES = ("seconds", "token_ms", "memory_mib")


def measure_ours(options: argparse.Namespace) -> Measured:
    policy = trl_games.policy(options.model, options.weights)
    row = options.turns * options.growth
    policy.network.config.max_position_embeddings = row + 1  # length of a slot
    player = Player(policy, Shape(options.turns, options.reply, row), slots=options.episodes)
    peak, before = PeakMemory(), read_resident()
    peak.start()
    _, seconds = player.play(groups=options.episodes, members=1)
    return {"seconds": seconds, "memory_mib": max(peak.read_mebibytes() - before, PAGE_MIB)}


def measure_generate(options: argparse.Namespace) -> Measured:
    network = trl_games.policy(options.model, options.weights).network
    draw = torch.Generator().manual_seed(0)
    history_BT = torch.zeros((options.episodes, 0), dtype=torch.int64)
    peak, before = PeakMemory(), read_resident()
    peak.start()
    started = time.perf_counter()
    for _ in range(options.turns):
        size = (options.episodes, options.growth - options.reply)
        history_BT = torch.cat([history_BT, torch.randint(6, 200, size, generator=draw)], 1)
        history_BT = network.generate(
            history_BT, attention_mask=torch.ones_like(history_BT), do_sample=True,
            min_new_tokens=options.reply, max_new_tokens=options.reply, pad_token_id=0,
        )  # fmt: skip
    seconds = time.perf_counter() - started
    assert history_BT.shape[1] == options.turns * options.growth
    return {"seconds": seconds, "memory_mib": max(peak.read_mebibytes() - before, PAGE_MIB)}


def read_resident() -> float:
    """Return the current mebibytes of this process."""
    import psutil

    return float(psutil.Process().memory_info().rss / 2**20)


SIDES = {"ours": measure_ours, "generate": measure_generate}


def measure_side(side: str, options: argparse.Namespace, arguments: list[str]) -> Measured:
    """Measure one side in a separate process."""
    command = [sys.executable, "-m", "scripts.bench.campaigns.long_contexts", *arguments, "--side", side]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: Measured = json.loads(done.stdout.splitlines()[-1])
    found["token_ms"] = 1e3 * found["seconds"] / (options.episodes * options.turns * options.reply)
    return found


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=1)
    parser.add_argument("--model", default="0.5b-random", choices=list(trl_games.SHAPES))
    parser.add_argument("--weights", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--growth", type=int, default=256)
    parser.add_argument("--reply", type=int, default=32)
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    options = parse(parser)
    if options.side is not None:
        print(json.dumps(SIDES[options.side](options)))
        return
    sides = {
        side: lambda _, side=side: measure_side(side, options, sys.argv[1:]) for side in SIDES
    }  # fmt: skip
    rounds = alternate(sides, repeats=options.repeats, warmups=0)
    print(
        format_table(
            HEADER, [[side, *(summarise(rounds, side, name).show() for name in NAMES)] for side in SIDES]
        )
    )
    ratios = {name: compute_ratio(rounds, name, of="generate", to="ours") for name in NAMES}
    print("generate over ours: " + ", ".join(f"{name} {ratio.show()}" for name, ratio in ratios.items()))
    write_json(options.out, {"rounds": rounds, "ratios": ratios}, options)


if __name__ == "__main__":
    main()
