"""Measure chance and oracle of a game, the levels of its scores."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lit_agentrl.checks import require_whole
from lit_agentrl.cli._running import build_parser, run_command
from lit_agentrl.config.composition import format_search_path
from lit_agentrl.config.errors import UserError
from lit_agentrl.paths import PACKAGE_DIR

if TYPE_CHECKING:
    from lit_agentrl.envs.base import Task

_MOST = 1_000_000
SHIPPED = ("sokoban", "frozen_lake", "bandit", "bandit_reversed")
EXAMPLES = """
Writes levels.json beside the file that defines each game, and prints a table in Markdown.

  {0}                                      the games of this project
  {0} env=sokoban env.game.size=7          another size of one
  {0} --config-dir FOLDER env=NAME         your own; limits and options as its runs have them
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``lit-agentrl levels``."""
    with run_command(argv) as arguments:
        parser = build_parser("levels", __doc__, EXAMPLES)
        parser.add_argument(
            "overrides", nargs="*", metavar="env=NAME env.KEY=VALUE", help="default: all shipped"
        )
        parser.add_argument("--config-dir", action="append", default=[], help="folder with env/NAME.yaml")
        parser.add_argument("--episodes", type=int, default=2000, help="episodes for each game and split")
        parser.add_argument("--seed", type=int, default=0, help="first instance seed")
        args = parser.parse_intermixed_args(arguments)
        require_whole("--episodes", args.episodes, 1, _MOST)
        require_whole("--seed", args.seed, 0)
        jobs = [args.overrides] if args.overrides else [[f"env={name}"] for name in SHIPPED]
        search = format_search_path(args.config_dir)
        from lit_agentrl.build.games import build_game

        tasks = [build_game(job, search) for job in jobs]
        if search:
            require_own(tasks)
        print("| game | split | chance success | chance return | oracle success | oracle return |")
        print("|---|---|---|---|---|---|")
        for task in tasks:
            measure_game(task, args.episodes, args.seed)


def require_own(tasks: Sequence[Task]) -> None:
    """Refuse to write levels into this package for a user's variant of its game.

    Raises:
        UserError: naming what measures them.
    """
    from lit_agentrl.envs.levels import locate_levels

    for task in tasks:
        if locate_levels(task).is_relative_to(PACKAGE_DIR):
            raise UserError(
                f"env={task.name} is a game of this package under a name of yours, and its levels would be written "
                "into the package; a run measures them at its start, so there is nothing to do"
            )


def measure_game(task: Task, episodes: int, seed: int) -> None:
    """Measure one game on every split, print its rows and write its levels."""
    from lit_agentrl.envs.levels import make_level_key, measure, write_levels
    from lit_agentrl.envs.splits import SPLITS

    entries: dict[str, Any] = {}
    for split in SPLITS:
        levels = measure(task, split, episodes, seed)
        scores = {
            key: value if value is None else round(value, 6)
            for key, value in dataclasses.asdict(levels).items()
        }
        entries[make_level_key(task, split)] = {"task": task.name, "split": split, "levels": scores}
        chance = format_level(levels.chance_success, levels.chance_return)
        oracle = format_level(levels.oracle_success, levels.oracle_return)
        print(f"| {task.name} | {split} | {chance} | {oracle} |", flush=True)
    print(f"wrote {write_levels(task, entries)}", file=sys.stderr)


def format_level(success: float | None, mean_return: float | None) -> str:
    """Return two cells of the table; dashes where a level is not known."""
    return "– | –" if success is None or mean_return is None else f"{success:.3f} | {mean_return:.2f}"
