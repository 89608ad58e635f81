"""Potential-based shaping: it preserves the optimal policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lit_agentrl.checks import require, require_number
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.world import World
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Probe, Rewards, Shaping


@dataclass(kw_only=True)
class StepsToGoal:
    """``-scale * n``, where n is the number of optimal actions to the goal.

    n is at max_steps twice ``env.max_solution``, which is also its value for a state that cannot be solved.

    Args:
        scale: reward per step.
    """

    scale: float = 0.1

    def __post_init__(self) -> None:
        require_number("scale", self.scale, "> 0", lambda value: value > 0)

    def __call__(self, env: World, observation: str) -> float:
        """Return the potential of the game's state, in reward units."""
        # not the actions left, so that the potential depends on the state only
        max_steps = 2 * env.max_solution
        best = env.optimal_actions(horizon=max_steps)
        return -self.scale * (max_steps if best is None else len(best))

    def check_game(self, task: Task, env: World, observation: str) -> None:
        """Refuse a game without optimal actions, whose potential would be constant."""
        if env.optimal_actions(horizon=2 * env.max_solution) is None:
            raise ValueError(
                f"of=StepsToGoal needs optimal actions, and {task.name} has none; choose another "
                "function of (env, observation) by the option of"
            )


@dataclass(kw_only=True)
class Potential(Shaping):
    """``F_k = discount * Phi(s_{k+1}) - Phi(s_k)``: Ng et al. 1999.

    Phi after the last turn is 0, also where a limit ends the episode.  The discounted sum over an episode is
    ``-Phi(s_0)``, whatever the policy does.

    Args:
        discount: discount per turn; must equal that of the algorithm (1.0, or its ``turn_discount``).
        of: Phi, a function of (env, observation) that modifies neither; measured before every turn.
    """

    weight: float = 1.0
    discount: float = 1.0
    of: Callable[[World, str], float] = field(default_factory=StepsToGoal)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("discount", self.discount, "in (0, 1]", lambda value: 0 < value <= 1)
        require(callable(self.of), "of", self.of, "a function of (env, observation)")

    @property
    def probe(self) -> Probe:
        """The potential Phi."""
        return self.of

    def check_game(self, task: Task, env: World, observation: str) -> None:
        """Evaluate the potential once and check that it is finite."""
        if isinstance(self.of, StepsToGoal):
            self.of.check_game(task, env, observation)
        require_number("of", self.of(env, observation), "a function that returns a finite number")

    def score(self, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return F of each turn."""
        rows = []
        for episode in episodes:
            phi = [turn.probes[self.name] for turn in episode.turns] + [0.0]
            rows.append([self.discount * after - before for before, after in zip(phi, phi[1:], strict=False)])
        return rows
