"""Share of an iteration for which checkpoints hold up training.

    python -m scripts.bench.checkpoint_cost [--device cuda] [--model 135m-random] [--repeats 5]

Checkpoints are written by a thread, or training waits for each of them.  The job is that of trl_games.py.  The first
two iterations warm up and are left out, with the first save, which always waits for the disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from omegaconf import open_dict

from lit_agentrl.build.assembly import build
from lit_agentrl.callbacks.checkpoints import LastCheckpoint
from lit_agentrl.config.composition import compose_job, make_task_loader
from lit_agentrl.strategies.checkpoint_io import AtomicIO
from scripts.bench import trl_games
from scripts.bench.common import make_parser, parse, write_json

WARM_UP = 2
SIDES = {
    "waited for, after each iteration": "callbacks.last.every=1",
    "by the thread, after each iteration": "callbacks.last.every=1",
    "by the thread, every=auto": "callbacks.last.every=auto",
}


class Clock(pl.Callback):
    """The seconds of the iterations after the warm-up, and those for which saves held training."""

    def __init__(self) -> None:
        self.iterations, self.saves, self.held_s = 0, 0, 0.0
        self.began = self.ended = 0.0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == WARM_UP:
            self.began = time.perf_counter()
        self.iterations, self.ended = trainer.current_epoch - WARM_UP, time.perf_counter()

    def watch(self, trainer: Any) -> None:
        """Measure every call of ``trainer.save_checkpoint`` between the warm-up and the last iteration."""
        save = trainer.save_checkpoint

        def measured(*args: Any, **options: Any) -> None:
            started = time.perf_counter()
            save(*args, **options)
            if WARM_UP <= trainer.current_epoch < trainer.max_epochs - 1:
                self.held_s += time.perf_counter() - started
                self.saves += 1

        trainer.save_checkpoint = measured

    @property
    def figures(self) -> dict[str, float]:
        whole_s = self.ended - self.began
        return {
            "iteration_s": whole_s / self.iterations,
            "held_s": self.held_s / self.iterations,
            "share": self.held_s / whole_s,
            "saves": self.saves,
            "iterations": self.iterations,
        }


def train(options: argparse.Namespace, folder: str, side: str) -> dict[str, float]:
    """Train ``--repeats`` iterations after the warm-up, and one more, which is not counted."""
    given = trl_games.list_options(
        turns=options.turns, prompts=options.prompts, members=options.members, reply_tokens=options.reply_tokens,
        filler=0, context=options.turns * (options.reply_tokens + 64) + 32,
    )  # fmt: skip
    given = [
        *given, f"trainer.max_epochs={options.repeats + WARM_UP + 1}", "val.envs=[bandit]", "val.episodes=1",
        "val.every=1000", "test.episodes=0", "~callbacks.best", SIDES[side], f"hydra.run.dir={folder}",
        f"trainer.accelerator={'gpu' if options.device == 'cuda' else 'cpu'}",
    ]  # fmt: skip
    network = ["model._target_=scripts.bench.trl_games.policy", f"+model.model={options.model}"]
    cfg = compose_job("train", [*given, *network, *trl_games.choose_sizes(options.model, given)])
    with open_dict(cfg):
        cfg.run_dir = folder
    clock = Clock()
    run = build(cfg, make_task_loader(), extra_callbacks=[clock])
    clock.watch(run.trainer)
    if side.startswith("waited"):
        io = run.trainer.strategy.checkpoint_io
        assert isinstance(io, AtomicIO)
        io.write = partial(_write_now, io)  # type: ignore[method-assign]
    run.trainer.fit(run.module, run.stream)
    (last,) = (each for each in run.trainer.checkpoint_callbacks if isinstance(each, LastCheckpoint))
    size = sum(file.stat().st_size for file in (Path(folder) / "checkpoints").rglob("last.ckpt"))
    return {**clock.figures, "every": last.describe()["every"], "bytes": size}


def _write_now(io: AtomicIO, *given: Any, **options: Any) -> None:
    AtomicIO.write(io, *given, **{**options, "wait": True})


def main() -> None:
    parser = make_parser(__file__, __doc__, repeats=5)
    parser.add_argument("--model", default="nano", choices=["nano", *trl_games.SHAPES])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=16, help="groups of an iteration")
    parser.add_argument("--members", type=int, default=8, help="episodes of a group")
    parser.add_argument("--reply-tokens", type=int, default=16, help="tokens of every reply")
    options = parse(parser)
    result: dict[str, Any] = {}
    for side in SIDES:
        with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
            found = result[side] = train(options, folder, side)
        print(
            f"{side}: {found['held_s']:.3f} s of {found['iteration_s']:.2f} s an iteration, {found['share']:.1%}; "
            f"{found['saves']:.0f} of {found['iterations']:.0f} iterations saved, {found['bytes'] / 1e6:.0f} MB each",
            flush=True,
        )
        before, now = result[next(iter(SIDES))], found
        # after each side, for a benchmark that is cut off
        write_json(
            options.out, {"sides": result, "before": before["share"], "share": now["share"], **now}, options
        )


if __name__ == "__main__":
    main()
