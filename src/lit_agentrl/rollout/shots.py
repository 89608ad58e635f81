"""Few-shot prompts: episodes that best play has solved, shown before a game begins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from lit_agentrl.checks import name_errors
from lit_agentrl.episode import Episode, Message
from lit_agentrl.rollout.best import play_best
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds.pool import Desk
from lit_agentrl.text.context import FULL
from lit_agentrl.text.prompts import add_shots

_TRIES = 20  # train instances for each episode wanted: where a game has slips, best play does not solve all


def with_shots(rules: Rules, task: int, number: int) -> Rules:
    """Rules that show solved episodes of a game before it begins, each with its messages and replies.

    Limits of context grow by what they take, so that an episode keeps the room that it has without them.

    Args:
        rules: how episodes are played.
        task: index of the game.
        number: of episodes, of the train split, in the order of their seeds.

    Raises:
        ValueError: the game fails, does not know best play, or is hardly ever solved by it.
    """
    game, chat = rules.tasks[task], rules.chat
    shots: list[Message] = []
    told: Sequence[Message] = ()
    plain = replace(rules, context=FULL, shots={}, asks=None)
    left = number
    with closing(Desk([game], {})) as desk:
        for seed in range(_TRIES * number):
            episode, dialogue = _solved(desk, plain, task, seed)
            told = told or episode.opening
            shots, left = shots + dialogue, left - bool(dialogue)
            if not left:
                break
        else:
            raise ValueError(
                f"shots={number}: best play has solved {number - left} of {_TRIES * number} train instances of "
                f"{game.name}; lower shots"
            )
    lengths = [len(chat.render_opening(add_shots(each, lambda: list(told))).tokens) for each in ((), shots)]
    most = rules.max_context_tokens + lengths[1] - lengths[0]
    return replace(rules, shots={game.name: tuple(shots)}, max_context_tokens=most)


def _solved(desk: Desk, rules: Rules, task: int, seed: int) -> tuple[Episode, list[Message]]:
    """Best play of a train instance, and what was said in it; nothing unless it was solved."""
    name = rules.tasks[task].name
    episode = Episode(0, 0, 0, task, name, seed)
    with name_errors("shots"):
        dialogue = play_best(desk, rules, episode, split="train", noise_seed=seed)
    if dialogue is None and not seed and len(episode.turns) < 2:
        raise ValueError(f"shots: {name} does not know best play, which writes the episodes; leave shots out")
    return episode, dialogue if dialogue and episode.success else []
