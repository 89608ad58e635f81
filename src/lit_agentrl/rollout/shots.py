"""Few-shot prompts: episodes solved by best play, shown before a game begins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from lit_agentrl.checks import name_errors
from lit_agentrl.episode import Episode, Message
from lit_agentrl.rollout.best import play_best
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.pool import GamePools
from lit_agentrl.text.context import FULL
from lit_agentrl.text.prompts import add_shots

_TRIES = 20  # train prompts per wanted episode: best play does not solve all where actions can slip


def with_shots(rules: Rules, task: int, number: int) -> Rules:
    """Return rules that show solved episodes of a game before it begins.

    Each is shown with its messages and replies.  Context limits grow by the length of these episodes, so that an
    episode has as much room as without them.

    Args:
        rules: Rules by which episodes are played.
        task: Index of the game.
        number: Number of episodes, from the train split, in the order of their seeds.

    Raises:
        ValueError: The game fails, does not know best play, or is hardly ever solved by it.
    """
    game, chat = rules.tasks[task], rules.chat
    shots: list[Message] = []
    opening: Sequence[Message] = ()
    plain = replace(rules, context=FULL, shots={}, asks=None)
    left = number
    with closing(GamePools(rules.tasks, {})) as pools:
        for seed in range(_TRIES * number):
            episode, dialogue = _play_solved(pools, plain, task, seed)
            opening = opening or episode.opening
            shots, left = shots + dialogue, left - bool(dialogue)
            if not left:
                break
        else:
            raise ValueError(
                f"shots={number}: best play has solved {number - left} of {_TRIES * number} train instances of "
                f"{game.name}; lower shots"
            )
    lengths = [
        len(chat.render_opening(add_shots(examples, lambda: list(opening))).tokens)
        for examples in ((), shots)
    ]
    limit = rules.max_context_tokens + lengths[1] - lengths[0]
    return replace(rules, shots={game.name: tuple(shots)}, max_context_tokens=limit)


def _play_solved(pools: GamePools, rules: Rules, task: int, seed: int) -> tuple[Episode, list[Message]]:
    """Return the best-play episode of a train prompt and its dialogue (empty unless solved)."""
    name = rules.tasks[task].name
    episode = Episode(0, 0, 0, task, name, seed)
    with name_errors("shots"):
        dialogue = play_best(pools, rules, episode, split="train", noise_seed=seed)
    if dialogue is None and not seed and len(episode.turns) < 2:
        raise ValueError(f"shots: {name} does not know best play, which writes the episodes; leave shots out")
    return episode, dialogue if dialogue and episode.success else []
