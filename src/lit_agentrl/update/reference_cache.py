"""Cache on disk of a data set's log-probs under a fixed reference."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lit_agentrl.distributed import gather_rows, get_rank, get_world_size, max_over_ranks
from lit_agentrl.files import remove_leftover, write_atomic

FORMAT = "lit_agentrl reference log-probs, version 1"
_READ = ("tokens_BT", "is_action_BT", "is_real_BT")  # all inputs of a log-prob but the network
_log = logging.getLogger(__name__)
Tensors = Mapping[str, Tensor]


class ReferenceCache:
    """Cached log-probs (nats) of a data set's sampled tokens, looked up by row.

    The data set is scored in pieces, each by itself.  So a number does not depend on the order of training, on the
    number of processes, or on whether it was computed or read.

    Args:
        folder: holds a file for each piece, named by all that its numbers depend on; runs can share it.
        pieces: yields the rows of the data set in pieces, always the same ones.
        computed: settings of the computation that are part of the file names.
    """

    def __init__(
        self, folder: Path, pieces: Callable[[], Iterable[Tensors]], computed: Mapping[str, str]
    ) -> None:
        self._folder, self._pieces, self._computed = folder, pieces, computed
        self._known: dict[bytes, Tensor] = {}
        self._like = torch.empty(0)
        self._damaged: list[str] = []
        self._unwritten: str | None = None

    def fill(self, score: Callable[[Tensors], Tensor], about: Mapping[str, Any], like: Tensor) -> None:
        """Read the cached pieces, score the others and write them; a collective.

        The pieces are dealt to the ranks in turn.

        Args:
            score: returns (B, T), the log-probs of rows; a collective.
            about: what the numbers depend on besides the rows: weights and settings of the computation.
            like: an empty tensor with the precision and the device of log-probs.
        """
        self._like = like
        key = json.dumps({"format": FORMAT, **about, **self._computed}, sort_keys=True)
        pieces = iter(self._pieces())
        while round_pieces := [
            {name: piece[name] for name in _READ} for piece in islice(pieces, get_world_size())
        ]:
            own_piece = (
                round_pieces[get_rank()] if get_rank() < len(round_pieces) else _take_rows(round_pieces[0], 0)
            )
            logp_A = self._read(own_piece, key) if len(own_piece["tokens_BT"]) else like
            is_missing = logp_A is None
            if bool(max_over_ranks(torch.tensor(float(is_missing), device=like.device))):
                rows = {
                    name: x.to(like.device)
                    for name, x in _take_rows(own_piece, None if is_missing else 0).items()
                }
                scored_A = score(rows)[rows["is_action_BT"]].to(like)
                logp_A = scored_A if logp_A is None else logp_A
            assert logp_A is not None
            if is_missing:
                self._write(own_piece, logp_A.cpu(), key)
            self._remember(round_pieces, gather_rows({"logp": logp_A.to(like)})[0]["logp"].cpu())
        self._warn()

    def look_up(self, tensors: Tensors) -> Tensor:
        """Look up the log-probs (B, T) of rows, 0 where no token was sampled.

        Raises:
            KeyError: a row is not in the data set.
        """
        is_action_BT = tensors["is_action_BT"]
        known = [self._known[digest] for digest in _hash_rows(tensors)]
        logp_BT = self._like.new_zeros(is_action_BT.shape)
        if known:
            logp_BT[is_action_BT] = torch.cat(known).to(logp_BT)
        return logp_BT

    def _remember(self, round_pieces: Iterable[Tensors], logp_A: Tensor) -> None:
        start = 0
        for piece in round_pieces:
            for digest, size in zip(_hash_rows(piece), piece["is_action_BT"].sum(1).tolist(), strict=True):
                self._known.setdefault(digest, logp_A[start : start + size])
                start += size

    # ------------------------------------------------------------------ files
    def _read(self, piece: Tensors, key: str) -> Tensor | None:
        """Read the cached log-probs of a piece; None if the file is missing or damaged."""
        file = self._folder / _get_file_name(key, piece)
        try:
            content = load(file.read_bytes())
            logp_A = content["logp"]
            is_sound = content["check"].tolist() == _hash_content(file.name, logp_A)
            if is_sound and logp_A.shape == (int(piece["is_action_BT"].sum()),):
                return logp_A
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError):
            pass
        self._damaged.append(file.name)
        return None

    def _write(self, piece: Tensors, logp_A: Tensor, key: str) -> None:
        """Write a piece; if that fails, the run continues without the cache."""
        if self._unwritten is not None:
            return
        file = self._folder / _get_file_name(key, piece)
        content = {"logp": logp_A, "check": torch.tensor(_hash_content(file.name, logp_A), dtype=torch.uint8)}
        try:
            write_atomic(file, save(content, metadata={"computed": key}))
        except OSError as error:
            self._unwritten = error.strerror or str(error)
            with suppress(OSError):
                remove_leftover(file)

    def _warn(self) -> None:
        if self._damaged:
            _log.warning(
                "damaged files of reference log-probs in %s: %d, the first %s; their rows are scored again",
                self._folder, len(self._damaged), self._damaged[0],
            )  # fmt: skip
        if self._unwritten is not None:
            _log.warning(
                "reference log-probs cannot be written to %s: %s; the run continues without the cache",
                self._folder, self._unwritten,
            )  # fmt: skip


def _hash_rows(tensors: Tensors) -> list[bytes]:
    """Hash the tokens of each row and which of them were sampled."""
    lengths = tensors["is_real_BT"].sum(1).tolist()
    tokens, chosen = tensors["tokens_BT"].cpu().numpy(), tensors["is_action_BT"].cpu().numpy()
    return [
        hashlib.blake2b(tokens[b, :n].tobytes() + chosen[b, :n].tobytes(), digest_size=16).digest()
        for b, n in enumerate(lengths)
    ]


def _get_file_name(key: str, piece: Tensors) -> str:
    """Return the file name of a piece, a hash of rows and computation."""
    return hashlib.sha256(key.encode() + b"".join(_hash_rows(piece))).hexdigest() + ".safetensors"


def _hash_content(name: str, logp_A: Tensor) -> list[int]:
    """Hash the name and the numbers of a file with SHA-256, to detect exchanged files."""
    return list(hashlib.sha256(name.encode() + logp_A.numpy().tobytes()).digest())


def _take_rows(piece: Tensors, number: int | None) -> dict[str, Tensor]:
    """Take the first rows of a piece; None: all."""
    return {name: tensor[:number] for name, tensor in piece.items()}
