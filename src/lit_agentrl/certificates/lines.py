"""The line of each shipped algorithm's certificate, as ``lit-agentrl certify all --ship`` wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:  # it loads torch, for which the help of a command does not wait
    from lit_agentrl.certificates.certificate import Certificate

FILE = Path(__file__).with_name("lines.yaml")


def read_lines() -> dict[str, str]:
    """Return the line of each algorithm by its name."""
    lines: dict[str, str] = yaml.safe_load(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return lines


def write_lines(certificates: Sequence[Certificate]) -> None:
    """Write the lines of certificates, beside those of other algorithms."""
    lines = read_lines() | {each.name: each.line for each in certificates}
    text = yaml.safe_dump(dict(sorted(lines.items())), allow_unicode=True, width=200)
    FILE.write_text(f"# made by: lit-agentrl certify all --ship\n{text}", encoding="utf-8")
