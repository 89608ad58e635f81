"""Load networks and tokenizers from external files without running their code."""

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

_HUB_TIMEOUT_S = 5.0  # longest wait for an answer of the hub
_NOISY_LIBRARIES = ("transformers", "huggingface_hub")  # libraries that log a lot before they fail
# largest rounding difference between logits of the same tokens, relative to the largest logit
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local folder or hub id, without running its code.

    Raises:
        ValueError: If the tokenizer cannot be loaded; the message is the reason, in one line.
    """
    with _explain_errors(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, **make_load_options(name))
    return tokenizer


def load_network(kind: Any, name: str, dtype: torch.dtype) -> PreTrainedModel:
    """Load a causal network from a local folder or hub id, without running its code.

    Args:
        kind: Class of `transformers` that selects the network class, such as ``AutoModelForCausalLM``.
        name: Folder or hub id.
        dtype: Data type in which the weights are stored.

    Raises:
        ValueError: If the network cannot be loaded completely or is not causal; the message is the reason, in one line.
    """
    with _explain_errors(name):
        network, info = kind.from_pretrained(
            name,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **make_load_options(name),
        )
    move_to_torch_memory(network)
    if not is_causal(network):
        raise ValueError(
            f"{type(network).__name__} is not causal here: its output at a token depends on the next token"
        )
    for keys, problem in (
        (info["missing_keys"], "missing"),
        (info["mismatched_keys"], "of another shape"),
    ):
        if keys:
            first = min(item if isinstance(item, str) else item[0] for item in keys)
            raise ValueError(
                f"{len(keys)} of its weights are {problem}, such as {first}, and would be random numbers"
            )
    return network  # type: ignore[no-any-return]


def move_to_torch_memory(network: nn.Module) -> None:
    """Copy weights on a CPU to memory of torch, which is aligned to 64 bytes.

    Weights read from a file keep the file's alignment, which differs between processes, and the last bits of products
    depend on it.
    """
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


@torch.no_grad()
def is_causal(network: PreTrainedModel) -> bool:
    """Return whether the output at a token stays the same when another token follows it.

    A network that cannot run on its present device, such as one for GPUs alone, counts as causal.
    """
    third = network.config.get_text_config().vocab_size // 3
    tokens_BT = torch.tensor([[2 * third, third], [2 * third, third + 1]], device=network.device)
    try:
        out_BTD = network(input_ids=tokens_BT)[0]
    except Exception:
        return True
    gap = (out_BTD[0, 0] - out_BTD[1, 0]).abs().max()
    # NaN if weights are not finite, which is checked elsewhere
    return not bool(gap > _TOLERANCE.get(out_BTD.dtype, 1e-4) * out_BTD.abs().max())


def make_load_options(name: str) -> dict[str, bool]:
    """Return options that forbid external code, and skip a hub that does not answer.

    Otherwise transformers would retry an unreachable hub for most of a minute.
    """
    return {
        "trust_remote_code": False,
        "local_files_only": not Path(name).is_dir() and _is_hub_unreachable(name),
    }


def _is_hub_unreachable(name: str) -> bool:
    try:
        HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
    except (HfHubHTTPError, HFValidationError):  # the hub answered, or the name is not a valid hub id
        return False
    except Exception:  # no network, offline mode, or no answer in time
        return True
    return False


@contextmanager
def _explain_errors(name: str) -> Iterator[None]:
    """Turn every error inside the context into one line.

    Raises:
        ValueError: In place of any error.
    """
    try:
        yield
    except Exception as error:  # external files, partly read by Rust libraries, may raise anything
        raise ValueError(_describe_error(name, error)) from error


@contextmanager
def hide_bars() -> Iterator[None]:
    """Hide the progress bars of transformers, unless errors are printed on a terminal."""
    if sys.stderr.isatty() or not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def hold_back_logs() -> Iterator[None]:
    """Delay log records of libraries to the context's end; drop them after an error."""
    handler = BufferingHandler(capacity=sys.maxsize)
    loggers = [logging.getLogger(name) for name in _NOISY_LIBRARIES]
    settings = [(logger.handlers[:], logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        with hide_bars():
            yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, settings, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
    for record in handler.buffer:
        logging.getLogger(record.name).handle(record)


def _describe_error(name: str, error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "it contains its own code, which is not run"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        return "its weights are a pickle of more than tensors, which is not read"
    if Path(name).is_dir():
        if "backend tokenizer" in text and not (Path(name) / "tokenizer.json").exists():
            return "it has no tokenizer.json"
        return _find_damage(Path(name)) or (text.strip() or type(error).__name__).splitlines()[0]
    if "gated repo" in text:
        return "its authors restrict access: request it on the model's hub page, then log in: hf auth login"
    return "there is no such folder, and no such model on the hub, or the hub cannot be reached"


def _find_damage(folder: Path) -> str:
    """Return which file cannot be read, and why; empty if all files can be read."""
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
