"""Small games as tables, whose episodes can be listed one by one.

A state is a name.  In it the policy samples one token; each token is a `Move`: it ends the turn or not, pays a reward
or not, and leads to a state or ends the episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

Logits = Mapping[str, tuple[float, ...]]
_MOST_TOKENS = 32


@dataclass(frozen=True)
class Move:
    """One token of a state.

    Attributes:
        to: the state that follows; empty: the episode ends.
        reward: paid for this token; it must end a turn.
        ends_turn: the world answers after this token.
    """

    to: str = ""
    reward: float = 0.0
    ends_turn: bool = True


@dataclass(frozen=True)
class TableGame:
    """A game and the policies that play it.

    Attributes:
        name: name in tables.
        says: what it tests, in a few words.
        starts: the first state of each prompt; every batch has a group of each.
        moves: the moves of each state, one for each token.
        logits: logits of the trained policy in each state; a state that is left out has logits of 0.
        reference: logits of the reference policy; empty: the logits of the trained policy.
        lag: steps of exact gradient ascent between the policy that plays and the trained policy; if above 0,
            ``logits`` are those of the policy that plays.
    """

    name: str
    says: str
    starts: tuple[str, ...]
    moves: Mapping[str, tuple[Move, ...]]
    logits: Logits = field(default_factory=dict)
    reference: Logits = field(default_factory=dict)
    lag: int = 0


@dataclass(frozen=True)
class Token:
    """One sampled token of an episode.

    Attributes:
        state: the state in which it was sampled.
        choice: index of its move among the moves of the state.
        turn: index of its turn.
        move: its move.
    """

    state: str
    choice: int
    turn: int
    move: Move


@dataclass(frozen=True)
class Path:
    """One episode of a prompt, token by token."""

    prompt: int
    tokens: tuple[Token, ...]

    @property
    def total(self) -> float:
        """Sum of the rewards."""
        return sum(token.move.reward for token in self.tokens)


def list_paths(game: TableGame) -> list[Path]:
    """List every episode of a game, by prompt.

    Raises:
        ValueError: a state has no moves, an episode does not end, or a token within a turn pays or ends the episode.
    """
    return [
        Path(prompt, tokens) for prompt, start in enumerate(game.starts) for tokens in _walk(game, start, ())
    ]


def _walk(game: TableGame, state: str, earlier: tuple[Token, ...]) -> Iterator[tuple[Token, ...]]:
    if not game.moves.get(state):
        raise ValueError(f"game {game.name}: state {state} has no moves")
    if len(earlier) == _MOST_TOKENS:
        raise ValueError(f"game {game.name}: an episode has more than {_MOST_TOKENS} tokens")
    turn = earlier[-1].turn + earlier[-1].move.ends_turn if earlier else 0
    for choice, move in enumerate(game.moves[state]):
        if not move.ends_turn and (move.reward or not move.to):
            raise ValueError(f"game {game.name}: a token of {state} pays or ends the episode within a turn")
        tokens = (*earlier, Token(state, choice, turn, move))
        if move.to:
            yield from _walk(game, move.to, tokens)
        else:
            yield tokens


def scale_rewards(game: TableGame, factor: float) -> TableGame:
    """Return the game with every reward multiplied by a factor."""
    return _change_moves(game, lambda move: replace(move, reward=factor * move.reward))


def shift_returns(game: TableGame, added: float) -> TableGame:
    """Return the game with a number added to the reward of each last turn."""
    return _change_moves(game, lambda move: move if move.to else replace(move, reward=move.reward + added))


def add_tokens(game: TableGame) -> TableGame:
    """Return the game with a forced token in episodes whose last choice is not 0.

    The gradient of the return does not change: a forced token has probability 1.
    """
    return _insert_forced(game, is_turn=False)


def add_turns(game: TableGame) -> TableGame:
    """Return the game with an unpaid forced turn in the same episodes as `add_tokens`."""
    return _insert_forced(game, is_turn=True)


def _insert_forced(game: TableGame, *, is_turn: bool) -> TableGame:
    moves: dict[str, tuple[Move, ...]] = {}
    for state, listed in game.moves.items():
        changed = list(listed)
        for choice, move in enumerate(listed):
            if choice and not move.to:
                name = f"{state}/{choice}"
                changed[choice] = Move(to=name, ends_turn=is_turn)
                moves[name] = (move,)
        moves[state] = tuple(changed)
    return replace(game, moves=moves)


def _change_moves(game: TableGame, change: Callable[[Move], Move]) -> TableGame:
    return replace(game, moves={state: tuple(map(change, moves)) for state, moves in game.moves.items()})
