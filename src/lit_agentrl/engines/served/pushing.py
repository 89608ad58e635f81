"""Weights for a server, by a folder that both see and calls that make it read them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl.checks import format_value
from lit_agentrl.engines.served.http import Server

_HELD = "in_use"  # a file that is locked while the process lives which writes beside it
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def check_place(folder: str, calls: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a place for weights that no server could be told of.

    Args:
        folder: of weights.
        calls: that make a server read them.

    Raises:
        ValueError: no such folder, no calls, or one without a path.
    """
    if not Path(str(folder)).is_dir():
        raise ValueError(f"weights_folder={folder} is not a folder; make one that the server sees as well")
    if not calls or isinstance(calls, str | Mapping):
        raise ValueError(
            f"push={format_value(calls)} tells the server nothing of new weights; list the calls that make it read them"
        )
    for call in calls:
        is_call = isinstance(call, Mapping) and not set(call) - {"path", "json"}
        if not is_call or not str(call.get("path", "")).startswith("/"):
            raise ValueError(f"push={format_value(call)} must be {{path: /…, json: …}}")


class Pusher:
    """Writes a folder a version, with ``config.json`` and ``model.safetensors``, and tells a server of it.

    Folders lie in one of their own below ``folder``, where nothing else is touched but what processes of this machine
    have left that were killed.  The last one stays until the next has arrived, or until `close`.

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
        check_place(folder, calls)
        self._calls = [dict(call) for call in calls]
        self._server, self._config, self._folder = server, network.config, Path(folder).resolve()
        self._home: Path | None = None
        self._held = -1
        self._last: Path | None = None

    def push(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Write them, and have them read.

        Raises:
            ServerError: a call failed.
            OSError: they cannot be written.
        """
        folder = Path(tempfile.mkdtemp(prefix=f"version_{version}_", dir=self._opened()))
        folder.chmod(0o755)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
        self._config.save_pretrained(folder)
        for call in self._calls:
            body = _filled(call.get("json") or {}, folder=str(folder), version=str(version))
            self._server.tell(call["path"], body)
        if self._last is not None:
            shutil.rmtree(self._last, ignore_errors=True)
        self._last = folder

    def close(self) -> None:
        """Remove what was written."""
        home, self._home, self._last = self._home, None, None
        if home is not None:
            self._remove()
            os.close(self._held)
        _remove_left(self._folder)

    def _opened(self) -> Path:
        """The folder of this process, made when it is first needed."""
        if self._home is None:
            _remove_left(self._folder)
            made = Path(tempfile.mkdtemp(prefix="new_weights_", dir=self._folder))
            made.chmod(0o755)  # the server may run as somebody else
            self._held = os.open(made / _HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with suppress(OSError):  # where files cannot be locked: then nothing is found to be left
                fcntl.flock(self._held, fcntl.LOCK_EX)
            self._home = made.rename(
                made.with_name(made.name.replace("new_weights_", _prefix() or "weights_"))
            )
            self._remove = weakref.finalize(self, shutil.rmtree, self._home, True)  # if nobody calls close()
        return self._home


def _prefix() -> str:
    """Of folders of this machine, as it was started: locks need not tell whether a process of another one lives."""
    with suppress(OSError):
        return f"weights_{_BOOT.read_text(encoding='ascii').strip()[:8]}_"
    return ""


def _remove_left(folder: Path) -> None:
    """Remove what processes of this machine have left below ``folder`` that were killed."""
    if not _prefix():
        return
    for home in folder.glob(f"{_prefix()}*"):
        with suppress(OSError):
            held = os.open(home / _HELD, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)
            finally:
                os.close(held)


def _filled(node: Any, **values: str) -> Any:
    """JSON with ``{name}`` in its texts replaced."""
    if isinstance(node, Mapping):
        return {str(key): _filled(item, **values) for key, item in node.items()}
    if isinstance(node, str):
        for name, value in values.items():
            node = node.replace(f"{{{name}}}", value)
        return node
    return [_filled(item, **values) for item in node] if isinstance(node, Sequence) else node
