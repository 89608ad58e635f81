"""Restoring or replaying a game up to the point where an episode branches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lit_agentrl.actions import Actions
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Turn
from lit_agentrl.rollout.worlds.validation import OF_STEP, check_returned, make_readable


@dataclass(frozen=True)
class BranchPoint:
    """The point where an episode continues from turns of another.

    Attributes:
        played: The actions so far, in parts, each with the noise seed under which it was played.
        state: State of the game at that point; None replays the actions.
        observation: Observation of the game at that point.
    """

    played: tuple[tuple[int, tuple[str, ...]], ...]
    state: dict[str, Any] | None
    observation: str


def describe_branch_point(
    turns: Sequence[Turn], noise: Sequence[tuple[int, int]], state: dict[str, Any] | None
) -> BranchPoint:
    """Return how a game reaches the start of the last of these turns.

    Args:
        turns: Turns of the episode; the last one has no reply yet.
        noise: Pairs of first turn and noise seed; the last pair applies to what follows.
        state: State of the game at that point, if it has one.
    """
    parts = zip(noise[:-1], [start for start, _ in noise[1:]], strict=True)
    played = tuple(
        (seed, tuple(action for turn in turns[start:end] for action in turn.actions))
        for (start, seed), end in parts
    )
    return BranchPoint(played, state, turns[-1].observation)


def list_row_tokens(turns: Sequence[Turn]) -> list[int]:
    """Return the tokens before the last reply, from the beginning of its row."""
    first = max((k for k, turn in enumerate(turns) if turn.starts_row), default=0)
    parts = [part for turn in turns[first:] for part in (turn.prefix_tokens, turn.reply_tokens)]
    return [int(token) for part in parts for token in part]


def restore_game(env: World, point: BranchPoint, noise_seed: int) -> int:
    """Restore or replay a reset game; return the number of actions played.

    Raises:
        ValueError: The replay shows another observation.
    """
    steps = 0
    if point.state is not None:
        env.load_state_dict(copy.deepcopy(point.state))
    else:
        shown = point.observation
        for number, (noise, actions) in enumerate(point.played):
            if number:
                env.rekey(noise)
            for action in actions:
                shown = check_returned("step", env.step(action), OF_STEP)[0]
                steps += 1
        if make_readable(shown) != point.observation:
            raise ValueError(
                "played again by its seeds and actions, it shows something else; a game in which episodes branch must "
                "be repeatable, or have a state (has_state)"
            )
    env.rekey(noise_seed)
    return steps


@dataclass(frozen=True)
class Node:
    """The start of a turn: actions, remaining budget, and the game's state if requested."""

    actions: Actions
    actions_left: int
    state: dict[str, Any] | None


def copy_turn(turn: Turn) -> Turn:
    """Return an independent copy of a parent's turn, whose rewards may differ."""
    return replace(
        turn, actions=list(turn.actions), reward_parts=dict(turn.reward_parts), probes=dict(turn.probes),
        counts=dict(turn.counts),
    )  # fmt: skip


def copy_without_reply(turn: Turn) -> Turn:
    """Return a turn without its reply."""
    return Turn(
        observation=turn.observation,
        prefix_tokens=turn.prefix_tokens,
        prefix_segments=turn.prefix_segments,
        message=turn.message,
        state_key=turn.state_key,
        player=turn.player,
        starts_row=turn.starts_row,
        probes=dict(turn.probes),
    )
