"""Convert a GGUF file to a Hugging Face folder."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lit_agentrl.checks import escape_unprintable
from lit_agentrl.files import replace_folder
from lit_agentrl.models.pretrained import hold_back_logs

ABOUT = "source.json"  # names the source of the folder, and versions of libraries
_MAGIC = b"GGUF"


def convert(file: Path, folder: Path, about: Mapping[str, Any], license_file: Path | None = None) -> None:
    """Write the model of a GGUF file as a folder of float32 weights.

    The folder has ``config.json``, safetensors weights, the tokenizer with its chat template, and ``source.json``.

    Args:
        file: A file of a causal language model whose architecture transformers can read.
        folder: New folder, which is written at once.
        about: Further entries of ``source.json``.
        license_file: File to copy into the folder as ``LICENSE``.

    Raises:
        ValueError: If a package of the extra gguf is missing, the file is no such model, or the folder exists.
        OSError: If the folder cannot be written.
    """
    require_reader()
    require_new(folder)
    require_gguf(file)
    network, tokenizer = _load(file)
    # transformers does not save a network from a GGUF file, which counts as quantized, but it saves an equal new one
    config = copy.deepcopy(network.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.name_or_path = ""
    unquantized: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    unquantized.load_state_dict(network.state_dict())
    unquantized.generation_config = network.generation_config
    source = {
        **about,
        "file": file.name,
        "tensors": count_types(file),
        "versions": {name: version(name) for name in ("transformers", "tokenizers", "gguf", "torch")},
    }

    def write(place: str) -> None:
        with hold_back_logs():
            unquantized.save_pretrained(place)
            tokenizer.save_pretrained(place)
        if license_file is not None:
            shutil.copyfile(license_file, Path(place) / "LICENSE")
        (Path(place) / ABOUT).write_text(json.dumps(source, indent=1) + "\n", encoding="utf-8")

    replace_folder(folder, write)


def count_types(file: Path) -> dict[str, int]:
    """Count the tensors of a GGUF file by storage type, such as ``{"F32": 61}``."""
    from gguf import GGUFReader

    names = [tensor.tensor_type.name for tensor in GGUFReader(file).tensors]
    return {name: names.count(name) for name in sorted(set(names))}


def require_reader() -> None:
    """Check that the packages gguf and accelerate are installed; transformers needs both.

    Raises:
        ValueError: If one of them is not installed.
    """
    for name in ("gguf", "accelerate"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"reading a GGUF file needs the package {name}; pip install 'lit-agentrl[gguf]'")


def require_new(folder: Path) -> None:
    """Refuse to write over a folder.

    Raises:
        ValueError: If the folder exists.
    """
    if folder.exists():
        raise ValueError(f"out={folder} exists; give a new folder")


def require_gguf(file: Path) -> None:
    """Check that a file begins as a GGUF file.

    Raises:
        ValueError: If the file begins in another way, or cannot be read.
    """
    try:
        with open(file, "rb") as opened:
            start = opened.read(len(_MAGIC))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; give a GGUF file") from error
    if start != _MAGIC:
        raise ValueError(f"{file} is no GGUF file; give a file FILE.gguf")


def _load(file: Path) -> tuple[Any, Any]:
    """Load network and tokenizer of a GGUF file.

    The file is linked into an empty folder, because transformers would also read other files of its folder.
    """
    with tempfile.TemporaryDirectory() as empty_folder, hold_back_logs(), redirect_stderr(io.StringIO()):
        (Path(empty_folder) / file.name).symlink_to(file.resolve())
        options: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
        try:
            network = AutoModelForCausalLM.from_pretrained(empty_folder, dtype=torch.float32, **options)
            tokenizer = AutoTokenizer.from_pretrained(empty_folder, **options)
        except Exception as error:  # an external file may raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"{file} could not be converted ({escape_unprintable(reason)}); give a causal language model of an "
                "architecture that transformers reads from GGUF"
            ) from error
    return network, tokenizer
