"""Whether a pretrained model learns: imitation of best play, then GRPO, with success before and after each.

    python -m scripts.bench.real_model --model FOLDER      # any local Hugging Face folder with a chat template
    python -m scripts.bench.real_model --smoke             # a tiny random network, on any machine

Three commands as a user gives them: ``collect plays=best``, ``train.py`` with ``algo=sft``, and ``train.py`` with
``algo=grpo`` from the folder that the second exports.  Success is that of validation at the start and after the last
iteration of each run.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lit_agentrl.models.pretrained import hold_back_logs
from scripts.bench import trl_games
from scripts.bench.common import ROOT, parse, parser_for, write_json


def call(*arguments: str) -> float:
    """Run a command of this checkout with the same Python, and return its seconds.

    Raises:
        CalledProcessError: it failed.
    """
    started = time.monotonic()
    print(" ".join(arguments), flush=True)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)
    return time.monotonic() - started


def save_policy(model: str, folder: Path) -> Path:
    """Write a policy with random weights to a folder from which it can be loaded."""
    policy = trl_games.policy(model)
    with hold_back_logs():
        policy.network.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
    return folder


def read_rows(run: Path) -> list[dict[str, float]]:
    """Return the iterations of a run as numbers."""
    lines = (run / "metrics.csv").read_text().splitlines()
    return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(lines)]


def read_success(run: Path, policy: str) -> float:
    """Return the success of validation of a run's ``start`` or ``last`` policy."""
    game = json.loads((run / "summary.json").read_text())["games"][0]
    return float(game[policy]["success"]["mean"])


def measure(model: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all three commands, and return success and seconds."""
    device = "gpu" if torch.cuda.is_available() else "cpu"
    shared = [
        "env=sokoban", f"prompt={options.prompt}", f"rollout.max_reply_tokens={options.reply_tokens}",
        "rollout.max_context_tokens=2048", f"env.max_turns={options.turns}", f"val.episodes={options.val}",
        "test.episodes=0", "val.every=1000", f"trainer.accelerator={device}",
        f"trainer.precision={'bf16-mixed' if device == 'gpu' else '32-true'}", "model=hf",
        "callbacks.last.every=1000",
    ]  # fmt: skip
    plays, imitator, improved = (folder / name for name in ("plays", "imitator", "improved"))
    seconds = {
        "collect": call(
            "-m", "lit_agentrl", "collect", "model=hf", f"model.name={model}", "env=sokoban", "plays=best",
            f"prompt={options.prompt}", "members=1", f"episodes={options.plays}", f"shard={options.plays}",
            f"out={plays}", "rollout.max_context_tokens=2048",
        ),
        "imitation": call(
            "train.py", "algo=sft", "data=demonstrations", f"data.path={plays}", f"data.batch={options.batch}",
            *shared, f"model.name={model}", f"optim.lr={options.lr}", f"trainer.max_epochs={options.imitate}",
            f"hydra.run.dir={imitator}",
        ),
        "grpo": call(
            "train.py", "algo=grpo", *shared, f"model.name={imitator / 'hf'}", "optim.lr=1e-6",
            f"rollout.prompts={options.prompts}", f"rollout.members={options.members}",
            f"trainer.max_epochs={options.iterations}", f"hydra.run.dir={improved}",
        ),
    }  # fmt: skip
    last = read_rows(improved)[-1]
    seconds |= {name: last[f"time/{name}"] for name in ("rollout", "update")}
    seconds["iteration"] = seconds["rollout"] + seconds["update"]
    success = {
        "start": read_success(imitator, "start"),
        "imitation": read_success(imitator, "last"),
        "grpo": read_success(improved, "last"),
    }
    return {"success": success, "seconds": seconds, "last": last}


def main() -> None:
    parser = parser_for(__file__, __doc__)
    parser.add_argument("--model", type=Path, help="folder of a pretrained model")
    parser.add_argument("--smoke", action="store_true", help="a tiny random network and few episodes")
    parser.add_argument("--prompt", default="full", help="conf/prompt")
    parser.add_argument("--plays", type=int, default=1024, help="episodes of best play")
    parser.add_argument("--imitate", type=int, default=30, help="iterations of imitation")
    parser.add_argument("--batch", type=int, default=32, help="episodes of an iteration of imitation")
    parser.add_argument("--lr", type=float, default=5e-5, help="of imitation")
    parser.add_argument("--iterations", type=int, default=3, help="of GRPO")
    parser.add_argument("--prompts", type=int, default=16, help="groups of an iteration of GRPO")
    parser.add_argument("--members", type=int, default=8, help="episodes of a group")
    parser.add_argument("--turns", type=int, default=5, help="turns of an episode")
    parser.add_argument("--reply-tokens", type=int, default=40, help="tokens of a reply at most")
    parser.add_argument("--val", type=int, default=64, help="episodes that success is measured on")
    options = parse(parser)
    if options.model is None and not options.smoke:
        parser.error("give --model FOLDER, or --smoke")
    folder = Path(options.out).resolve().parent / "real"
    if options.smoke:
        tiny = {
            "plays": 8,
            "imitate": 1,
            "batch": 4,
            "iterations": 1,
            "prompts": 2,
            "members": 2,
            "turns": 2,
            "val": 2,
        }
        vars(options).update(tiny, reply_tokens=8)
    model = options.model.resolve() if options.model else save_policy("tiny-random", folder / "model")
    result = measure(model, folder, options)
    print(f"success {result['success']}; seconds {result['seconds']}")
    write_json(options.out, result, options)


if __name__ == "__main__":
    main()
