"""The best recorded answer to each prompt, for a reward that is told a reference."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lit_agentrl.checks import require, require_local
from lit_agentrl.data.episodes import open_folder
from lit_agentrl.data.referred import behind, best
from lit_agentrl.episode import Episode


class References:
    """Of a folder that `collect` wrote.

    A prompt is known again by its game and by the ids that are read before the first reply.

    Args:
        path: the folder.

    Attributes:
        path: the same.
        tokenizer: fingerprint of what mapped its texts to ids.
        fingerprint: of what it holds.

    Raises:
        ValueError: there is no such folder, or it is not complete or damaged.
    """

    def __init__(self, path: str) -> None:
        require(isinstance(path, str) and bool(path.strip()), "path", path, "a folder of lit-agentrl collect")
        require_local("path", path)
        folder = open_folder(Path(path).expanduser())
        if folder is None:
            raise ValueError(
                f"path={path} is not there, or empty; name a folder that lit-agentrl collect wrote"
            )
        if not folder.is_complete:
            raise ValueError(
                f"path={path} has {len(folder.shards)} of {folder.planned} shards; give the command that collects it "
                "again"
            )
        self.path, self.tokenizer = path, str(folder.described.get("policy", {}).get("tokenizer"))
        told = " ".join(shard.sha256 for shard in folder.shards)
        self.fingerprint = hashlib.sha256(told.encode()).hexdigest()
        self._best: dict[tuple[str, tuple[int, ...]], Episode] = {}
        for episode in folder.read():
            if not episode.failed and episode.num_action_tokens:
                key = _prompt(episode)
                self._best[key] = best([self._best[key], episode]) if key in self._best else episode

    def __len__(self) -> int:
        return len(self._best)

    def before(self, episode: Episode) -> Episode | None:
        """The episode, each row behind the best recorded one of its prompt; None where there is none."""
        found = self._best.get(_prompt(episode))
        return None if found is None else behind(found, episode)


def _prompt(episode: Episode) -> tuple[str, tuple[int, ...]]:
    return episode.task_name, tuple(episode.turns[0].prefix_tokens.tolist())
