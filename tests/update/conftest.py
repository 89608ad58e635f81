"""Recorded rollouts of a tiny policy, and one optimiser step on them through a real Trainer."""

from __future__ import annotations

import copy
import itertools
from functools import lru_cache, partial

import lightning.pytorch as pl
import torch

from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.data.prompts import OneBatch
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.engines.native.engine import NativeEngine
from lit_agentrl.modules.policy import PolicyModule
from lit_agentrl.rl.credit import advantages
from lit_agentrl.rl.policy import aggregation, clipping, ratios
from lit_agentrl.rl.policy.algorithm import Algorithm
from lit_agentrl.rollout.pack import pack
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.scheduler import EpisodeSpec, Scheduler, Wave
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.conftest import load_task_yaml, tiny_policy


@lru_cache
def recorded():
    """12 ragged episodes in 3 groups, with made-up returns so that advantages are not all zero."""
    policy = tiny_policy()
    chat = ChatRenderer(policy.tokenizer)
    tasks = [load_task_yaml(name) for name in ("sokoban", "frozen_lake", "bandit")]
    rules = Rules(
        tasks=tasks, prompt=Prompt(style="compact"), chat=chat, engine=partial(NativeEngine, num_slots=5),
        max_context_tokens=400,
    )  # fmt: skip
    specs = tuple(EpisodeSpec(0, g, m, g, 100 + g) for g in range(3) for m in range(4))
    params = SamplingParams(max_reply_tokens=6, max_context_tokens=400)
    episodes = Scheduler(rules, rules.open_engine(policy.network)).play(Wave("train", 0, params, specs))
    for episode in episodes:
        episode.turns[-1].reward += (episode.member * 7 + episode.group * 3) % 5
    return episodes, pack(episodes)


def algorithm(**parts):
    axes = {
        "advantage": partial(advantages.group_mean_std),
        "ratio": partial(ratios.token),
        "clip": partial(clipping.symmetric, epsilon=0.2),
        "aggregate": partial(aggregation.seq_mean_token_mean),
    }
    made = Algorithm(name="test", **{**axes, **parts})
    made.try_out(TrajectoryBatch.make_toy().to_dict())
    return made


def step(
    trajectories=None, *, alg=None, iterations=1, optim=None, policy=None, inspect=None, critic=None,
    kept_groups=3, **update
):  # fmt: skip
    """Train on the recorded batch with plain SGD; returns (module, change of the weights)."""
    policy = policy or tiny_policy()
    before = copy.deepcopy(policy.network.state_dict())
    module = PolicyModule(
        policy, objective=alg or algorithm(), update=UpdateSettings(**{"grad_clip": 1e9, **update}),
        optim=optim or OptimSettings(optimizer=torch.optim.SGD, lr=1.0), critic=critic,
    )  # fmt: skip
    batch = recorded()[1] if trajectories is None else trajectories
    iteration = itertools.count()
    loader = OneBatch(
        lambda: StepBatch(
            next(iteration),
            [0] * 3,
            [0, 1, 2],
            [0, 1, 2],
            trajectories=batch,
            num_groups=3,
            num_kept_groups=kept_groups,
        )
    )
    trainer = pl.Trainer(
        max_epochs=iterations, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=inspect or [],
    )  # fmt: skip
    trainer.fit(module, loader)
    after = policy.network.state_dict()
    return module, {name: after[name] - before[name] for name in before}
