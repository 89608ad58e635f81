"""The interface of task samplers: which training tasks the prompts of a wave show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lit_agentrl import seeds
from lit_agentrl.episode import Episode
from lit_agentrl.requirements import Fact, Requirement

Address = tuple[int, ...]  # from which the game and the instance of a prompt are drawn


@dataclass(frozen=True)
class Draw:
    """The prompts of one wave, whose tasks are to be chosen.

    Attributes:
        seed: Seed of the run.
        iteration, wave: Numbers of the iteration, and of the wave within it.
        prompts: Number of prompts, of all ranks together.
        instances: Number of training tasks; None: new ones always.
    """

    seed: int
    iteration: int
    wave: int
    prompts: int
    instances: int | None


class TaskSampler:
    """A sampler of training tasks; the defaults draw all tasks with equal probability.

    Attributes:
        requires: Facts that other parts of the run must provide; checked at start.
    """

    requires: frozenset[Fact | Requirement] = frozenset()

    def choose(self, draw: Draw) -> list[Address]:
        """Return the address of each prompt.

        The addresses depend only on ``draw`` and on what was learned from earlier iterations.  The address of task k
        of ``draw.instances`` is ``(k,)``.
        """
        return [_choose_uniformly(draw, prompt) for prompt in range(draw.prompts)]

    def learn(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Learn from this rank's sampled episodes of a complete iteration; collective.

        Returns:
            Curves by name, equal on all ranks, which are logged as ``task_sampler/NAME``.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints in plain data, equal on all ranks."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`."""
        return None


class Uniform(TaskSampler):
    """A sampler of new tasks, or of shuffled passes over ``rollout.instances`` tasks."""


def _choose_uniformly(draw: Draw, prompt: int) -> Address:
    address = (draw.iteration, prompt) if draw.wave == 0 else (draw.iteration, prompt, draw.wave)
    if draw.instances is None:
        return address
    if draw.wave:
        return (seeds.make_key(draw.seed, "repeated", *address) % draw.instances,)
    pass_number, index = divmod(draw.iteration * draw.prompts + prompt, draw.instances)
    order = np.random.default_rng(seeds.make_key(draw.seed, "pass", pass_number)).permutation(draw.instances)
    return (int(order[index]),)
