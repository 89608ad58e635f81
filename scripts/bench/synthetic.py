"""Random networks and episodes of chosen lengths, for benchmarks of cost alone.

All parts of a run are used: game, prompt, chat template, sampler, native engine, packing, training step.  Only the
parts that determine lengths are replaced: no reply stops before its limit (so each reply is invalid, and the state of
the game does not change), and the game shows as many cells as are needed to fill the row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hydra import compose
from hydra.utils import instantiate
from transformers import LlamaConfig, LlamaForCausalLM

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.build.structure import build_algorithm
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.data.prompts import OneBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.envs.base import Outcome, Task, TextEnv
from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import Policy, load_nano
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from scripts.bench.common import Measured

HEAD = 32  # width of an attention head


def make_random_policy(width: int = 128, depth: int = 5, context: int = 2048) -> Policy:
    """Make a random Llama-like decoder with the embedded policy's proportions and vocabulary."""
    if width % (2 * HEAD):
        raise ValueError(f"width={width} must be a multiple of {2 * HEAD}")
    torch.manual_seed(0)
    tokenizer = load_nano().tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=depth, intermediate_size=11 * width // 4,
        num_attention_heads=width // HEAD, num_key_value_heads=width // HEAD // 2, head_dim=HEAD,
        max_position_embeddings=context, tie_word_embeddings=True, pad_token_id=0, bos_token_id=None, eos_token_id=5,
    )  # fmt: skip
    return Policy(LlamaForCausalLM(config).eval(), tokenizer, f"llama-{width}x{depth}")


class Wall(TextEnv):
    """A game that always shows a row of empty cells."""

    def __init__(self, *, split: str = "train", cells: int = 1) -> None:
        super().__init__(split=split)
        self.cells = cells

    @property
    def rules(self) -> str:
        return "Nothing happens."

    def action_names(self) -> list[str]:
        return ["Wait"]

    def _draw_instance(self, seed: int) -> str:
        return f"wall {seed}"

    def _observe(self) -> str:
        return "_ " * self.cells

    def _play(self, action: str) -> Outcome:
        return Outcome()

    def _get_state(self) -> dict[str, Any]:
        return {}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        pass


class NeverStop:
    """A stop rule under which no reply is complete before its limit."""

    def update(self, state: str, token: int) -> tuple[str, bool]:
        return state, False


@dataclass(frozen=True)
class Shape:
    """The shape of episodes: ``turns`` replies of ``reply`` tokens each.

    Rows have ``row`` tokens; 0 makes them as short as possible.
    """

    turns: int
    reply: int
    row: int = 0


class Player:
    """A player of episodes of one shape.

    Raises:
        ValueError: the messages and replies are longer than the row.
    """

    def __init__(
        self, policy: Policy, shape: Shape, *, slots: int, precision: str = "32-true", device: str = "cpu"
    ) -> None:
        self.shape, self.chat = shape, ChatRenderer(policy.tokenizer)
        policy.network.to(device)
        context = policy.network.config.max_position_embeddings
        mixed = partial(torch.autocast, device, torch.bfloat16)
        self._engine = NativeEngine(
            policy.network, stop=NeverStop(), end_of_turn_ids=(), num_slots=slots, max_context_tokens=context,
            forward_context=mixed if precision == "bf16-mixed" else nullcontext,
        )  # fmt: skip
        self._params = SamplingParams(max_reply_tokens=shape.reply, max_context_tokens=context)
        self._task = self._make_game(cells=1, name="w")
        shortest = self.play(groups=1, members=1)[0][0].num_tokens
        if shape.row:
            cells, rest = divmod(shape.row - shortest, shape.turns)
            if cells < 0:
                raise ValueError(
                    f"row={shape.row}: {shape.turns} turns of {shape.reply} take {shortest} tokens"
                )
            self._task = self._make_game(cells=1 + cells, name="w" + " x" * rest)
            found = self.play(groups=1, members=1)[0][0].num_tokens
            assert found == shape.row, f"a row has {found} tokens, not {shape.row}"

    def _make_game(self, *, cells: int, name: str) -> Task:
        turns = self.shape.turns
        return Task(
            name, partial(Wall, cells=cells), max_turns=turns, max_actions=turns, max_actions_per_turn=1
        )

    def play(self, *, groups: int, members: int, seed: int = 0) -> tuple[list[Episode], float]:
        """Play episodes, and return them with their seconds."""
        rules = Rules(
            tasks=[self._task], prompt=Prompt(style="compact"), chat=self.chat, seed=seed,
            engine=lambda **_: self._engine,
        )  # fmt: skip
        scheduler = Scheduler(rules, self._engine)
        self._engine.load(None, seed)
        specs = tuple(EpisodeSpec(0, g, m, 0, g) for g in range(groups) for m in range(members))
        started = time.perf_counter()
        episodes = scheduler.play(Wave("train", 0, self._params, specs))
        seconds = time.perf_counter() - started
        tokens = groups * members * self.shape.turns * self.shape.reply
        assert sum(e.num_action_tokens for e in episodes) == tokens, (
            "a reply has another length than was asked for"
        )
        return episodes, seconds


class Trained:
    """A ``training_step`` of GRPO on given rows, in Lightning's trainer.

    Returns are invented, so that advantages are not zero.
    """

    def __init__(self, policy: Policy, *, precision: str = "32-true") -> None:
        with initialize_hydra():
            cfg = compose("train")
        self.module = PolicyModule(
            policy,
            objective=build_algorithm(cfg)[0],
            update=instantiate(cfg["update"]),
            optim=instantiate(cfg.optim),
        )
        self._precision = precision

    def __call__(self, episodes: list[Episode]) -> float:
        """Run the step, and return its seconds."""
        for episode in episodes:
            episode.turns[-1].reward += episode.member % 2
        rows: TrajectoryBatch = pack(episodes)
        groups = len(torch.unique(rows.group_B))
        batch = StepBatch(0, [0] * groups, [0] * groups, list(range(groups)), trajectories=rows,
                          num_groups=groups, num_kept_groups=groups)  # fmt: skip
        trainer = pl.Trainer(
            max_epochs=1, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, precision=self._precision,
        )  # fmt: skip
        self.module.row = {}
        trainer.fit(self.module, OneBatch(lambda: batch))
        return self.module.row["time/update"]


class PeakMemory:
    """The peak memory between ``start`` and ``read_mebibytes``, of the device or this process."""

    def start(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        elif Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark

    def read_mebibytes(self) -> float:
        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated() / 2**20
        status = Path("/proc/self/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 2**10


def measure(player: Player, trained: Trained, *, groups: int, members: int, seed: int) -> Measured:
    """Measure an iteration: seconds, microseconds per action token, tokens read and peak memory."""
    peak = PeakMemory()
    peak.start()
    episodes, rollout = player.play(groups=groups, members=members, seed=seed)
    update = trained(episodes)
    actions = sum(e.num_action_tokens for e in episodes)
    return {
        "rollout": rollout,
        "update": update,
        "rollout_us": 1e6 * rollout / actions,
        "whole_us": 1e6 * (rollout + update) / actions,
        "episode_ms": 1e3 * (rollout + update) / len(episodes),
        "reuse": sum(e.num_new for e in episodes) / sum(e.num_prefilled + e.num_shared for e in episodes),
        "re_encoded": count_re_encoded(episodes) / sum(e.num_prefilled for e in episodes),
        "peak_mib": peak.read_mebibytes(),
    }


def count_re_encoded(episodes: list[Episode]) -> int:
    """Count the tokens that would be read if every turn read its whole history again."""
    total = 0
    for episode in episodes:
        before = 0
        for turn in episode.turns:
            total += before + len(turn.prefix_tokens)
            before += len(turn.prefix_tokens) + len(turn.reply_tokens)
    return total
