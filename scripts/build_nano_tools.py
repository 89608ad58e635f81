"""Build the second embedded policy by imitation on Taxi and PocketWorld's level 0.

    python scripts/build_nano_tools.py      # minutes of CPU time on one thread; deterministic on one machine

Its tokenizer is a byte-level BPE over the first demonstrations: it reads any text, a row of Taxi's board is one token,
a digit is one token, and a word has the same tokens in every position, so that it can be copied into a call.

The teacher knows best play but has habits: in Taxi it stops to look and names random moves (as the teacher of
``build_nano.py`` does); on the phone it is in a hurry and may end a task too early.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from build_nano import ADDED, TEMPLATE, Phase, Recipe, demonstrate, make_network, train
from hydra.utils import instantiate
from omegaconf import OmegaConf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lit_agentrl.envs.base import Task, TextEnv
from lit_agentrl.envs.pocket.plan import FINISH
from lit_agentrl.models.policy import NANO_FOLDER
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect
from lit_agentrl.text.dialects.tool_call import ToolCalls
from lit_agentrl.text.prompts import Prompt

TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>"]
# a line that begins like a board, a line break, a digit, a word, or the characters between words
PIECES = r"[|+][^\n]*\n?|\n|\d|[A-Za-z_]+|[^A-Za-z0-9\n]+"
OPTIONS = {"gymnasium": {}, "pocket": {"max_turns": 6, "game": {"levels": [0]}}}
DIALECTS: dict[str, Dialect] = {"gymnasium": ANSWER, "pocket": ToolCalls()}


@dataclass(frozen=True)
class ToolsRecipe(Recipe):
    """All settings that determine the weights."""

    phases: tuple[Phase, ...] = (
        Phase(10_000, 2e-3, {"gymnasium": 0.4, "pocket": 0.6}),
        # the first phase does not teach what has to be copied: names, numbers and dates
        *(Phase(5_000, rate, {"gymnasium": 0.15, "pocket": 0.85}) for rate in (2e-3, 2e-3, 1e-3)),
    )
    batch: int = 8
    look_again: float = 1 / 3
    noisy_reply: float = 0.35
    hurry: float = 0.25  # probability of ending a phone task before each call
    hidden: int = 128
    layers: int = 4
    vocabulary: int = 900
    read: int = 400  # number of demonstrations that the tokenizer is trained on
    options: dict[str, object] = field(default_factory=lambda: OPTIONS)


class Teacher:
    """A teacher with best play and the recipe's habits."""

    def __init__(self, recipe: ToolsRecipe, rng: np.random.Generator) -> None:
        self.recipe, self.rng = recipe, rng

    def reply(self, name: str, env: TextEnv, observation: str, horizon: int) -> str:
        """Return the text of a reply; the teacher plans as if it had time."""
        if name == "pocket":
            call, *_ = env.optimal_actions(horizon=1) or [""]
            if json.loads(call)["name"] != FINISH and self.rng.random() < self.recipe.hurry:
                call = json.dumps({"name": FINISH, "arguments": {}})
            return DIALECTS[name].write([call], thought=None)
        plan, count = env.optimal_actions(horizon=25) or [], 1
        while count < 5 and self.rng.random() >= self.recipe.look_again:
            count += 1
        if self.rng.random() < self.recipe.noisy_reply:
            plan = [str(env.random_action(self.rng)) for _ in range(count)]
        return ANSWER.write(plan[:count], thought=self._write_thought(observation))

    def _write_thought(self, observation: str) -> str:
        """Return row and column of the taxi, and its next goal."""
        *board, passenger, destination = observation.split("\n")
        row = next(place for place, line in enumerate(board) if "T" in line)
        at = passenger.split()[-1]
        return f"{row - 1} {board[row].index('T') // 2} {destination.split()[-1] if at == 'taxi' else at}"


@dataclass(frozen=True)
class School:
    """The environments of a recipe and their prompts."""

    recipe: ToolsRecipe
    tokenizer: PreTrainedTokenizerFast

    def make_demonstrations(
        self, count: int, shares: Mapping[str, float], stream: int
    ) -> Iterator[tuple[str, list[int], list[bool], bool]]:
        """Yield demonstrations on train-split tasks.

        Each has the environment's name, token ids, a flag for each id that is imitated, and success.
        """
        rng = np.random.default_rng([self.recipe.seed, stream])
        teacher = Teacher(self.recipe, rng)
        tasks = {name: self._build_task(name) for name in shares}
        envs = {name: task.make("train") for name, task in tasks.items()}
        chats = {name: ChatRenderer(self.tokenizer, dialect=DIALECTS[name]) for name in shares}
        prompt, names, weights = Prompt(style="compact"), list(shares), np.array(list(shares.values()))
        for _ in range(count):
            name = names[rng.choice(len(names), p=weights / weights.sum())]
            seed = stream * 1_000_000_000 + int(rng.integers(1_000_000_000))  # far from the seeds of runs
            made = demonstrate(tasks[name], envs[name], seed, teacher, prompt, chats[name], DIALECTS[name])
            yield name, *made

    def _build_task(self, name: str) -> Task:
        config = OmegaConf.merge(
            OmegaConf.load(CONFIG_DIR / "env" / f"{name}.yaml"), self.recipe.options[name]
        )
        task: Task = instantiate(config)
        return task


def make_tokenizer(recipe: ToolsRecipe) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on demonstrations, which are first written in single bytes."""
    bytes_alone = _train_tokenizer([], 0)
    school = School(recipe, bytes_alone)
    read = school.demonstrations(recipe.read, recipe.phases[0].shares, stream=1)
    texts = [bytes_alone.decode(tokens) for _, tokens, _, _ in read]
    between = re.compile("|".join(map(re.escape, [*ADDED, *TAGS])))
    return _train_tokenizer([piece for text in texts for piece in between.split(text)], recipe.vocabulary)


def _train_tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=ADDED, initial_alphabet=alphabet, show_progress=False
        ),
    )
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="<|end|>",
        clean_up_tokenization_spaces=False, model_max_length=1024,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=NANO_FOLDER.with_name("nano_tools"))
    parser.add_argument("--first-phase", type=int, default=0, help="start later, from the weights in --out")
    arguments = parser.parse_args()
    out, first, recipe = arguments.out, arguments.first_phase, ToolsRecipe()
    minutes: list[float] = json.loads((out / "recipe.json").read_text())["cpu_minutes"] if first else []
    tokenizer = make_tokenizer(recipe)
    network = LlamaForCausalLM.from_pretrained(out) if first else make_network(recipe, len(tokenizer))
    print(f"{len(tokenizer)} words, {sum(p.numel() for p in network.parameters()):,} parameters", flush=True)
    for number in range(first, len(recipe.phases)):
        started = time.process_time()
        phase, rows, solved = recipe.phases[number], [], dict[str, list[bool]]()
        for name, tokens, is_reply, is_solved in School(recipe, tokenizer).demonstrations(
            phase.episodes, phase.shares, stream=2 + number
        ):
            rows.append((tokens, is_reply))
            solved.setdefault(name, []).append(is_solved)
        shares_text = {name: f"{np.mean(each):.3f} of {len(each)}" for name, each in solved.items()}
        print(
            f"phase {number}: teacher {shares_text}, {sum(len(row) for row, _ in rows):,} tokens", flush=True
        )
        train(network, recipe, phase, rows)
        out.mkdir(parents=True, exist_ok=True)
        network.save_pretrained(out)
        tokenizer.save_pretrained(out)
        minutes = [*minutes[:number], round((time.process_time() - started) / 60, 1)]
        record = {"command": "python scripts/build_nano_tools.py", "cpu_minutes": minutes, **asdict(recipe)}
        del record["safe_arm"]  # it belongs to the bandit's teacher
        (out / "recipe.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"done: {sum(minutes):.1f} CPU minutes with {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
