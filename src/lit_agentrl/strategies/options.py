"""Checks of the strategies' options, which import neither torch nor Lightning.

Wrong values are therefore reported before these libraries are loaded (`runs.early`).
"""

from __future__ import annotations

from lit_agentrl.checks import require_number, require_one_of

_DTYPES = ("float32", "bfloat16")


def check_timeout(*, timeout_s: float = 1800.0) -> None:
    """Check the time limit of a strategy of several processes.

    Raises:
        ValueError: it is not positive.
    """
    require_number("timeout_s", timeout_s, "> 0 seconds", lambda seconds: seconds > 0)


def check_fsdp(
    *, compute_dtype: str = "float32", reduce_dtype: str = "float32", timeout_s: float = 1800.0
) -> None:
    """Check the precisions and the time limit of `FSDP`.

    Raises:
        ValueError: an invalid value; the message names the option.
    """
    require_one_of("compute_dtype", compute_dtype, _DTYPES)
    require_one_of("reduce_dtype", reduce_dtype, _DTYPES)
    check_timeout(timeout_s=timeout_s)
