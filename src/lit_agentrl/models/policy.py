"""Loading a language policy: a network with its tokenizer, from the package or from Hugging Face files."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

NANO_FOLDER = Path(__file__).parent / "nano"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Policy:
    """A causal language model and the tokenizer whose ids it speaks."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    chat_template: str | None = None  # a shipped template that replaces the tokenizer's own

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``AutoModelForCausalLM.from_pretrained`` and ``AutoTokenizer`` load."""
        self.network.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_pretrained(name: str, *, dtype: str = "float32", chat_template: str | None = None) -> Policy:
    """A policy from a local folder or a hub name.

    Args:
        name: folder with ``config.json``, safetensors weights and a tokenizer, or a hub id.
        dtype: storage precision of the weights: ``float32`` | ``bfloat16`` | ``float16``.
        chat_template: name of a template shipped in ``text/templates`` that replaces the tokenizer's own.

    Raises:
        ValueError: unknown ``dtype``, or files that cannot be loaded, naming the option.
    """
    if dtype not in DTYPES:
        raise ValueError(f"model.dtype={dtype} is unknown; valid: {', '.join(DTYPES)}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        network = AutoModelForCausalLM.from_pretrained(name, dtype=DTYPES[dtype])
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"model.name={name} could not be loaded ({reason}); give a folder with config.json, safetensors "
            "weights and a tokenizer, or a hub id that this machine can reach"
        ) from error
    network.train(False)
    return Policy(network=network, tokenizer=tokenizer, name=name, chat_template=chat_template)


def load_nano() -> Policy:
    """The embedded policy of about one million parameters (see ``docs/nano.md`` for its recipe)."""
    if not (NANO_FOLDER / "model.safetensors").exists():
        raise ValueError(f"the embedded policy is missing from {NANO_FOLDER}; run scripts/build_nano.py")
    # the folder is local and small: transformers' progress bar for it is noise
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("transformers").setLevel(logging.ERROR)
    policy = load_pretrained(str(NANO_FOLDER))
    policy.name = "nano"
    return policy
