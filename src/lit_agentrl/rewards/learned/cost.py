"""What a trained cost model says that an episode costs, in place of the game's costs; frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import read_about
from lit_agentrl.rewards.base import Points, RewardContext, RewardPart, Stage, at_end
from lit_agentrl.rewards.learned.remembered import Remembered
from lit_agentrl.rewards.learned.scoring import Scorer


@dataclass(kw_only=True)
class LearnedCost(RewardPart):
    """The score of a model of ``algo=cost_model`` at an episode's end, as its cost; points stay as they are.

    ``algo/cost=lagrange`` holds the mean cost of episodes within its limit.  A score has the unit of the model: above 0
    it says that the episode costs too much, so ``algo.cost.limit=0`` is its own bound.

    Args:
        path: folder of a run that trained a cost model, or of the model itself.
        tokens_per_batch: that are computed together.

    Raises:
        ValueError: an option that makes no sense, or a folder without a cost model; :meth:`setup` refuses a model that
            does not fit the policy.
    """

    stage: ClassVar[Stage] = Stage.WATCH
    sees: ClassVar[Literal["own", "all"]] = "all"  # its curves are of all episodes
    path: str
    tokens_per_batch: int = 8192

    def __post_init__(self) -> None:
        is_text = isinstance(self.path, str) and bool(self.path.strip())
        require(is_text, "path", self.path, "the folder of a run that trained a cost model")
        require_whole("tokens_per_batch", self.tokens_per_batch, 1)
        read_about(self.path, use="reward=cost")
        self._costs = Remembered(self._scored)

    def setup(self, context: RewardContext) -> None:
        """Loads the model onto the device of the run's networks.

        Raises:
            ValueError: it cannot be loaded, or reads the token ids of another tokenizer.
        """
        self._scorer = Scorer([self.path], context, tokens_per_batch=self.tokens_per_batch, use="reward=cost")

    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """The points as they are."""
        return points

    def costs(self, episodes: Sequence[Episode]) -> Points:
        """The score at the end of each episode."""
        return at_end(episodes, [row[-1] for row in self._costs.of(episodes)])

    def _scored(self, episodes: Sequence[Episode]) -> Points:
        return self._scorer.rows(self._scorer.values(episodes)[0], episodes)

    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """``score``: the mean cost of episodes; ``costly_share``: of those above 0."""
        values = self.everyones_numbers([row[-1] for row in self._costs.of(episodes)])
        return {
            "score": sum(values) / len(values),
            "costly_share": sum(value > 0 for value in values) / len(values),
        }

    def state_dict(self) -> dict[str, Any]:
        """Which model it is."""
        return {"fingerprints": self._scorer.fingerprints}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`.

        Raises:
            ValueError: the model is another than that of the checkpoint.
        """
        self._scorer.require_same(state["fingerprints"], f"reward.{self.name}.path={self.path}")
