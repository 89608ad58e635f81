"""A structure that samples half of each group after unlearning the other half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require_number, require_whole
from lit_agentrl.distributed import sum_over_ranks
from lit_agentrl.facts import IN_ORDER, PLAYED, READS_OLD_LOG_PROBS, WHOLE_WEIGHTS
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress, Structure, make_specs
from lit_agentrl.rollout.structures.hook import StructureHook, TemporaryStep


class Forget(StructureHook, Structure):
    """A structure that moves the policy away from half of each group: EEPO, arXiv 2510.05837.

    The first half of each group is played with the policy.  If the mean entropy of its sampled tokens, averaged over
    the last ``window`` iterations, is below ``threshold``, one SGD step lowers the probability of these tokens.  The
    second half is played with the changed weights, whose log-probs its rows keep; then the step is undone.  ``window``
    and ``epsilon`` are not confirmed by a source.

    Args:
        threshold: entropy in nats, > 0.
        window: number of iterations whose entropies are averaged.
        lr: learning rate of the step.
        epsilon: the step clamps probabilities to at most ``1 - epsilon``.

    Raises:
        ValueError: a value is out of range.
    """

    curves = ("forgotten_share", "first_half_entropy")
    requires = frozenset(
        {
            READS_OLD_LOG_PROBS,
            PLAYED,
            Requirement(IN_ORDER, reason="it moves the weights between two waves"),
            Requirement(WHOLE_WEIGHTS, reason="it moves the weights between two waves"),
        }
    )

    def __init__(
        self, *, threshold: float = 0.3, window: int = 3, lr: float = 3e-3, epsilon: float = 1e-3
    ) -> None:
        require_number("threshold", threshold, "> 0", lambda value: value > 0)
        require_whole("window", window, 1)
        require_number("lr", lr, "> 0", lambda value: value > 0)
        require_number("epsilon", epsilon, "in (0, 1)", lambda value: 0 < value < 1)
        self._threshold, self._window, self._step = threshold, window, TemporaryStep(lr, epsilon)
        self._entropies: list[float] = []  # mean entropy of the first halves in the last iterations

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        if members < 2:
            raise ValueError(
                f"Forget halves each group, and rollout.members={members}; set rollout.members=2 or more"
            )
        return make_specs(prompts, members - members // 2)

    def after_wave(self, progress: Progress) -> Sequence[EpisodeSpec]:
        if progress.waves > 1:
            return ()
        first = progress.members - progress.members // 2
        half = progress.members // 2
        return [
            EpisodeSpec(e.iteration, e.group, e.member + first, e.task, e.instance_seed, progress.waves)
            for e in progress.sampled
            if e.member < half
        ]

    def plan_temporary_step(self, progress: Progress) -> TemporaryStep | None:
        recent = [*self._entropies, self._compute_entropy(progress)][-self._window :]
        return self._step if sum(recent) / len(recent) < self._threshold else None

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        is_moved = self.plan_temporary_step(progress) is not None
        entropy = self._compute_entropy(progress)
        self._entropies = [*self._entropies, entropy][-self._window :]
        return {"forgotten_share": (float(is_moved), 1), "first_half_entropy": (entropy, 1)}

    def state_dict(self) -> dict[str, Any]:
        return {"entropies": list(self._entropies)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._entropies = [float(entropy) for entropy in state["entropies"]]

    def _compute_entropy(self, progress: Progress) -> float:
        """Compute the mean entropy of the first wave over all ranks, in nats per token."""
        turns = [turn for e in progress.sampled if e.wave == 0 for turn in e.turns]
        sums = [
            float(sum(turn.reply_entropies.sum() for turn in turns)),
            sum(len(t.reply_tokens) for t in turns),
        ]
        total, count = sum_over_ranks(torch.tensor(sums, dtype=torch.float64)).tolist()
        return float(total / max(count, 1.0))
