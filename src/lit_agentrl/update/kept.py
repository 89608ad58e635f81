"""The log-probs of a data set under a reference that stands still: computed once, and kept on disk."""

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
_READ = ("tokens_BT", "is_action_BT", "is_real_BT")  # all that a log-prob depends on, beside the network
_log = logging.getLogger(__name__)
Tensors = Mapping[str, Tensor]


class KeptReference:
    """Log-probs (nats) of the sampled tokens of a data set under its reference, found again by the tokens of a row.

    The data set is scored in pieces, each by itself.  So a number depends neither on the order of training, nor on how
    many processes there are, nor on whether it was computed or read.

    Args:
        folder: holds a file for each piece, named by all that its numbers depend on; other runs may use it too.
        pieces: gives the rows of the data set, a piece at a time, always the same ones.
        computed: how networks compute, where only the program knows it; a part of the names.
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
        """Read what is there, score the rest, and keep it.  A collective: each rank takes every so many-th piece.

        Args:
            score: gives (B, T), the log-probs of rows; a collective.
            about: what they depend on beside the rows: the weights, and how these are computed with.
            like: an empty tensor of the precision and on the device of log-probs.
        """
        self._like = like
        key = json.dumps({"format": FORMAT, **about, **self._computed}, sort_keys=True)
        pieces = iter(self._pieces())
        while turn := [{name: piece[name] for name in _READ} for piece in islice(pieces, get_world_size())]:
            mine = turn[get_rank()] if get_rank() < len(turn) else _rows(turn[0], 0)
            logp_A = self._read(mine, key) if len(mine["tokens_BT"]) else like
            is_missing = logp_A is None
            if bool(max_over_ranks(torch.tensor(float(is_missing), device=like.device))):
                rows = {name: x.to(like.device) for name, x in _rows(mine, None if is_missing else 0).items()}
                scored_A = score(rows)[rows["is_action_BT"]].to(like)
                logp_A = scored_A if logp_A is None else logp_A
            assert logp_A is not None
            if is_missing:
                self._write(mine, logp_A.cpu(), key)
            self._take(turn, gather_rows({"logp": logp_A.to(like)})[0]["logp"].cpu())
        self._tell()

    def of(self, tensors: Tensors) -> Tensor:
        """(B, T), the log-probs of rows of the data set, 0 where no token was sampled.

        Raises:
            KeyError: a row is not of the data set.
        """
        is_action_BT = tensors["is_action_BT"]
        known = [self._known[each] for each in _digests(tensors)]
        found_BT = self._like.new_zeros(is_action_BT.shape)
        if known:
            found_BT[is_action_BT] = torch.cat(known).to(found_BT)
        return found_BT

    def _take(self, turn: Iterable[Tensors], everyone_A: Tensor) -> None:
        start = 0
        for piece in turn:
            for digest, size in zip(_digests(piece), piece["is_action_BT"].sum(1).tolist(), strict=True):
                self._known.setdefault(digest, everyone_A[start : start + size])
                start += size

    # ------------------------------------------------------------------ files
    def _read(self, piece: Tensors, key: str) -> Tensor | None:
        """What was kept of a piece; None where nothing was, or the file is damaged, or not what its name says."""
        file = self._folder / _name(key, piece)
        try:
            held = load(file.read_bytes())
            logp_A = held["logp"]
            is_sound = held["check"].tolist() == _check(file.name, logp_A)
            if is_sound and logp_A.shape == (int(piece["is_action_BT"].sum()),):
                return logp_A
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RuntimeError):
            pass
        self._damaged.append(file.name)
        return None

    def _write(self, piece: Tensors, logp_A: Tensor, key: str) -> None:
        """Keep a piece; where it cannot be, the run goes on without."""
        if self._unwritten is not None:
            return
        file = self._folder / _name(key, piece)
        content = {"logp": logp_A, "check": torch.tensor(_check(file.name, logp_A), dtype=torch.uint8)}
        try:
            write_atomic(file, save(content, metadata={"computed": key}))
        except OSError as error:
            self._unwritten = error.strerror or str(error)
            with suppress(OSError):
                remove_leftover(file)

    def _tell(self) -> None:
        if self._damaged:
            _log.warning(
                "damaged files of reference log-probs in %s: %d, the first %s; their rows were scored again",
                self._folder, len(self._damaged), self._damaged[0],
            )  # fmt: skip
        if self._unwritten is not None:
            _log.warning(
                "reference log-probs cannot be kept in %s: %s; the run goes on, and a resumed one scores them again",
                self._folder, self._unwritten,
            )  # fmt: skip


def _digests(tensors: Tensors) -> list[bytes]:
    """Of each row: equal where its tokens are, and those of them that were sampled."""
    lengths = tensors["is_real_BT"].sum(1).tolist()
    tokens, chosen = tensors["tokens_BT"].cpu().numpy(), tensors["is_action_BT"].cpu().numpy()
    return [
        hashlib.blake2b(tokens[b, :n].tobytes() + chosen[b, :n].tobytes(), digest_size=16).digest()
        for b, n in enumerate(lengths)
    ]


def _name(key: str, piece: Tensors) -> str:
    """Of the file of a piece: by how its numbers are computed, and by its rows."""
    return hashlib.sha256(key.encode() + b"".join(_digests(piece))).hexdigest() + ".safetensors"


def _check(name: str, logp_A: Tensor) -> list[int]:
    """SHA-256 of the name of a file and its numbers: those of another file do not pass."""
    return list(hashlib.sha256(name.encode() + logp_A.numpy().tobytes()).digest())


def _rows(piece: Tensors, number: int | None) -> dict[str, Tensor]:
    """The first rows of a piece; None: all."""
    return {name: tensor[:number] for name, tensor in piece.items()}
