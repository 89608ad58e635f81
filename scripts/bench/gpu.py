"""All tests, benchmarks and runs that need a GPU, in slices that can be continued.

    make gpu                               # all slices, at most 8 minutes each; a second call runs the rest
    make gpu ARGS=--list                   # list the slices
    make gpu ARGS=--cpu-smoke              # the same code on tiny shapes, on a CPU
    python -m scripts.bench.gpu --only lora fsdp --again

No network is needed.  Results are written to ``outputs/gpu/results.json`` after each slice, and shown in one table.
Slices that cannot run here are listed with the reason; interrupted and failed slices run again the next time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scripts.bench import trl_games
from scripts.bench.common import ROOT, machine, table

LIMIT_S = 480
SHAPE = "24,896,14,2,4864,151936"  # shape of Qwen2.5-0.5B
RUN = "train.py algo=grpo env=sokoban val.episodes=16 test.episodes=0 trainer.max_epochs=3"
TINY = "train.py experiment=quick env=bandit trainer.max_epochs=1 trainer.accelerator=cpu"


@dataclass(frozen=True)
class Slice:
    """A test, benchmark or run that is done separately.

    Attributes:
        what: description of what it shows.
        command: arguments of Python on a GPU; ``MODEL`` stands for the folder of a random policy, ``OUT`` for the
            output folder.
        smoke: the same for a CPU.
        interpreter: virtual environment of the Python interpreter, below the root.
    """

    what: str
    command: str
    smoke: str
    interpreter: str = ".venv"


SLICES: Mapping[str, Slice] = {
    "tests": Slice(
        "packed kernels and shared rows on CUDA",
        "-m pytest -q -m gpu tests",
        "-m pytest -q -m gpu --collect-only tests",
    ),
    "roofline": Slice(
        "decode and update over the limits of the machine",
        "-m scripts.bench.roofline --precision bf16-mixed --width 896 --rows 64 --context 512 --out OUT/figures.json",
        "-m scripts.bench.roofline --rows 4 --context 192 --repeats 1 --out OUT/figures.json",
    ),
    **{
        f"update-{form}": Slice(
            f"the update beside bare passes, rows {form}",
            f"-m scripts.bench.update_speed --precision bf16-mixed --out OUT/figures.json update.packing={value}",
            f"-m scripts.bench.update_speed --episodes 8 --repeats 1 --out OUT/figures.json update.packing={value}",
        )
        for form, value in (("padded", "false"), ("packed", "true"), ("shared", "shared"))
    },
    "generate": Slice(
        "the engine beside generate, at the shape of 0.5B",
        "-m scripts.bench.rollout_speed --device cuda --model 0.5b-random --dtype bfloat16 --out OUT/figures.json",
        "-m scripts.bench.rollout_speed --model tiny-random --episodes 4 --repeats 1 --out OUT/figures.json",
    ),
    "trl": Slice(
        "iterations beside TRL, at the shape of 0.5B",
        "-m scripts.bench.vs_trl_multi_turn --device cuda --model 0.5b-random --precision bfloat16-true "
        "--out OUT/figures.json",
        "-m scripts.bench.vs_trl_multi_turn --model tiny-random --turns 2 --prompts 2 --members 2 --trl-micro-batch 4 "
        "--warmups 0 --repeats 1 --out OUT/figures.json",
        ".venv-trl",
    ),
    "memory": Slice(
        "the memory planner beside the allocator",
        f"scripts/plan_memory.py --shape {SHAPE} --precision bfloat16 --tokens 4096 --slots 64 --context 1024 "
        "--measure",
        "scripts/plan_memory.py --model nano --tokens 256 --slots 4 --context 256 --measure",
    ),
    "fsdp": Slice(
        "weights cut up by FSDP2 train, and a checkpoint is written",
        f"{RUN} strategy=fsdp trainer.accelerator=gpu hydra.run.dir=OUT/run",
        f"{TINY} strategy=fsdp hydra.run.dir=OUT/run",
    ),
    "lora": Slice(
        "adapters on the shape of 0.5B train and are exported",
        f"{RUN} model=hf model.name=MODEL model.dtype=bfloat16 model/lora=default trainer.accelerator=gpu "
        "hydra.run.dir=OUT/run",
        f"{TINY} model=hf model.name=MODEL model/lora=default hydra.run.dir=OUT/run",
    ),
    "vllm": Slice(
        "the weights of each iteration go to vLLM, and its log-probs are those of the trainer",
        f"{RUN} engine=vllm trainer.accelerator=gpu hydra.run.dir=OUT/run",
        f"{TINY} engine=vllm hydra.run.dir=OUT/run",
        ".venv-vllm",
    ),
}


def random_model(folder: Path, shape: str) -> Path:
    """Write a policy with random weights to a folder from which it can be loaded."""
    place = folder / shape
    if not (place / "config.json").exists():
        policy = trl_games.policy(shape)
        policy.network.save_pretrained(place)
        policy.tokenizer.save_pretrained(place)
    return place


def reason_against(chosen: Slice, *, is_smoke: bool) -> str | None:
    """Return the reason why a slice cannot run here, or None."""
    if not is_smoke and not torch.cuda.is_available():
        return "no CUDA device"
    if not (ROOT / chosen.interpreter / "bin" / "python").exists() and chosen.interpreter != ".venv":
        made_by = {".venv-trl": "make bench-trl", ".venv-vllm": "make engine-vllm"}[chosen.interpreter]
        return f"no {chosen.interpreter} ({made_by} makes it)"
    return None


def run(name: str, folder: Path, *, is_smoke: bool) -> dict[str, Any]:
    """Run a slice, and return how it ended and its results."""
    chosen, out = SLICES[name], folder / name / time.strftime("%Y-%m-%d_%H-%M-%S")
    out.mkdir(parents=True, exist_ok=True)
    text = chosen.smoke if is_smoke else chosen.command
    if "MODEL" in text:
        text = text.replace("MODEL", str(random_model(folder, "tiny-random" if is_smoke else "0.5b-random")))
    own = ROOT / chosen.interpreter / "bin" / "python"
    python = sys.executable if chosen.interpreter == ".venv" else str(own)
    command = [python, *(part.replace("OUT", str(out)) for part in text.split())]
    started = time.monotonic()
    with (out / "log.txt").open("w") as log:
        try:
            code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=LIMIT_S).returncode
            ended = "passed" if code == 0 else f"failed ({code})"
        except subprocess.TimeoutExpired:
            ended = f"cut off after {LIMIT_S} s"
    figures = out / "figures.json"
    return {
        "ended": ended,
        "seconds": time.monotonic() - started,
        "command": " ".join(command),
        "log": str(out / "log.txt"),
        "figures": json.loads(figures.read_text()) if figures.exists() else None,
    }


def told(results: Mapping[str, Any]) -> str:
    """Format a table with a row for each slice."""
    rows = [
        [name, f"{found['seconds']:.0f}" if "seconds" in found else "–", found["ended"]]
        for name, found in results.items()
    ]
    return table(["slice", "seconds", "ended"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the slices, and run none")
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny shapes, on a CPU")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--only", nargs="+", choices=SLICES, default=list(SLICES), metavar="SLICE")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "gpu")
    options = parser.parse_args()
    is_smoke = options.cpu_smoke
    if options.list:
        for name, each in SLICES.items():
            print(f"{name:14} {reason_against(each, is_smoke=is_smoke) or 'can run':42} {each.what}")
        return
    folder = options.folder / ("smoke" if is_smoke else "full")
    path = folder / "results.json"
    results: dict[str, Any] = json.loads(path.read_text())["slices"] if path.exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        if results.get(name, {}).get("ended") == "passed" and not options.again:
            continue
        if reason := reason_against(SLICES[name], is_smoke=is_smoke):
            results[name] = {"ended": f"skipped: {reason}"}
        else:
            print(f"{name}: {SLICES[name].what} …", flush=True)
            results[name] = run(name, folder, is_smoke=is_smoke)
        path.write_text(json.dumps({"machine": machine(), "slices": results}, indent=2) + "\n")
    print(told(results))
    print(f"written to {path}")
    if any(found["ended"].startswith(("failed", "cut off")) for found in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
