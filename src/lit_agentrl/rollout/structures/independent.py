"""Groups of independent episodes, played once."""

from __future__ import annotations

from lit_agentrl.rollout.structures.base import Structure


class Independent(Structure):
    """Each prompt is played ``rollout.members`` times, and nothing further."""
