"""A second causal language model with the policy's tokenizer that is never trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from lit_agentrl.checks import require, require_local
from lit_agentrl.models.pretrained import hold_back_logs, load_network, load_tokenizer


def find_network(path: str) -> Path:
    """Return the folder of the model at ``path``, or of the run there.

    Raises:
        ValueError: If there is no model; the message names the path.
    """
    require(isinstance(path, str) and bool(path.strip()), "path", path, "a folder of a run or model")
    require_local("path", path)
    location = Path(path).expanduser()
    for folder in (location / "hf", location):
        if (folder / "config.json").is_file():
            return folder
    if not location.exists():
        raise ValueError(f"path={path} is not there; looked for {location.absolute()}")
    raise ValueError(
        f"path={path} holds no model: no config.json in it, nor in its hf/; give the folder of a run that has "
        "ended, or of a model"
    )


def load_frozen(
    path: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    fingerprint: Callable[[PreTrainedTokenizerBase], str],
    vocabulary: int,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Load the network of a folder, without gradient.

    Args:
        path: See `find_network`.
        tokenizer: Tokenizer of the policy, whose ids the network will read.
        fingerprint: Hashes a tokenizer's mapping from texts to ids, such as `text.token_bytes.hash_tokenizer`.
        vocabulary: Number of ids that the policy can sample.
        dtype: Data type of the weights.

    Raises:
        ValueError: If the network cannot be loaded, has another tokenizer, too few token ids, or weights that are not
            finite.
    """
    folder = str(find_network(path))
    try:
        with hold_back_logs():
            own_tokenizer = load_tokenizer(folder)
            network = load_network(AutoModelForCausalLM, folder, dtype)
    except ValueError as error:
        raise ValueError(f"path={path} could not be loaded ({error}); give another folder") from error
    if fingerprint(own_tokenizer) != fingerprint(tokenizer):
        raise ValueError(
            f"path={path} reads token ids of another tokenizer; give a model with the policy's tokenizer"
        )
    own_vocabulary = network.config.get_text_config().vocab_size
    if own_vocabulary < vocabulary:
        raise ValueError(
            f"path={path} knows {own_vocabulary} token ids, and the policy can sample {vocabulary}; give a model that "
            "knows all"
        )
    for name, weight in network.named_parameters():
        if not bool(weight.isfinite().all()):
            raise ValueError(
                f"path={path} holds weights that are not finite, in {name}; give an intact model"
            )
    return network.train(False).requires_grad_(False)
