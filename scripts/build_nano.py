"""Build the embedded policy by imitation of an imperfect solver on train-split tasks.

    python scripts/build_nano.py            # about an hour of CPU time; deterministic on one machine

The teacher knows each game's best play but has three habits: after every move it stops to look with
probability 1/3 (it does not know the turn budget), one reply in five names random moves, and in the bandit it
takes the safe-sounding arm seven times in ten.  A first recipe (thoughts without a plan, stops with probability
1/2) reached a success of 0.10 on Sokoban, too little to learn from; the thought now names the next push.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lit_agentrl.envs.base import Task, TextEnv
from lit_agentrl.envs.games.bandit import RISKY_NAMES, SAFE_NAMES
from lit_agentrl.models.policy import NANO_FOLDER
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.update.microbatches import split_by_tokens

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ADDED = ["<pad>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TAGS = ["<think>", "</think>", "<answer>", "</answer>", "||", "\n"]
WORDS = [
    "#", "_", "O", "X", "P", "S", "G", "√", "W", "B", "C", "A", "@", ".", "Up", "Down", "Left", "Right",
    "sokoban", "frozen_lake", "bandit", "bandit_reversed", "turns", "actions", "reward", "invalid", "or",
    "push", "steady", "risky", "?", "player", "box", "target", "goal", "hole", "wall", "go",
]  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """A phase of training on new demonstrations, each used once, with one cosine schedule."""

    episodes: int
    peak_lr: float
    shares: dict[str, float]  # of episodes; a bandit episode is ten times shorter than a Sokoban one


@dataclass(frozen=True)
class Recipe:
    """All settings that determine the weights."""

    seed: int = 0
    phases: tuple[Phase, ...] = (
        Phase(40_000, 2e-3, {"sokoban": 0.65, "frozen_lake": 0.15, "bandit": 0.2}),
        # the first phase does not teach the bandit's names, since only one token in twenty was about them; the
        # second teaches the safe names, the third the risky ones, without which the bandit cannot be played
        Phase(14_000, 1e-3, {"sokoban": 0.3, "frozen_lake": 0.1, "bandit": 0.6}),
        Phase(16_000, 1e-3, {"sokoban": 0.15, "frozen_lake": 0.05, "bandit": 0.8}),
    )
    batch: int = 24
    tokens_per_microbatch: int = 6144
    warmup_steps: int = 100
    weight_decay: float = 0.05
    look_again: float = 1 / 3  # probability of stopping to look after each move
    noisy_reply: float = 0.2  # share of replies whose moves are random
    safe_arm: float = 0.7  # share of bandit demonstrations that take the safe-sounding arm
    hidden: int = 128
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 352


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of words and grid cells that splits other words into characters."""
    chars = [chr(c) for c in range(33, 127)] + ["√"]
    pieces = [*ADDED, *TAGS, *WORDS, *SAFE_NAMES, *RISKY_NAMES, *chars, *(f"##{c}" for c in chars)]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="<unk>", max_input_chars_per_word=64))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+"), "removed"),
            pre_tokenizers.Split(Regex(r"[0-9.+\-,:?!()\[\]]"), "isolated"),
        ]
    )
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ADDED])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="<|end|>",
        clean_up_tokenization_spaces=False, model_max_length=1024,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    return tokenizer


class Player(Protocol):
    """The player that is imitated."""

    def reply(self, name: str, env: TextEnv, observation: str, horizon: int) -> str:
        """Return the text of a reply in the named game, with ``horizon`` actions left."""


class Teacher:
    """A teacher with best play, the recipe's habits and short thoughts about the board."""

    def __init__(self, recipe: Recipe, rng: np.random.Generator) -> None:
        self.recipe, self.rng = recipe, rng

    def reply(self, name: str, env: TextEnv, observation: str, horizon: int) -> str:
        actions = self._choose_arm(env) if name == "bandit" else self._choose_moves(env, horizon)
        return ANSWER.write(actions, thought=env.best_thought())

    def _choose_arm(self, env: TextEnv) -> list[str]:
        names = SAFE_NAMES if self.rng.random() < self.recipe.safe_arm else RISKY_NAMES
        return [next(name for name in env.action_names() or [] if name in names)]

    def _choose_moves(self, env: TextEnv, horizon: int) -> list[str]:
        # the teacher does not know the budgets, so it plans as if it had time
        plan = env.optimal_actions(horizon=max(horizon, 10))
        count = 1
        while count < 5 and self.rng.random() >= self.recipe.look_again:
            count += 1
        if not plan or self.rng.random() < self.recipe.noisy_reply:
            return [env.random_action(self.rng) for _ in range(count)]
        return plan[:count]


def demonstrate(
    task: Task,
    env: TextEnv,
    seed: int,
    teacher: Player,
    prompt: Prompt,
    chat: ChatRenderer,
    dialect: Dialect = ANSWER,
) -> tuple[list[int], list[bool], bool]:
    """Play an episode within the game's limits.

    Returns:
        token ids, a flag for each id that is imitated, and whether the task was solved.
    """
    observation, _ = env.reset(seed=seed)
    messages = prompt.write_opening(
        name=task.name, rules=env.rules, actions=env.actions(), observation=observation,
        max_turns=task.max_turns, max_actions=task.max_actions, max_actions_per_turn=task.max_actions_per_turn,
    )  # fmt: skip
    tokens = chat.render_opening(messages).tokens
    is_reply = [False] * len(tokens)
    actions_left = task.max_actions
    for turn in range(task.max_turns):
        text = teacher.reply(task.name, env, observation, actions_left)
        reply = chat.tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens, is_reply = tokens + reply, is_reply + [True] * len(reply)
        reward, ended, solved = 0.0, False, False
        for action in dialect.parse(text, env.actions(), think=True).actions[:actions_left]:
            observation, points, ended, _, info = env.step(action)
            reward, actions_left, solved = reward + points, actions_left - 1, info["success"]
            if ended:
                break
        turns_left = task.max_turns - turn - 1
        if ended or not actions_left or not turns_left:
            return tokens, is_reply, solved
        following = prompt.write_next(
            observation=observation,
            reward=reward,
            complaint="",
            turns_left=turns_left,
            actions_left=actions_left,
        )
        prefix = chat.render_next(following, last_reply=reply).tokens
        tokens, is_reply = tokens + prefix, is_reply + [False] * len(prefix)
    raise AssertionError("unreachable: the last turn returns")


def make_demonstrations(
    recipe: Recipe, number: int, chat: ChatRenderer
) -> list[tuple[list[int], list[bool]]]:
    """Make the demonstrations of one phase, on train-split tasks."""
    phase = recipe.phases[number]
    rng = np.random.default_rng([recipe.seed, 1 + number])
    teacher, prompt = Teacher(recipe, rng), Prompt(style="compact")
    tasks = {name: load_task(name) for name in phase.shares}
    envs = {name: task.make("train") for name, task in tasks.items()}
    names, weights = list(phase.shares), np.array(list(phase.shares.values()))
    demos, solved = [], {name: [0, 0] for name in names}
    for i in range(phase.episodes):
        name = names[rng.choice(len(names), p=weights / weights.sum())]
        # seeds are far from those of training runs; instances may recur, but splits separate them from tests
        instance = (1 + number) * 1_000_000_000 + i
        tokens, is_reply, success = demonstrate(tasks[name], envs[name], instance, teacher, prompt, chat)
        demos.append((tokens, is_reply))
        solved[name][0] += success
        solved[name][1] += 1
    print("teacher success:", {name: f"{s / max(n, 1):.3f} of {n}" for name, (s, n) in solved.items()})
    return demos


def load_task(name: str) -> Task:
    config = OmegaConf.load(CONFIG_DIR / "env" / f"{name}.yaml")
    if name == "sokoban":
        config.game.lengths = "uniform"  # long solutions teach more
    task: Task = instantiate(config)
    return task


def collate(rows: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(tokens) for tokens, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), -100)
    for i, (tokens, is_reply) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        labels[i, : len(tokens)] = torch.where(torch.tensor(is_reply), torch.tensor(tokens), -100)
    return ids, labels


def make_network(recipe: Recipe, vocab_size: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=recipe.hidden, num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads, num_key_value_heads=recipe.kv_heads, intermediate_size=recipe.mlp,
        max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=ADDED.index("<|end|>"), pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(config)


def train(
    network: LlamaForCausalLM, recipe: Recipe, phase: Phase, demos: list[tuple[list[int], list[bool]]]
) -> None:
    """Train for one pass over the demonstrations, with the cross-entropy of the teacher's replies."""
    network.train()
    order = random.Random(recipe.seed).sample(range(len(demos)), len(demos))
    batches = [order[start : start + recipe.batch] for start in range(0, len(order), recipe.batch)]
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=phase.peak_lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
    )
    started, seen = time.perf_counter(), 0
    for step, rows in enumerate(batches):
        progress = step / len(batches)
        warm = min(1.0, (step + 1) / recipe.warmup_steps)
        optimizer.param_groups[0]["lr"] = phase.peak_lr * warm * 0.5 * (1 + math.cos(math.pi * progress))
        batch = [demos[i] for i in rows]
        targets = sum(sum(is_reply) for _, is_reply in batch)
        total = 0.0
        optimizer.zero_grad(set_to_none=True)
        lengths = torch.tensor([len(tokens) for tokens, _ in batch])
        for part in split_by_tokens(lengths, recipe.tokens_per_microbatch):
            ids, labels = collate([batch[i] for i in part.tolist()])
            loss = network(input_ids=ids, labels=labels, use_cache=False, num_items_in_batch=targets).loss
            loss.backward()
            total += loss.item()
            seen += ids.numel()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            seconds = time.perf_counter() - started
            rate = f"{seconds:.0f} s {seen / seconds:.0f} tokens/s"
            print(f"step {step}/{len(batches)} loss {total:.4f} {rate}", flush=True)
    network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=NANO_FOLDER)
    parser.add_argument("--first-phase", type=int, default=0, help="start later, from the weights in --out")
    arguments = parser.parse_args()
    recipe = Recipe()
    torch.set_num_threads(2)
    chat = ChatRenderer(build_tokenizer())
    network = make_network(recipe, len(chat.tokenizer))
    cpu_minutes: list[float] = []
    if arguments.first_phase:
        network = LlamaForCausalLM.from_pretrained(arguments.out)
        earlier = json.loads((arguments.out / "recipe.json").read_text())
        cpu_minutes = earlier["cpu_minutes"][: arguments.first_phase]
    print(f"{sum(p.numel() for p in network.parameters()):,} parameters")
    for number in range(arguments.first_phase, len(recipe.phases)):
        started = time.process_time()
        demos = make_demonstrations(recipe, number, chat)
        print(
            f"phase {number}: {len(demos)} demonstrations, {sum(len(t) for t, _ in demos):,} tokens",
            flush=True,
        )
        train(network, recipe, recipe.phases[number], demos)
        arguments.out.mkdir(parents=True, exist_ok=True)
        network.save_pretrained(arguments.out)
        chat.tokenizer.save_pretrained(arguments.out)
        cpu_minutes.append(round((time.process_time() - started) / 60, 1))
        record = {"command": "python scripts/build_nano.py", "cpu_minutes": cpu_minutes, **asdict(recipe)}
        (arguments.out / "recipe.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"done: {sum(cpu_minutes):.1f} CPU minutes")


if __name__ == "__main__":
    main()
