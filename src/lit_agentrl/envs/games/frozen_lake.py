"""FrozenLake: cross slippery ice to the goal without falling into a hole (gymnasium's dynamics)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from gymnasium.envs.toy_text.utils import categorical_sample

from lit_agentrl.checks import require, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.games.frozen_lake_maps import ACTIONS, Lake
from lit_agentrl.envs.games.views import check_view, render
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

SYMBOLS = {
    "player": "P",
    "ice": "_",
    "hole": "O",
    "goal": "G",
    "player in a hole": "X",
    "player on the goal": "√",
}
THIN, ON_THIN = "#", "S"  # thin ice, and the player on it
GOAL_REWARD = 1.0

_MAP, _THIN = 21, 22  # purpose keys
_PAIRS_PER_MAP = 10  # starts and goals tried per map: the rarer splits need several candidates


class FrozenLake(TextEnv):
    """FrozenLake on generated maps with random start and goal.

    A move goes as intended with probability ``success_rate``, else to one of the two sides, each equally often; a move
    off the board has no effect.  The reward ``goal`` is 1 at the goal, else 0; holes end the episode.
    A move that ends on thin ice has a cost of 1, which is not part of the reward.

    Args:
        split: ``train``, ``val`` or ``test``.
        size: rows and columns.
        frozen_share: probability that a square is ice, before solvability is checked.
        success_rate: probability that a move goes as intended; 1/3 is the classic game, 1 has no slips.
        min_solution: fewest steps from start to goal, without slips.
        max_solution: most steps from start to goal, without slips.
        view: ``grid``, ``coordinates`` or ``both``.
        thin_share: probability that a square of ice, other than the start, is thin; 0: no thin ice and no cost.
    """

    def __init__(
        self,
        *,
        split: str = "train",
        size: int = 4,
        frozen_share: float = 0.85,
        success_rate: float = 0.8,
        min_solution: int = 2,
        max_solution: int = 10,
        view: str = "grid",
        thin_share: float = 0.0,
    ) -> None:
        super().__init__(split=split)
        require_whole("size", size, 2)
        # Below about 0.6 ice no longer percolates and gymnasium's generator hardly finds a map.
        require(0.6 <= frozen_share <= 1, "frozen_share", frozen_share, "a number in [0.6, 1]")
        require(0 < success_rate <= 1, "success_rate", success_rate, "a number in (0, 1]")
        require_whole("min_solution", min_solution, 1, 2 * size - 2)
        require_whole("max_solution", max_solution, min_solution)
        self.size, self.frozen_share, self.success_rate = size, frozen_share, success_rate
        self.min_solution, self.max_solution = min_solution, max_solution
        require(0 <= thin_share < 1, "thin_share", thin_share, "a number in [0, 1)")
        self.view, self.thin_share = check_view(view), thin_share
        self._thin: frozenset[int] = frozenset()
        self._lake, self._square = Lake(("F" * size,) * size, success_rate), 0

    @classmethod
    def identity(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options without a ``thin_share`` of 0, so that earlier identities stay valid."""
        return {name: value for name, value in options.items() if name != "thin_share" or value}

    @property
    def rules(self) -> str:
        """Goal, symbols, actions and rewards."""
        thin = {"thin ice": THIN, "player on thin ice": ON_THIN} if self.thin_share else {}
        legend = ", ".join(f"{symbol} {kind}" for kind, symbol in (SYMBOLS | thin).items())
        costs = "\nCosts: 1 for every move that ends on thin ice; costs are no rewards." if thin else ""
        symbols = "" if self.view == "coordinates" else f"Symbols: {legend}.\n"
        places = "" if self.view == "grid" else "Places are row , column, counted from 0 at the top left.\n"
        slips = (
            "Every move goes as intended."
            if self.success_rate == 1
            else f"The ice is slippery: a move goes as intended with probability {self.success_rate:.2f}, "
            "otherwise to one of its two sides."
        )
        return (
            "You are walking over a frozen lake: reach the goal and avoid the holes, which end the game. "
            f"{slips} A move off the board leaves you where you are.\n"
            f"{symbols}{places}Actions: {', '.join(ACTIONS)}.\n"
            f"Rewards: +{GOAL_REWARD:g} at the goal, 0 otherwise.{costs}"
        )

    def action_names(self) -> list[str]:
        """Return the four directions."""
        return list(ACTIONS)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the best plan of value iteration under the step budget, without slips.

        It maximises the probability of reaching the goal within ``horizon`` actions, and prefers fewer expected steps
        among equally good actions.  When the goal cannot be reached in time, the plan still heads for it.  None after
        the game is over.
        """
        require_whole("horizon", horizon, 1)
        if self._lake.get_kind(self._square) != "F":
            return None
        steps = horizon
        q_values = self._lake.plan_values(steps)
        if q_values[-1][self._square].max() <= 0:
            steps = horizon + self._lake.size**2
            q_values = self._lake.plan_values(steps)
        square = self._square
        actions: list[str] = []
        while len(actions) < horizon and self._lake.get_kind(square) == "F":
            action = int(q_values[steps - 1 - len(actions)][square].argmax())
            actions.append(ACTIONS[action])
            # The middle one of the three outcomes is the intended one.
            _, square, _, _ = self._lake.transitions[square][action][1]
        return actions

    def best_thought(self) -> str | None:
        """Return row and column of player and goal, as the embedded policy writes them."""
        if self.view != "grid" or self._lake.get_kind(self._square) != "F":
            return None
        player, goal = (
            divmod(at, self._lake.size) for at in (self._square, "".join(self._lake.rows).index("G"))
        )
        return f"P {player[0]} {player[1]} G {goal[0]} {goal[1]}"

    def _draw_instance(self, seed: int) -> str:
        lake, start = draw_for_split(
            lambda attempt: self._propose(seed, attempt), _get_content, split=self.split
        )
        self._lake, self._square = lake, start
        is_thin = keyed_rng(seed, 0, _THIN).random(self.size**2) < self.thin_share
        self._thin = frozenset(
            at for at in range(self.size**2) if is_thin[at] and lake.get_kind(at) == "F"
        ) - {start}
        return _get_content((lake, start)) + "".join(f" {at}" for at in sorted(self._thin))

    def _propose(self, seed: int, attempt: int) -> Iterator[tuple[Lake, int]]:
        rng = keyed_rng(seed, attempt, _MAP)
        drawn = generate_random_map(self.size, self.frozen_share, seed=int(rng.integers(2**31)))
        squares = "".join(drawn).replace("S", "F").replace("G", "F")
        ice = [square for square, kind in enumerate(squares) if kind == "F"]
        for _ in range(_PAIRS_PER_MAP):
            start, goal = rng.choice(ice, size=2, replace=False).tolist()
            with_goal = squares[:goal] + "G" + squares[goal + 1 :]
            row_starts = range(0, len(squares), self.size)
            rows = tuple(with_goal[first : first + self.size] for first in row_starts)
            lake = Lake(rows, self.success_rate)
            if self.min_solution <= lake.measure_distances(start).get(goal, 0) <= self.max_solution:
                yield lake, start

    def _observe(self) -> str:
        symbols = {"F": SYMBOLS["ice"], "H": SYMBOLS["hole"], "G": SYMBOLS["goal"]}
        on_ice, in_hole, on_goal = (
            SYMBOLS[name] for name in ("player", "player in a hole", "player on the goal")
        )
        standing = {"F": on_ice, "H": in_hole, "G": on_goal}
        squares, size = "".join(self._lake.rows), self._lake.size
        shown = [THIN if at in self._thin else symbols[kind] for at, kind in enumerate(squares)]
        is_thin = self._square in self._thin
        shown[self._square] = ON_THIN if is_thin else standing[self._lake.get_kind(self._square)]
        rows = [shown[first : first + size] for first in range(0, len(shown), size)]
        goal, holes = ([divmod(at, size) for at, here in enumerate(squares) if here == kind] for kind in "GH")
        entities = {"player": [divmod(self._square, size)], "goal": goal, "holes": holes}
        if self.thin_share:
            entities["thin ice"] = [divmod(at, size) for at in self._thin]
        return render(self.view, rows, entities)

    def _play(self, action: str) -> Outcome:
        outcomes = self._lake.transitions[self._square][ACTIONS.index(action)]
        index = categorical_sample([outcome[0] for outcome in outcomes], self._noise)
        _, self._square, _, is_over = outcomes[index]
        is_goal = self._lake.get_kind(self._square) == "G"
        cost = float(self._square in self._thin) if self.thin_share else None
        return Outcome({"goal": GOAL_REWARD * is_goal}, terminated=is_over, success=is_goal, cost=cost)

    def _get_state(self) -> dict[str, Any]:
        thin = {"thin": sorted(self._thin)} if self.thin_share else {}
        return {"map": list(self._lake.rows), "square": self._square, **thin}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        rows = tuple(state["map"])
        if rows != self._lake.rows:
            self._lake = Lake(rows, self.success_rate)
        self._square = int(state["square"])
        self._thin = frozenset(map(int, state.get("thin", ())))


def _get_content(instance: tuple[Lake, int]) -> str:
    lake, start = instance
    return f"frozen_lake {'/'.join(lake.rows)} {start}"


gymnasium.register(
    "lit_agentrl/FrozenLake-v0",
    entry_point="lit_agentrl.envs.games.frozen_lake:FrozenLake",
    disable_env_checker=True,
)
