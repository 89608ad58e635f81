"""Checks of the callbacks' options, which import neither torch nor Lightning.

Wrong values are therefore reported before these libraries are loaded (`runs.early`).
"""

from __future__ import annotations

from typing import Literal

from lit_agentrl.checks import require, require_number, require_one_of, require_whole


def check_transcripts(*, every: int = 10, episodes: int = 4) -> None:
    """Check the options of `Transcripts`.

    Raises:
        ValueError: an invalid value; the message names the option.
    """
    require_whole("every", every, 1)
    require_whole("episodes", episodes, 1)


def check_display(*, every: int = 1, every_seconds: float = 0.0) -> None:
    """Check the options of `LiveDisplay`; raises as `check_transcripts`."""
    require_whole("every", every, 1)
    require_number("every_seconds", every_seconds, "a number >= 0", lambda value: value >= 0)


def check_last(*, every: int | Literal["auto"] = "auto", keep: int = 2) -> None:
    """Check the options of `LastCheckpoint`; raises as `check_transcripts`."""
    if every != "auto":
        require(isinstance(every, int), "every", every, "auto, or a whole number of at least 1")
        require_whole("every", every, 1)
    _check_keep(keep)


def check_best(*, mode: str = "max", keep: int = 1) -> None:
    """Check the options of `BestCheckpoint`; raises as `check_transcripts`."""
    require_one_of("mode", mode, ("max", "min", "auto"))
    _check_keep(keep)


def check_start_kl(*, episodes: int = 32, temperature: float = 1.0) -> None:
    """Check the options of `StartKL`; raises as `check_transcripts`."""
    require_whole("episodes", episodes, 1)
    require_number("temperature", temperature, ">= 0", lambda value: value >= 0)


def check_rollback(*, lr_factor: float = 0.5, at_most: int = 3) -> None:
    """Check the options of the monitor's `Rollback`; raises as `check_transcripts`."""
    require_number("lr_factor", lr_factor, "in (0, 1]; 1 keeps the rate", lambda value: 0 < value <= 1)
    require_whole("at_most", at_most, 1)


def _check_keep(keep: int) -> None:
    require(keep in (1, 2), "keep", keep, "1 (newest) or 2 (and its predecessor)")
