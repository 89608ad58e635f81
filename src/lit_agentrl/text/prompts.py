"""What the policy is told: the opening messages of an episode and the message after each turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lit_agentrl.text.parsing import INVALID_PROBLEMS, PROBLEMS

Style = Literal["compact", "full"]

_WHY_INVALID = {
    "no_answer": "it had no answer block",
    "two_answers": "it had more than one answer block",
    "unclosed_answer": "its answer block was not closed",
    "nested_tags": "it had a tag inside the answer block",
    "empty_answer": "its answer block was empty",
    "empty_action": "it had nothing between two separators",
    "unknown_action": "it named an action that does not exist",
}


@dataclass(frozen=True)
class Prompt:
    """How a game is put into words; the same for every game.

    Args:
        style: ``compact`` is a few words a turn, for the embedded policy; ``full`` explains rules, format
            and budgets in a system message, for instruction-tuned models.
        think: Whether the reply format has a think block; also what the parser is told.
        force_think: Whether the reply header ends in ``<think>``; for the chat renderer.
        show_reward: Whether a turn's reward is told with the next observation.

    Raises:
        ValueError: For an unknown style, or a forced think tag in a format without one.
    """

    style: Style
    think: bool = True
    force_think: bool = False
    show_reward: bool = True

    def __post_init__(self) -> None:
        if self.style not in get_args(Style):
            raise ValueError(f"prompt.style={self.style!r} must be one of {', '.join(get_args(Style))}")
        for name in ("think", "force_think", "show_reward"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"prompt.{name}={getattr(self, name)!r} must be true or false")
        if self.force_think and not self.think:
            raise ValueError("prompt.force_think=true needs prompt.think=true")

    def opening(
        self,
        *,
        name: str,
        rules: str,
        action_names: Sequence[str] | None,
        observation: str,
        max_turns: int,
        max_actions: int,
        max_actions_per_turn: int,
        message: str | None = None,
    ) -> list[dict[str, str]]:
        """The chat messages before the first reply.

        Args:
            name: Name of the game, one line.
            rules: Its rules text (style ``full`` only).
            action_names: What can be answered; None where actions are free text (style ``full`` only).
            observation: The first observation.
            max_turns: Replies the policy has.
            max_actions: Actions it has in all.
            max_actions_per_turn: Actions one reply may hold (style ``full`` only).
            message: The message of a later turn, with which the dialogue begins in place of the first observation.

        Raises:
            ValueError: If a budget is below 1, the name is not one line, or there are no actions.
        """
        budgets = (max_turns, max_actions, max_actions_per_turn)
        for key, value in zip(("max_turns", "max_actions", "max_actions_per_turn"), budgets, strict=True):
            if value < 1:
                raise ValueError(f"{key}={value} must be at least 1")
        if not name.strip() or len(name.splitlines()) != 1:
            raise ValueError(f"name={name!r} must be one line of text")
        if action_names is not None and not action_names:
            raise ValueError("action_names=() must hold at least one action; None means free text")
        if self.style == "compact":
            first = f"turns {max_turns} actions {max_actions}\n{observation}" if message is None else message
            return [_user(f"{name}\n{first}")]
        system = "\n\n".join(
            [
                f"You are playing {name}.\n{rules.strip()}",
                f"You have {_count(max_turns, 'turn')} and {_count(max_actions, 'action')} in all. "
                f"One reply may hold up to {_count(max_actions_per_turn, 'action')}.",
                self._format(action_names, min(max_actions_per_turn, max_actions)),
            ]
        )
        return [{"role": "system", "content": system}, _user(observation if message is None else message)]

    def following(
        self, *, observation: str, reward: float, problem: str, turns_left: int, actions_left: int
    ) -> str:
        """The user message after a turn.

        Args:
            observation: What the game shows now.
            reward: Environment reward and protocol penalty of the last turn, in points.
            problem: What the parser found wrong with the last reply, one of its closed set.
            turns_left: Replies left.
            actions_left: Actions left in all.

        Raises:
            ValueError: For an unknown problem, a reward that is not finite, or a negative budget.
        """
        if problem not in PROBLEMS:
            raise ValueError(f"problem={problem!r} must be one of {sorted(PROBLEMS)}")
        if not math.isfinite(reward):
            raise ValueError(f"reward={reward} must be finite")
        if turns_left < 0 or actions_left < 0:
            raise ValueError(f"turns_left={turns_left} and actions_left={actions_left} must not be negative")
        points = f"{round(reward, 1) + 0.0:+.1f}"  # adding 0.0 turns -0.0 into +0.0
        is_invalid = problem in INVALID_PROBLEMS
        if self.style == "compact":
            lines = ["invalid"] * is_invalid + [f"reward {points}"] * self.show_reward
            return "\n".join([*lines, f"turns {turns_left} actions {actions_left}", observation])
        lines = [f"Your last reply was invalid: {_WHY_INVALID[problem]}."] if is_invalid else []
        if self.show_reward:
            lines.append(f"Your last turn earned {points} points.")
        lines.append(f"You have {_count(turns_left, 'turn')} and {_count(actions_left, 'action')} left.")
        return "\n".join([*lines, "The game now shows:", observation])

    def _format(self, action_names: Sequence[str] | None, max_actions: int) -> str:
        """The reply format in words, with an example."""
        samples = ["your action", "your next action"] if action_names is None else list(action_names)[:2]
        example = " || ".join(samples[:max_actions])
        lines = ["Think inside <think> </think> first, then act."] if self.think else []
        lines.append("Put your actions inside <answer> </answer>, once.")
        if max_actions > 1:
            lines.append("Separate actions by ||.")
        if action_names is not None:
            lines.append(f"The actions are: {', '.join(action_names)}.")
        thought = "<think>what I see and why I act</think>" if self.think else ""
        return "\n".join([*lines, "For example:", f"{thought}<answer>{example}</answer>"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
