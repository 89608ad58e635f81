"""The texts that the policy reads: opening messages, and the message after each turn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lit_agentrl.actions import Actions
from lit_agentrl.checks import require, require_one_of
from lit_agentrl.text.dialects.answer import ANSWER
from lit_agentrl.text.dialects.base import Dialect, has_tools_in_template

Style = Literal["compact", "full", "bare"]


@dataclass(frozen=True)
class Prompt:
    """The wording of prompts, the same for every game.

    Args:
        style: ``compact`` uses a few words per turn, for the embedded policy; ``full`` explains rules, format
            and budgets in a system message, for instruction-tuned models; ``bare`` shows only the observation.
        think: Whether the reply format has a think block; the parser gets the same value.
        force_think: Whether the reply header ends in ``<think>``; for the chat renderer.
        show_reward: Whether the message after a turn states its reward.

    Raises:
        ValueError: For an unknown style, or a forced think tag in a format without one.
    """

    style: Style
    think: bool = True
    force_think: bool = False
    show_reward: bool = True

    def __post_init__(self) -> None:
        require_one_of("style", self.style, get_args(Style))
        for name in ("think", "force_think", "show_reward"):
            value = getattr(self, name)
            require(isinstance(value, bool), name, value, "true or false")
        if self.force_think and not self.think:
            raise ValueError("force_think=true needs prompt.think=true")

    def write_opening(
        self,
        *,
        name: str,
        rules: str,
        actions: Actions,
        observation: str,
        max_turns: int,
        max_actions: int,
        max_actions_per_turn: int,
        dialect: Dialect = ANSWER,
        system_text: str | None = None,
        message: str | None = None,
    ) -> list[dict[str, str]]:
        """Return the chat messages before the first reply.

        Args:
            name: Name of the game, one line.
            rules: Its rules text (style ``full`` only).
            actions: The available actions (style ``full`` only).
            observation: The first observation.
            max_turns: Maximum number of replies.
            max_actions: Maximum number of actions in the episode.
            max_actions_per_turn: Maximum number of actions in one reply (style ``full`` only).
            dialect: The reply grammar (style ``full`` only).
            system_text: The game's own start of the system message, in place of name and rules.
            message: The message of a later turn, to begin the dialogue in place of the first observation.

        Raises:
            ValueError: If a budget is below 1, or the name is not one line.
        """
        _check(name, max_turns=max_turns, max_actions=max_actions, max_actions_per_turn=max_actions_per_turn)
        if self.style == "compact":
            first = f"turns {max_turns} actions {max_actions}\n{observation}" if message is None else message
            return [_make_user_message(f"{name}\n{first}")]
        user = _make_user_message(observation if message is None else message)
        parts = [system_text or ""]
        if self.style == "full":
            parts = [
                f"You are playing {name}.\n{rules.strip()}".rstrip() if system_text is None else system_text,
                f"You have {_count(max_turns, 'turn')} and {_count(max_actions, 'action')} in all. "
                f"One reply may hold up to {_count(max_actions_per_turn, 'action')}.",
                dialect.instructions(
                    actions, max_actions=min(max_actions_per_turn, max_actions), think=self.think
                ),
            ]
        system = "\n\n".join(filter(None, parts))
        before = [{"role": "system", "content": system}] if system else []
        return self._add_tools([*before, user], actions, dialect)

    def _add_tools(
        self, messages: list[dict[str, str]], actions: Actions, dialect: Dialect
    ) -> list[dict[str, str]]:
        """Put the tools into the first message if the chat template is to list them."""
        if actions.tools and has_tools_in_template(dialect):
            tools = [json.loads(tool.text) for tool in actions.tools]
            messages[0]["tools"] = json.dumps(tools, ensure_ascii=False)
        return messages

    def write_next(
        self,
        *,
        observation: str,
        reward: float,
        complaint: str,
        turns_left: int,
        actions_left: int,
    ) -> str:
        """Return the user message after a turn.

        Args:
            observation: The new observation.
            reward: Environment reward and protocol penalty of the last turn.
            complaint: The dialect's description of the error in the last reply; empty if it was valid.
            turns_left: Replies left in the episode.
            actions_left: Actions left in the episode.

        Raises:
            ValueError: For a reward that is not finite, or a negative budget.
        """
        if not math.isfinite(reward):
            raise ValueError(f"reward={reward} must be finite")
        if turns_left < 0 or actions_left < 0:
            raise ValueError(f"turns_left={turns_left} and actions_left={actions_left} must not be negative")
        reward_text = f"{round(reward, 1) + 0.0:+.1f}"  # adding 0.0 turns -0.0 into +0.0
        if self.style == "compact":
            lines = ["invalid"] * bool(complaint) + [f"reward {reward_text}"] * self.show_reward
            lines += [f"turns {turns_left} actions {actions_left}", observation]
            return "\n".join(lines)
        lines = [f"Your last reply was invalid: {complaint}."] if complaint else []
        if self.show_reward:
            lines.append(f"Your last turn earned {reward_text} points.")
        if self.style == "full":
            lines.append(f"You have {_count(turns_left, 'turn')} and {_count(actions_left, 'action')} left.")
            lines.append("The game now shows:")
        return "\n".join([*lines, observation])


def add_shots(
    shots: Sequence[Mapping[str, str]], opening: Callable[..., list[dict[str, str]]], **given: Any
) -> list[dict[str, str]]:
    """Build an opening that shows whole dialogues before its last message.

    Args:
        shots: The messages of the dialogues, each from the first user message to the last reply.
        opening: Function that builds the opening, such as `Prompt.write_opening`.
        **given: The arguments of ``opening``.
    """
    *before, last = opening(**given)
    return [*before, *map(dict, shots), last]


def _check(name: str, **budgets: int) -> None:
    for key, value in budgets.items():
        if value < 1:
            raise ValueError(f"{key}={value} must be at least 1")
    if not name.strip() or len(name.splitlines()) != 1:
        raise ValueError(f"name={name!r} must be one line of text")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _make_user_message(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
