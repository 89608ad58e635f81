"""``reference``: which network a KL term or a loss of pairs compares the policy with, and where none is asked for."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lit_agentrl.checks import format_value
from lit_agentrl.data.recordings import Recordings
from lit_agentrl.screen import note
from lit_agentrl.update.reference_cache import ReferenceCache


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
