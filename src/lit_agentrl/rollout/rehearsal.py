"""Throw-away episodes of random actions: every kind of prompt is seen before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lit_agentrl.engines.base import TurnResult
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.episode import EpisodeInPlay
from lit_agentrl.text.chat import THINK_START, ChatRenderer
from lit_agentrl.text.context import Context
from lit_agentrl.text.prompts import Prompt


def rehearse(
    task: Task, prompt: Prompt, chat: ChatRenderer, context: Context, *, episodes: int = 4
) -> Iterator[Episode]:
    """Play train instances with one random action a turn; a game that fails ends its own episode.

    Raises:
        ValueError: from the context, whose condenser may fail.
    """
    rng = np.random.default_rng(0)
    for seed in range(episodes):
        episode = Episode(0, 0, 0, 0, task.name, seed)
        play = EpisodeInPlay(episode, task, task.make("train"), prompt, chat, context=context)
        play.begin(noise_seed=seed)
        while not play.is_over:
            think = ("" if chat.forced_think else THINK_START) + "</think>" if prompt.think else ""
            text = f"{think}<answer>{play.env.random_action(rng)}</answer>"
            tokens = list(chat.tokenizer(text, add_special_tokens=False)["input_ids"])
            zeros = [0.0] * len(tokens)
            play.answer(TurnResult(0, tokens, zeros, zeros))
        yield episode
