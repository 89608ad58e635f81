"""Ours and TRL's trainer set up for one job; each loop tells its meter where an iteration begins."""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import trl_games
from common import (
    Measured,
    alternate,
    is_undisturbed,
    paired_ratio,
    parse,
    parser_for,
    seconds_table,
    write_json,
)
from lockstep import Lockstep, Meter
from omegaconf import open_dict

from lit_agentrl.data.prompts import PromptStream
from lit_agentrl.entry.assembly import build
from lit_agentrl.entry.composition import compose_job, task_loader
from lit_agentrl.entry.threads import cores, spin_briefly

MANY = 1_000_000  # iterations: the loops are ended from outside
OUR_PRECISION = {"float32": "32-true", "bfloat16": "bf16-mixed", "bfloat16-true": "bf16-true"}
# the nano policy's own chat format, with the two roles of tool calls; the model's reply is the call's argument
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }} {{ call.function.arguments | tojson }}"
    "{% endfor %}<|end|>{% elif m.role == 'tool' %}<|end|><|user|>{{ m.content }}<|end|>"
    "{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"(?=[\s\S])",
            "close_pattern": r"$",
            "repeats": True,
            "content": "text",
            "transform": {
                "type": "function",
                "function": {"name": "reply", "arguments": {"text": "{content}"}},
            },
        },
        "content": {"close_pattern": r"$", "content": "text"},
    },
}


@dataclass(frozen=True)
class Job:
    """What both sides do in an iteration."""

    model: str
    device: str
    turns: int
    prompts: int
    members: int
    reply_tokens: int

    @property
    def episodes(self) -> int:
        return self.prompts * self.members

    @property
    def context(self) -> int:
        """Room for every episode: no message of the game has more than 64 tokens."""
        return self.turns * (self.reply_tokens + 64) + 32


class _Boundary(pl.Callback):
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._meter.boundary()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, index: int) -> None:
        turns = [turn for episode in batch.episodes for turn in episode.turns]
        self._meter.note(
            turns=len(turns),
            action_tokens=sum(len(turn.reply_tokens) for turn in turns),
            read_tokens=sum(len(turn.prefix_tokens) for turn in turns),
        )


def train_ours(meter: Meter, job: Job, precision: str, extra: list[str]) -> None:
    """The program as a user runs it, default callbacks and loggers, but no validation and no checkpoints."""
    folder = tempfile.mkdtemp(prefix="ours-")
    dtype = "bfloat16" if precision == "bfloat16-true" else "float32"
    cfg = compose_job(
        "train",
        [
            *trl_games.overrides(
                turns=job.turns, prompts=job.prompts, members=job.members, reply_tokens=job.reply_tokens,
                context=job.context,
            ),
            "model._target_=trl_games.policy", f"+model.model={job.model}", f"+model.dtype={dtype}",
            "optim.lr=1e-6", f"trainer.max_epochs={MANY}", f"trainer.precision={OUR_PRECISION[precision]}",
            f"trainer.accelerator={'gpu' if job.device == 'cuda' else 'cpu'}",
            "val.envs=[bandit]", "val.episodes=1", f"val.every={MANY}", "test.episodes=0",
            "~callbacks.best", "~callbacks.last", f"hydra.run.dir={folder}",
            *extra,
        ],
    )  # fmt: skip
    with open_dict(cfg):
        cfg.run_dir = folder

    run = build(cfg, task_loader(), extra_callbacks=[_Boundary(meter)])
    # every turn adds the same tokens, also after a reply that happens to end in the end marker
    run.rules.chat._marker = None
    run.rollouts.on_train_batch_start = meter.timed(  # type: ignore[method-assign]
        "rollout", run.rollouts.on_train_batch_start
    )
    run.trainer.fit(run.module, run.stream)


def train_trl(meter: Meter, job: Job, precision: str, micro_batch: int, generation: str) -> None:
    """``trl.GRPOTrainer`` with what costs time switched off: no logs, no checkpoints, no reference model."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    policy = trl_games.policy(job.model, "bfloat16" if precision == "bfloat16-true" else "float32")
    policy.tokenizer.chat_template = CHAT_TEMPLATE
    policy.tokenizer.response_template = RESPONSE_TEMPLATE
    stream = PromptStream(prompts=job.prompts, task_weights=[1.0], seed=0, val=())
    seeds = [str(seed) for iteration in range(200) for seed in stream.batch(iteration).seed_P]
    is_multi_turn = job.turns > 1
    prompt = [{"role": "user", "content": ""}]
    rows = [{"prompt": prompt if is_multi_turn else _opening(job, seed), "seed": seed} for seed in seeds]
    if job.episodes % micro_batch:
        raise ValueError(f"--trl-micro-batch={micro_batch} must divide the {job.episodes} episodes")
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"), max_steps=MANY, learning_rate=1e-6, seed=0,
        lr_scheduler_type="constant", per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=job.episodes // micro_batch, num_generations=job.members,
        num_iterations=1, beta=0.0, loss_type="grpo", epsilon=0.2, temperature=1.0, top_p=1.0, top_k=0,
        max_completion_length=job.context, shuffle_dataset=False, gradient_checkpointing=False,
        max_grad_norm=1.0, bf16=precision == "bfloat16", use_cpu=job.device == "cpu", report_to="none",
        logging_strategy="no", save_strategy="no", eval_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=job.device == "cuda", max_tool_calling_iterations=job.turns - 1,
        use_transformers_continuous_batching=generation == "continuous",
        generation_kwargs={"max_new_tokens": job.reply_tokens, "min_new_tokens": job.reply_tokens},
    )  # fmt: skip

    class Boundary(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            meter.boundary()

    trainer = GRPOTrainer(
        model=policy.network, reward_funcs=_multi_turn_reward if is_multi_turn else _SingleTurn(job),
        args=config, train_dataset=Dataset.from_list(rows), processing_class=policy.tokenizer,
        environment_factory=partial(Environment, job.turns) if is_multi_turn else None,
        callbacks=[Boundary()],
    )  # fmt: skip
    scored = meter.timed("rollout", trainer._generate_and_score_completions)

    def counted(inputs: Any) -> dict[str, Any]:
        result = scored(inputs)
        meter.note(**_trl_tokens(result, job))
        return result

    trainer._generate_and_score_completions = counted
    trainer.train()


def _trl_tokens(result: dict[str, Any], job: Job) -> dict[str, int]:
    completion = result["completion_mask"]
    action = completion * result["tool_mask"] if "tool_mask" in result else completion
    actions = int(action.sum())
    return {
        "turns": actions // job.reply_tokens,
        "action_tokens": actions,
        "read_tokens": int(result["prompt_mask"].sum()) + int(completion.sum()) - actions,
    }


def _opening(job: Job, seed: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": trl_games.Game(job.turns).opening(int(seed))}]


class _SingleTurn:
    """Reward of one reply: the game's points."""

    __name__ = "points"

    def __init__(self, job: Job) -> None:
        self._games = [trl_games.Game(1) for _ in range(job.episodes)]

    def __call__(self, completions: list[Any], seed: list[str], **_: object) -> list[float]:
        for game, number, completion in zip(self._games, seed, completions, strict=True):
            game.opening(int(number))
            game.play(_text(completion))
        return [game.points for game in self._games]


def _multi_turn_reward(completions: list[Any], environments: list[Any], **_: object) -> list[float]:
    """The game's points; the last reply, which TRL leaves unplayed at the limit of tool calls, is played here."""
    for environment, completion in zip(environments, completions, strict=True):
        environment._game.play(_text(completion))
    return [environment._game.points for environment in environments]


def _text(completion: list[dict[str, Any]]) -> str:
    last = completion[-1]
    calls = last.get("tool_calls") or []
    return str(calls[0]["function"]["arguments"]["text"] if calls else last["content"])


class Environment:
    """The game as TRL's ``environment_factory`` wants it: ``reset`` and one tool."""

    def __init__(self, turns: int) -> None:
        self._game = trl_games.Game(turns)

    def reset(self, seed: str, **_: object) -> str:
        return self._game.opening(int(seed))

    def reply(self, text: str) -> str:
        """Answers the game.

        Args:
            text: What to say.

        Returns:
            What the game shows next.
        """
        return self._game.play(text)


def check_equal(measured: dict[str, Measured]) -> None:
    """All sides must have done the same work.

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
    parser.add_argument("--precision", default="float32", choices=list(OUR_PRECISION), help="of our side")
    parser.add_argument("--trl-precision", default=None, choices=list(OUR_PRECISION), help="default: as ours")
    parser.add_argument("--trl-micro-batch", type=int, default=16, help="rows of a forward-backward")
    parser.add_argument("--trl-generation", default="generate", choices=["generate", "continuous"])
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--ours", action="append", default=[], metavar="KEY=VALUE", help="for train.py")
    parser.add_argument(
        "--cores", action="store_true", help="also our side with a core each, see docs/scaling.md"
    )


def core_each(prompts: int, threads: int) -> list[str]:
    """Options under which each of so many cores works by itself.

    Raises:
        ValueError: the prompts cannot be dealt in equal shares.
    """
    if prompts % threads:
        raise ValueError(f"--cores deals --prompts={prompts} to --threads={threads}, which must divide them")
    share = prompts // threads
    return ["worker=process", f"worker.count={threads}", f"worker.share={share}", f"update.lanes={threads}"]


def compare(script: str, description: str | None, *, turns: int, reply_tokens: int) -> None:
    """The whole of a script: parse, let both sides take turns, print, write."""
    parser = parser_for(script, description)
    add_options(parser, turns=turns, reply_tokens=reply_tokens)
    options = parse(parser)
    job = Job(
        options.model, options.device, options.turns, options.prompts, options.members, options.reply_tokens
    )
    peer_precision = options.trl_precision or options.precision
    with ExitStack() as stack:

        def side(train: Callable[..., None], *arguments: Any, **more: Any) -> partial[Measured]:
            loop = Lockstep(train, job, *arguments, threads=options.threads, **more)
            stack.callback(loop.close)
            return partial(_measured, loop)

        peer = side(train_trl, peer_precision, options.trl_micro_batch, options.trl_generation)
        modes = {"ours": options.ours}
        if options.cores:
            modes["a core each"] = options.ours + core_each(job.prompts, options.threads or cores())
        sides = {
            name: side(train_ours, options.precision, extra, prepare=spin_briefly)
            for name, extra in modes.items()
        } | {"trl": peer}
        rounds = alternate(sides, repeats=options.repeats, warmups=options.warmups, keep=is_undisturbed)
    for measured in rounds:
        check_equal(measured)
    first = rounds[0]["ours"]
    print(
        f"{job.model}, {job.episodes} episodes x {first['turns'] / job.episodes:.0f} turns, of each side "
        f"{first['action_tokens']:.0f} action tokens and {first['read_tokens']:.0f} read ones; "
        f"ours {options.precision}, trl {peer_precision}"
    )
    parts = ["rollout", "update", "whole"]
    for name in modes:
        print(seconds_table(rounds, parts, ours=name, peer="trl"))
    ratios = {name: {part: paired_ratio(rounds, part, of="trl", to=name) for part in parts} for name in modes}
    write_json(options.out, {"ratios": ratios, "rounds": rounds}, options)


def _measured(loop: Lockstep, number: int) -> Measured:
    found = loop(number)
    return {**found, "update": found["whole"] - found["rollout"]}
