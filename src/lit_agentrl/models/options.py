"""Checks of the models' options, which import neither torch nor transformers.

Wrong values are therefore reported before these libraries are loaded (`runs.early`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lit_agentrl.checks import require, require_number, require_one_of, require_whole

ALL_LINEAR = "all-linear"
DATE = "2026-01-01"  # fixed, so that equal seeds give equal prompts on any day
_DTYPES = ("float32", "bfloat16", "float16")


def check_pretrained(*, dtype: str = "float32", date: str = DATE, export_dtype: str | None = None) -> None:
    """Check the precisions and the date of `load_pretrained`.

    Raises:
        ValueError: If a value is invalid; the message names the option.
    """
    require_one_of("dtype", dtype, _DTYPES)
    if export_dtype is not None:
        require_one_of("export_dtype", export_dtype, _DTYPES)
    require(_is_date(date), "date", date, "a date as YEAR-MONTH-DAY, such as 2026-01-31")


def check_lora(*, r: int = 16, alpha: float = 32.0, target_modules: str | Sequence[str] = ALL_LINEAR) -> None:
    """Check the options of `LoRA`.

    Raises:
        ValueError: If a value is invalid; the message names the option.
    """
    require_whole("r", r, 1)
    require_number("alpha", alpha, "> 0", lambda value: value > 0)
    if not target_modules:
        raise ValueError(f"target_modules={target_modules} matches no layer; {ALL_LINEAR} selects all")


def _is_date(text: object) -> bool:
    try:
        datetime.strptime(str(text), "%Y-%m-%d")
    except ValueError:
        return False
    return True
