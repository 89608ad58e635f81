"""Members of a rollout structure that only a few structures need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.engines.base import Engine
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.rollout.scheduler import EpisodeSpec

if TYPE_CHECKING:
    from lit_agentrl.rollout.structures.base import Progress

# returns the critic's value of the state before each reply, in units of reward
Values = Callable[[Episode], Sequence[float]]


@dataclass(frozen=True)
class TemporaryStep:
    """A temporary optimizer step.

    The next wave is played with the weights after the step; then the step is undone.

    Attributes:
        lr: Learning rate of the step.
        epsilon: Probabilities in the loss of the step are clipped to at most ``1 - epsilon``.
    """

    lr: float
    epsilon: float


@dataclass(frozen=True)
class Training:
    """The training that a structure plays for.

    Attributes:
        values: The critic's values of the states of an episode, with the current weights.
        reference: The reference network; None without one.
        policy: The policy's network.
        tokenizer: The policy's tokenizer.
        device: The device of training, to which the networks are moved after `StructureHook.setup`.
    """

    values: Values
    reference: Any = None
    policy: Any = None
    tokenizer: Any = None
    device: torch.device = torch.device("cpu")


class StructureHook:
    """The rarely needed members of a structure, with defaults that change nothing.

    A structure that needs one inherits from this class first: ``class Own(StructureHook, Refill)``.

    Attributes:
        wants_repeats: Whether the structure has an effect only on tasks that are played again.
    """

    wants_repeats: bool = False

    @property
    def hook(self) -> StructureHook:
        """This object; a plain `Structure` has `NO_HOOK` here."""
        return self

    def check_game(self, task: Task) -> None:
        """Refuse a game that this structure cannot play, before anything is played.

        Raises:
            ValueError: The structure cannot play the game; the message names the reason and the remedy.
        """
        return None

    def setup(self, training: Training) -> Any:
        """Store what is needed of the training, before anything is played.

        Returns:
            A second network that the engine plays with; None for none.

        Raises:
            ValueError: The structure cannot play for this training; the message names the remedy.
        """
        return None

    def wrap_engine(self, make: Callable[..., Engine]) -> Callable[..., Engine]:
        """Return the constructor of the run's engine: ``make``, or one that wraps its engines."""
        return make

    def count_stores(self) -> int:
        """Return the number of key-value caches in the wrapped engines."""
        return 1

    def plan_evaluation(self, specs: list[EpisodeSpec]) -> list[EpisodeSpec]:
        """Return the episodes of an evaluation, given those that would be played without a structure."""
        return specs

    def plan_temporary_step(self, progress: Progress) -> TemporaryStep | None:
        """Return the step for the next wave, equal on all ranks; None changes no weights."""
        return None

    def mask_tokens(self, iteration: int, rows: TrajectoryBatch) -> Tensor | None:
        """Return a mask (B, T) of sampled tokens that the loss of this iteration excludes.

        Advantages still include them.  With None all tokens count.
        """
        return None

    def skip_tokens(self, iteration: int, rows: TrajectoryBatch) -> Tensor | None:
        """Return a mask (B, T) of sampled tokens that the advantages of this iteration skip.

        They have advantage 0 and no value; their rewards count for the token before them that is not skipped.  The
        loss still includes them.  With None no token is skipped.
        """
        return None

    def make_columns(self, iteration: int, rows: TrajectoryBatch) -> Mapping[str, Tensor]:
        """Return further columns of the rows by name.

        Names are the same on all ranks; ``rows`` may be empty.
        """
        return {}

    def make_notes(self) -> Mapping[str, str]:
        """Return texts about what was learned, by folder name.

        Each is written to its folder when it changes.
        """
        return {}


NO_HOOK = StructureHook()
