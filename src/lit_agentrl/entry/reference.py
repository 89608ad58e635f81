"""``reference``: which network a KL term or a loss of pairs compares the policy with, and where none is asked for."""

from __future__ import annotations

from omegaconf import DictConfig

from lit_agentrl.entry.making import made
from lit_agentrl.rl.objective import Objective
from lit_agentrl.update.reference import Reference


def build_reference(cfg: DictConfig, algorithm: Objective) -> Reference:
    """Which network a reference is.

    Raises:
        ValueError: another than the start where nothing asks for one, or one that moves where shares are put away.
    """
    reference: Reference = made(cfg, "reference", Reference)
    name = type(reference).__name__.lower()
    if not reference.is_start and not algorithm.needs("ref_logp_BT"):
        raise ValueError(
            f"reference={name} has no effect: algo={algorithm.name} asks for no reference; use a KL term, such as "
            "algo/kl=loss_k2, or reference=start"
        )
    if reference.moves and cfg.strategy.get("offload_frozen"):
        raise ValueError(
            f"strategy.offload_frozen=true puts away what never changes, and reference={name} does; set it to false"
        )
    return reference
