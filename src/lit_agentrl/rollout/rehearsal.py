"""Throw-away episodes of random actions: every kind of prompt is seen before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from lit_agentrl.checks import blamed
from lit_agentrl.engines.base import TurnResult
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.episode import EpisodeInPlay
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.seats import Seats

_INVALID = "?"  # a reply where no legal action is known: it shows at least how a turn goes on


def rehearse(rules: Rules, task: int, *, episodes: int = 4, is_trained: bool = False) -> Iterator[Episode]:
    """Play train instances of one game with one random action a turn; a game that fails ends its own episode.

    Args:
        rules: how episodes are played.
        task: index of the game.
        episodes: how many.
        is_trained: reward parts look at it, so that their probes are measured.

    Raises:
        ValueError: the dialect cannot write what the game takes; or from the context, whose condenser may fail.
    """
    rng, chat, game = np.random.default_rng(0), rules.chat, rules.tasks[task]
    dialect = chat.dialect
    probes = rules.probes if is_trained else {}
    with closing(Seats(game, probes)) as seats:
        for seed in range(episodes):
            episode = Episode(0, 0, 0, task, game.name, seed)
            play = EpisodeInPlay(episode, rules)
            play.begin(seats.reset(0, "train", seed, seed))
            if play.is_over:
                seats.release(0, is_broken=True)
                yield episode
                continue
            _, env = seats.envs[0]
            with blamed("env", f"env: game {game.name}"):
                kind = env.action_format()
            if kind not in dialect.formats:
                raise ValueError(
                    f"dialect cannot write actions of format {kind}, which {game.name} takes, but only "
                    f"{', '.join(sorted(dialect.formats))}; choose another dialect, such as dialect=answer"
                )
            while not play.is_over:
                with blamed("env", f"env: game {game.name}"):
                    action = env.random_action(rng)
                    if not isinstance(action, str | None):
                        raise ValueError(f"random_action must give a text or None, not {action!r}")
                text = _INVALID
                if action is not None:
                    with blamed("dialect"):
                        text = dialect.write([action], thought="" if rules.prompt.think else None)
                    text = text.removeprefix(dialect.think_start if chat.forced_think else "")
                tokens = chat.encode(text)
                zeros = [0.0] * len(tokens)
                actions = play.hear(TurnResult(0, tokens, zeros, zeros))
                if not play.is_over:
                    play.go_on(seats.step(0, actions))
            seats.release(0, is_broken=episode.failed)
            yield episode
