"""Groups of independent episodes, played once."""

from __future__ import annotations

from lit_agentrl.rollout.structures.base import Structure


class Independent(Structure):
    """Groups of ``rollout.members`` independent episodes per prompt, without further waves."""
