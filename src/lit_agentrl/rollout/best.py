"""Episodes of best play, shown to a policy as examples or used to train it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from lit_agentrl import seeds
from lit_agentrl.batch import StepBatch
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode, Message
from lit_agentrl.rollout.episode import EpisodeInPlay
from lit_agentrl.rollout.rehearsal import play_text
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.pool import GamePools


def find_best_play(env: World, shown: str, *, horizon: int, max_actions: int) -> str | None:
    """Return the thought and next actions of best play as JSON; None if unknown.

    The plan covers ``horizon`` actions; at most ``max_actions`` of them are returned.  The actions of the whole plan
    are the thought of a game that has none.
    """
    plan = env.optimal_actions(horizon=horizon)
    if not plan:
        return None
    actions = plan[: max_actions if env.action_format() == "names" else 1]
    thought = env.best_thought()
    return json.dumps([" ".join(plan) if thought is None else thought, actions])


def play_best(
    pools: GamePools, rules: Rules, episode: Episode, *, split: str, noise_seed: int
) -> list[Message] | None:
    """Fill an episode with best play and return its dialogue.

    Args:
        pools: Pools of the games of the rules.
        rules: Rules by which episodes are played.
        episode: Record that names the game and its instance.
        split: Split of the instance.
        noise_seed: Noise seed of the game.

    Returns:
        The dialogue; None if best play is unknown at some turn.

    Raises:
        ValueError: The game fails.
    """
    game, dialect = rules.tasks[episode.task], rules.chat.dialect
    play = EpisodeInPlay(episode, rules)
    pools.reset(0, episode.task, split=split, seed=episode.instance_seed, noise_seed=noise_seed)
    play.begin(pools.take(0))
    look = partial(find_best_play, horizon=game.action_budget, max_actions=game.max_actions_per_turn)
    dialogue: list[Message] = []
    is_known = True
    while is_known and not play.is_over:
        pools.look(0, look)
        best = pools.take(0).result
        is_known = best is not None
        if best is not None:
            thought, actions = json.loads(best)
            text = dialect.write(actions, thought=thought if rules.prompt.think else None)
            question = episode.turns[-1].message or episode.opening[-1]["content"]
            dialogue += [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
            play_text(pools, play, text)
    pools.release(0, is_broken=episode.failed)
    if is_known and episode.failed:
        raise ValueError(f"{game.name}: {episode.error}")
    return dialogue if is_known else None


def play_demonstrations(pools: GamePools, rules: Rules, batch: StepBatch, *, split: str) -> list[Episode]:
    """Return an episode of best play for each prompt where it is known.

    The log-probs of its tokens are NaN, since no policy sampled them.

    Raises:
        ValueError: The game fails, or does not know best play for any of them.
    """
    episodes: list[Episode] = []
    for group, task, seed in zip(batch.group_P, batch.task_P, batch.seed_P, strict=True):
        episode = Episode(batch.iteration, group, 0, task, rules.tasks[task].name, seed)
        noise = seeds.make_key(rules.seed, f"{split}/noise", group)
        if play_best(pools, rules, episode, split=split, noise_seed=noise) is not None:
            episodes.append(_mark_logps_unknown(episode))
    if not episodes:
        raise ValueError(f"{rules.tasks[batch.task_P[0]].name} does not know best play of its instances")
    return episodes


def _mark_logps_unknown(episode: Episode) -> Episode:
    for turn in episode.turns:
        unknown: Sequence[float] = np.full(len(turn.reply_tokens), math.nan)  # type: ignore[assignment]
        turn.reply_logps = turn.reply_entropies = unknown  # type: ignore[assignment]
        turn.policy_version = -1
    return episode
