"""Growth of cost with turns, groups and network width, and memory of the main job.

    python -m scripts.bench.scaling [--parts turns,groups,width,memory] [--repeats 5] [--precision 32-true]
                                 [--iterations 8]

*turns*: episodes of 1 to 40 turns whose rows all have 1280 tokens, 320 of them sampled, so that only the number
of turns differs; the figure is the cost of an action token at 40 turns over that at 5, within repetitions.
*groups*: 8 to 512 groups of 2 short episodes.  *width*: networks of growing width, 16 episodes of 5 turns.
*memory*: the largest resident size of ``train.py algo=grpo env=sokoban`` with 128 and with 256 episodes an
iteration, ``--iterations`` each, from its ``summary.json``.

Networks are random and replies always reach their limit, since only cost is measured.  ``reuse`` is the number of
message tokens over tokens read, which is 1 if each is read once.  ``re-encoded`` is how many times as many tokens would
be read if every turn read its whole history again.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lit_agentrl.models.onednn import bound_caches
from scripts.bench.common import (
    ROOT,
    Measured,
    Round,
    Summary,
    alternate,
    compute_ratio,
    format_table,
    make_parser,
    parse,
    summarise,
    write_json,
)
from scripts.bench.synthetic import Player, Shape, Trained, make_random_policy, measure

TURNS, ROW, ACTIONS, EPISODES = (1, 5, 10, 20, 40), 1280, 320, 16
GROUPS, MEMBERS = (8, 32, 128, 512), 2
WIDTHS = (64, 128, 256, 512)
PROMPTS = (16, 32)  # with a group size of 8
HEADER = ["rollout s", "update s", "µs an action token", "of them rollout", "ms an episode", "reuse", "re-encoded",
          "peak MiB"]  # fmt: skip
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def format_rows(rounds: Sequence[Round]) -> list[list[str]]:
    digits = {"rollout": 2, "update": 2, "whole_us": 0, "rollout_us": 0, "episode_ms": 2, "reuse": 3,
              "re_encoded": 1, "peak_mib": 0}  # fmt: skip
    return [
        [side, *(f"{summarise(rounds, side, name).median:.{n}f}" for name, n in digits.items())]
        for side in rounds[0]
    ]


def make_turn_sides(options: argparse.Namespace) -> dict[str, Callable[[int], Measured]]:
    policy = make_random_policy()
    trained = Trained(policy, precision=options.precision)
    players = {
        str(k): Player(
            policy, Shape(k, ACTIONS // k, ROW), slots=EPISODES, precision=options.precision, device=DEVICE
        )
        for k in TURNS
    }
    return {name: lambda n, p=p: measure(p, trained, groups=EPISODES // 8, members=8, seed=n + 9)
            for name, p in players.items()}  # fmt: skip


def make_group_sides(options: argparse.Namespace) -> dict[str, Callable[[int], Measured]]:
    policy = make_random_policy(context=128)
    trained = Trained(policy, precision=options.precision)
    player = Player(policy, Shape(2, 8), slots=256, precision=options.precision, device=DEVICE)
    return {
        str(g): lambda n, g=g: measure(player, trained, groups=g, members=MEMBERS, seed=n + 9) for g in GROUPS
    }


def make_width_sides(options: argparse.Namespace) -> dict[str, Callable[[int], Measured]]:
    sides = {}
    for width in WIDTHS:
        policy = make_random_policy(width, context=512)
        million = sum(p.numel() for p in policy.network.parameters()) / 1e6
        player = Player(policy, Shape(5, 16, 400), slots=EPISODES, precision=options.precision, device=DEVICE)
        trained = Trained(policy, precision=options.precision)
        sides[f"{width} ({million:.1f} M)"] = partial(
            lambda n, player, trained: measure(player, trained, groups=EPISODES // 8, members=8, seed=n + 9),
            player=player, trained=trained,
        )  # fmt: skip
    return sides


def measure_memory(prompts: int, iterations: int) -> float:
    """Measure the largest resident MiB of the main job."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run(
            [sys.executable, "train.py", "algo=grpo", "env=sokoban", f"rollout.prompts={prompts}",
             f"trainer.max_epochs={iterations}", f"hydra.run.dir={run}"],
            cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return float(json.loads((run / "summary.json").read_text())["peak_memory_bytes"]) / 2**20


PARTS: dict[str, Any] = {
    "turns": make_turn_sides,
    "groups": make_group_sides,
    "width": make_width_sides,
    "memory": None,
}


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed"])
    parser.add_argument("--iterations", type=int, default=8, help="of the main job, for its memory")
    options = parse(parser)
    bound_caches()  # as a run does
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--parts={min(unknown)} is unknown; valid: {', '.join(PARTS)}")
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    result: dict[str, list[Round] | Summary | dict[str, float]] = {}
    for part in parts:
        if part == "memory":
            result[part] = peaks = {
                str(8 * prompts): measure_memory(prompts, options.iterations) for prompts in PROMPTS
            }
            rows = [[episodes, f"{mebibytes:.0f}"] for episodes, mebibytes in peaks.items()]
            print(format_table(["main job: episodes an iteration", "peak MiB"], rows), "\n")
            continue
        result[part] = rounds = alternate(PARTS[part](options), repeats=options.repeats)
        print(format_table([part, *HEADER], format_rows(rounds)))
        if part == "turns":
            for name, quantity in (("rollout", "rollout_us"), ("whole", "whole_us")):
                result[f"turns_ratio_{name}"] = ratio = compute_ratio(rounds, quantity, of="40", to="5")
                print(f"{name}: an action token at 40 turns costs {ratio.show()} times that at 5 turns")
        print()
    write_json(options.out, result, options)


if __name__ == "__main__":
    main()
