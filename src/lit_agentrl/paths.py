"""Paths of the package and of its configs."""

from __future__ import annotations

from pathlib import Path


def find_configs(package: Path) -> Path:
    """Return the config folder: inside an installed package, or next to ``src`` in a checkout."""
    inside = package / "conf"
    return inside if (inside / "train.yaml").is_file() else package.parents[1] / "conf"


PACKAGE_DIR = Path(__file__).resolve().parent
CONFIG_DIR = find_configs(PACKAGE_DIR)
