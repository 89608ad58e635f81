"""When the steps of an iteration end early: the policy has moved too far from the one that played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_agentrl.checks import require_one_of, require_positive


@dataclass(frozen=True, kw_only=True)
class KLStop:
    """Leaves out the remaining steps of an iteration once a KL exceeds ``bound``: LOOP, arXiv 2502.01600.

    The KL is that of the policy that played to the policy of now, ``exp(d) - 1 - d`` with ``d = logp - old_logp`` at
    each sampled token of the coming minibatch: summed over a trajectory and averaged over trajectories, or averaged
    over tokens.  It is asked before each step but the first, and costs nothing: the pass that makes the step's
    gradient gives it.

    Args:
        bound: nats, > 0.
        per: ``trajectory`` or ``token``.

    Raises:
        ValueError: a value out of range, naming the option.
    """

    bound: float = 20.0
    per: Literal["trajectory", "token"] = "trajectory"

    def __post_init__(self) -> None:
        require_positive("bound", self.bound)
        require_one_of("per", self.per, ("trajectory", "token"))

    def kl(self, *, nats: float, tokens: float, trajectories: float) -> float:
        """The KL (nats) of a minibatch of all ranks.

        Args:
            nats: sum over its sampled tokens.
            tokens: number of these.
            trajectories: number of those that have any.
        """
        return nats / max(1.0, trajectories if self.per == "trajectory" else tokens)
