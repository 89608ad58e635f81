"""POLAR reward: similarity of an episode to a recorded reference, by a trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import read_about
from lit_agentrl.rewards.base import RewardContext, Rewards, at_end
from lit_agentrl.rewards.learned.episode_cache import EpisodeCache
from lit_agentrl.rewards.learned.replacing import Replacing
from lit_agentrl.rewards.learned.scoring import Scorer
from lit_agentrl.rewards.learned.success_comparison import SuccessComparison
from lit_agentrl.text.token_bytes import hash_tokenizer


class ReferenceSource(Protocol):
    """A source of reference episodes; see `data.references.References`."""

    path: str
    tokenizer: str
    fingerprint: str

    def put_before(self, episode: Episode) -> Episode | None:
        """Return the episode preceded by the reference of its prompt, or None."""


@dataclass(kw_only=True)
class BesideReference(Replacing):
    """A model compares each episode with a reference and rewards ``weight * value``.

    The reward is paid at the end of the episode.  The value is ``(r(p, reference, episode) - mean) / std`` of a model
    of ``algo=polar``: https://arxiv.org/abs/2507.05197.  An episode of a prompt without a reference is not trained on.

    Args:
        path: folder of the run that trained the model, or of the model itself.
        references: source of the best recorded episode of each prompt.
        weight, replaces, keep_penalties: see `Replacing`.
        max_missing_share: share of the episodes of an iteration that may have no reference.
        tokens_per_batch: number of tokens that are computed together.

    Raises:
        ValueError: an option is invalid, or the folder has no such model; :meth:`setup` refuses models and references
            that do not fit the policy.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"  # its metrics are means over all episodes
    path: str
    references: ReferenceSource
    max_missing_share: float = 0.0
    tokens_per_batch: int = 8192
    _comparison: SuccessComparison = field(default_factory=SuccessComparison, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_text = isinstance(self.path, str) and bool(self.path.strip())
        require(is_text, "path", self.path, "the folder of a run of algo=polar")
        require_number("max_missing_share", self.max_missing_share, "in [0, 1)", lambda share: 0 <= share < 1)
        require_whole("tokens_per_batch", self.tokens_per_batch, 1)
        read_about(self.path, use="reward=polar")
        self._values = EpisodeCache(self._compute_values)

    def setup(self, context: RewardContext) -> None:
        """Load the model onto the device of the run's networks.

        Raises:
            ValueError: the model cannot be loaded, or the model or the references use another tokenizer than the
                policy.
        """
        if self.references.tokenizer != hash_tokenizer(context.tokenizer):
            raise ValueError(
                f"reward.{self.name}.references.path={self.references.path} holds token ids of another tokenizer than "
                "the policy's; collect with a model that has the policy's tokenizer"
            )
        self._scorer = Scorer(
            [self.path], context, tokens_per_batch=self.tokens_per_batch, use="reward=polar"
        )

    # ------------------------------------------------------------------ rewards
    def apply(self, rewards: Rewards, episodes: Sequence[Episode], *, iteration: int) -> Rewards:
        """Add the model's rewards to the game's, or replace them; those of `left_out` get 0.

        Raises:
            ValueError: more than ``max_missing_share`` of all episodes have no reference.
        """
        values = self._values.get(episodes)
        missing = self.gather_numbers([float(value is None) for value in values])
        if sum(missing) > self.max_missing_share * len(missing):
            raise ValueError(
                f"reward.{self.name}.references.path={self.references.path} has no reference for {sum(missing):.0f} of "
                f"{len(missing)} episodes (max_missing_share={self.max_missing_share:g}); train on the "
                "recorded prompts (rollout.instances, collect trained_in=SEED), or collect episodes of the missing ones"
            )
        return self.combine_rewards(rewards, episodes, at_end(episodes, [value or 0.0 for value in values]))

    def left_out(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """Return the episodes without a reference."""
        values = self._values.get(episodes)
        return [episode for episode, value in zip(episodes, values, strict=True) if value is None]

    def _compute_values(self, episodes: Sequence[Episode]) -> list[float | None]:
        joined = [self.references.put_before(episode) for episode in episodes]
        with_reference = [episode for episode in joined if episode is not None]
        if not with_reference:
            return [None] * len(episodes)
        rows = iter(self._scorer.split_by_turn(self._scorer.values(with_reference)[0], with_reference))
        return [None if episode is None else next(rows)[-1] for episode in joined]

    # ------------------------------------------------------------------ metrics and state
    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """Compare the values with success; see `SuccessComparison.measure`.

        ``missing`` is the share of episodes without a reference.
        """
        pairs = list(zip(episodes, self._values.get(episodes), strict=True))
        values = self.gather_numbers([value for _, value in pairs if value is not None])
        solved = self.gather_numbers([float(e.success) for e, value in pairs if value is not None])
        missing = self.gather_numbers([float(value is None) for _, value in pairs])
        metrics = self._comparison.measure(values, solved) if values else {}
        return metrics | {"missing": sum(missing) / max(len(missing), 1)}

    def state_dict(self) -> dict[str, Any]:
        """Return the fingerprints of model and references, and the state of `SuccessComparison`."""
        return {
            "fingerprints": self._scorer.fingerprints,
            "references": self.references.fingerprint,
            "first": self._comparison.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`.

        Raises:
            ValueError: the checkpoint was trained with another model or other references.
        """
        self._scorer.require_same(state["fingerprints"], f"reward.{self.name}.path={self.path}")
        if state["references"] != self.references.fingerprint:
            raise ValueError(
                f"reward.{self.name}.references.path={self.references.path} holds other episodes than this run was "
                "trained on; put them back"
            )
        self._comparison.load_state_dict(state["first"])
