"""The hook by which an experimental structure changes how its episodes are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.actions import Actions
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode, Message, Turn
from lit_agentrl.rollout.worlds.environments import Look
from lit_agentrl.text.prompts import Prompt


@dataclass(frozen=True)
class Moment:
    """The state of an episode at the point where a message is written.

    Attributes:
        prompt: Wording of the run's messages.
        actions: Actions that are possible now.
        observation: Current observation of the game.
        turns: Turns taken so far; empty before the opening.
        turns_left, actions_left: Remaining budgets; without meaning before the opening.
        answer: The game's answer to `PlayHook.ask_game`; set only before the opening.
    """

    prompt: Prompt
    actions: Actions
    observation: str
    turns: Sequence[Turn] = ()
    turns_left: int = 0
    actions_left: int = 0
    answer: str | None = None


@dataclass(frozen=True)
class PlayHook:
    """A hook that changes nothing; experimental structures override some of its methods.

    An `EpisodeSpec` carries the hook to the process that plays.  A subclass must therefore be a frozen dataclass of
    plain fields, because it is pickled, compared and hashed.
    """

    no_answer: ClassVar[str] = "the game does not answer what algo.structure asks"
    """The error of an episode whose game answers None to `ask_game`."""

    def mark_episode(self, episode: Episode) -> None:
        """Write into the record of an episode how it is played."""

    def count_tries(self) -> int:
        """Return how many tries an episode has, each with the full budgets of its game."""
        return 1

    def ask_game(self, task: Task) -> Look | None:
        """Return a function to call on the game before the opening; None for none."""
        return None

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        """Return the messages to show in place of those that the prompt has written.

        Args:
            written: The opening, or after a turn one user message.
            moment: State of the episode where they are written.
        """
        return written

    def get_trained(self) -> PlayHook | None:
        """Return the hook that writes the opening to train on; None keeps the played opening."""
        return None

    def before_turn(self, turn: Turn, turns: Sequence[Turn]) -> None:
        """Write into the record of a turn before its reply is requested; ``turns`` came earlier."""

    def after_reply(self, turn: Turn, turns: Sequence[Turn]) -> None:
        """Write into the record of a turn before its reply is played; ``turns`` came earlier."""

    def is_action(self, turn: Turn) -> bool:
        """Return whether the game plays the reply; it then uses one turn of the budget."""
        return True

    def after_turn(self, turn: Turn, *, is_solved: bool) -> str | None:
        """Return the message that begins another try at the same task; None continues as usual."""
        return None


NO_HOOK = PlayHook()


def write_opening(hook: PlayHook, moment: Moment, **given: Any) -> list[Message]:
    """Return the messages before the first reply; ``given`` are arguments of `Prompt.write_opening`."""
    return hook.messages(moment.prompt.write_opening(**given), moment)


def write_next(hook: PlayHook, moment: Moment, **given: Any) -> str:
    """Return the message after the last turn; ``given`` are further arguments of `Prompt.write_next`."""
    text = moment.prompt.write_next(
        observation=moment.observation,
        turns_left=moment.turns_left,
        actions_left=moment.actions_left,
        **given,
    )
    [message] = hook.messages([{"role": "user", "content": text}], moment)
    return message["content"]
