"""The only import of SciPy."""

from __future__ import annotations

try:
    from scipy import optimize, special, stats
except ImportError as error:
    raise ImportError(
        "report needs the package scipy; install it with: pip install 'lit-agentrl[report]'"
    ) from error

__all__ = ["optimize", "special", "stats"]
