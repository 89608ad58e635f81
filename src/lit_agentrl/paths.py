"""Paths of the package and of its configs.

The configs have two roots of the same shape: ``conf``, and ``conf/experimental`` for methods that have shown no gain
yet.  Hydra searches both, so that an option is chosen by its name alone.
"""

from __future__ import annotations

from pathlib import Path


def find_configs(package: Path) -> Path:
    """Return the config folder: inside an installed package, or next to ``src`` in a checkout."""
    inside = package / "conf"
    return inside if (inside / "train.yaml").is_file() else package.parents[1] / "conf"


PACKAGE_DIR = Path(__file__).resolve().parent
CONFIG_DIR = find_configs(PACKAGE_DIR)
EXPERIMENTAL_DIR = CONFIG_DIR / "experimental"
CONFIG_ROOTS = (CONFIG_DIR, EXPERIMENTAL_DIR)


def name_config(file: Path) -> str:
    """Return the name of a config within its root, such as ``algo/grpo.yaml``."""
    root = EXPERIMENTAL_DIR if file.is_relative_to(EXPERIMENTAL_DIR) else CONFIG_DIR
    return file.relative_to(root).as_posix()


def find_config(name: str) -> Path:
    """Return the file of a config such as ``algo/grpo.yaml`` in its root.

    A config that exists in neither root gets its path in the first.
    """
    return next((root / name for root in CONFIG_ROOTS if (root / name).is_file()), CONFIG_DIR / name)


def list_configs() -> list[Path]:
    """Return every config of both roots, sorted by its name."""
    return sorted(CONFIG_DIR.rglob("*.yaml"), key=name_config)


def list_options(group: str) -> list[Path]:
    """Return the option files of a group in both roots, sorted by name.

    Files that only other options inherit from are left out.
    """
    return sorted(
        (file for root in CONFIG_ROOTS for file in (root / group).glob("[!_]*.yaml")), key=lambda f: f.stem
    )
