"""What a script prints in two processes whose hashes differ."""

from __future__ import annotations

import os
import subprocess
import sys


def printed_alike(script: str) -> bytes:
    """What it prints in both.

    Raises:
        AssertionError: they differ.
    """
    first, second = (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for salt in ("1", "2")
    )  # fmt: skip
    assert first == second
    return first
