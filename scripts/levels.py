"""Measures chance and oracle of the built-in games and writes src/lit_agentrl/envs/levels.json.

python scripts/levels.py [--episodes 2000] [--seed 0]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.envs.levels import level_key, measure
from lit_agentrl.envs.splits import SPLITS

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("sokoban", "frozen_lake", "bandit", "bandit_reversed")


def main() -> None:
    """Writes the file and prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000, help="episodes for each game and split")
    parser.add_argument("--seed", type=int, default=0, help="first instance seed")
    args = parser.parse_args()
    entries: dict[str, Any] = {}
    print("| game | split | chance success | chance return | oracle success | oracle return |")
    print("|---|---|---|---|---|---|")
    for name in TASKS:
        task = instantiate(OmegaConf.load(ROOT / "conf" / "env" / f"{name}.yaml"))
        for split in SPLITS:
            levels = measure(task, split, args.episodes, args.seed)
            scores = {key: round(value, 6) for key, value in dataclasses.asdict(levels).items()}
            entries[level_key(task, split)] = {"task": name, "split": split, "levels": scores}
            chance = f"{levels.chance_success:.3f} | {levels.chance_return:.2f}"
            oracle = f"{levels.oracle_success:.3f} | {levels.oracle_return:.2f}"
            print(f"| {name} | {split} | {chance} | {oracle} |", flush=True)
    command = f"python scripts/levels.py --episodes {args.episodes} --seed {args.seed}"
    content = {"command": command, "entries": entries}
    path = ROOT / "src" / "lit_agentrl" / "envs" / "levels.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
