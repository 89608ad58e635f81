"""A trained reward model, or several, in place of the game's points; frozen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from lit_agentrl.checks import require, require_number, require_one_of, require_whole
from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import read_about
from lit_agentrl.rewards.base import Points, RewardContext, at_end
from lit_agentrl.rewards.learned.remembered import Remembered
from lit_agentrl.rewards.learned.replacing import Replacing
from lit_agentrl.rewards.learned.scoring import Scorer
from lit_agentrl.rewards.learned.watching import Watched


@dataclass(kw_only=True)
class Learned(Replacing):
    """``weight * value`` of an episode at its end, or of each turn, by models that `algo=…` has trained.

    A score has no scale of its own: its value is ``(score - mean) / std``, those of the episodes held out of the
    model's training.  The value of a logit is its chance, ``sigmoid(logit)``.

    Args:
        path: folder of a run that trained a reward model, or of the model itself; or a list of them.
        weight, replaces, keep_penalties: see `Replacing`.
        per: ``episode``: the value of the whole, at its end; ``turn``: after each turn; ``progress``: what each turn
            has added to the value, so that an episode earns the value of its end less that of an average one.
        combine: of several models: ``mean``, ``min``, or ``cautious``: mean less ``caution`` times their variance.
        caution: see ``combine``.
        heads: of models with several heads, what each counts, by name: the value is the sum of theirs, each times its
            weight.  None: models of one head.
        tokens_per_batch: that are computed together.

    Raises:
        ValueError: an option that makes no sense, or a folder without a reward model; :meth:`setup` refuses models that
            do not fit the policy.
    """

    sees: ClassVar[Literal["own", "all"]] = "all"  # its curves are of all episodes
    path: str | Sequence[str]
    per: str = "episode"
    combine: str = "mean"
    caution: float = 0.5
    heads: Mapping[str, float] | None = None
    tokens_per_batch: int = 8192
    _watched: Watched = field(default_factory=Watched, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_text = isinstance(self.path, str) and bool(self.path.strip())
        is_list = (
            not isinstance(self.path, str | Mapping) and isinstance(self.path, Sequence) and bool(self.path)
        )
        is_list = is_list and all(isinstance(each, str) and each.strip() for each in self.path)
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
        self._values = Remembered(self._scored)
        self._check_heads()
        abouts = [read_about(each) for each in self._paths]
        for about, each in zip(abouts, self._paths, strict=True):
            about.get_head_weights(self.heads, each)
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
                "heads weighs each head 0, which leaves no value at all; give one another weight"
            )

    @property
    def _paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else list(self.path)

    def setup(self, context: RewardContext) -> None:
        """Loads the models onto the device of the run's networks.

        Raises:
            ValueError: one cannot be loaded, or reads the token ids of another tokenizer.
        """
        self._scorer = Scorer(self._paths, context, tokens_per_batch=self.tokens_per_batch, heads=self.heads)

    # ------------------------------------------------------------------ points
    def apply(self, points: Points, episodes: Sequence[Episode], *, iteration: int) -> Points:
        """The models' points, beside the game's or in their place."""
        values = self.values(episodes)
        if self.per == "episode":
            given = at_end(episodes, [row[-1] for row in values])
        else:
            given = [list(row) for row in values]
        if self.per == "progress":
            start = self._scorer.start
            given = [[b - a for a, b in zip([start, *row], row, strict=False)] for row in given]
        return self.placed(points, episodes, given)

    def values(self, episodes: Sequence[Episode]) -> Points:
        """After each turn of each episode, without weight; episodes that were asked for just before are kept."""
        return self._values.of(episodes)

    def _scored(self, episodes: Sequence[Episode]) -> Points:
        found_MA = self._scorer.values(episodes)
        if self.combine == "min":
            value_A = found_MA.amin(0)
        else:
            value_A = found_MA.mean(0)
            if self.combine == "cautious":
                value_A = value_A - self.caution * found_MA.var(0, correction=0)
        return self._scorer.rows(value_A, episodes)

    # ------------------------------------------------------------------ watching
    def curves(self, episodes: Sequence[Episode], *, iteration: int) -> dict[str, float]:
        """What the values are watched by; see `Watched.look`."""
        value = self.everyones_numbers([row[-1] for row in self.values(episodes)])
        success = self.everyones_numbers([float(episode.success) for episode in episodes])
        return self._watched.look(value, success)

    def state_dict(self) -> dict[str, Any]:
        """Which models they are, and what a success was worth at first."""
        return {
            "fingerprints": self._scorer.fingerprints,
            "first": self._watched.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`.

        Raises:
            ValueError: the models are others than those of the checkpoint.
        """
        self._scorer.require_same(state["fingerprints"], f"reward.{self.name}.path={','.join(self._paths)}")
        self._watched.load_state_dict(state["first"])
