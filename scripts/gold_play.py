"""Play ScienceWorld's own solution of every test variation, and record its score.

    python -m scripts.gold_play --minutes 30 --out docs/findings/gold_scienceworld.csv
    python -m scripts.gold_play --summary --out docs/findings/gold_scienceworld.csv

Needs the extra ``scienceworld`` and a Java runtime.  A call goes on with what the file lacks: first the first
variation of each task, then the second of each, and so on, so that a part is spread over all tasks.  Each row is
written at once.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from lit_agentrl.envs.adapters.scienceworld import TASKS, ScienceWorld
from lit_agentrl.files import write_atomic

COLUMNS = ("task", "variation", "score", "actions", "problem")


def list_variations(tasks: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the test variations of each task."""
    env = ScienceWorld(tasks=list(tasks), split="test")
    return {task: env._list_variations(task) for task in tasks}


def deal(variations: Mapping[str, Iterable[int]]) -> Iterator[tuple[str, int]]:
    """Yield the first variation of each task, then the second of each, and so on."""
    for numbers in zip_longest(*variations.values()):
        yield from (
            (task, number) for task, number in zip(variations, numbers, strict=True) if number is not None
        )


def play(task: str, number: int) -> dict[str, str]:
    """Play the solution of a variation, and return its row."""
    env = ScienceWorld(tasks=[task], split="test")

    def start(seed: int) -> str:
        env._begin(number)
        return env._get_content()

    vars(env)["_draw_instance"] = start
    score, actions, problem = 0.0, 0, ""
    try:
        env.reset(seed=0)
        is_solved = False
        for action in env.optimal_actions(horizon=9999) or ():
            message, reward, is_over, _, info = env.step(action)
            score, actions, is_solved = score + reward, actions + 1, info["success"]
            if is_over:
                break
        if not is_solved:
            problem = (
                f"not solved; the last message: {' '.join(message.split())[:200]}"
                if actions
                else "no solution"
            )
    except (RuntimeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        env.close()
    return {
        "task": task, "variation": str(number), "score": f"{score:.3g}", "actions": str(actions), "problem": problem,
    }  # fmt: skip


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add(path: Path, row: Mapping[str, str]) -> None:
    """Append a row to a file."""
    if not path.exists():
        write_atomic(path, ",".join(COLUMNS) + "\n")
    with path.open("a", newline="") as file:
        csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)


def summarise(rows: Sequence[Mapping[str, str]], variations: Mapping[str, Sequence[int]]) -> str:
    """Build a table with a row for each task."""
    lines = ["| task | test variations | solved | actions: least, most |", "|---|---|---|---|"]
    for task, numbers in variations.items():
        own = [row for row in rows if row["task"] == task]
        actions = [int(row["actions"]) for row in own]
        solved = sum(not row["problem"] for row in own)
        extent = f"{min(actions)}, {max(actions)}" if actions else "–"
        lines.append(f"| {task} | {len(numbers)} | {solved} of {len(own)} | {extent} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="CSV with a row for each variation")
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help="default: all"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none after so many")
    parser.add_argument("--summary", action="store_true", help="play none, and print the table")
    options = parser.parse_args(argv)
    variations = list_variations(options.tasks)
    done = {(row["task"], row["variation"]) for row in read(options.out)}
    left = [pair for pair in deal(variations) if (pair[0], str(pair[1])) not in done]
    ends = time.monotonic() + 60 * options.minutes
    for count, (task, number) in enumerate([] if options.summary else left, 1):
        if time.monotonic() > ends:
            break
        row = play(task, number)
        add(options.out, row)
        print(f"{count} of {len(left)}", *row.values(), flush=True)
    print(summarise(read(options.out), variations))


if __name__ == "__main__":
    main()
