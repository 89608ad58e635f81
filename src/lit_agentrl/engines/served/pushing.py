"""Send weights to a server through a shared folder and HTTP calls."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor

from lit_agentrl.checks import format_value
from lit_agentrl.engines.served.http import Server

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOCK_NAME = "in_use"  # a file that the writing process locks while it lives
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def check_weights_folder(folder: str, calls: Sequence[Mapping[str, Any]]) -> None:
    """Refuse an unusable folder of weights, or unusable calls.

    Args:
        folder: Folder of the weights.
        calls: Calls that make a server read the weights.

    Raises:
        ValueError: If there is no such folder, there are no calls, or a call has no path.
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
    """Writes one folder per version, with ``config.json`` and ``model.safetensors``, and notifies a server.

    The folders lie in a subfolder of ``folder``.  Nothing else in ``folder`` is touched, except the remains of killed
    processes of this machine.  The last version stays until the server has read the next one, or until `close`.

    Args:
        server: The server to notify.
        network: The network whose config is written.
        folder: An existing folder that the server sees under the same name.
        calls: The calls in order, each ``{path: …, json: …}``.

    Raises:
        ValueError: If there is no network or no such folder, or a call has no path.
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
        check_weights_folder(folder, calls)
        self._calls = [dict(call) for call in calls]
        self._server, self._config, self._folder = server, network.config, Path(folder).resolve()
        self._home: Path | None = None
        self._lock = -1
        self._last: Path | None = None

    def push(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Write the weights and make the server read them.

        Raises:
            ServerError: If a call failed.
            OSError: If the weights cannot be written.
        """
        folder = Path(tempfile.mkdtemp(prefix=f"version_{version}_", dir=self._open_folder()))
        folder.chmod(0o755)
        cpu_weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(cpu_weights, folder / "model.safetensors", metadata={"format": "pt"})
        self._config.save_pretrained(folder)
        for call in self._calls:
            body = _fill_template(call.get("json") or {}, folder=str(folder), version=str(version))
            self._server.post(call["path"], body)
        if self._last is not None:
            shutil.rmtree(self._last, ignore_errors=True)
        self._last = folder

    def close(self) -> None:
        """Remove all written folders."""
        home, self._home, self._last = self._home, None, None
        if home is not None:
            self._remove()
            os.close(self._lock)
        _remove_stale_folders(self._folder)

    def _open_folder(self) -> Path:
        """Return the folder of this process; create it at the first call."""
        if self._home is None:
            _remove_stale_folders(self._folder)
            folder = Path(tempfile.mkdtemp(prefix="new_weights_", dir=self._folder))
            folder.chmod(0o755)  # the server may run as another user
            self._lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with suppress(OSError):  # file locks may be unsupported; then stale folders are never removed
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._home = folder.rename(
                folder.with_name(folder.name.replace("new_weights_", _make_prefix() or "weights_"))
            )
            # in case close() is not called
            self._remove = weakref.finalize(self, shutil.rmtree, self._home, True)
        return self._home


def _make_prefix() -> str:
    """Return the prefix of folders made since this machine booted.

    The prefix names the boot, because locks may not show whether a process of another machine lives.
    """
    with suppress(OSError):
        return f"weights_{_BOOT.read_text(encoding='ascii').strip()[:8]}_"
    return ""


def _remove_stale_folders(folder: Path) -> None:
    """Remove the folders that killed processes of this machine left in ``folder``."""
    if not _make_prefix():
        return
    for home in folder.glob(f"{_make_prefix()}*"):
        with suppress(OSError):
            lock = os.open(home / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)
            finally:
                os.close(lock)


def _fill_template(node: Any, **values: str) -> Any:
    """Replace ``{name}`` in the texts of a JSON value."""
    if isinstance(node, Mapping):
        return {str(key): _fill_template(item, **values) for key, item in node.items()}
    if isinstance(node, str):
        for name, value in values.items():
            node = node.replace(f"{{{name}}}", value)
        return node
    return [_fill_template(item, **values) for item in node] if isinstance(node, Sequence) else node
