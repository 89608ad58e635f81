"""Sharded checkpoints in a folder: each rank writes and reads its own shards, with checksums."""

from __future__ import annotations

import enum
import json
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, zeros

from lit_agentrl.distributed import gather_objects, get_rank, get_world_size
from lit_agentrl.files import fsync_folder
from lit_agentrl.strategies.plain_data import save_plain

REST = "rest.ckpt"  # everything that is not sharded
SUMS = "checksums.json"  # written last: a folder without it is incomplete
# the types from which torch builds the metadata of the shards
_METADATA_TYPES = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex",
        "StorageMeta", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
}  # fmt: skip


def is_sharded(path: str | Path) -> bool:
    """Return whether the checkpoint at ``path`` is a folder, and so sharded."""
    return os.path.isdir(path)


def save(checkpoint: dict[str, Any], folder: str | Path) -> None:
    """Write every rank's shards of ``checkpoint`` into a new folder; a collective.

    Args:
        checkpoint: nested dicts and lists; each rank writes its shards of sharded tensors, rank 0 all else.
        folder: on a file system that all ranks share; must not exist.

    Raises:
        OSError: some rank could not write; raised on every rank.
    """
    folder = Path(folder)
    sharded, rest = split(checkpoint)
    run_on_all_ranks(lambda: folder.mkdir(parents=True) if get_rank() == 0 else None)

    def write() -> None:
        if get_rank() == 0:
            save_plain(rest, folder / REST)

    run_on_all_ranks(write)
    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    run_on_all_ranks(lambda: dcp.save(sharded, storage_writer=writer, no_dist=not dist.is_initialized()))
    names = sorted(path.name for path in folder.iterdir())
    sums = dict(
        gather_objects(
            [(name, compute_checksum(folder / name)) for name in names[get_rank() :: get_world_size()]]
        )
    )

    def seal() -> None:
        if get_rank() == 0:
            with open(folder / SUMS, "w", encoding="utf-8") as file:
                json.dump(sums, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            fsync_folder(folder)

    run_on_all_ranks(seal)


def run_on_all_ranks(work: Callable[[], Any]) -> None:
    """Run ``work`` on every rank, and raise on all ranks if any of them failed.

    Raises:
        OSError: the first failure, of any rank.
    """
    failure = None
    try:
        work()
    except (Exception, CheckpointException) as error:  # CheckpointException is not an Exception
        failure = find_cause(error)
    failures = [cause for cause in gather_objects([failure]) if cause is not None]
    if failures:
        raise OSError(failures[0])


def find_cause(error: BaseException) -> str:
    """Return the operating system's message for a failure, from inside wrapped exceptions."""
    failures = getattr(error, "failures", None)  # set by torch.distributed.checkpoint: failures by rank
    if failures:
        return find_cause(next(iter(failures.values()))[0])
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return (str(error) or type(error).__name__).splitlines()[0]


def compute_checksum(path: Path) -> list[int]:
    """Compute the size in bytes and the CRC-32 of a file."""
    size = total = 0
    with open(path, "rb") as file:
        while part := file.read(1 << 24):
            size, total = size + len(part), zlib.crc32(part, total)
    return [size, total]


def is_intact(folder: str | Path, *, shared: bool = False) -> bool:
    """Return whether every file has the size and checksum that it was written with.

    Args:
        folder: a checkpoint.
        shared: whether each rank checks only a part of the files; then a collective with one answer for all ranks.
    """
    folder = Path(folder)
    part, parts = (get_rank(), get_world_size()) if shared else (0, 1)
    try:
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        own_sums = sorted(sums.items())[part::parts]
        is_good = bool(sums) and all(
            compute_checksum(folder / name) == expected for name, expected in own_sums
        )
    except (OSError, ValueError, AttributeError):  # the checksum file itself may be damaged
        is_good = False
    return all(gather_objects([is_good])) if shared else is_good


def load(folder: str | Path, mesh: DeviceMesh | None = None, map_location: Any = None) -> dict[str, Any]:
    """Load a checkpoint, whatever the number of ranks that wrote it.

    Args:
        folder: a checkpoint.
        mesh: shard tensors over these ranks, each of which reads only its own shards; None: read whole tensors.
        map_location: device of tensors that were not sharded.
    """
    rest = load_rest(folder, map_location)
    reader = PlainReader(folder)
    sharded: dict[str, Tensor] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata), "save() writes only tensors"
        dtype = entry.properties.dtype
        sharded[name] = (
            torch.empty(entry.size, dtype=dtype)
            if mesh is None
            else zeros(entry.size, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
        )
    if sharded:
        dcp.load(sharded, storage_reader=reader, no_dist=mesh is None)
    return join(sharded, rest)


class PlainReader(FileSystemReader):
    """Reader of the shards that unpickles only metadata types that torch writes."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the same metadata as torch's own reader, from a restricted pickle.

        Raises:
            UnpicklingError: the metadata holds any other type.
        """
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"GLOBAL {type(metadata).__name__} in place of Metadata")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11.0 to 3.11.3 pickles members of enums
            return _get_member
        if name not in _METADATA_TYPES.get(module, ()):
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")
        return super().find_class(module, name)


def _get_member(kind: Any, name: str) -> enum.Enum:
    if not (isinstance(kind, enum.EnumMeta) and name in kind.__members__):
        raise pickle.UnpicklingError("GLOBAL builtins.getattr")
    member: enum.Enum = kind[name]
    return member


def load_rest(folder: str | Path, map_location: Any = None) -> dict[str, Any]:
    """Load everything that was not sharded: counters, callbacks, settings.

    Accepts only tensors and plain data.
    """
    saved = torch.load(Path(folder) / REST, map_location=map_location, weights_only=True)
    assert isinstance(saved, dict)
    return saved


_SHARDED = object()  # stands for a sharded tensor in the rest


def split(checkpoint: dict[str, Any]) -> tuple[dict[str, DTensor], dict[str, Any]]:
    """Split a checkpoint into its sharded tensors, by name, and the rest.

    The second value holds the rest under ``rest``, and under ``shares`` the place of each sharded tensor.  One tensor
    in several places, such as tied weights, is written once.
    """
    names: dict[int, str] = {}
    sharded: dict[str, DTensor] = {}
    places: list[tuple[list[Any], str]] = []

    def visit(value: Any, path: list[Any]) -> Any:
        if isinstance(value, dict):
            parts = {key: visit(item, [*path, key]) for key, item in value.items()}
            return {key: part for key, part in parts.items() if part is not _SHARDED}
        if isinstance(value, list):  # list positions must not shift
            return [None if (p := visit(item, [*path, i])) is _SHARDED else p for i, item in enumerate(value)]
        if not isinstance(value, DTensor):
            return value
        name = names.setdefault(id(value), "/".join(str(key) for key in path))
        sharded[name] = value
        places.append((path, name))
        return _SHARDED

    rest = visit(checkpoint, [])
    return sharded, {"rest": rest, "shares": places}


def join(sharded: dict[str, Tensor], saved: dict[str, Any]) -> dict[str, Any]:
    """Join what :func:`split` separated."""
    rest: dict[str, Any] = saved["rest"]
    for path, name in saved["shares"]:
        target: Any = rest
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = sharded[name]
    return rest
