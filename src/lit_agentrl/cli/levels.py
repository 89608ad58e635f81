"""Measure chance and oracle of a game, the levels of its scores."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lit_agentrl.checks import MOST_EPISODES, require_whole
from lit_agentrl.cli._running import build_parser, run_command
from lit_agentrl.config.composition import compose_job, format_search_path
from lit_agentrl.paths import PACKAGE_DIR

if TYPE_CHECKING:
    from lit_agentrl.envs.base import Task

_PERIOD_S = 5.0  # between two lines of progress
SHIPPED = ("sokoban", "frozen_lake", "bandit", "bandit_reversed")
EXAMPLES = """
Prints a table in Markdown, and writes levels.json beside the file that defines the game; for the games of this
project outputs/levels.json.  Runs find both.

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
        parser.add_argument(
            "--ship", action="store_true", help="write those of this project's games into its source"
        )
        args = parser.parse_intermixed_args(arguments)
        require_whole("--episodes", args.episodes, 1, MOST_EPISODES)
        require_whole("--seed", args.seed, 0)
        jobs = [args.overrides] if args.overrides else [[f"env={name}"] for name in SHIPPED]
        search_overrides = format_search_path(args.config_dir)
        for job in jobs:
            compose_job("train", job, search_overrides)  # before torch is loaded, which takes seconds
        from lit_agentrl.build.games import build_game

        tasks = [build_game(job, search_overrides) for job in jobs]
        print("| game | split | chance success | chance return | oracle success | oracle return |")
        print("|---|---|---|---|---|---|")
        for task in tasks:
            measure_game(task, args.episodes, args.seed, is_shipped=args.ship)


def measure_game(task: Task, episodes: int, seed: int, *, is_shipped: bool) -> None:
    """Measure one game on every split, print its rows and write its levels.

    If ``is_shipped``, the levels of a game of this package are written into the package.
    """
    from lit_agentrl.envs.levels import MEASURED, locate_levels, make_level_key, measure, write_levels
    from lit_agentrl.envs.splits import SPLITS

    entries: dict[str, Any] = {}
    for split in SPLITS:
        watch = Watch(f"{task.name} {split}", episodes)
        levels = measure(task, split, episodes, seed, watch=watch.count)
        scores = {
            key: value if value is None else round(value, 6)
            for key, value in dataclasses.asdict(levels).items()
        }
        entries[make_level_key(task, split)] = {"task": task.name, "split": split, "levels": scores}
        chance = format_level(levels.chance_success, levels.chance_return)
        oracle = format_level(levels.oracle_success, levels.oracle_return)
        print(f"| {task.name} | {split} | {chance} | {oracle} |", flush=True)
    for agent, method in (("chance", "random_action(rng)"), ("oracle", "optimal_actions(horizon)")):
        if any(entry["levels"][f"{agent}_success"] is None for entry in entries.values()):
            print(
                f"{task.name}: {agent} stays unknown, since the game's {method} returns None", file=sys.stderr
            )
    path = locate_levels(task)
    if path.is_relative_to(PACKAGE_DIR) and not is_shipped:
        path = MEASURED
    write_levels(path, entries)
    print(f"wrote {path}", file=sys.stderr)


class Watch:
    """Progress of a measurement on standard error, every five seconds.

    Args:
        name: what is measured.
        episodes: episodes of each agent.
    """

    def __init__(self, name: str, episodes: int) -> None:
        self._name, self._episodes, self._done, self._printed_at = name, episodes, 0, time.monotonic()

    def count(self) -> None:
        """Count an episode."""
        self._done += 1
        if time.monotonic() - self._printed_at < _PERIOD_S:
            return
        self._printed_at = time.monotonic()
        player, done = (
            ("random", self._done) if self._done <= self._episodes else ("best", self._done - self._episodes)
        )
        print(
            f"{self._name}: {done} of {self._episodes} episodes of {player} play", file=sys.stderr, flush=True
        )


def format_level(success: float | None, mean_return: float | None) -> str:
    """Return two cells of the table; dashes where a level is not known."""
    return "– | –" if success is None or mean_return is None else f"{success:.3f} | {mean_return:.2f}"
