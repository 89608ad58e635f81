"""Build the cache of the reference's log-probs over a data set."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lit_agentrl.checks import format_value
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.screen import note
from lit_agentrl.update.reference_cache import ReferenceCache


def build_reference_cache(cfg: DictConfig, recorded: Recordings, *, is_given: bool) -> ReferenceCache | None:
    """Return the cache of the reference's log-probs, or None without ``data.cache_reference``.

    Raises:
        ValueError: the recorded log-probs are those of the reference, so that there is nothing to compute.
    """
    if not (where := cfg.data.get("cache_reference")):
        return None
    if is_given:
        raise ValueError(
            f"data.cache_reference={format_value(where)} has no effect: the recorded log-probs are those of the "
            "reference; set it to false"
        )
    folder = Path(cfg.run_dir) / "reference" if where is True else Path(where).expanduser()
    note(f"the reference scores the data set once, before the first step; stored in {folder}")
    computed = {"precision": cfg.trainer.get("precision"), "compute_dtype": cfg.strategy.get("compute_dtype")}
    return ReferenceCache(
        folder, recorded.iterate_pieces, {name: str(value) for name, value in computed.items()}
    )
