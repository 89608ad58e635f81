"""``reference``: which network a KL term or a loss of pairs compares the policy with, and where none is asked for."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lit_agentrl.build.making import made
from lit_agentrl.checks import format_value
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.rl.objective import Objective
from lit_agentrl.screen import note
from lit_agentrl.update.reference import Reference
from lit_agentrl.update.reference_cache import ReferenceCache


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
    if cfg.get("data") and cfg.data.get("cache_reference"):
        _check_kept(cfg, algorithm, reference)
    if reference.moves and cfg.strategy.get("offload_frozen"):
        raise ValueError(
            f"strategy.offload_frozen=true puts away what never changes, and reference={name} does; set it to false"
        )
    return reference


def _check_kept(cfg: DictConfig, algorithm: Objective, reference: Reference) -> None:
    """Refuse ``data.cache_reference`` where nothing is computed twice, or never the same."""
    option = f"data.cache_reference={format_value(cfg.data.cache_reference)}"
    if not algorithm.needs("ref_logp_BT"):
        raise ValueError(
            f"{option} has no effect: algo={algorithm.name} asks for no reference; set it to false"
        )
    if reference.moves:
        raise ValueError(
            f"{option} keeps what a reference says that stands still, and reference={type(reference).__name__.lower()} "
            "moves; set it to false"
        )
    if cfg.strategy.get("offload_frozen"):
        raise ValueError(
            f"strategy.offload_frozen=true has no effect: with {option} the reference is let go before the first step; "
            "set it to false"
        )


def kept_reference(cfg: DictConfig, recorded: Recordings, *, is_given: bool) -> ReferenceCache | None:
    """What keeps the reference's log-probs of the data set; None where nobody asks for it.

    Raises:
        ValueError: they need not be computed at all.
    """
    if not (where := cfg.data.get("cache_reference")):
        return None
    if is_given:
        raise ValueError(
            f"data.cache_reference={format_value(where)} has no effect: the recorded log-probs are those of the "
            "reference; set it to false"
        )
    folder = Path(cfg.run_dir) / "reference" if where is True else Path(where).expanduser()
    note(f"the reference scores the data set once, before the first step; kept in {folder}")
    computed = {"precision": cfg.trainer.get("precision"), "compute_dtype": cfg.strategy.get("compute_dtype")}
    return ReferenceCache(
        folder, recorded.iterate_pieces, {name: str(value) for name, value in computed.items()}
    )
