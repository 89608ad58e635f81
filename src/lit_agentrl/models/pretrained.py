"""Networks and tokenizers from files of others: they are data, and what is wrong with them is one line."""

from __future__ import annotations

import json
import logging
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

_HUB_S = 5.0  # for the hub to answer
_TALKING = ("transformers", "huggingface_hub")  # libraries that say much while they fail
# gap between logits of the same tokens that is rounding, relative to the largest
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a local folder or a hub id; code that it brings is not run.

    Raises:
        ValueError: it cannot be loaded; the message is the reason, in one line.
    """
    with _explained(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, **carefully(name))
    return tokenizer


def load_network(kind: Any, name: str, dtype: torch.dtype) -> PreTrainedModel:
    """A causal network from a local folder or a hub id; code that it brings is not run.

    Args:
        kind: the class of `transformers` that chooses it, such as ``AutoModelForCausalLM``.
        name: folder or hub id.
        dtype: precision in which the weights are stored.

    Raises:
        ValueError: it cannot be loaded whole, or is not causal; the message is the reason, in one line.
    """
    with _explained(name):
        network, found = kind.from_pretrained(
            name, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **carefully(name)
        )
    own_memory(network)
    if not is_causal(network):
        raise ValueError(
            f"{type(network).__name__} is not causal here: what it makes of a token depends on the next one"
        )
    for lacking, what in ((found["missing_keys"], "missing"), (found["mismatched_keys"], "of another shape")):
        if lacking:
            first = min(each if isinstance(each, str) else each[0] for each in lacking)
            raise ValueError(
                f"{len(lacking)} of its weights are {what}, such as {first}, and would be random numbers"
            )
    return network  # type: ignore[no-any-return]


def own_memory(network: nn.Module) -> None:
    """Move weights on a CPU to memory that torch gave out, which begins at a multiple of 64 bytes.

    Weights read from a file lie where the file has them, at another place in each process, and the last bits of
    products depend on it.
    """
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


@torch.no_grad()
def is_causal(network: PreTrainedModel) -> bool:
    """Whether what comes out at a token stays the same when another token follows it.

    True also of a network that cannot be tried where its weights lie, such as one for GPUs alone.
    """
    third = network.config.get_text_config().vocab_size // 3
    tokens_BT = torch.tensor([[2 * third, third], [2 * third, third + 1]], device=network.device)
    try:
        out_BTD = network(input_ids=tokens_BT)[0]
    except Exception:
        return True
    gap = (out_BTD[0, 0] - out_BTD[1, 0]).abs().max()
    # of weights that are not finite, which are another fault, there is no gap
    return not bool(gap > _TOLERANCE.get(out_BTD.dtype, 1e-4) * out_BTD.abs().max())


def carefully(name: str) -> dict[str, bool]:
    """No code of the files is run, and a hub that cannot be asked is not asked again and again for most of a minute."""
    return {"trust_remote_code": False, "local_files_only": not Path(name).is_dir() and _is_hub_away(name)}


def _is_hub_away(name: str) -> bool:
    try:
        HfApi().model_info(name, timeout=_HUB_S)
    except (HfHubHTTPError, HFValidationError):  # an answer, or no name that it could have
        return False
    except Exception:  # no network, offline by the user's wish, no answer in time
        return True
    return False


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Whatever fails inside fails in one line.

    Raises:
        ValueError: in place of whatever is raised inside.
    """
    try:
        yield
    except Exception as error:  # files of others, read by libraries in Rust as well, fail in any way
        raise ValueError(_reason(name, error)) from error


@contextmanager
def held_back() -> Iterator[None]:
    """What libraries log inside is let out at the end, and never before an error, which says it all."""
    held = BufferingHandler(capacity=sys.maxsize)
    loggers = [logging.getLogger(name) for name in _TALKING]
    before = [(logger.handlers[:], logger.propagate) for logger in loggers]
    has_bar = transformers_logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    for logger in loggers:
        logger.handlers, logger.propagate = [held], False
    if has_bar:  # one for people, who look at terminals
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
        if has_bar:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    for record in held.buffer:
        logging.getLogger(record.name).handle(record)


def _reason(name: str, error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "it brings code of its own, which is not run"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        return "its weights are a pickle of more than tensors, which is not read"
    if Path(name).is_dir():
        if "backend tokenizer" in text and not (Path(name) / "tokenizer.json").exists():
            return "it has no tokenizer.json"
        return _damaged(Path(name)) or (text.strip() or type(error).__name__).splitlines()[0]
    if "gated repo" in text:
        return "its authors give it only to those who ask, on its page of the hub, and log in: hf auth login"
    return "there is no such folder, and no such model on the hub, or the hub cannot be reached"


def _damaged(folder: Path) -> str:
    """Which file cannot be read by itself; empty where all can."""
    for file in sorted((*folder.glob("*.json"), *folder.glob("*.safetensors"))):
        try:
            if file.suffix == ".json":
                json.loads(file.read_bytes())
            else:
                with safe_open(file, framework="pt"):
                    pass
        except (OSError, ValueError, SafetensorError) as error:
            return f"{file.name} is damaged or incomplete: {error}"
    return ""
