"""Instance counts, chance levels and oracle levels of each environment: docs/findings/played.csv.

    python scripts/played.py                                   # minutes; --openenv PYTHON: an environment with openenv

For each environment of ``conf/env`` with its shipped options, and each of the splits ``val`` and ``test``, 1,000 seeds
are reset and the distinct instances counted.  Shipped levels come from 1,000 or more episodes of random play and of
best play (textworld: 250).  An environment that needs a server is played here, with a server started for it.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.envs.base import Task
from lit_agentrl.envs.hosted.openenv import OpenEnv
from lit_agentrl.envs.levels import Levels, find_levels, measure
from lit_agentrl.paths import CONFIG_DIR

ROOT = Path(__file__).resolve().parent.parent
CONF = CONFIG_DIR / "env"
OUT = ROOT / "docs/findings/played.csv"
NUMBER, SEED = 1000, 7_000_000
# environment, options of its game, description of the reference
WORLDS: list[tuple[str, dict[str, Any], str]] = [
    ("sokoban", {}, "shortest solution"),
    ("frozen_lake", {}, "value iteration"),
    ("bandit", {}, "better arm"),
    ("bandit_reversed", {}, "better arm"),
    ("guess_number", {}, "binary search"),
    ("reverse_text", {}, "reversed text"),
    ("wordle", {}, "guess that splits the words"),
    ("tic_tac_toe", {}, "expectimax"),
    ("code", {}, "known program"),
    ("maths", {}, "known answer"),
    ("judging", {}, "known worth of answers"),
    ("webshop", {}, "knows the goal's product"),
    ("pocket", {}, "gold plan"),
    *(
        ("gymnasium", {"id": name}, env_name)
        for name, env_name in (
            ("Taxi-v4", "value iteration"),
            ("Blackjack-v1", "best play of what is seen"),
            ("CliffWalking-v1", "value iteration"),
            ("FrozenLake-v1", "value iteration"),
        )
    ),
    ("reasoning_gym", {}, "known answer"),
    ("textarena", {}, "shortest way"),
    ("babyai", {}, "bot of minigrid"),
    ("scienceworld", {}, "solution of the library"),
    ("textworld", {}, "policy commands"),
    ("textworld_express", {}, "solution of the library, without detours"),
    ("bfcl", {}, "calls that are known to be right"),
    ("dataset", {"path": "examples/own_data/problems.jsonl"}, "known answer"),
    ("mcp", {"path": "examples/own_mcp/tasks.jsonl"}, "solution of the file"),
    ("remote", {}, "as the game that is served: frozen_lake"),
    ("openenv", {}, "a script: one step towards the door"),
]
SERVERS = {  # the last argument is the port
    "mcp": [sys.executable, "examples/own_mcp/online.py"],
    "remote": [sys.executable, "-m", "lit_agentrl", "serve-env", "env=frozen_lake", "--port"],
    "openenv": ["", "examples/own_openenv/server.py"],
}
LIMITS = {"remote": "frozen_lake"}  # environment whose limits are used instead
FIELDS = [
    "env", "game", "split", "instances", "episodes", "chance_success", "reference_success", "reference", "played",
]  # fmt: skip


class Walker(OpenEnv):
    """A scripted player of the corridor that sees the same as a policy."""

    seen = ""

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        self.seen, info = super().reset(**given)
        return self.seen, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.seen, reward, is_solved, is_cut, info = super().step(action)
        return self.seen, reward, is_solved, is_cut, info

    def optimal_actions(self, *, horizon: int) -> list[str]:
        squares = self.seen.split()
        return ["Left" if squares.index("D") < squares.index("P") else "Right"]


@contextmanager
def serve(command: list[str], port: int) -> Iterator[str]:
    """Run a server, and yield its address; stop the server at the end."""
    with subprocess.Popen([*command, str(port)], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def wait_for_server(make: Callable[[], Task]) -> Task:
    """Wait until a game's server listens, and return the game."""
    for _ in range(600):
        task = make()
        try:
            with closing(task.make("val")) as env:
                env.reset(seed=0)
            return task
        except ValueError:
            time.sleep(0.2)
    raise SystemExit("a server did not start")


def build_task(name: str, game: dict[str, Any]) -> Task:
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{name}.yaml"), {"game": game})
    if name in LIMITS:
        other = OmegaConf.load(CONF / f"{LIMITS[name]}.yaml")
        config = OmegaConf.merge(config, {key: other[key] for key in ("max_turns", "max_actions")})
    task: Task = instantiate(config)
    if name == "openenv":
        made: Any = task.game
        task = replace(task, game=partial(Walker, **made.keywords), max_turns=16, max_actions=16)
    return task


def count_instances(task: Task, split: str) -> int:
    """Count the distinct instances among `NUMBER` seeds."""
    with closing(task.make(split)) as env:
        return len({env.reset(seed=SEED + number)[1]["instance_id"] for number in range(NUMBER)})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--openenv", default=str(ROOT / ".venv-openenv/bin/python"))
    parser.add_argument("--only", nargs="*", help="these worlds; the rows of the others stay")
    parser.add_argument("--port", type=int, default=8790)
    arguments = parser.parse_args()
    SERVERS["openenv"][0] = arguments.openenv
    kept = list(csv.DictReader(OUT.open())) if OUT.exists() and arguments.only else []
    rows = [row for row in kept if row["env"] not in arguments.only]
    for name, game, reference in WORLDS:
        if arguments.only and name not in arguments.only:
            continue
        with ExitStack() as stack:
            if name in SERVERS:
                url = stack.enter_context(serve(SERVERS[name], arguments.port))
                game = {**game, "url": url + "/mcp" * (name == "mcp")}
            task = wait_for_server(partial(build_task, name, game))
            for split in ("val", "test"):
                found, played = Levels() if name in SERVERS else find_levels(task, split), "levels.json"
                if found == Levels():
                    found, played = measure(task, split, NUMBER, SEED), "here"
                row = dict.fromkeys(FIELDS, "") | {
                    "env": name, "game": game.get("id", ""), "split": split, "instances": count_instances(task, split),
                    "episodes": found.episodes, "chance_success": found.chance_success,
                    "reference_success": found.oracle_success, "reference": reference, "played": played,
                }  # fmt: skip
                print(*row.values(), flush=True)
                rows.append({key: str(value) for key, value in row.items()})
    order = [name for name, *_ in WORLDS]
    rows.sort(key=lambda row: order.index(row["env"]))
    OUT.parent.mkdir(exist_ok=True)
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
