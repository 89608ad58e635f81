"""Measures chance and oracle of games and writes them into levels.json beside the file that defines each.

python scripts/levels.py                                    # the games of this project
python scripts/levels.py env=sokoban env.game.size=7        # another size of one
python scripts/levels.py --config-dir CONF env=NAME         # one's own; limits and options as its runs have them
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from lit_agentrl.entry.composition import compose_job, search_path
from lit_agentrl.entry.errors import UserError
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.levels import level_key, levels_file, measure, read_levels
from lit_agentrl.envs.splits import SPLITS

SHIPPED = ("sokoban", "frozen_lake", "bandit", "bandit_reversed")


def write(task: Task, found: dict[str, Any]) -> Path:
    """Put the entries of one game into its file; those of other games and settings stay."""
    path = levels_file(task)
    entries = read_levels(path) | found
    path.write_text(json.dumps({"entries": entries}, indent=1) + "\n", encoding="utf-8")
    return path


def shown(success: float | None, points: float | None) -> str:
    return "– | –" if success is None or points is None else f"{success:.3f} | {points:.2f}"


def main() -> None:
    """Writes the files and prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="env=NAME env.KEY=VALUE", help="default: all shipped")
    parser.add_argument("--config-dir", action="append", default=[], help="folder with env/NAME.yaml")
    parser.add_argument("--episodes", type=int, default=2000, help="episodes for each game and split")
    parser.add_argument("--seed", type=int, default=0, help="first instance seed")
    args = parser.parse_intermixed_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where train.py stands, as in its runs
    jobs = [args.overrides] if args.overrides else [[f"env={name}"] for name in SHIPPED]
    print("| game | split | chance success | chance return | oracle success | oracle return |")
    print("|---|---|---|---|---|---|")
    for job in jobs:
        try:
            task = instantiate(compose_job("train", job, search_path(args.config_dir)).env)
            if not isinstance(task, Task):
                raise UserError(f"{' '.join(job)}: a mixture has no levels of its own; name its games")
            entries: dict[str, Any] = {}
            for split in SPLITS:
                levels = measure(task, split, args.episodes, args.seed)
                scores = {
                    key: value if value is None else round(value, 6)
                    for key, value in dataclasses.asdict(levels).items()
                }
                entries[level_key(task, split)] = {"task": task.name, "split": split, "levels": scores}
                chance = shown(levels.chance_success, levels.chance_return)
                oracle = shown(levels.oracle_success, levels.oracle_return)
                print(f"| {task.name} | {split} | {chance} | {oracle} |", flush=True)
            print(f"wrote {write(task, entries)}", file=sys.stderr)
        except (UserError, ValueError) as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
