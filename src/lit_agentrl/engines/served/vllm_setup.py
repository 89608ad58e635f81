"""Check vLLM's release and set its environment; imports no vLLM."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import random
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_SUPPORTED = ((0, 32), (0, 33))  # first supported release, and first unsupported one
# variables that must be 0, and what vLLM does otherwise: weights and draws are exchanged within the process, and the
# second model runner, the default on GPUs, has another interface than `KeyedDraws` implements
_OFF = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "puts vLLM into another process",
    "VLLM_USE_V2_MODEL_RUNNER": "chooses a model runner that takes no keyed draws",
}
# defaults for unset variables: no usage statistics, and no warnings, which address operators of servers
_DEFAULT_VARIABLES = {
    **dict.fromkeys(_OFF, "0"), "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"
}  # fmt: skip
# on a CPU: no compilation, which would take minutes, and no binding of threads
_CPU_VARIABLES = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def require_vllm() -> str:
    """Return the installed version of vLLM, and set its unset environment variables.

    Raises:
        ValueError: If it is missing, unsupported, or set up to run in another process; one line with the remedy.
    """
    if find_spec("vllm") is None:
        raise ValueError(
            "needs vLLM, which has an environment of its own; run `make engine-vllm`, and then "
            ".venv-vllm/bin/lit-agentrl in place of lit-agentrl; or use engine=native"
        )
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError as error:
        raise ValueError(
            "vLLM was installed by a package of another name, such as vllm-cpu, and does not find its own version; "
            "run `make engine-vllm`, which adds what it looks for"
        ) from error
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or not _SUPPORTED[0] <= (int(number[1]), int(number[2])) < _SUPPORTED[1]:
        low, high = (".".join(map(str, bound)) for bound in _SUPPORTED)
        raise ValueError(
            f"vLLM {version} is none of the supported releases (>={low},<{high}); run `make engine-vllm`"
        )
    on_cpu = not has_gpu_build(version)
    for name, value in {**_DEFAULT_VARIABLES, **(_CPU_VARIABLES if on_cpu else {})}.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())  # before it does so itself
    for name, effect in _OFF.items():
        if os.environ[name] != "0":
            raise ValueError(f"the variable {name}={os.environ[name]} {effect}; set it to 0")
    if on_cpu and os.environ["TORCHDYNAMO_DISABLE"] == "1" and (dynamo := sys.modules.get("torch._dynamo")):
        dynamo.config.disable = True  # it was imported before
    return version


def has_gpu_build(version: str) -> bool:
    """Return whether a version of vLLM is built for GPUs, as vLLM itself decides it."""
    return "cpu" not in version


def import_modules(*names: str) -> list[ModuleType]:
    """Import these modules in a separate thread.

    Some of them keep a reference to the importing frames, and thereby to the objects in these frames.
    """
    with ThreadPoolExecutor(1) as pool:
        return list(pool.map(importlib.import_module, names))


@contextmanager
def set_variables(**values: str) -> Iterator[None]:
    """Set environment variables within the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore the process state that vLLM changes at start: random states, threads, precision of products.

    It also hides all objects of the process from the garbage collector, such as networks of ended runs.
    Its many warnings, which address vLLM developers and operators, are suppressed.
    """
    states, set_num_threads = (random.getstate(), np.random.get_state()), torch.set_num_threads
    precision, devices = torch.get_float32_matmul_precision(), range(torch.cuda.device_count())
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_num_threads = set_num_threads
            torch.set_float32_matmul_precision(precision)
            gc.unfreeze()


@contextmanager
def keep_weights_unpacked(layers: Any) -> Iterator[None]:
    """Make linear layers built inside the context compute with their own weights.

    On a CPU vLLM packs copies of the weights, which a later load would not change.

    Args:
        layers: The module ``vllm.model_executor.layers.utils``.
    """
    pack_weights = layers.dispatch_cpu_unquantized_gemm

    def keep(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = nn.functional.linear
        else:  # weights of a convolution or of experts
            pack_weights(layer, remove_weight)

    layers.dispatch_cpu_unquantized_gemm = keep
    try:
        yield
    finally:
        layers.dispatch_cpu_unquantized_gemm = pack_weights


def load_all_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Load all parameters of a vLLM model.

    Args:
        model: The model of a vLLM worker.
        weights: Weights by their names in transformers.

    Raises:
        ValueError: If some weights cannot be loaded or would keep their old values; the message names one.
    """
    own = dict(model.named_parameters())
    if packed := sorted(name for name, parameter in own.items() if not parameter.numel()):
        raise ValueError(f"vLLM did not take the weights: it has packed {packed[0]} and others away")
    try:
        taken = model.load_weights(iter(weights.items()))
    except Exception as error:
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"vLLM did not take the weights ({type(error).__name__}: {line})") from error
    if taken is not None and (missing := set(own) - set(taken)):
        raise ValueError(f"vLLM was given no weights for {', '.join(sorted(missing)[:3])}")
