"""Early stop of an iteration's steps by the KL from the sampling policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_agentrl.checks import require_one_of, require_positive


@dataclass(frozen=True, kw_only=True)
class KLStop:
    """A rule that skips the remaining steps once a KL exceeds ``bound``: LOOP, arXiv 2502.01600.

    The KL is that of the sampling policy to the current policy, ``exp(d) - 1 - d`` with ``d = logp - old_logp`` at
    each sampled token of the next minibatch: summed over a trajectory and averaged over trajectories, or averaged
    over tokens.  The KL is checked before each step but the first, at no extra cost, since the pass that computes the
    gradient of the step also computes the KL.

    Args:
        bound: nats, > 0.
        per: ``trajectory`` or ``token``.

    Raises:
        ValueError: a value is out of range; the message names the option.
    """

    bound: float = 20.0
    per: Literal["trajectory", "token"] = "trajectory"

    def __post_init__(self) -> None:
        require_positive("bound", self.bound)
        require_one_of("per", self.per, ("trajectory", "token"))

    def compute_kl(self, *, nats: float, tokens: float, trajectories: float) -> float:
        """Compute the KL (nats) of a minibatch of all ranks.

        Args:
            nats: sum of the KL over the minibatch's sampled tokens.
            tokens: number of sampled tokens.
            trajectories: number of trajectories with sampled tokens.
        """
        return nats / max(1.0, trajectories if self.per == "trajectory" else tokens)
