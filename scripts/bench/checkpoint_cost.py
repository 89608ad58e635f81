"""Seconds that a checkpoint takes beside an iteration, with the default callbacks.

    python -m scripts.bench.checkpoint_cost [--device cuda] [--model 135m-random] [--repeats 3]

The job is that of trl_games.py.  The last checkpoint is written after every iteration; the first iteration is left out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from omegaconf import open_dict

from lit_agentrl.build.assembly import build
from lit_agentrl.config.composition import compose_job, make_task_loader
from scripts.bench import trl_games
from scripts.bench.common import Spread, parse, parser_for, write_json


class Clock(pl.Callback):
    """The seconds of each iteration, and of its checkpoint."""

    def __init__(self) -> None:
        self.wholes: list[float] = []
        self.writes: list[float] = []
        self._started = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now = time.perf_counter()
        if self._started:
            self.wholes.append(now - self._started)
        self._started = now

    def watch(self, trainer: Any) -> None:
        """Measure every call of ``trainer.save_checkpoint``."""
        save = trainer.save_checkpoint

        def measured(*args: Any, **options: Any) -> None:
            started = time.perf_counter()
            save(*args, **options)
            self.writes.append(time.perf_counter() - started)

        trainer.save_checkpoint = measured


def train(options: argparse.Namespace, folder: str) -> Clock:
    """Train so many iterations and one more, which is warm-up."""
    given = trl_games.overrides(
        turns=options.turns, prompts=options.prompts, members=options.members, reply_tokens=16, filler=0,
        context=options.turns * 80 + 32,
    )  # fmt: skip
    cfg = compose_job(
        "train",
        [
            *given, "model._target_=scripts.bench.trl_games.policy", f"+model.model={options.model}",
            f"trainer.max_epochs={options.repeats + 2}", "val.envs=[bandit]", "val.episodes=1",
            "val.every=1000", "test.episodes=0", "~callbacks.best", f"hydra.run.dir={folder}",
            f"trainer.accelerator={'gpu' if options.device == 'cuda' else 'cpu'}",
        ],
    )  # fmt: skip
    with open_dict(cfg):
        cfg.run_dir = folder
    clock = Clock()
    run = build(cfg, make_task_loader(), extra_callbacks=[clock])
    clock.watch(run.trainer)
    run.trainer.fit(run.module, run.stream)
    return clock


def main() -> None:
    parser = parser_for(__file__, __doc__, repeats=3)
    parser.add_argument("--model", default="nano", choices=["nano", *trl_games.SHAPES])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=16, help="groups of an iteration")
    parser.add_argument("--members", type=int, default=8, help="episodes of a group")
    options = parse(parser)
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        clock = train(options, folder)
        size = sum(file.stat().st_size for file in (Path(folder) / "checkpoints").rglob("last.ckpt"))
    iteration, write = Spread.of(clock.wholes[1:]), Spread.of(clock.writes[1:-1])
    share = write.median / iteration.median
    print(f"{write.text()} s of {iteration.text()} s an iteration, {share:.0%}; {size / 1e6:.0f} MB each")
    result = {"write": write, "iteration": iteration, "share": share, "bytes": size}
    write_json(options.out, result, options)


if __name__ == "__main__":
    main()
