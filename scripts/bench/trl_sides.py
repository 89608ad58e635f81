"""Our trainer for the job of trl_trainer.py, and the comparison of both."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import lightning.pytorch as pl
from omegaconf import open_dict

from lit_agentrl.build.assembly import build
from lit_agentrl.config.composition import compose_job, make_task_loader
from lit_agentrl.runs.process import count_cores, shorten_spin
from scripts.bench import trl_games
from scripts.bench.common import (
    Measured,
    alternate,
    compute_ratio,
    format_seconds,
    is_undisturbed,
    make_parser,
    parse,
    write_json,
)
from scripts.bench.lockstep import Lockstep, Meter
from scripts.bench.trl_trainer import MANY, Job, train_trl

OUR_PRECISION = {"float32": "32-true", "bfloat16": "bf16-mixed", "bfloat16-true": "bf16-true"}


class _Boundary(pl.Callback):
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._meter.mark_boundary()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
        turns = [turn for episode in batch.episodes for turn in episode.turns]
        self._meter.note(
            turns=len(turns),
            action_tokens=sum(len(turn.reply_tokens) for turn in turns),
            read_tokens=sum(len(turn.prefix_tokens) for turn in turns),
        )


def train_ours(meter: Meter, job: Job, precision: str, extra: list[str]) -> None:
    """Train as a user does, but without validation and checkpoints.

    Callbacks and loggers are the default ones.
    """
    folder = tempfile.mkdtemp(prefix="ours-")
    dtype = "bfloat16" if precision == "bfloat16-true" else "float32"
    options = [
        *trl_games.list_options(
            turns=job.turns, prompts=job.prompts, members=job.members, reply_tokens=job.reply_tokens,
            context=job.context, filler=job.filler,
        ),
        "optim.lr=1e-6", f"trainer.max_epochs={MANY}", f"trainer.precision={OUR_PRECISION[precision]}",
        f"trainer.accelerator={'gpu' if job.device == 'cuda' else 'cpu'}",
        "val.envs=[bandit]", "val.episodes=1", f"val.every={MANY}", "test.episodes=0",
        "~callbacks.best", "~callbacks.last", f"hydra.run.dir={folder}",
        *extra,
    ]  # fmt: skip
    sizes = trl_games.choose_sizes(job.model, [*options, f"model.dtype={dtype}"])
    network = [
        "model._target_=scripts.bench.trl_games.policy",
        f"+model.model={job.model}",
        f"+model.dtype={dtype}",
    ]
    cfg = compose_job("train", [*options, *network, *sizes])
    with open_dict(cfg):
        cfg.run_dir = folder

    run = build(cfg, make_task_loader(), extra_callbacks=[_Boundary(meter)])
    # every turn adds the same tokens, even after a reply that ends in the end marker by chance
    run.rules.chat._end_id = None
    run.rollouts.on_train_batch_start = meter.add_timer(  # type: ignore[method-assign]
        "rollout", run.rollouts.on_train_batch_start
    )
    run.trainer.fit(run.module, run.stream)


def check_equal(measured: dict[str, Measured]) -> None:
    """Check that all sides have done the same work.

    Raises:
        ValueError: turns or tokens of an iteration differ.
    """
    peer = measured["trl"]
    for ours in measured.values():
        for name in ("turns", "action_tokens", "read_tokens"):
            if ours[name] != peer[name]:
                raise ValueError(f"{name} differ: {ours[name]:.0f} on our side, {peer[name]:.0f} on trl's")


def add_options(parser: argparse.ArgumentParser, *, turns: int, reply_tokens: int) -> None:
    parser.add_argument("--model", default="nano", choices=["nano", *trl_games.SHAPES])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--turns", type=int, default=turns)
    parser.add_argument("--prompts", type=int, default=16, help="groups of an iteration")
    parser.add_argument("--members", type=int, default=8, help="episodes of a group")
    parser.add_argument("--reply-tokens", type=int, default=reply_tokens, help="tokens of every reply")
    parser.add_argument("--filler", type=int, default=0, help="tokens to add to each message")
    parser.add_argument("--precision", default="float32", choices=list(OUR_PRECISION), help="of our side")
    parser.add_argument("--trl-precision", default=None, choices=list(OUR_PRECISION), help="default: as ours")
    parser.add_argument("--trl-micro-batch", type=int, default=16, help="rows of a forward-backward")
    parser.add_argument("--trl-generation", default="generate", choices=["generate", "continuous"])
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--ours", action="append", default=[], metavar="KEY=VALUE", help="for train.py")
    parser.add_argument(
        "--cores",
        action="store_true",
        help="also measure our side with one core per lane, see docs/models.md",
    )


def give_each_a_core(prompts: int, threads: int) -> list[str]:
    """Return options with which each of ``threads`` cores plays and trains alone.

    Raises:
        ValueError: the prompts cannot be split into equal shares.
    """
    if prompts % threads:
        raise ValueError(f"--cores deals --prompts={prompts} to --threads={threads}, which must divide them")
    share = prompts // threads
    return ["worker=process", f"worker.count={threads}", f"worker.share={share}", f"update.lanes={threads}"]


def compare(script: str, description: str | None, *, turns: int, reply_tokens: int) -> None:
    """Run a whole script: parse options, run both sides in turns, print and write results."""
    parser = make_parser(script, description)
    add_options(parser, turns=turns, reply_tokens=reply_tokens)
    options = parse(parser)
    job = Job(
        options.model, options.device, options.turns, options.prompts, options.members, options.reply_tokens,
        options.filler,
    )  # fmt: skip
    peer_precision = options.trl_precision or options.precision
    with ExitStack() as stack:

        def open_side(train: Callable[..., None], *arguments: Any, **more: Any) -> partial[Measured]:
            loop = Lockstep(train, job, *arguments, threads=options.threads, **more)
            stack.callback(loop.close)
            return partial(_measure, loop)

        peer = open_side(train_trl, peer_precision, options.trl_micro_batch, options.trl_generation)
        modes = {"ours": options.ours}
        if options.cores:
            modes["a core each"] = options.ours + give_each_a_core(
                job.prompts, options.threads or count_cores()
            )
        sides = {
            name: open_side(train_ours, options.precision, extra, prepare=shorten_spin)
            for name, extra in modes.items()
        } | {"trl": peer}
        rounds = alternate(sides, repeats=options.repeats, warmups=options.warmups, keep=is_undisturbed)
    for measured in rounds:
        check_equal(measured)
    first = rounds[0]["ours"]
    print(
        f"{job.model}, {job.episodes} episodes x {first['turns'] / job.episodes:.0f} turns; each side sampled "
        f"{first['action_tokens']:.0f} tokens and read {first['read_tokens']:.0f}; "
        f"ours {options.precision}, trl {peer_precision}"
    )
    parts = ["rollout", "update", "whole"]
    for name in modes:
        print(format_seconds(rounds, parts, ours=name, peer="trl"))
    ratios = {
        name: {part: compute_ratio(rounds, part, of="trl", to=name) for part in parts} for name in modes
    }
    write_json(options.out, {"ratios": ratios, "rounds": rounds}, options)


def _measure(loop: Lockstep, number: int) -> Measured:
    measured = loop(number)
    return {**measured, "update": measured["whole"] - measured["rollout"]}
