"""Checks of the engines' options, which import neither torch nor transformers.

Wrong values are therefore reported before these libraries are loaded (`runs.early`).
"""

from __future__ import annotations

from lit_agentrl.checks import require_number, require_whole

AUTO = "auto"
PACKED, PADDED = "packed", "padded"
MOST_SLOTS = 65_536  # upper limit of an engine's slots, whose data are held in memory
MOST_STEPS = 256  # of a decode window


def check_native(
    *,
    num_slots: int = 128,
    window: int | str = AUTO,
    play_copy: bool | str = AUTO,
    prefill: str = AUTO,
) -> None:
    """Check the options of `NativeEngine`.

    Raises:
        ValueError: If a value is invalid; the message names the option.
    """
    require_whole("num_slots", num_slots, 1, MOST_SLOTS)
    if window != AUTO:
        require_whole("window", window, 0, MOST_STEPS, alternative=", or auto; 0 decodes step by step")
    if play_copy is not True and play_copy is not False and play_copy != AUTO:
        raise ValueError(f"play_copy={play_copy} must be auto, true or false")
    if prefill not in (AUTO, PACKED, PADDED):
        raise ValueError(f"prefill={prefill} must be {AUTO}, {PACKED} or {PADDED}")


def check_vllm(
    *,
    num_slots: int = 128,
    max_sync_gap: float = 1e-3,
    cache_gb: float | str = AUTO,
    sleep: int | str = AUTO,
) -> None:
    """Check the options of `VLLMEngine`.

    Raises:
        ValueError: If a value is invalid; the message names the option.
    """
    require_whole("num_slots", num_slots, 1, MOST_SLOTS)
    if cache_gb != AUTO:
        require_number("cache_gb", cache_gb, "auto or a number > 0", lambda value: value > 0)
    require_number("max_sync_gap", max_sync_gap, "a number >= 0", lambda value: value >= 0)
    if sleep != AUTO and (isinstance(sleep, bool) or sleep not in (0, 1, 2)):
        raise ValueError(
            f"sleep={sleep} must be auto, 0 (stays awake), 1 (weights move to the host) or 2 (weights are dropped)"
        )
