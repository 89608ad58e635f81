"""Builds the embedded policy: imitation of a solver with habits, on train-split instances.

    python scripts/build_nano.py            # about 30 CPU minutes on two cores; deterministic
    python scripts/build_nano.py --levels   # measures the start at several temperatures (docs/nano.md)

The recipe was fixed before any reinforcement learning was run on its outcome.  The teacher knows each game's best play but
has three habits: after every move it stops to look with probability 1/2 (it does not know the turn budget),
one reply in five names random moves, and in the bandit it takes the safe-sounding arm seven times in ten.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from hydra.utils import instantiate
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lit_agentrl.envs.bandit import RISKY_NAMES, SAFE_NAMES
from lit_agentrl.envs.base import Task, TextEnv
from lit_agentrl.models.policy import NANO_FOLDER
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ADDED = ["<pad>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TAGS = ["<think>", "</think>", "<answer>", "</answer>", "||", "\n"]
WORDS = (
    "# _ O X P S G √ W B C A @ . Up Down Left Right sokoban frozen_lake bandit bandit_reversed turns actions "
    "reward invalid or push steady risky ? player box target goal hole wall"
).split()


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights."""

    seed: int = 0
    episodes: int = 30_000
    epochs: int = 1
    batch: int = 16
    peak_lr: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05
    look_again: float = 0.5  # chance to stop and look after each move
    noisy_reply: float = 0.2  # share of replies whose moves are random
    safe_arm: float = 0.7  # share of bandit demonstrations that take the safe-sounding arm
    shares: tuple[tuple[str, float], ...] = (("sokoban", 0.75), ("frozen_lake", 0.15), ("bandit", 0.1))
    hidden: int = 128
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 352


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words and grid cells are one token; any other word falls apart into characters."""
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


class Teacher:
    """Best play with the recipe's habits, and a short thought that states what matters on the board."""

    def __init__(self, recipe: Recipe, rng: np.random.Generator) -> None:
        self.recipe, self.rng = recipe, rng

    def reply(self, name: str, env: TextEnv, observation: str, horizon: int) -> str:
        thought, actions = self._bandit(env) if name == "bandit" else self._grid(env, observation, horizon)
        return f"<think>{thought}</think><answer>{' || '.join(actions)}</answer>"

    def _bandit(self, env: TextEnv) -> tuple[str, list[str]]:
        names = env.action_names() or []
        safe = next(name for name in names if name in SAFE_NAMES)
        risky = next(name for name in names if name in RISKY_NAMES)
        chosen = safe if self.rng.random() < self.recipe.safe_arm else risky
        return f"{safe} steady {risky} risky", [chosen]

    def _grid(self, env: TextEnv, observation: str, horizon: int) -> tuple[str, list[str]]:
        # the teacher plans as if it had time: it does not know the budgets
        plan = env.optimal_actions(horizon=max(horizon, 10))
        rows = [line.split() for line in observation.splitlines()]
        found = {
            symbol: f"{r} {c}" for r, row in enumerate(rows) for c, cell in enumerate(row) for symbol in (cell,)
        }
        if "S" in found:  # the player stands on the target
            found["P"] = found["O"] = found["S"]
        shown = "PXO" if "X" in found else "PG"
        thought = " ".join(f"{symbol} {found[symbol]}" for symbol in shown if symbol in found)
        count = 1
        while count < 5 and self.rng.random() >= self.recipe.look_again:
            count += 1
        if not plan or self.rng.random() < self.recipe.noisy_reply:
            return thought, [env.random_action(self.rng) for _ in range(count)]
        return thought, plan[:count]


def demonstrate(
    task: Task, env: TextEnv, seed: int, teacher: Teacher, prompt: Prompt, chat: ChatRenderer
) -> tuple[list[int], list[bool], bool]:
    """One episode under the game's own limits: token ids, which of them to imitate, whether it was solved."""
    observation, _ = env.reset(seed=seed)
    messages = prompt.opening(
        name=task.name, rules=env.rules, action_names=env.action_names(), observation=observation,
        max_turns=task.max_turns, max_actions=task.max_actions, max_actions_per_turn=task.max_actions_per_turn,
    )  # fmt: skip
    tokens = chat.opening(messages).tokens
    is_reply = [False] * len(tokens)
    actions_left = task.max_actions
    for turn in range(task.max_turns):
        text = teacher.reply(task.name, env, observation, actions_left)
        reply = chat.tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens, is_reply = tokens + reply, is_reply + [True] * len(reply)
        reward, ended, solved = 0.0, False, False
        for action in text.split("<answer>")[1].removesuffix("</answer>").split(" || ")[:actions_left]:
            observation, points, ended, _, info = env.step(action)
            reward, actions_left, solved = reward + points, actions_left - 1, info["success"]
            if ended:
                break
        turns_left = task.max_turns - turn - 1
        if ended or not actions_left or not turns_left:
            return tokens, is_reply, solved
        following = prompt.following(
            observation=observation, reward=reward, problem="", turns_left=turns_left, actions_left=actions_left
        )
        prefix = chat.following(following, last_reply=reply).tokens
        tokens, is_reply = tokens + prefix, is_reply + [False] * len(prefix)
    raise AssertionError("unreachable: the last turn returns")


def make_demonstrations(recipe: Recipe, chat: ChatRenderer) -> list[tuple[list[int], list[bool]]]:
    rng = np.random.default_rng([recipe.seed, 1])
    teacher, prompt = Teacher(recipe, rng), Prompt(style="compact")
    tasks = {name: load_task(name) for name, _ in recipe.shares}
    envs = {name: task.make("train") for name, task in tasks.items()}
    names, weights = zip(*recipe.shares, strict=True)
    demos, solved = [], {name: [0, 0] for name in names}
    for i in range(recipe.episodes):
        name = names[rng.choice(len(names), p=np.array(weights) / sum(weights))]
        # seeds of the recipe lie far from those of training runs; instances may recur, splits keep tests apart
        tokens, is_reply, success = demonstrate(
            tasks[name], envs[name], 1_000_000_000 + i, teacher, prompt, chat
        )
        demos.append((tokens, is_reply))
        solved[name][0] += success
        solved[name][1] += 1
    print("teacher success:", {name: f"{s / max(n, 1):.3f} of {n}" for name, (s, n) in solved.items()})
    return demos


def load_task(name: str) -> Task:
    task: Task = instantiate(OmegaConf.load(ROOT / "conf" / "env" / f"{name}.yaml"))
    return task


def collate(rows: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(tokens) for tokens, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), -100)
    for i, (tokens, is_reply) in enumerate(rows):
        ids[i, : len(tokens)] = torch.tensor(tokens)
        labels[i, : len(tokens)] = torch.where(torch.tensor(is_reply), torch.tensor(tokens), -100)
    return ids, labels


def train(recipe: Recipe, demos: list[tuple[list[int], list[bool]]], vocab_size: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=recipe.hidden, num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads, num_key_value_heads=recipe.kv_heads, intermediate_size=recipe.mlp,
        max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=None, eos_token_id=ADDED.index("<|end|>"),
        pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(recipe.seed)
    network = LlamaForCausalLM(config).train()
    print(f"{sum(p.numel() for p in network.parameters()):,} parameters")
    shuffle = random.Random(recipe.seed)
    batches = []
    for _ in range(recipe.epochs):
        order = list(range(len(demos)))
        shuffle.shuffle(order)
        chunk = recipe.batch * 16  # batches of similar length waste little padding
        for start in range(0, len(order), chunk):
            near = sorted(order[start : start + chunk], key=lambda i: len(demos[i][0]))
            parts = [near[j : j + recipe.batch] for j in range(0, len(near), recipe.batch)]
            shuffle.shuffle(parts)
            batches.extend(parts)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=recipe.peak_lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay
    )
    started, seen = time.perf_counter(), 0
    for step, rows in enumerate(batches):
        progress = step / len(batches)
        warm = min(1.0, (step + 1) / recipe.warmup_steps)
        optimizer.param_groups[0]["lr"] = recipe.peak_lr * warm * 0.5 * (1 + math.cos(math.pi * progress))
        ids, labels = collate([demos[i] for i in rows])
        loss = network(input_ids=ids, labels=labels, use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        seen += ids.numel()
        if step % 50 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step}/{len(batches)} loss {loss.item():.4f} {seconds:.0f} s {seen / seconds:.0f} tokens/s", flush=True)
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=NANO_FOLDER)
    parser.add_argument("--episodes", type=int, default=Recipe.episodes, help="fewer for a trial")
    arguments = parser.parse_args()
    recipe = Recipe(episodes=arguments.episodes)
    torch.set_num_threads(2)
    started = time.process_time()
    chat = ChatRenderer(build_tokenizer())
    demos = make_demonstrations(recipe, chat)
    print(f"{len(demos)} demonstrations, {sum(len(t) for t, _ in demos):,} tokens, {time.process_time() - started:.0f} CPU s", flush=True)
    network = train(recipe, demos, len(chat.tokenizer))
    arguments.out.mkdir(parents=True, exist_ok=True)
    network.save_pretrained(arguments.out)
    chat.tokenizer.save_pretrained(arguments.out)
    cpu_minutes = (time.process_time() - started) / 60
    record = {"command": "python scripts/build_nano.py", "cpu_minutes": round(cpu_minutes, 1), **asdict(recipe)}
    (arguments.out / "recipe.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"done: {cpu_minutes:.1f} CPU minutes")


if __name__ == "__main__":
    main()
