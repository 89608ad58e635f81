"""Rewards by one or several frozen trained reward models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import read_about
from lit_agentrl.rewards.base import RewardContext, Rewards, at_end
from lit_agentrl.rewards.learned.episode_cache import EpisodeCache
from lit_agentrl.rewards.learned.replacing import Replacing
from lit_agentrl.rewards.learned.scoring import Scorer
from lit_agentrl.rewards.learned.success_comparison import SuccessComparison


@dataclass(kw_only=True)
class Learned(Replacing):
    """Trained reward models reward episodes or turns with ``weight * value``.

    A score has no fixed scale: its value is ``(score - mean) / std``, with mean and std over the episodes held out of
    the training of the model.  The value of a logit is ``sigmoid(logit)``.

    Args:
        path: folder of a run that trained a reward model, or of the model itself; or a list of them.
        weight, replaces, keep_penalties: see `Replacing`.
        per: ``episode``: the value of the episode, at its end; ``turn``: the value after each turn; ``progress``: the
            change of the value by each turn, so that the return is the last value minus that of an average episode.
        combine: for several models: ``mean``, ``min``, or ``cautious``, the mean minus ``caution`` times the variance.
        caution: see ``combine``.
        heads: for models with several heads, the weight of each by name; the value is the weighted sum.  None for
            models with one head.
        tokens_per_batch: number of tokens that are computed together.

    Raises:
        ValueError: an option is invalid, or a folder has no reward model; :meth:`setup` refuses models that do not fit
            the policy.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"  # its metrics are over all episodes
    path: str | Sequence[str]
    per: str = "episode"
    combine: str = "mean"
    caution: float = 0.5
    heads: Mapping[str, float] | None = None
    tokens_per_batch: int = 8192
    _comparison: SuccessComparison = field(default_factory=SuccessComparison, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_text = isinstance(self.path, str) and bool(self.path.strip())
        is_list = (
            not isinstance(self.path, str | Mapping) and isinstance(self.path, Sequence) and bool(self.path)
        )
        is_list = is_list and all(isinstance(path, str) and path.strip() for path in self.path)
        require(
            is_text or is_list,
            "path",
            self.path,
            "the folder of a run that trained a reward model, or a list",
        )
        require_one_of("per", self.per, ("episode", "turn", "progress"))
        require_one_of("combine", self.combine, ("mean", "min", "cautious"))
        require_number("caution", self.caution, "finite and > 0", lambda value: 0 < value < math.inf)
        require_whole("tokens_per_batch", self.tokens_per_batch, 1)
        if len(self._paths) == 1 and self.combine != "mean":
            raise ValueError(f"combine={self.combine} has no effect with one model; name several in path")
        self._values = EpisodeCache(self._compute_values)
        self._check_heads()
        abouts = [read_about(path) for path in self._paths]
        for about, path in zip(abouts, self._paths, strict=True):
            about.get_head_weights(self.heads, path)
        if len({about.fingerprint for about in abouts}) < len(abouts):
            raise ValueError(
                f"path=[{','.join(self._paths)}] names the same weights twice; name each model once"
            )

    def _check_heads(self) -> None:
        if self.heads is None:
            return
        is_table = isinstance(self.heads, Mapping) and bool(self.heads)
        require(is_table, "heads", self.heads, "a table of weights by name, or null")
        for name, weight in self.heads.items():
            require_number(f"heads.{name}", weight, "finite", math.isfinite)
        if not any(self.heads.values()):
            raise ValueError(
                "heads gives every head the weight 0, so that all values are 0; set at least one other weight"
            )

    @property
    def _paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else list(self.path)

    def setup(self, context: RewardContext) -> None:
        """Load the models onto the device of the run's networks.

        Raises:
            ValueError: one cannot be loaded, or uses another tokenizer than the policy.
        """
        self._scorer = Scorer(self._paths, context, tokens_per_batch=self.tokens_per_batch, heads=self.heads)

    # ------------------------------------------------------------------ rewards
    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Add the models' rewards to the game's, or replace them."""
        values = self.values(episodes)
        if self.per == "episode":
            turn_values = at_end(episodes, [row[-1] for row in values])
        else:
            turn_values = [list(row) for row in values]
        if self.per == "progress":
            start = self._scorer.start
            turn_values = [[b - a for a, b in zip([start, *row], row, strict=False)] for row in turn_values]
        return self.combine_rewards(rewards, episodes, turn_values)

    def values(self, episodes: Sequence[Episode]) -> Rewards:
        """Return the value after each turn of each episode, without the weight.

        Values of the last call are cached.
        """
        return self._values.get(episodes)

    def _compute_values(self, episodes: Sequence[Episode]) -> Rewards:
        value_MA = self._scorer.values(episodes)
        if self.combine == "min":
            value_A = value_MA.amin(0)
        else:
            value_A = value_MA.mean(0)
            if self.combine == "cautious":
                value_A = value_A - self.caution * value_MA.var(0, correction=0)
        return self._scorer.split_by_turn(value_A, episodes)

    # ------------------------------------------------------------------ metrics and state
    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Compare the values with success; see `SuccessComparison.measure`."""
        value = self.gather_numbers([row[-1] for row in self.values(episodes)])
        success = self.gather_numbers([float(episode.success) for episode in episodes])
        return self._comparison.measure(value, success)

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprints of the models and the first median of successes."""
        return {
            "fingerprints": self._scorer.fingerprints,
            "first": self._comparison.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`.

        Raises:
            ValueError: the checkpoint was trained with other models.
        """
        self._scorer.require_same(state["fingerprints"], f"reward.{self.name}.path={','.join(self._paths)}")
        self._comparison.load_state_dict(state["first"])
