"""Discarded episodes of random actions, which show every kind of prompt before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numpy as np

from lit_agentrl.checks import blame
from lit_agentrl.engines.base import TurnResult
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.episode import EpisodeInPlay, open_episode
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.environments import random_action
from lit_agentrl.rollout.worlds.pool import GamePools

_INVALID = "?"  # reply if no legal action is known: shows at least how a turn continues


def rehearse(rules: Rules, task: int, *, episodes: int = 4, is_trained: bool = False) -> Iterator[Episode]:
    """Play train episodes of a game with one random action per turn.

    The game runs where its hosting says.  A game that fails ends only its own episode.

    Args:
        rules: Rules by which episodes are played.
        task: Index of the game.
        episodes: Number of episodes.
        is_trained: Whether the game is one of training; then the probes of reward parts are measured in it.

    Raises:
        ValueError: The dialect cannot write the game's actions, or the context fails, for example in its condenser.
    """
    chat, game = rules.chat, rules.tasks[task]
    dialect = chat.dialect
    with closing(GamePools([game], rules.probes if is_trained else {})) as pools:
        for seed in range(episodes):
            episode = Episode(0, 0, 0, task, game.name, seed)
            play = open_episode(episode, rules)
            pools.reset(0, 0, split="train", seed=seed, noise_seed=seed)
            opening = pools.take(0)
            play.begin(opening)
            if play.is_over:
                pools.release(0, is_broken=True)
                yield episode
                continue
            assert opening.actions is not None
            if (kind := opening.actions.format) not in dialect.formats and not play.takes_any_reply:
                raise ValueError(
                    f"dialect cannot write actions of format {kind}, which {game.name} takes, but only "
                    f"{', '.join(sorted(dialect.formats))}; choose another dialect, such as dialect=answer"
                )
            while not play.is_over:
                action = _draw_random_action(pools, game.name, (seed, len(episode.turns)))
                text = _INVALID
                if action is not None:
                    with blame("dialect"):
                        text = dialect.write([action], thought="" if rules.prompt.think else None)
                play_text(pools, play, text)
            pools.release(0, is_broken=episode.failed)
            yield episode


def play_text(pools: GamePools, play: EpisodeInPlay, text: str) -> None:
    """Play a text as reply in the episode with key 0, and record the answer."""
    chat = play.rules.chat
    tokens = chat.encode(text.removeprefix(chat.dialect.think_start if chat.forced_think else ""))
    zeros = [0.0] * len(tokens)
    actions = play.receive_reply(TurnResult(0, tokens, zeros, zeros))
    if not play.is_over:
        pools.step(0, actions)
        play.continue_play(pools.take(0))


def _draw_random_action(pools: GamePools, name: str, seed: tuple[int, int]) -> str | None:
    pools.look(0, partial(random_action, rng=np.random.default_rng(seed)))
    answer = pools.take(0)
    if answer.error:
        raise ValueError(f"env: game {name}: {answer.error.removeprefix('ValueError: ')}")
    return answer.result
