"""Read and write the shipped results of certificates.

``lit-agentrl certify all --ship`` writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:  # the import loads torch, which the help of a command does not need
    from lit_agentrl.certificates.certificate import Certificate

LINES = Path(__file__).with_name("lines.yaml")  # a sentence for each algorithm
COSINES = Path(__file__).with_name("cosines.yaml")  # cosine of update and gradient, by algorithm and game
_MADE_BY = "# made by: lit-agentrl certify all --ship\n"


def read_lines() -> dict[str, str]:
    """Return the line of each algorithm by its name."""
    lines: dict[str, str] = _read(LINES)
    return lines


def read_cosines() -> dict[str, dict[str, float]]:
    """Return the cosines of each algorithm with a certificate, by game."""
    cosines: dict[str, dict[str, float]] = _read(COSINES)
    return cosines


def write_lines(certificates: Sequence[Certificate]) -> None:
    """Write the lines and cosines of certificates; keep those of other algorithms."""
    lines = read_lines() | {certificate.name: certificate.line for certificate in certificates}
    text = yaml.safe_dump(dict(sorted(lines.items())), allow_unicode=True, width=200)
    LINES.write_text(f"{_MADE_BY}{text}", encoding="utf-8")
    cosines = {
        certificate.name: {direction.game: round(direction.cosine, 6) for direction in certificate.directions}
        for certificate in certificates
        if certificate.directions
    }
    text = yaml.safe_dump(
        dict(sorted((read_cosines() | cosines).items())), default_flow_style=None, width=200
    )
    COSINES.write_text(f"{_MADE_BY}{text}", encoding="utf-8")


def _read(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
