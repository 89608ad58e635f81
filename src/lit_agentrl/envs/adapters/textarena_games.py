"""The supported games of TextArena, with random play and, where known, best play."""

from __future__ import annotations

from dataclasses import dataclass

from lit_agentrl.envs.adapters import textarena_best as best
from lit_agentrl.envs.adapters import textarena_chance as chance


@dataclass(frozen=True)
class Play:
    """Random and best play of a game.

    Attributes:
        chance: chooses a random action, given the game and a generator.
        best: returns actions that win from the current state, with knowledge of hidden parts; empty if there are none.
        instances: 1 if every game has the same start, else None.
    """

    chance: chance.Chance
    best: best.Best | None = None
    instances: int | None = None


_PLAYS = {
    "2048": Play(chance.choose_action("[up]", "[down]", "[left]", "[right]")),
    "FrozenLake": Play(chance.choose_action(*best.STEPS), best.find_path),
    "LightsOut": Play(chance.choose_light, best.press_lights),
    "Mastermind": Play(chance.choose_code, best.reveal_code),
    "Minesweeper": Play(chance.choose_field, instances=1),
    "Secretary": Play(chance.choose_action("[accept]", "[continue]"), best.accept_greatest),
    "Sudoku": Play(chance.choose_cell, best.fill_cells),
    "TowerOfHanoi": Play(chance.choose_move, best.move_disks, instances=1),
}
_VARIANTS = {
    "2048": ("ultra-easy", "mega-easy", "super-easy", "very-easy", "easy", "", "hard", "3x3", "5x5"),
    "FrozenLake": ("", "random", "hardcore"),
    "LightsOut": ("",),
    "Mastermind": ("", "hard", "extreme"),
    "Minesweeper": ("", "small", "medium", "hard"),
    "Secretary": ("", "long"),
    "Sudoku": ("very-easy", "easy", ""),
    "TowerOfHanoi": ("", "medium", "hard", "hardcore", "extreme"),
}
# These games are for one player, need no network, are the same in every process, and reward what their rules say.
GAMES = {
    f"{name}-v0{'-' * bool(variant)}{variant}": _PLAYS[name]
    for name, variants in _VARIANTS.items()
    for variant in variants
}
