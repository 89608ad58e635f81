"""Compare two checkouts by running small jobs: weights, metrics and scores must be bit-identical.

    git worktree add --detach FOLDER REVISION        # a BASE, if there is none
    python scripts/compare_checkouts.py BASE HEAD [--only grpo ppo] [--out FOLDER] [--jobs 2]

Each case runs train.py or evaluate.py of both as a process of one thread, with the checkout's own source and conf.
Finished runs of BASE are stored in ``--out`` and reused while its revision and the case are unchanged; HEAD always
runs.  Clock columns are not compared; names that only HEAD has are listed after a plus.  The exit code is 1 if HEAD
fails, lacks something or has another value, except in cases that are meant to differ.  Seconds are those of the whole
process.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

CLOCKS = ("time/", "speed/", "memory/")
PLAYS = (
    "train.py hydra.run.dir=FOLDER trainer.accelerator=cpu rollout.prompts=4 rollout.members=4 engine.num_slots=12 "
    "val.episodes=8 val.every=2 callbacks.transcripts.every=2"
)
SMALL = f"{PLAYS} optim.lr=1e-3"
FEW = f"{SMALL} update=four_minibatches"  # ratios leave 1 with the second step of an iteration
START = f"{FEW} trainer.max_epochs=2 test.episodes=8"  # run of BASE from which the continued cases start
STEPS = f"{FEW} trainer.max_epochs=3 test.episodes=0"
BRIEF = f"{FEW} trainer.max_epochs=2 test.episodes=0"  # for experimental methods
CASES = {
    "grpo": f"{SMALL} trainer.max_epochs=3 test.episodes=8",
    "starpo": f"{STEPS} algo=starpo",
    "dapo": f"{STEPS} algo=dapo",
    "gspo": f"{STEPS} algo=gspo",
    "cppo": f"{STEPS} algo=cppo",
    "remax": f"{STEPS} algo=remax",
    "gvpo": f"{STEPS} algo=gvpo",
    "ppo": f"{STEPS} algo=ppo algo/kl=loss_k3 algo/entropy=bonus",
    "single": f"{STEPS} context=single algo/ratio=token",
    "lora": f"{STEPS} model/lora=default",
    "mixture": f"{STEPS} env=mixture",
    "overlap": f"{STEPS} rollout.overlap=true",
    "rewards": f"{STEPS} reward=[format,rnd,count]",
    "arpo": f"{BRIEF} algo=arpo",
    "arpo_replay": f"{BRIEF} algo=arpo_replay rollout.instances=4",
    "archer": f"{BRIEF} algo=archer",
    "eepo": f"{BRIEF} algo=eepo algo.structure.threshold=9",
    "ghpo": f"{BRIEF} algo=ghpo",
    "hrl_tar": f"{FEW} trainer.max_epochs=2 test.episodes=8 algo=hrl_tar",
    "iql": f"{BRIEF} algo=iql",
    "lessons": f"{PLAYS} trainer.max_epochs=2 test.episodes=0 algo=training_free_grpo",
    "mcts_ppo": f"{BRIEF} algo=mcts_ppo",
    "nash_md": f"{BRIEF} algo=nash_md",
    "spin": f"{BRIEF} algo=spin rollout.instances=4",
    "svpo": f"{BRIEF} algo=svpo",
    "ufo": f"{BRIEF} algo=ufo env.max_turns=1 env.game.max_solution=5",
    "xpo": f"{SMALL} trainer.max_epochs=2 test.episodes=0 algo=xpo",
    "ddp": f"{STEPS} strategy=ddp trainer.devices=2",
    "resume": "train.py resume=FOLDER trainer.max_epochs=4",
    "evaluate": "evaluate.py run=FOLDER env=[sokoban,bandit] episodes=8 members=2 pass_k=[1,2] temperature=[1,0.5]",
}
CONTINUED = {"resume", "evaluate"}
MEANT_TO_DIFFER: frozenset[str] = frozenset()


def has_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    first, second = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(first, second)


def compute_gap(a: torch.Tensor, b: torch.Tensor) -> float:
    """Compute the largest absolute difference, infinite if shapes differ.

    It is 0 between two representations of one number.
    """
    if a.shape != b.shape:
        return float("inf")
    return float((a.double() - b.double()).abs().nan_to_num(float("inf")).max())


def find_different_weights(base: Mapping[str, torch.Tensor], head: Mapping[str, torch.Tensor]) -> str | None:
    gaps = {
        n: compute_gap(w, head[n]) for n, w in base.items() if n in head and not has_same_bits(w, head[n])
    }
    if not gaps:
        return None
    worst = max(gaps, key=gaps.__getitem__)
    return f"{len(gaps)} of {len(base)} tensors differ, by {gaps[worst]:.3g} at most ({worst})"


def find_different_metrics(base: Mapping[str, list[str]], head: Mapping[str, list[str]]) -> str | None:
    """Describe the earliest row in which metrics differ as written, or return None."""
    lengths = {len(column) for rows in (base, head) for column in rows.values()}
    if len(lengths) > 1:
        return f"{' or '.join(map(str, sorted(lengths)))} rows"
    both = [name for name in base if name in head]
    found = [(row, n) for n in both for row, cell in enumerate(base[n]) if cell != head[n][row]]
    if not found:
        return None
    row, name = min(found)
    columns = len({name for _, name in found})
    return f"{name} at iteration {row}: {base[name][row]} != {head[name][row]} ({columns} columns differ)"


def find_different_scores(base: Mapping[str, Any], head: Mapping[str, Any]) -> str | None:
    found = [f"{n}: {value} != {head[n]}" for n, value in base.items() if n in head and head[n] != value]
    return f"{found[0]} ({len(found)} differ)" if found else None


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"])


def read_metrics(folder: Path) -> dict[str, list[str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        names, *rows = csv.reader(file)
    return {n: [row[i] for row in rows] for i, n in enumerate(names) if not n.startswith(CLOCKS)}


def read_scores(folder: Path) -> dict[str, Any]:
    """Return the scores and totals of the summary, and the results of evaluations."""
    summary = json.loads((folder / "summary.json").read_text())
    totals = ("status", "games", "iterations", "episodes", "action_tokens", "prefilled_tokens")
    found = flatten({name: summary[name] for name in totals}, "summary")
    for file in sorted((folder / "evaluations").glob("*.json")):
        found |= flatten(json.loads(file.read_text())["results"], file.stem)
    return found


def flatten(value: Any, name: str) -> dict[str, Any]:
    """Flatten nested lists and mappings into leaves by path."""
    if not isinstance(value, (dict, list)):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {path: leaf for key, inner in items for path, leaf in flatten(inner, f"{name}.{key}").items()}


def compare(base: Path, head: Path) -> tuple[list[str], list[str]]:
    """Compare two run folders.

    Returns:
        differences, including names that the second lacks; and names that only the second has.
    """
    differences, extras = [], []
    for kind, read, different in (
        ("weights", read_weights, find_different_weights),
        ("metrics", read_metrics, find_different_metrics),
        ("scores", read_scores, find_different_scores),
    ):
        first, second = read(base), read(head)
        if missing := [name for name in first if name not in second]:
            differences.append(f"{kind} missing in HEAD: {', '.join(missing)}")
        if text := different(first, second):
            differences.append(f"{kind}: {text}")
        extras += [name for name in second if name not in first]
    return differences, extras


def state_verdict(name: str, differences: list[str], extras: list[str]) -> tuple[str, bool]:
    """Return the table's text for a case, and whether its result is as expected."""
    text = "; ".join(differences) or "equal"
    text += " (meant to differ)" * (name in MEANT_TO_DIFFER) + f"; + {', '.join(extras)}" * bool(extras)
    return text, not differences or name in MEANT_TO_DIFFER


def launch(checkout: Path, *arguments: str) -> str:
    """Run Python in a checkout, and return its output.

    Raises:
        RuntimeError: it failed; the message has the last line of its errors.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise RuntimeError(f"{checkout}: {arguments[0]} ends with {done.returncode}: {last}")
    return done.stdout.strip()


def read_revision(checkout: Path) -> str | None:
    """Return the commit of a checkout, or None if it has uncommitted changes."""
    git = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    found = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return None if not found or found.endswith("+") else found


def play(checkout: Path, command: str, folder: Path, start: Path | None = None, reuse: bool = False) -> float:
    """Run a command that writes into ``folder``, or continues in a copy of ``start``.

    Returns:
        its seconds; those of the recorded run if ``reuse`` finds one.
    """
    record = folder.with_suffix(".json")  # written when the run has succeeded
    job = {"revision": read_revision(checkout), "command": command, "start": START if start else None}
    if reuse and job["revision"] and record.exists():
        known = json.loads(record.read_text())
        if {name: known.get(name) for name in job} == job and folder.exists():
            return float(known["seconds"])
    record.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if start is not None:
        shutil.copytree(start, folder)
    began = time.perf_counter()
    launch(checkout, *command.replace("FOLDER", str(folder)).split())
    seconds = time.perf_counter() - began
    record.write_text(json.dumps({**job, "seconds": seconds}))
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = list(CASES)
    parser.add_argument("base", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names)
    )
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "compare_checkouts")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run side by side")
    options = parser.parse_args(arguments)
    base, head, out = options.base.resolve(), options.head.resolve(), options.out.resolve()
    for checkout in (base, head):
        if out.is_relative_to(checkout):
            parser.error(f"--out={out} lies in {checkout}")
        source = launch(checkout, "-c", "import lit_agentrl; print(lit_agentrl.__file__)")
        if not Path(source).is_relative_to(checkout):
            parser.error(f"python in {checkout} imports {source}")
    start = out / "base" / "start"
    if CONTINUED & {*options.only}:
        play(base, START, start, reuse=True)

    def compare_case(name: str) -> tuple[str, bool]:
        begin = start if name in CONTINUED else None
        folders = [out / "base" / name, out / "head" / name]
        try:
            first = play(base, CASES[name], folders[0], begin, reuse=True)
            second = play(head, CASES[name], folders[1], begin)
            text, is_right = state_verdict(name, *compare(*folders))
        except Exception as error:  # any error: the other cases are still compared
            return f"{name:10} {'failed':>13}  {type(error).__name__}: {error}", False
        return f"{name:10} {first:6.1f} {second:6.1f}  {text}", is_right

    print(f"{'case':10} {'base s':>6} {'head s':>6}  result", flush=True)
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for line, is_right in pool.map(compare_case, options.only):
            print(line, flush=True)
            results.append(is_right)
    print(f"{sum(results)} of {len(results)} cases are as they should be")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
