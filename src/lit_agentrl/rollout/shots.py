"""Few-shot prompts: episodes that best play has solved, shown before a game begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode, Message
from lit_agentrl.rollout.episode import EpisodeInPlay
from lit_agentrl.rollout.rehearsal import say
from lit_agentrl.rollout.rules import Rules
from lit_agentrl.rollout.worlds import Desk
from lit_agentrl.text.context import FULL
from lit_agentrl.text.prompts import opening_with

_TRIES = 20  # train instances for each episode wanted: where a game has slips, best play does not solve all


def best_play(env: World, shown: str, *, horizon: int, most: int) -> str | None:
    """What best play thinks and does next, at most so many actions, as JSON; None where it is not known.

    A game without a thought of its own is thought about in the actions of the whole plan.
    """
    plan = env.optimal_actions(horizon=horizon)
    if not plan:
        return None
    actions = plan[: most if env.action_format() == "names" else 1]
    thought = env.best_thought()
    return json.dumps([" ".join(plan) if thought is None else thought, actions])


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
    lengths = [len(chat.opening(opening_with(each, lambda: list(told))).tokens) for each in ((), shots)]
    most = rules.max_context_tokens + lengths[1] - lengths[0]
    return replace(rules, shots={game.name: tuple(shots)}, max_context_tokens=most)


def _solved(desk: Desk, rules: Rules, task: int, seed: int) -> tuple[Episode, list[Message]]:
    """Best play of a train instance, and what was said in it; nothing unless it was solved."""
    game, dialect = rules.tasks[task], rules.chat.dialect
    play = EpisodeInPlay(Episode(0, 0, 0, task, game.name, seed), rules)
    desk.reset(0, 0, split="train", seed=seed, noise_seed=seed)
    play.begin(desk.take(0))
    asks = partial(best_play, horizon=game.action_budget, most=game.max_actions_per_turn)
    dialogue: list[Message] = []
    while not play.is_over:
        desk.look(0, asks)
        if (found := desk.take(0).found) is None:
            if not dialogue and not seed:
                raise ValueError(
                    f"shots: {game.name} does not know best play, which writes the episodes; leave shots out"
                )
            break
        thought, actions = json.loads(found)
        text = dialect.write(actions, thought=thought if rules.prompt.think else None)
        asked = play.episode.turns[-1].message or play.episode.opening[-1]["content"]
        dialogue += [{"role": "user", "content": asked}, {"role": "assistant", "content": text}]
        say(desk, play, text)
    desk.release(0, is_broken=play.episode.failed)
    if play.episode.failed:
        raise ValueError(f"shots: {game.name}: {play.episode.error}")
    return play.episode, dialogue if play.episode.success else []
