"""TRL's trainer for the job of vs_trl_single_turn.py and vs_trl_multi_turn.py.

Both sides do the same `Job`.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

from lit_agentrl.data.prompts import PromptStream
from scripts.bench import trl_games
from scripts.bench.lockstep import Meter

MANY = 1_000_000  # number of iterations; the loops are ended from outside
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
    """The work of both sides in an iteration."""

    model: str
    device: str
    turns: int
    prompts: int
    members: int
    reply_tokens: int
    filler: int = 0

    @property
    def episodes(self) -> int:
        return self.prompts * self.members

    @property
    def context(self) -> int:
        """The context length for every episode.

        No message of the game has more than 64 tokens without the filler.
        """
        return self.turns * (self.reply_tokens + 64 + self.filler) + 32


def train_trl(meter: Meter, job: Job, precision: str, micro_batch: int, generation: str) -> None:
    """Train with ``trl.GRPOTrainer``, without logs, checkpoints and reference model, to save time."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    policy = trl_games.policy(job.model, "bfloat16" if precision == "bfloat16-true" else "float32")
    policy.tokenizer.chat_template = CHAT_TEMPLATE
    policy.tokenizer.response_template = RESPONSE_TEMPLATE
    stream = PromptStream(prompts=job.prompts, task_weights=[1.0], seed=0, val=())
    seeds = [str(seed) for iteration in range(200) for seed in stream.make_batch(iteration).seed_P]
    is_multi_turn = job.turns > 1
    prompt = [{"role": "user", "content": ""}]
    rows = [{"prompt": prompt if is_multi_turn else _make_opening(job, seed), "seed": seed} for seed in seeds]
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
            meter.mark_boundary()

    trainer = GRPOTrainer(
        model=policy.network, reward_funcs=_compute_rewards if is_multi_turn else _SingleTurn(job),
        args=config, train_dataset=Dataset.from_list(rows), processing_class=policy.tokenizer,
        environment_factory=partial(Environment, job.turns, job.filler) if is_multi_turn else None,
        callbacks=[Boundary()],
    )  # fmt: skip
    score = meter.add_timer("rollout", trainer._generate_and_score_completions)

    def score_and_count(inputs: Any) -> dict[str, Any]:
        result = score(inputs)
        meter.note(**_count_tokens(result, job))
        return result

    trainer._generate_and_score_completions = score_and_count
    trainer.train()


def _count_tokens(result: dict[str, Any], job: Job) -> dict[str, int]:
    completion = result["completion_mask"]
    action = completion * result["tool_mask"] if "tool_mask" in result else completion
    actions = int(action.sum())
    return {
        "turns": actions // job.reply_tokens,
        "action_tokens": actions,
        "read_tokens": int(result["prompt_mask"].sum()) + int(completion.sum()) - actions,
    }


def _make_opening(job: Job, seed: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": trl_games.Game(job.turns, job.filler).start(int(seed))}]


class _SingleTurn:
    """The reward function of one reply, from the game."""

    __name__ = "points"

    def __init__(self, job: Job) -> None:
        self._games = [trl_games.Game(1, job.filler) for _ in range(job.episodes)]

    def __call__(self, completions: list[Any], seed: list[str], **_: object) -> list[float]:
        for game, number, completion in zip(self._games, seed, completions, strict=True):
            game.start(int(number))
            game.play(_read_text(completion))
        return [game.points for game in self._games]


def _compute_rewards(completions: list[Any], environments: list[Any], **_: object) -> list[float]:
    """Play the last reply, and return the rewards of the games.

    TRL leaves the last reply unplayed at the limit of tool calls.
    """
    for environment, completion in zip(environments, completions, strict=True):
        environment._game.play(_read_text(completion))
    return [environment._game.points for environment in environments]


def _read_text(completion: list[dict[str, Any]]) -> str:
    last = completion[-1]
    calls = last.get("tool_calls") or []
    return str(calls[0]["function"]["arguments"]["text"] if calls else last["content"])


class Environment:
    """The game as TRL's ``environment_factory`` wants it: ``reset`` and one tool."""

    def __init__(self, turns: int, filler: int = 0) -> None:
        self._game = trl_games.Game(turns, filler)

    def reset(self, seed: str, **_: object) -> str:
        return self._game.start(int(seed))

    def reply(self, text: str) -> str:
        """Answer the game.

        Args:
            text: What to say.

        Returns:
            What the game shows next.
        """
        return self._game.play(text)
