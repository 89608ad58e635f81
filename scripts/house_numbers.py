"""Measures of how readable the package is, for one or more checkouts.

    python scripts/house_numbers.py                       # for this checkout, without running anything
    python scripts/house_numbers.py . ../before --trace   # also the path of a config, and the frames of a wave
    python scripts/house_numbers.py --set-up              # also seconds of set-up, in a separate clone

``--trace`` runs a tiny job of the checkout with a profile function: a file counts if one of its functions is called
between the start of ``train.py`` and ``Trainer.fit``; frames are those between ``collect`` and ``play`` of a wave.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# modules that lead from a command to a run, with their present and former names
WAY = {"cli", "config", "build", "runs", "evaluate", "offline", "entry", "commands", "requirements"}
ALLOWED = {"checks.py", "requirements.py"}  # files whose purpose is to raise errors
CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}
TINY = (
    "experiment=quick env=bandit trainer.accelerator=cpu trainer.max_epochs=1 val.episodes=2 test.episodes=0"
)
TRACER = r"""
import json, os, runpy, sys, threading
out, *sys.argv = sys.argv[1:]
files, found = set(), {}

def package_frames(frame):
    while frame is not None:
        if "/src/lit_agentrl/" in frame.f_code.co_filename:
            yield frame.f_code.co_filename.rpartition("/src/lit_agentrl/")[2], frame.f_code.co_name
        frame = frame.f_back

def profile(frame, event, arg):
    if event != "call":
        return
    code = frame.f_code
    _, is_ours, name = code.co_filename.rpartition("/src/lit_agentrl/")
    if not is_ours:
        if code.co_name == "fit" and code.co_filename.endswith("pytorch/trainer/trainer.py"):
            found.setdefault("files", sorted(files))
        return
    # neither modules nor bodies of classes, which are not optimized, nor what these call while they are imported
    back = frame.f_back
    is_import = back is not None and not back.f_code.co_flags & 1 and "/src/lit_agentrl/" in back.f_code.co_filename
    if is_import or not code.co_flags & 1:
        return
    files.add(name)
    if code.co_name == "play" and name == "rollout/scheduler.py":
        frames = list(package_frames(frame))
        names = [f"{file}:{function}" for file, function in frames]
        if "rollout/collector.py:collect" in names and "files" in found:
            found["frames"] = names[1 : names.index("rollout/collector.py:collect")][::-1]
            json.dump(found, open(out, "w"))
            os._exit(0)

threading.setprofile(profile)
sys.setprofile(profile)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def count_lines(package: Path) -> Counter[str]:
    """Count the lines of Python by top-level module, of which ``experimental`` is one."""
    found: Counter[str] = Counter()
    for file in package.rglob("*.py"):
        inside = file.relative_to(package)
        room = inside.parts[0] if len(inside.parts) > 1 else "base"
        found[room] += len(file.read_text(encoding="utf-8").splitlines())
    return found


def find_raises(source: str) -> Iterator[ast.Raise]:
    """Find the statements that raise a new error, outside constructors."""

    def walk(node: ast.AST) -> Iterator[ast.Raise]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and child.name in CONSTRUCTORS:
                continue
            if isinstance(child, ast.Raise) and child.exc is not None:
                yield child
            yield from walk(child)

    return walk(ast.parse(source))


def count_raises(package: Path) -> Counter[str]:
    """Count the statements of `raises` by top-level module, without the `ALLOWED` files."""
    found: Counter[str] = Counter()
    for file in package.rglob("*.py"):
        if file.name not in ALLOWED:
            room = file.relative_to(package).parts[0].removesuffix(".py")
            found[room] += sum(1 for _ in find_raises(file.read_text(encoding="utf-8")))
    return found


def count_flat_files(package: Path) -> dict[str, int]:
    """Count the Python files directly in each folder, without ``__init__.py``."""
    folders = [package, *(path for path in package.rglob("*") if path.is_dir())]
    return {
        folder.relative_to(package.parent).as_posix(): count
        for folder in folders
        if (count := sum(file.name != "__init__.py" for file in folder.glob("*.py")))
    }


def count_words(checkout: Path) -> int:
    """Count the words of README.md and of the pages of docs/."""
    pages = [checkout / "README.md", *(checkout / "docs").rglob("*.md")]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def trace(checkout: Path) -> dict[str, Any]:
    """Trace the files that a config passes until ``Trainer.fit``, and frames from ``collect`` to ``play``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable,
            "-c",
            TRACER,
            str(out),
            "train.py",
            *TINY.split(),
            f"hydra.run.dir={folder}/run",
        ]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        if not out.exists():
            raise SystemExit(f"{checkout}: the tiny run did not play a wave: {done.stderr[-500:]}")
        return dict(json.loads(out.read_text(encoding="utf-8")))


def set_up(checkout: Path) -> dict[str, float]:
    """Measure the seconds of set-up from a fresh clone, for training and for tests.

    Packages come from pip's cache.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(checkout), f"{folder}/clone"], check=True)
        for name in ("train", "all"):
            stamp = ".venv/.installed-train" if name == "train" else ".venv/.installed"
            began = time.monotonic()
            subprocess.run(["make", "--silent", stamp], cwd=f"{folder}/clone", check=True)
            found[name] = time.monotonic() - began
    return found


def collect_numbers(checkout: Path, *, is_traced: bool = False, is_set_up: bool = False) -> dict[str, Any]:
    """Return all numbers by name."""
    package = checkout / "src" / "lit_agentrl"
    lines, errors, flat = count_lines(package), count_raises(package), count_flat_files(package)
    found: dict[str, Any] = {
        "lines of the core": sum(lines.values()) - lines["experimental"],
        "lines of experimental": lines["experimental"],
        "lines from command to run": sum(lines[room] for room in WAY),
        "lines of each room": dict(lines.most_common()),
        "raise outside of constructors and checks": sum(errors.values()),
        "of these from command to run": sum(errors[room] for room in WAY),
        "words of docs": count_words(checkout),
        "folders of more than 20 files": {name: count for name, count in flat.items() if count > 20},
    }
    if is_traced:
        traced = trace(checkout)
        way = [name for name in traced["files"] if name.split("/")[0].removesuffix(".py") in WAY]
        found["files until Trainer.fit"] = len(traced["files"])
        found["files of the way of a config"] = len(way)
        found["frames from collect to play"] = len(traced["frames"])
        found["these frames"] = traced["frames"]
    if is_set_up:
        found["seconds of set-up"] = {name: round(seconds) for name, seconds in set_up(checkout).items()}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", type=Path, nargs="*", default=[ROOT])
    parser.add_argument("--trace", action="store_true", help="run a tiny job and follow its config")
    parser.add_argument("--set-up", action="store_true", help="install into a clone, which takes minutes")
    options = parser.parse_args(arguments)
    for checkout in options.checkouts:
        print(checkout.resolve())
        found = collect_numbers(checkout.resolve(), is_traced=options.trace, is_set_up=options.set_up)
        for name, value in found.items():
            print(f"  {name:42} {json.dumps(value) if isinstance(value, dict | list) else value}")


if __name__ == "__main__":
    main()
