"""What ``vllm serve`` needs to take the weights of a training run (``engine=vllm_serve``).

``vllm serve … --worker-extension-cls lit_agentrl.engines.served.vllm_worker.Extension`` loads it into each worker
of the server, before the model is made.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from lit_agentrl.engines.served.vllm_setup import load_all, unpacked

_FOR_GOOD = ExitStack()


class Extension:
    """Methods that each worker of the server gets; ``/collective_rpc`` calls them by name."""

    model_runner: Any  # of the worker

    def load_folder(self, folder: str) -> None:
        """Take the weights of ``folder/model.safetensors``.

        Raises:
            ValueError: not all of the model's weights are there, or some can no longer be loaded.
            OSError: there is no such file.
        """
        load_all(self.model_runner.model, load_file(Path(folder) / "model.safetensors"))


# vLLM imports this file before it makes the model, and calls nothing of it by then
if importlib.util.find_spec("vllm") is not None:
    _FOR_GOOD.enter_context(unpacked(importlib.import_module("vllm.model_executor.layers.utils")))
