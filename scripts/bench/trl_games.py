"""The job of the comparisons with TRL: equal game, prompts and policies on both sides."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import OmegaConf, open_dict
from transformers import AutoModelForCausalLM, Qwen2Config

from lit_agentrl.build.devices import choose_for_device, find_device
from lit_agentrl.config.composition import compose_job
from lit_agentrl.config.signatures import BY_DEVICE
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Outcome
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.models.lora import LoRA
from lit_agentrl.models.policy import Policy, load_nano
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.prompts import Prompt

NAME = "sokoban"
ACTIONS_PER_TURN = 5
FILLER = " box"  # a token of the embedded tokenizer
SOLUTIONS = {"min_solution": 1, "max_solution": 5}  # so that a single turn can solve a room
SHAPES = {  # of randomly initialised policies: (hidden, layers, heads, key/value heads, MLP, vocabulary)
    "0.5b-random": (896, 24, 14, 2, 4864, 151_936),  # Qwen2.5-0.5B
    "135m-random": (576, 30, 9, 3, 1536, 49_152),  # SmolLM2-135M
    "tiny-random": (64, 2, 4, 2, 128, 2_048),  # the same code path on any machine
}


class EndlessSokoban(Sokoban):
    """Sokoban that continues after it is solved, so that all episodes have equal length.

    ``filler`` is the number of tokens by which its observations are lengthened.
    """

    def __init__(self, *, filler: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self._filler = FILLER * filler

    def _observe(self) -> str:
        return super()._observe() + self._filler

    def _play(self, action: str) -> Outcome:
        return replace(super()._play(action), terminated=False)


class ConstantPrompt(Prompt):
    """A prompt whose messages have constant length.

    They do not mention the last reply, which each side samples for itself.
    """

    def write_next(self, *, observation: str, turns_left: int, **said: object) -> str:
        return f"turns {turns_left} actions {turns_left * ACTIONS_PER_TURN}\n{observation}"


class NeverStop:
    """A stop rule that lets every reply run to ``rollout.max_reply_tokens``."""

    def __init__(self, tokenizer: object) -> None:
        del tokenizer

    def update(self, state: str, token: int) -> tuple[str, bool]:
        return state, False


def make_fixed_length_engine(*, num_slots: int, **arguments: object) -> NativeEngine:
    """Make a native engine whose replies all have one length.

    Neither an end tag nor an end marker completes them.
    """
    arguments |= {"stop": NeverStop(None), "end_of_turn_ids": ()}
    return NativeEngine(num_slots=num_slots, **arguments)  # type: ignore[arg-type]


def policy(model: str, dtype: str = "float32", lora: LoRA | None = None) -> Policy:
    """Load the embedded policy, or make one of :data:`SHAPES` with random weights.

    Both have the embedded tokenizer.  With ``lora``, only adapters are trained.
    """
    found = load_nano()
    if model != "nano":
        vocabulary = SHAPES[model][-1]
        config = make_config(model, found.tokenizer.pad_token_id, found.tokenizer.eos_token_id)
        torch.manual_seed(0)
        found.network = AutoModelForCausalLM.from_config(config)
        found.name = model
        # every id needs a text, since TRL does not recognise a reply with unknown ids as a tool call
        found.tokenizer.add_tokens([f"<{each}>" for each in range(len(found.tokenizer), vocabulary)])
    found.network = found.network.to(getattr(torch, dtype)).train(False)
    if lora is not None:
        found.adapters = lora.attach(found.network, found.name)
    return found


def make_config(model: str, pad: int | None = None, end: int | None = None) -> Qwen2Config:
    """Make the config of one of :data:`SHAPES`, with the token ids of padding and end."""
    hidden, layers, heads, kv_heads, mlp, vocabulary = SHAPES[model]
    return Qwen2Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=mlp, vocab_size=vocabulary, max_position_embeddings=4096, tie_word_embeddings=True,
        pad_token_id=pad, eos_token_id=end, bos_token_id=None,
    )  # fmt: skip


def choose_sizes(model: str, options: Sequence[str]) -> list[str]:
    """Return the options that a run with such a network chooses for its GPU.

    On a CPU there are none.  The memory of :func:`policy` itself cannot be planned, so a run with it would keep the
    micro-batches of a CPU.

    Args:
        model: One of :data:`SHAPES`; nothing is chosen for the embedded policy.
        options: The other options of the run, without its model.
    """
    if model not in SHAPES:
        return []
    kept = [option for option in options if not option.startswith("engine._target_=")]
    with tempfile.TemporaryDirectory() as folder:
        make_config(model).save_pretrained(folder)
        cfg = compose_job("train", [*kept, "model=hf", f"model.name={folder}"])
        if not find_device(cfg.trainer).memory:
            return []
        with open_dict(cfg):
            cfg.run_dir = folder
        keys = [key for key in BY_DEVICE if OmegaConf.select(cfg, key) == "auto"]
        print(choose_for_device(cfg), flush=True)
    return [f"{key}={str(OmegaConf.select(cfg, key)).lower()}" for key in keys]


class Game:
    """A text interface to an episode, for TRL's environment and reward functions.

    The rules are those of ``rollout.play``: an invalid reply lowers the reward by 0.1 and uses up the turn.
    """

    def __init__(self, max_turns: int, filler: int = 0) -> None:
        self.max_turns = max_turns
        self._env = EndlessSokoban(split="train", filler=filler, **SOLUTIONS)
        self._prompt = ConstantPrompt(style="compact")

    def start(self, seed: int) -> str:
        """Start a task instance, and return the first message."""
        observation, _ = self._env.reset(seed=seed)
        self.turns_left, self.points = self.max_turns, 0.0
        messages = self._prompt.write_opening(
            name=NAME, rules=self._env.rules, actions=self._env.actions(), observation=observation,
            max_turns=self.max_turns, max_actions=self.max_turns * ACTIONS_PER_TURN,
            max_actions_per_turn=ACTIONS_PER_TURN,
        )  # fmt: skip
        return messages[0]["content"]

    def play(self, text: str) -> str:
        """Play the actions of a reply, and return the next message."""
        reply = ANSWER.parse(text, self._env.actions(), think=True)
        observation = self._env._observe()
        for action in reply.actions[:ACTIONS_PER_TURN]:
            observation, points, _, _, info = self._env.step(action)
            self.points += points
        self.points -= 0.1 * (not reply.is_valid)
        self.turns_left -= 1
        return self._prompt.write_next(
            observation=observation, reward=0.0, complaint="", turns_left=self.turns_left, actions_left=0
        )


def list_options(
    *, turns: int, prompts: int, members: int, reply_tokens: int, context: int, filler: int
) -> Sequence[str]:
    """Return the options of the job for ``train.py``; all others have their defaults."""
    return [
        "algo=grpo", "filter=none", "env=sokoban", "env.game._target_=scripts.bench.trl_games.EndlessSokoban",
        f"env.max_turns={turns}", f"env.max_actions={turns * ACTIONS_PER_TURN}",
        f"env.max_actions_per_turn={ACTIONS_PER_TURN}",
        *(f"env.game.{name}={value}" for name, value in SOLUTIONS.items()),
        "prompt._target_=scripts.bench.trl_games.ConstantPrompt", f"+env.game.filler={filler}",
        "engine._target_=scripts.bench.trl_games.make_fixed_length_engine",
        f"engine.num_slots={prompts * members}", f"rollout.prompts={prompts}", f"rollout.members={members}",
        f"rollout.max_reply_tokens={reply_tokens}", f"rollout.max_context_tokens={context}",
    ]  # fmt: skip
