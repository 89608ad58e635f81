"""Missions of BabyAI in words: rooms with doors, keys, balls and boxes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import gymnasium

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.adapters.base import Replayed, make_missing_error
from lit_agentrl.envs.base import Outcome

# in the order of minigrid's numbers; its seventh, done, does nothing
ACTIONS = ("Left", "Right", "Forward", "Pickup", "Drop", "Toggle")
_FACES = ("east", "south", "west", "north")
# levels at which the bot of minigrid fails: order of goals, hands full, hidden keys
_NO_BOT = ("Debug", "Carrying", "KeyInBox")
_ENDLESS = 10**9  # replaces the game's own limit of steps, since limits belong to the task


@dataclass
class _BotPlay:
    """Minigrid's bot, which follows an episode in a copy of the game."""

    game: Any
    bot: Any
    advice: Any  # the number of its next action
    num_actions: int = 0  # actions of the episode that it has followed


class BabyAI(Replayed):
    """One mission per episode, such as ``put the red ball next to the blue box``.

    The player sees a square of 7 × 7 cells ahead, as far as walls and closed doors allow.  Success has reward 1.  Best
    play is that of minigrid's bot, which sees no more than the player and explores where it must.  It is unknown at the
    few levels that the bot cannot play.

    Args:
        id: a level, such as ``BabyAI-GoToLocal-v0``, ``BabyAI-PutNextLocal-v0`` or ``BabyAI-BossLevel-v0``.
        split: ``train``, ``val`` or ``test``, decided by the whole content of the rooms.

    Raises:
        ValueError: the library is missing, or it has no such level.
    """

    foreign = ("_game", "_bot_play")

    def __init__(self, *, id: str = "BabyAI-GoToLocal-v0", split: str = "train") -> None:
        super().__init__(split=split)
        self._id = id
        self._game: Any
        self._bot_play: _BotPlay | None = None  # None: the bot has not been asked yet, or it failed
        self._open()
        self._number = 0

    @property
    def rules(self) -> str:
        return (
            "Fulfil the goal. You see what lies ahead of you, at most 6 cells ahead and 3 to each side.\n"
            "Left and Right turn you, Forward goes one step. Pickup takes what is one step ahead, and you carry one "
            "thing at a time. Drop puts it one step ahead. Toggle opens a door or a box one step ahead; a locked "
            "door needs the key of its colour.\n"
            f"Actions: {', '.join(ACTIONS)}.\nRewards: 1 at the end."
        )

    @property
    def system_text(self) -> str:
        return f"You are playing BabyAI.\n{self.rules}"

    def action_names(self) -> list[str]:
        return list(ACTIONS)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the bot's next action.

        None: the level has no bot, or the bot finds no way to the goal.
        """
        require_whole("horizon", horizon, 1)
        if not self._is_running or any(word in self._id for word in _NO_BOT):
            return None
        action = self._ask_bot()
        return None if action is None else [action]

    def _open(self) -> None:
        self._game, self._bot_play = _make_game(self._id), None

    def _begin(self, number: int) -> None:
        self._number, self._bot_play = number, None
        self._game.reset(seed=number)

    def _get_content(self) -> str:
        game = self._game
        description = [self._id, game.mission, _describe_goal(game.instrs), _describe_object(game.carrying)]
        position = [int(coordinate) for coordinate in (*game.agent_pos, game.agent_dir)]
        return json.dumps(
            [*description, position, game.width, [_describe_object(cell) for cell in game.grid.grid]]
        )

    def _observe(self) -> str:
        game = self._game
        carried = game.carrying
        return "\n".join([
            f"goal : {game.mission}",
            f"you face : {_FACES[game.agent_dir]}",
            f"you carry : {'nothing' if carried is None else f'a {carried.color} {carried.type}'}",
            "you see :",
            *_list_visible(game),
        ])  # fmt: skip

    def _act(self, action: str) -> Outcome:
        _, reward, is_over, _, _ = self._game.step(ACTIONS.index(action))
        is_solved = bool(is_over and reward > 0)
        return Outcome({"goal": float(is_solved)}, terminated=bool(is_over), success=is_solved)

    def _ask_bot(self) -> str | None:
        """Ask the bot, which follows the episode in a copy of the game."""
        from minigrid.utils.baby_ai_bot import BabyAIBot

        done = [earlier for earlier in self._done if isinstance(earlier, str)]
        try:
            if self._bot_play is None:
                game = _make_game(self._id)
                game.reset(seed=self._number)
                bot: Any = BabyAIBot(game)  # type: ignore[no-untyped-call]
                self._bot_play = _BotPlay(game, bot, advice=bot.replan(None))
            play = self._bot_play
            for action in done[play.num_actions :]:
                play.game.step(ACTIONS.index(action))
                play.advice = play.bot.replan(play.game.actions(ACTIONS.index(action)))
            play.num_actions = len(done)
        except Exception:  # the bot's assertions fail where something that it needs is gone
            self._bot_play = None
            return None
        return ACTIONS[int(play.advice)] if int(play.advice) < len(ACTIONS) else None

    def close(self) -> None:
        self._game.close()


def _make_game(id: str) -> Any:
    try:
        import minigrid  # noqa: F401 - the import registers its levels
        from minigrid.envs.babyai.core import roomgrid_level, verifier
    except ImportError as error:
        raise make_missing_error("minigrid", "babyai", error) from error
    if verifier.use_done_actions:
        raise ValueError(
            "BABYAI_DONE_ACTIONS is set, so that no goal counts without the action done; unset it"
        )
    vars(roomgrid_level)["print"] = _ignore  # it prints a line for each rejected room
    is_known = isinstance(id, str) and id.startswith("BabyAI-") and id in gymnasium.registry
    require(is_known, "id", id, "a level of BabyAI, such as BabyAI-GoToLocal-v0")
    return gymnasium.make(id, disable_env_checker=True, max_steps=_ENDLESS).unwrapped


def _ignore(*_: object) -> None: ...


def _describe_object(item: Any) -> list[Any] | None:
    """Describe an object completely, with the content of a box."""
    if item is None:
        return None
    return [*(int(code) for code in item.encode()), _describe_object(getattr(item, "contains", None))]


def _describe_goal(goal: Any) -> list[Any]:
    """Describe a goal and which parts of it are done."""
    parts = [getattr(goal, name, None) for name in ("instr_a", "instr_b")]
    marks = [getattr(goal, name, None) for name in ("a_done", "b_done")]
    return [
        type(goal).__name__,
        *map(str, marks),
        *(_describe_goal(part) for part in parts if part is not None),
    ]


def _list_visible(game: Any) -> list[str]:
    """Return lines of the visible objects, near to far, and the nearest walls."""
    grid, is_visible = game.gen_obs_grid()
    size = game.agent_view_size
    objects, walls = [], dict[str, int]()
    for ahead in range(size):
        for side in range(-(size // 2), size // 2 + 1):
            column, row = side + size // 2, size - 1 - ahead
            cell = grid.get(column, row)
            if cell is None or not is_visible[column, row] or (ahead, side) == (0, 0):
                continue
            if cell.type != "wall":
                objects.append(
                    (ahead + abs(side), ahead, side, f"{_name_object(cell)} {_format_place(ahead, side)}")
                )
            elif not ahead or not side:
                direction = "ahead" if ahead else "right" if side > 0 else "left"
                walls[direction] = min(ahead + abs(side), walls.get(direction, size))
    lines = [text for *_, text in sorted(objects)]
    return lines + [
        f"a wall {_format_steps(count)} {direction}" for direction, count in sorted(walls.items())
    ]


def _name_object(item: Any) -> str:
    if item.type != "door":
        return f"a {item.color} {item.type}"
    state = "open" if item.is_open else "locked" if item.is_locked else "closed"
    return f"{'an' if state == 'open' else 'a'} {state} {item.color} door"


def _format_place(ahead: int, side: int) -> str:
    parts = [_format_steps(ahead) + " ahead"] * bool(ahead)
    parts += [f"{_format_steps(abs(side))} {'right' if side > 0 else 'left'}"] * bool(side)
    return " and ".join(parts)


def _format_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
