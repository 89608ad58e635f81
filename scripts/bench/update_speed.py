"""Speed of the update phase against a bare forward and backward of the same tokens.

    python -m scripts.bench.update_speed [--algo grpo] [--precision 32-true] [--episodes 64] [--repeats 5]

Ours is one whole ``training_step`` under a Lightning Trainer: scoring, advantages, micro-batches, backward,
clipping, optimizer step, metrics.  Bare is the minimum on this path: the Hugging Face model on as many tokens in
rows of the episodes' mean length, so without padding, with the next token's cross entropy and backward, in
micro-batches of the same budget; no optimizer, no metrics.  A critic with its own network doubles the bare side.  Both
run alternately on the same recorded episodes; the figure is the median of the paired ratios, bare seconds over ours: 1
would mean no overhead.
"""

from __future__ import annotations

import argparse
import copy
import logging
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hydra import compose
from hydra.utils import instantiate
from torch.nn.functional import cross_entropy

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.data.prompts import OneBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.models.policy import Policy
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from scripts.bench import trl_games
from scripts.bench.common import (
    Measured,
    alternate,
    compute_ratio,
    format_table,
    make_parser,
    parse,
    summarise,
    write_json,
)


def record(policy: Policy, env: str, episodes: int, reply_tokens: int) -> TrajectoryBatch:
    """Play episodes of a policy in groups of 8."""
    chat = ChatRenderer(policy.tokenizer)
    with initialize_hydra():
        task = instantiate(compose(f"env/{env}").env)
    rules = Rules(
        tasks=[task], prompt=Prompt(style="compact"), chat=chat, max_context_tokens=512,
        engine=partial(NativeEngine, num_slots=episodes),
    )  # fmt: skip
    specs = tuple(EpisodeSpec(0, n // 8, n % 8, 0, n // 8) for n in range(episodes))
    wave = Wave("train", 0, SamplingParams(max_reply_tokens=reply_tokens, max_context_tokens=512), specs)
    return pack(Scheduler(rules, rules.open_engine(policy.network)).play(wave))


class Ours:
    """A training step on the recorded rows.

    The second of two steps is timed, so that the optimizer's state exists.
    """

    def __init__(self, policy: Policy, batch: TrajectoryBatch, options: argparse.Namespace) -> None:
        changes = [f"algo={options.algo}", "optim.lr=1e-12", *options.overrides]
        planned = [*changes, f"trainer.precision={options.precision}", f"engine.num_slots={options.episodes}"]
        changes += [
            each for each in trl_games.choose_sizes(options.model, planned) if each.startswith("update.")
        ]
        with initialize_hydra():
            cfg = compose("train", overrides=changes)
        algorithm = build_algorithm(cfg)[0]
        self.module = PolicyModule(
            Policy(copy.deepcopy(policy.network), policy.tokenizer, policy.name), objective=algorithm,
            update=instantiate(cfg["update"]), optim=instantiate(cfg.optim),
            critic=instantiate(cfg.critic) if algorithm.needs("value_BT") else None,
        )  # fmt: skip
        self.batch, self.precision = batch, options.precision

    def __call__(self, repeat: int) -> Measured:
        groups = len(torch.unique(self.batch.group_B))
        trainer = pl.Trainer(
            max_epochs=2, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, precision=self.precision,
        )  # fmt: skip
        loader = OneBatch(
            lambda: StepBatch(
                trainer.current_epoch,
                [0] * groups,
                [0] * groups,
                list(range(groups)),
                trajectories=self.batch,
                num_groups=groups,
                num_kept_groups=groups,
            )  # fmt: skip
        )
        self.module.row = {}
        trainer.fit(self.module, loader)
        return {"seconds": self.module.row["time/update"]}


class Bare:
    """The forward, cross entropy and backward of as many tokens, without padding."""

    def __init__(self, policy: Policy, batch: TrajectoryBatch, networks: int, options: argparse.Namespace):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.network: Any = copy.deepcopy(policy.network).to(device)
        if options.precision == "bf16-true":
            self.network.to(torch.bfloat16)
        self.networks, self.precision, self.device = networks, options.precision, device
        tokens = batch.tokens_BT[batch.is_real_BT].to(device)
        width = round(len(tokens) / batch.num_rows)
        rows = len(tokens) // width
        self.parts = tokens[: rows * width].reshape(rows, width).split(max(1, options.budget // width))
        self.num_tokens = rows * width

    def open_autocast(self) -> AbstractContextManager[Any]:
        is_mixed = self.precision == "bf16-mixed"
        return torch.autocast(self.device, torch.bfloat16) if is_mixed else nullcontext()

    def __call__(self, repeat: int) -> Measured:
        self.network.zero_grad()
        started = time.perf_counter()
        for part in [*self.parts] * self.networks:
            with self.open_autocast():
                logits = self.network(input_ids=part, use_cache=False).logits
                loss = cross_entropy(logits[:, :-1].flatten(0, 1).float(), part[:, 1:].flatten())
                loss.backward()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - started}


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--algo", default="grpo")
    parser.add_argument("--env", default="sokoban")
    parser.add_argument("--model", default="nano", choices=["nano", *trl_games.SHAPES])
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed", "bf16-true"])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--reply-tokens", type=int, default=40, help="tokens of a reply at most")
    parser.add_argument("--budget", type=int, default=0, help="tokens of a bare micro-batch; 0: as ours")
    parser.add_argument("overrides", nargs="*", help="of the config, such as update.packing=true")
    options = parse(parser)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    policy = trl_games.policy(options.model)
    policy.network.to("cuda" if torch.cuda.is_available() else "cpu")
    batch = record(policy, options.env, options.episodes, options.reply_tokens)
    ours = Ours(policy, batch, options)
    options.budget = options.budget or ours.module.updater.settings.tokens_per_microbatch
    critic = ours.module.critic
    bare = Bare(policy, batch, 1 if critic is None or critic.is_shared else 2, options)
    rounds = alternate({"ours": ours, "bare": bare}, repeats=options.repeats)
    real, actions = int(batch.is_real_BT.sum()), int(batch.is_action_BT.sum())
    ratio = compute_ratio(rounds, "seconds", of="bare", to="ours")
    seconds = {side: summarise(rounds, side, "seconds") for side in ("ours", "bare")}
    print(
        f"{options.algo}, {options.precision}: {batch.num_rows} rows, {real} tokens, {actions} of them actions"
    )
    header = ["side", "seconds (least–greatest)", "tokens/s", "action tokens/s"]
    counts = {"ours": real, "bare": bare.num_tokens}
    rows = [
        [side, found.show(3), f"{counts[side] / found.median:.0f}", f"{actions / found.median:.0f}"]
        for side, found in seconds.items()
    ]
    print(format_table(header, rows))
    padding = ours.module.row["train/padding_share"]
    print(f"share of the bare speed: {ratio.show()}; padding share {padding:.3f}")
    gap = ours.module.row["train/logp_gap"]
    print(f"mean log-prob gap {gap:.2g} nats, greatest {ours.module.row['train/logp_gap_max']:.2g}")
    result = {
        "rounds": rounds,
        "ratio": ratio,
        "seconds": seconds,
        "padding_share": padding,
        "tokens": real,
        "actions": actions,
    }
    write_json(Path(options.out), {**result, "logp_gap": gap}, options)


if __name__ == "__main__":
    main()
