"""Collect the wheels that a machine without a network lacks, for ``make gpu WHEELS=folder`` there.

    make gpu-wheels                                                  # into wheels/, for Python 3.12 on x86-64 Linux
    python -m scripts.bench.pack_wheels folder --python 3.11 --platform manylinux_2_28_aarch64

The list is scripts/bench/requirements-gpu.txt.  Wheels are downloaded; a package that is published as source alone is
built.  A folder that exists is replaced if it holds nothing but wheels.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "scripts" / "bench" / "requirements-gpu.txt"
PLATFORMS = [f"manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_24", "_2_17", "2014", "2010", "1")]
SOURCES = ("antlr4-python3-runtime",)  # plain Python, published without a wheel


def read_requirements(path: Path = LIST) -> list[str]:
    """Return the pinned packages of a list, without comments."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def make_commands(
    packages: Sequence[str], folder: Path, python: str, platforms: Sequence[str]
) -> list[list[str]]:
    """Return the commands of pip that fill a folder: downloads, then builds."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = [package for package in packages if package.startswith(SOURCES)]
    downloaded = [package for package in packages if package not in built]
    target = ["--implementation", "cp", "--python-version", python]
    target += [part for name in platforms for part in ("--platform", name)]
    commands = [
        [*pip, "download", "--no-deps", "--only-binary=:all:", *target, "--dest", str(folder), *downloaded]
    ]
    if built:
        commands.append([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), *built])
    return commands


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "wheels")
    parser.add_argument("--python", default="3.12", help="version of Python there")
    parser.add_argument("--platform", nargs="+", default=PLATFORMS, help="tags of wheels that run there")
    options = parser.parse_args()
    folder: Path = options.folder
    if folder.exists() and any(file.suffix != ".whl" for file in folder.iterdir()):
        parser.error(f"{folder} holds other files than wheels: name a new folder")
    with tempfile.TemporaryDirectory() as fresh:
        for command in make_commands(read_requirements(), Path(fresh), options.python, options.platform):
            subprocess.run(command, check=True)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        wheels = sorted(Path(fresh).iterdir())
        for wheel in wheels:
            (folder / wheel.name).write_bytes(wheel.read_bytes())
    size = sum(file.stat().st_size for file in folder.iterdir()) / 2**20
    print(f"{len(wheels)} wheels, {size:.1f} MiB, in {folder}: make gpu WHEELS={folder}")


if __name__ == "__main__":
    main()
