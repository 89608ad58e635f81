"""A structure in which the policy meets its own earlier versions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lit_agentrl import facts, seeds
from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require_number, require_one_of, require_whole
from lit_agentrl.distributed import gather_objects, get_rank
from lit_agentrl.experimental.leagues.table import RULES, Table
from lit_agentrl.experimental.opponent import Opponent
from lit_agentrl.models.lora import find_adapter_layers
from lit_agentrl.models.policy import copy_weights
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress
from lit_agentrl.rollout.structures.hook import Training


class League(Opponent):
    """An opponent that is an earlier policy, drawn again in each iteration.

    The initial policy is the first member.  After every ``every`` iterations the policy joins.  Each iteration's
    opponent is drawn by ``rule`` from the results so far, see `Table`, and plays the last episodes of each group, as
    in `Opponent`: policy and opponent play the same tasks, and the larger return wins.  This is AlphaStar's prioritised
    fictitious self-play; with ``rule=nash``, it is PSRO (arXiv 1711.00832), except that one policy keeps learning in
    place of new best responses, and win rates come from training and not from games between members.

    Args:
        rule: ``uniform``, ``hard``: (1 - p)^2, ``even``: p (1 - p), or ``nash``: equilibrium of the members' table.
        every: iterations between two members.
        size: maximum number of members; beyond it, the oldest except the first is removed.
        memory: see `Table`.
        mix: weight of the member in the opponent's mixture; see `Opponent`.
        opponents: see `Opponent`.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range; in `setup`, the policy has adapters.
    """

    requires = Opponent.requires - {facts.READS_REFERENCE}
    curves = (*Opponent.curves, "rating", "opponent_rating", "opponent_age", "league_size")

    def __init__(
        self,
        *,
        rule: str = "hard",
        every: int = 10,
        size: int = 16,
        memory: float = 0.9,
        mix: float = 1.0,
        opponents: int | None = None,
        max_waves: int | None = None,
    ) -> None:
        require_one_of("rule", rule, tuple(RULES))
        require_whole("every", every, 1)
        require_whole("size", size, 2)
        require_number("memory", memory, "in [0, 1]", lambda value: 0 <= value <= 1)
        self._rule, self._every, self._size = rule, every, size
        self._table = Table(memory)
        self._members: list[dict[str, Tensor]] = []
        self._chosen = 0
        super().__init__(mix=mix, opponents=opponents, max_waves=max_waves)

    def setup(self, training: Training) -> Any:
        """Return the opponent's network, a copy of the policy's.

        Raises:
            ValueError: the policy has adapters.
        """
        if find_adapter_layers(training.policy):
            raise ValueError("algo.structure=league keeps whole weights; use model/lora=none")
        self._policy = training.policy
        self._network = copy.deepcopy(training.policy).requires_grad_(False)
        if not self._members:
            self._members = [_copy_weights_of(training.policy)]
            self._table.add_member(0, self._size)
        return self._network

    @torch.no_grad()
    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        """Return the episodes of a wave, and give the opponent its weights."""
        if self._members:  # empty before `setup`, when plans are only counted
            copy_weights(self._members[self._chosen], self._network)
        return super().plan(prompts, members)

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        """Record the duels, draw the next opponent, and return what was measured."""
        measured = super().learn(progress)
        duels = gather_objects([measured["win_rate"]])
        age = progress.iteration - self._table.names[self._chosen]
        self._table.record(self._chosen, sum(wins for wins, _ in duels), sum(games for _, games in duels))
        is_first = float(get_rank() == 0)
        own_metrics = {
            "rating": self._table.rating, "opponent_rating": self._table.ratings[self._chosen],
            "opponent_age": age, "league_size": len(self._members),
        }  # fmt: skip
        self._join(progress.iteration)
        self._chosen = self._table.choose(
            self._rule, seeds.draw_uniform(progress.seed, "league", progress.iteration)
        )
        return {**measured, **{name: (is_first * value, is_first) for name, value in own_metrics.items()}}

    def _join(self, iteration: int) -> None:
        """Add the policy that played this iteration, every ``every`` iterations."""
        if iteration == 0 or iteration % self._every:
            return
        self._members.append(_copy_weights_of(self._policy))
        if (removed := self._table.add_member(iteration, self._size)) is not None:
            del self._members[removed]

    def state_dict(self) -> dict[str, Any]:
        return {"members": self._members, "table": self._table.state_dict(), "chosen": self._chosen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._members = [dict(weights) for weights in state["members"]]
        self._table.load_state_dict(state["table"])
        self._chosen = int(state["chosen"])

    def make_notes(self) -> Mapping[str, str]:
        """Return ratings and win rates as a table."""
        return {"league": f"{self._table.format()}\n"}


def _copy_weights_of(network: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in network.named_parameters()}
