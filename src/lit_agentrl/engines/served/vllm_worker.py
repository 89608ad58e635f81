"""The extension by which ``vllm serve`` loads weights of a training run (``engine=vllm_serve``).

``vllm serve … --worker-extension-cls lit_agentrl.engines.served.vllm_worker.Extension`` loads it into each worker
of the server, before the model is built.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from lit_agentrl.engines.served.vllm_setup import keep_weights_unpacked, load_all_weights

_OPEN_UNTIL_EXIT = ExitStack()


class Extension:
    """Methods added to each worker of the server; ``/collective_rpc`` calls them by name."""

    model_runner: Any  # an attribute of the worker

    def load_folder(self, folder: str) -> None:
        """Load the weights in ``folder/model.safetensors``.

        Raises:
            ValueError: If weights of the model are missing, or some can no longer be loaded.
            OSError: If there is no such file.
        """
        load_all_weights(self.model_runner.model, load_file(Path(folder) / "model.safetensors"))


# vLLM imports this file before it builds the model, and calls nothing in it until then
if importlib.util.find_spec("vllm") is not None:
    _OPEN_UNTIL_EXIT.enter_context(
        keep_weights_unpacked(importlib.import_module("vllm.model_executor.layers.utils"))
    )
