"""Costs of episodes by a frozen trained cost model, instead of the game's costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import read_about
from lit_agentrl.rewards.base import RewardContext, RewardPart, Rewards, Stage, at_end
from lit_agentrl.rewards.learned.episode_cache import EpisodeCache
from lit_agentrl.rewards.learned.scoring import Scorer


@dataclass(kw_only=True)
class LearnedCost(RewardPart):
    """Cost of an episode: the score of a model of ``algo=cost_model`` at its end.

    Rewards do not change.  ``algo/cost=lagrange`` keeps the mean cost of episodes below its limit.  A score is in the
    unit of the model: a score above 0 means that the model considers the episode too costly, so ``algo.cost.limit=0``
    is the natural bound.

    Args:
        path: folder of a run that trained a cost model, or of the model itself.
        tokens_per_batch: number of tokens that are computed together.

    Raises:
        ValueError: an option is invalid, or the folder has no cost model; :meth:`setup` refuses a model that does not
            fit the policy.
    """

    stage: ClassVar[Stage] = Stage.WATCH
    sees: ClassVar[Literal["own", "all"]] = "all"  # its metrics are over all episodes
    path: str
    tokens_per_batch: int = 8192

    def __post_init__(self) -> None:
        is_text = isinstance(self.path, str) and bool(self.path.strip())
        require(is_text, "path", self.path, "the folder of a run that trained a cost model")
        require_whole("tokens_per_batch", self.tokens_per_batch, 1)
        read_about(self.path, use="reward=cost")
        self._costs = EpisodeCache(self._compute_values)

    def setup(self, context: RewardContext) -> None:
        """Load the model onto the device of the run's networks.

        Raises:
            ValueError: the model cannot be loaded, or uses another tokenizer than the policy.
        """
        self._scorer = Scorer([self.path], context, tokens_per_batch=self.tokens_per_batch, use="reward=cost")

    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Return the rewards unchanged."""
        return rewards

    def costs(self, episodes: Sequence[Episode]) -> Rewards:
        """Return the score at the last turn of each episode."""
        return at_end(episodes, [row[-1] for row in self._costs.get(episodes)])

    def _compute_values(self, episodes: Sequence[Episode]) -> Rewards:
        return self._scorer.split_by_turn(self._scorer.values(episodes)[0], episodes)

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Return ``score``, the mean cost, and ``costly_share``, the share with a cost above 0."""
        values = self.gather_numbers([row[-1] for row in self._costs.get(episodes)])
        return {
            "score": sum(values) / len(values),
            "costly_share": sum(value > 0 for value in values) / len(values),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprint of the model."""
        return {"fingerprints": self._scorer.fingerprints}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`.

        Raises:
            ValueError: the checkpoint was trained with another model.
        """
        self._scorer.require_same(state["fingerprints"], f"reward.{self.name}.path={self.path}")
