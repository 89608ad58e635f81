"""The hook by which an experimental structure changes how its episodes are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lit_agentrl.actions import Actions
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode, Message, Turn
from lit_agentrl.rollout.worlds.seats import Look
from lit_agentrl.text.prompts import Prompt


@dataclass(frozen=True)
class Moment:
    """The state of an episode where a message is written.

    Attributes:
        prompt: how the run words its messages.
        actions: what can be done now.
        observation: what the game shows now.
        turns: those that were taken; none before the opening.
        turns_left, actions_left: what remains of the budgets; of no meaning before the opening.
        answer: the game's answer to `PlayHook.ask_game`; before the opening alone.
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
    """Change nothing; a structure that plays otherwise overrides some of these methods.

    An `EpisodeSpec` carries it to the process that plays.  So a subclass is a frozen dataclass of plain fields: it is
    pickled, compared and hashed.
    """

    no_answer: ClassVar[str] = "the game does not answer what algo.structure asks"
    """The error of an episode whose game answers None to `ask_game`."""

    def mark_episode(self, episode: Episode) -> None:
        """Write into the record of an episode how it is played."""

    def count_tries(self) -> int:
        """Return how many times an episode has the budgets of its game."""
        return 1

    def ask_game(self, task: Task) -> Look | None:
        """Return what the game is asked between its reset and the opening; None for nothing."""
        return None

    def messages(self, written: list[Message], moment: Moment) -> list[Message]:
        """Return the messages to show in place of those that the prompt has written.

        Args:
            written: the opening; after a turn one message of the user.
            moment: where they are written.
        """
        return written

    def before_turn(self, turn: Turn, number: int) -> None:
        """Write into the record of a turn whose reply is awaited, counted from 0."""

    def is_action(self, turn: Turn) -> bool:
        """Return whether the game plays the reply of a turn, which then counts in its budget of turns."""
        return True

    def after_turn(self, turn: Turn, *, is_solved: bool) -> str | None:
        """Return the message with which the same task begins again; None to go on as usual."""
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
