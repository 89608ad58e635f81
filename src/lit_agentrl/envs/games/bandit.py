"""A two-armed bandit whose arms are known only by their names: one decision per episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium

from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.envs.base import Outcome, TextEnv
from lit_agentrl.envs.splits import draw_for_split, keyed_rng

# Names whose everyday meaning is steady and safe, and names whose meaning is bold and risky.
# fmt: off
SAFE_NAMES = (
    "Phoenix", "Teacher", "Librarian", "Gardener", "Anchor", "Harbor", "Shield", "Castle",
    "Turtle", "Oak", "Granite", "Lantern", "Bridge", "Shepherd", "Clock", "Savings",
)
RISKY_NAMES = (
    "Dragon", "Trader", "Gambler", "Pirate", "Rocket", "Volcano", "Storm", "Tiger",
    "Comet", "Racer", "Daredevil", "Lottery", "Avalanche", "Smuggler", "Raider", "Casino",
)
# fmt: on
PAYOFFS = ("sampled", "expected")

_PAIR, _ORDER = 31, 32  # purpose keys


class Bandit(TextEnv):
    """One choice between a low-risk and a high-risk arm, which differ only in their names.

    The low-risk arm always pays ``low_reward``; the high-risk arm pays ``high_reward`` with probability
    ``high_probability``, else 0.  ``success``: the high-risk arm, which is better on average, was chosen.
    An instance is a pair of one safe and one risky name; no pair is in two splits.

    Args:
        split: ``train``, ``val`` or ``test``.
        reverse_meanings: whether the safe-sounding name is the high-risk arm; the rules say so.
        payoff: ``sampled``, or ``expected`` (the high-risk arm pays its mean every time; less noise).
        low_reward: payoff of the low-risk arm.
        high_reward: payoff of the high-risk arm when it pays.
        high_probability: in (0, 1].
    """

    def __init__(
        self,
        *,
        split: str = "train",
        reverse_meanings: bool = False,
        payoff: str = "sampled",
        low_reward: float = 0.15,
        high_reward: float = 1.0,
        high_probability: float = 0.25,
    ) -> None:
        super().__init__(split=split)
        require(payoff in PAYOFFS, "payoff", payoff, f"one of {', '.join(PAYOFFS)}")
        require(0 < high_probability <= 1, "high_probability", high_probability, "a number in (0, 1]")
        # Success means the risky arm; with a better safe arm the score would reward the worse choice.
        require_number("high_reward", high_reward, "a finite number > 0", lambda value: value > 0)
        require_number("low_reward", low_reward, "a finite number")
        mean = high_reward * high_probability
        if low_reward >= mean:
            raise ValueError(
                f"low_reward={low_reward:g} must be below high_reward={high_reward:g} times high_probability="
                f"{high_probability:g}; lower it, or raise one of these"
            )
        self.reverse_meanings, self.payoff = reverse_meanings, payoff
        self.low_reward, self.high_reward, self.high_probability = low_reward, high_reward, high_probability
        self._arms, self._choice = [SAFE_NAMES[0], RISKY_NAMES[0]], ""

    @property
    def rules(self) -> str:
        """Goal, actions and rewards; the observation names the arms."""
        hint = "the opposite of what it suggests" if self.reverse_meanings else "what it suggests"
        return (
            "You choose one of two slot machines, once. One is safe: it pays a small amount every time. The "
            "other is risky: it mostly pays nothing, sometimes much, and pays more on average. Names are "
            f"all you know: each means {hint}. Earn as much as possible on average.\n"
            "Actions: the name of one machine.\n"
            f"Rewards: {self.low_reward:g} from the safe one; from the risky one {self.high_reward:g} with "
            f"probability {self.high_probability:g}, else 0."
        )

    def action_names(self) -> list[str]:
        """Return the two arms of this instance, in the order shown."""
        return list(self._arms)

    def optimal_actions(self, *, horizon: int) -> list[str] | None:
        """Return the high-risk arm; None after the choice."""
        require_whole("horizon", horizon, 1)
        return None if self._choice else [name for name in self._arms if self._is_high(name)]

    def best_thought(self) -> str:
        """Return what each name stands for here: steady or risky."""
        return " ".join(f"{name} {'risky' if self._is_high(name) else 'steady'}" for name in self._arms)

    def _is_high(self, name: str) -> bool:
        return (name in RISKY_NAMES) != self.reverse_meanings

    def _draw_instance(self, seed: int) -> str:
        pair = draw_for_split(lambda attempt: _propose(seed, attempt), _get_content, split=self.split)
        is_swapped = keyed_rng(seed, 0, _ORDER).random() < 0.5
        self._arms, self._choice = list(pair[::-1] if is_swapped else pair), ""
        return _get_content(pair)

    def _observe(self) -> str:
        return f"{self._arms[0]} or {self._arms[1]} ?"

    def _play(self, action: str) -> Outcome:
        self._choice = action
        if not self._is_high(action):
            return Outcome({"payoff": self.low_reward}, terminated=True)
        if self.payoff == "expected":
            reward = self.high_reward * self.high_probability
        else:
            reward = self.high_reward if self._noise.random() < self.high_probability else 0.0
        return Outcome({"payoff": reward}, terminated=True, success=True)

    def _get_state(self) -> dict[str, Any]:
        return {"arms": list(self._arms), "choice": self._choice}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._arms, self._choice = list(state["arms"]), str(state["choice"])


def _propose(seed: int, attempt: int) -> Iterable[tuple[str, str]]:
    rng = keyed_rng(seed, attempt, _PAIR)
    return [(SAFE_NAMES[rng.integers(len(SAFE_NAMES))], RISKY_NAMES[rng.integers(len(RISKY_NAMES))])]


def _get_content(pair: tuple[str, str]) -> str:
    return f"bandit {pair[0]} {pair[1]}"


for _name, _kwargs in (("Bandit", {}), ("BanditReversed", {"reverse_meanings": True})):
    gymnasium.register(
        f"lit_agentrl/{_name}-v0",
        entry_point="lit_agentrl.envs.games.bandit:Bandit",
        kwargs=_kwargs,
        disable_env_checker=True,
    )
