"""Weights for a server, by a folder that both see and calls that make it read them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.checks import shown
from lit_agentrl.engines.http import Server

_LAST: dict[
    Path, Path
] = {}  # below each folder, what this process wrote last: each stage of a run makes an engine


class Pusher:
    """Writes a folder a version, with ``config.json`` and ``model.safetensors``, and tells a server of it.

    Folders lie in one of their own below ``folder``, where nothing else is touched; the last one stays until the next
    has arrived, and all go when the program ends.

    Args:
        server: is told.
        network: whose config is written.
        folder: exists, and is seen by the server under the same name.
        calls: each ``{path: …, json: …}``, in order.

    Raises:
        ValueError: no such folder, or a call without a path.
    """

    def __init__(
        self,
        server: Server,
        network: PreTrainedModel | None,
        folder: str,
        calls: Sequence[Mapping[str, Any]],
    ) -> None:
        if network is None:
            raise ValueError("weights_folder would be ignored: model has no network; leave it out")
        if not Path(folder).is_dir():
            raise ValueError(
                f"weights_folder={folder} is not a folder; make one that the server sees as well"
            )
        if not calls:
            raise ValueError(
                "push=[] tells the server nothing of new weights; list the calls that make it read them"
            )
        self._calls = [dict(call) for call in calls]
        for call in self._calls:
            if not str(call.get("path", "")).startswith("/") or set(call) - {"path", "json"}:
                raise ValueError(f"push={shown(call)} must be {{path: /…, json: …}}")
        self._server, self._config = server, network.config
        self._home = Path(tempfile.mkdtemp(prefix="weights_", dir=Path(folder).resolve()))
        self._home.chmod(0o755)  # the server may run as somebody else
        atexit.register(shutil.rmtree, self._home, ignore_errors=True)
        self._folder = self._home.parent

    def push(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Write them, and have them read.

        Raises:
            ServerError: a call failed.
            OSError: they cannot be written.
        """
        folder = Path(tempfile.mkdtemp(prefix=f"version_{version}_", dir=self._home))
        folder.chmod(0o755)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
        self._config.save_pretrained(folder)
        for call in self._calls:
            body = _filled(call.get("json") or {}, folder=str(folder), version=str(version))
            self._server.tell(call["path"], body)
        if (last := _LAST.get(self._folder)) is not None:
            shutil.rmtree(last, ignore_errors=True)
        _LAST[self._folder] = folder


def _filled(node: Any, **values: str) -> Any:
    """JSON with ``{name}`` in its texts replaced."""
    if isinstance(node, Mapping):
        return {str(key): _filled(item, **values) for key, item in node.items()}
    if isinstance(node, str):
        for name, value in values.items():
            node = node.replace(f"{{{name}}}", value)
        return node
    return [_filled(item, **values) for item in node] if isinstance(node, Sequence) else node
