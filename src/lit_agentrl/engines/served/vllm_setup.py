"""Whether vLLM is here and of a release that is known, and what it may change of a process; imports no vLLM."""

from __future__ import annotations

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

_KNOWN = ((0, 32), (0, 33))  # from, and before
_HERE = "VLLM_ENABLE_V1_MULTIPROCESSING"  # weights and draws change hands within the process
# set where the user has set nothing: nothing is sent to its makers, and its warnings are for those who run servers
_ANYWHERE = {_HERE: "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
# on a CPU: compiles nothing, which would take minutes, and leaves the threads where they are
_ON_CPU = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def require_vllm() -> str:
    """The version of vLLM that is installed; its environment variables are set where the user has set none.

    Raises:
        ValueError: it is missing, unknown, or set up to run in another process; one line with the remedy.
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
    if number is None or not _KNOWN[0] <= (int(number[1]), int(number[2])) < _KNOWN[1]:
        low, high = (".".join(map(str, bound)) for bound in _KNOWN)
        raise ValueError(
            f"vLLM {version} is none of the releases that this engine knows (>={low},<{high}); run `make engine-vllm`"
        )
    on_cpu = "cpu" in version  # as vLLM itself tells it
    for name, value in {**_ANYWHERE, **(_ON_CPU if on_cpu else {})}.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())  # before it does so itself
    if os.environ[_HERE] != "0":
        raise ValueError(
            f"the variable {_HERE}={os.environ[_HERE]} puts vLLM into another process; set it to 0"
        )
    if on_cpu and os.environ["TORCHDYNAMO_DISABLE"] == "1" and (dynamo := sys.modules.get("torch._dynamo")):
        dynamo.config.disable = True  # was imported before
    return version


def imported(*names: str) -> list[ModuleType]:
    """These modules, imported in a thread: something in them keeps the frames that import it, and what these hold."""
    with ThreadPoolExecutor(1) as aside:
        return list(aside.map(importlib.import_module, names))


@contextmanager
def undisturbed() -> Iterator[None]:
    """What vLLM changes of the process while it starts is put back: the random states, and how threads are set.

    Its warnings are left out, and they are many: they speak to those who develop it, or run it as a server.
    """
    states, set_num_threads = (random.getstate(), np.random.get_state()), torch.set_num_threads
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_num_threads = set_num_threads


@contextmanager
def unpacked(layers: Any) -> Iterator[None]:
    """Linear layers made inside compute with their weights: on a CPU vLLM packs copies, which a load misses.

    Args:
        layers: the module ``vllm.model_executor.layers.utils``.
    """
    packs = layers.dispatch_cpu_unquantized_gemm

    def keep(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = nn.functional.linear
        else:  # of a convolution or of experts, which is no linear layer
            packs(layer, remove_weight)

    layers.dispatch_cpu_unquantized_gemm = keep
    try:
        yield
    finally:
        layers.dispatch_cpu_unquantized_gemm = packs


def load_all(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Load all parameters of a model of vLLM.

    Args:
        model: of a vLLM worker.
        weights: by the names that transformers has for them.

    Raises:
        ValueError: some have no place, or would stay as they were; names one.
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
