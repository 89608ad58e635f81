"""How like the best recorded answer to its prompt an episode is, by a trained model, as reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import read_about
from lit_agentrl.rewards.base import Points, RewardContext, at_end
from lit_agentrl.rewards.learned.remembered import Remembered
from lit_agentrl.rewards.learned.replacing import Replacing
from lit_agentrl.rewards.learned.scoring import Scorer
from lit_agentrl.rewards.learned.watching import Watched
from lit_agentrl.text.token_bytes import hash_tokenizer


class Known(Protocol):
    """What is known of prompts; see `data.references.References`."""

    path: str
    tokenizer: str
    fingerprint: str

    def before(self, episode: Episode) -> Episode | None:
        """The episode behind its reference, or None."""


@dataclass(kw_only=True)
class BesideReference(Replacing):
    """``weight * value`` of an episode at its end: ``(r(p, reference, episode) - mean) / std`` of ``algo=polar``.

    https://arxiv.org/abs/2507.05197.  An episode of a prompt without a reference is not trained on.

    Args:
        path: folder of the run that trained the model, or of the model itself.
        references: gives the best recorded episode of a prompt.
        weight, replaces, keep_penalties: see `Replacing`.
        max_missing_share: share of an iteration's episodes that may have no reference.
        tokens_per_batch: that are computed together.

    Raises:
        ValueError: an option that makes no sense, or a folder without such a model; :meth:`setup` refuses models and
            references that do not fit the policy.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"  # its curves are of all episodes
    path: str
    references: Known
    max_missing_share: float = 0.0
    tokens_per_batch: int = 8192
    _watched: Watched = field(default_factory=Watched, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_text = isinstance(self.path, str) and bool(self.path.strip())
        require(is_text, "path", self.path, "the folder of a run of algo=polar")
        require_number("max_missing_share", self.max_missing_share, "in [0, 1)", lambda share: 0 <= share < 1)
        require_whole("tokens_per_batch", self.tokens_per_batch, 1)
        read_about(self.path, use="reward=polar")
        self._values = Remembered(self._scored)

    def setup(self, context: RewardContext) -> None:
        """Loads the model onto the device of the run's networks.

        Raises:
            ValueError: it cannot be loaded, or it or the references are of another tokenizer.
        """
        if self.references.tokenizer != hash_tokenizer(context.tokenizer):
            raise ValueError(
                f"reward.{self.name}.references.path={self.references.path} holds token ids of another tokenizer than "
                "the policy's; collect with a model of the same one"
            )
        self._scorer = Scorer(
            [self.path], context, tokens_per_batch=self.tokens_per_batch, use="reward=polar"
        )

    # ------------------------------------------------------------------ points
    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """The model's points, beside the game's or in their place; 0 for the episodes of `left_out`.

        Raises:
            ValueError: more than ``max_missing_share`` of all episodes have no reference.
        """
        values = self._values.of(episodes)
        missing = self.everyones_numbers([float(value is None) for value in values])
        if sum(missing) > self.max_missing_share * len(missing):
            raise ValueError(
                f"reward.{self.name}.references.path={self.references.path} has no reference for {sum(missing):.0f} of "
                f"{len(missing)} episodes (max_missing_share={self.max_missing_share:g}); train on its prompts, as "
                "rollout.instances and collect trained_in=SEED do, or collect theirs"
            )
        return self.placed(points, episodes, at_end(episodes, [value or 0.0 for value in values]))

    def left_out(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        """Those without a reference."""
        values = self._values.of(episodes)
        return [episode for episode, value in zip(episodes, values, strict=True) if value is None]

    def _scored(self, episodes: Sequence[Episode]) -> list[float | None]:
        joined = [self.references.put_before(episode) for episode in episodes]
        known = [episode for episode in joined if episode is not None]
        if not known:
            return [None] * len(episodes)
        rows = iter(self._scorer.rows(self._scorer.values(known)[0], known))
        return [None if episode is None else next(rows)[-1] for episode in joined]

    # ------------------------------------------------------------------ watching
    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """What the values are watched by, see `Watched.look`; ``missing``: share of episodes without a reference."""
        judged = list(zip(episodes, self._values.of(episodes), strict=True))
        values = self.everyones_numbers([value for _, value in judged if value is not None])
        solved = self.everyones_numbers([float(e.success) for e, value in judged if value is not None])
        missing = self.everyones_numbers([float(value is None) for _, value in judged])
        row = self._watched.look(values, solved) if values else {}
        return row | {"missing": sum(missing) / max(len(missing), 1)}

    def state_dict(self) -> dict[str, Any]:
        """Which model and references they are, and what a success was worth at first."""
        return {
            "fingerprints": self._scorer.fingerprints,
            "references": self.references.fingerprint,
            "first": self._watched.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`.

        Raises:
            ValueError: model or references are others than those of the checkpoint.
        """
        self._scorer.require_same(state["fingerprints"], f"reward.{self.name}.path={self.path}")
        if state["references"] != self.references.fingerprint:
            raise ValueError(
                f"reward.{self.name}.references.path={self.references.path} holds other episodes than this run was "
                "trained on; put them back"
            )
        self._watched.load_state_dict(state["first"])
