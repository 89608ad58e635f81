"""Thoughts of played episodes: their contexts, samples of them, and replacements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lit_agentrl import seeds
from lit_agentrl.envs.world import World
from lit_agentrl.episode import PLANNER, Episode, Segment
from lit_agentrl.rollout.worlds.branch_point import list_row_tokens
from lit_agentrl.text.chat import ChatRenderer


@dataclass(frozen=True)
class Thought:
    """A thought that was closed before the answer, as tokens.

    Attributes:
        episode: Index of its episode in the list.
        group: Number of the episode's group.
        turn: Number of its turn, counted from 0.
        context: All tokens that the policy had read and written before it.
        tokens: Its own tokens, including sampled tags.
        lead: Tokens of the reply before it; usually none.
        is_plan: Whether a turn of the planner contains it, see `two_level`.
    """

    episode: int
    group: int
    turn: int
    context: tuple[int, ...]
    tokens: tuple[int, ...]
    lead: tuple[int, ...] = ()
    is_plan: bool = False

    @property
    def opening(self) -> tuple[int, ...]:
        """The beginning of its reply, up to the end of the thought."""
        return (*self.lead, *self.tokens)


def list_thoughts(episodes: Sequence[Episode]) -> list[Thought]:
    """Return the thoughts of all turns, in order; failed episodes have none."""
    thoughts = []
    for index, episode in enumerate(episodes):
        for number, turn in enumerate(episode.turns if not episode.failed else ()):
            think_places = np.flatnonzero(turn.reply_segments == Segment.THINK)
            if not turn.has_think or not len(think_places):
                continue
            first, end = int(think_places[0]), int(think_places[-1]) + 1
            reply = turn.reply_tokens.tolist()
            row = list_row_tokens(episode.turns[: number + 1])
            before = row[: len(row) - len(reply)]
            thoughts.append(
                Thought(
                    index, episode.group, number, (*before, *reply[:first]), tuple(reply[first:end]),
                    tuple(reply[:first]), turn.player == PLANNER,
                )
            )  # fmt: skip
    return thoughts


def select_first_turns(thoughts: Sequence[Thought], number: int) -> list[Thought]:
    """Return the thoughts of the first turns of ``number`` episodes."""
    return [thought for thought in thoughts if thought.turn == 0][:number]


def draw_turns(thoughts: Sequence[Thought], number: int, seed: int) -> list[Thought]:
    """Draw thoughts with replacement: first an episode, uniformly, then one of its turns."""
    by_episode: dict[int, list[Thought]] = {}
    for thought in thoughts:
        by_episode.setdefault(thought.episode, []).append(thought)
    episodes = list(by_episode.values())

    def draw(count: int, *address: int) -> int:
        return int(seeds.draw_uniform(seed, "thoughts/draw", *address) * count)

    chosen = [(k, episodes[draw(len(episodes), k, 0)]) for k in range(number)] if episodes else []
    return [turns[draw(len(turns), k, 1)] for k, turns in chosen]


def best_thought(env: World, shown: str) -> str | None:
    """Return the thought of best play in the current state of a game."""
    return env.best_thought()


def encode_think_block(chat: ChatRenderer, thought: str = "") -> list[int]:
    """Return the tokens of a think block with this thought, without the reply header.

    Raises:
        ValueError: The dialect does not write thoughts in a block before the answer.
    """
    with_thought = chat.dialect.write(["q2"], thought="q1")
    without_thought = chat.dialect.write(["q2"], thought=None)
    if not with_thought.endswith(without_thought) or "q1" not in with_thought[: -len(without_thought)]:
        raise ValueError(f"dialect {type(chat.dialect).__name__} has no think block before the answer")
    block = with_thought[: -len(without_thought)].replace("q1", thought)
    if chat.forced_think:
        block = block.removeprefix(chat.dialect.think_start)
    return list(chat.tokenizer.encode(block, add_special_tokens=False))


class SwappedThoughts:
    """A draw of another prompt's thought for each turn, from the same turn if possible.

    Args:
        thoughts: Thoughts of the episodes as they were played.
        groups: Groups of the episodes that are played again, in order.
        seed: Seed of the draws.

    Raises:
        ValueError: All thoughts belong to one group.
    """

    def __init__(self, thoughts: Sequence[Thought], groups: Sequence[int], seed: int) -> None:
        if len({thought.group for thought in thoughts}) < 2:
            raise ValueError("thoughts can only be exchanged between two or more prompts; raise episodes")
        self._all, self._groups, self._seed = list(thoughts), list(groups), seed

    def __call__(self, episode: int, turn: int) -> Sequence[int]:
        """Return the tokens of a thought for this episode and turn."""
        others = [thought for thought in self._all if thought.group != self._groups[episode]]
        candidates = [thought for thought in others if thought.turn == turn] or others
        draw = seeds.draw_uniform(self._seed, "thoughts/swap", episode, turn)
        return candidates[int(draw * len(candidates))].opening
