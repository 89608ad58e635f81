"""The games of TextArena that can be played: how to play each at random, and best, where that is known."""

from __future__ import annotations

from dataclasses import dataclass

from lit_agentrl.envs.adapters import textarena_best as best
from lit_agentrl.envs.adapters import textarena_chance as chance


@dataclass(frozen=True)
class Kind:
    """A kind of game.

    Attributes:
        chance: a random action; of the game and a generator.
        best: the actions that win from here, also by what is hidden; empty: there are none.
        instances: 1 where every game begins alike, else None.
    """

    chance: chance.Chance
    best: best.Best | None = None
    instances: int | None = None


_KINDS = {
    "2048": Kind(chance.one_of("[up]", "[down]", "[left]", "[right]")),
    "FrozenLake": Kind(chance.one_of(*best.WAYS), best.over_ice),
    "LightsOut": Kind(chance.light, best.all_lights_out),
    "Mastermind": Kind(chance.code, best.hidden_code),
    "Minesweeper": Kind(chance.field, instances=1),
    "Secretary": Kind(chance.one_of("[accept]", "[continue]"), best.greatest),
    "Sudoku": Kind(chance.cell, best.all_cells),
    "TowerOfHanoi": Kind(chance.disk, best.all_disks_over, instances=1),
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
# Played by one player, without the network, the same in every process, with points that follow the rules.
GAMES = {
    f"{name}-v0{'-' * bool(variant)}{variant}": _KINDS[name]
    for name, variants in _VARIANTS.items()
    for variant in variants
}
