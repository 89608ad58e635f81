"""The best recorded answer to each prompt, for reward models with a reference."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lit_agentrl.checks import require, require_local
from lit_agentrl.data.episodes import EpisodeFolder, open_folder
from lit_agentrl.data.referred import put_behind, select_best
from lit_agentrl.episode import Episode

Instance = tuple[str, int, tuple[int, ...]]


class References:
    """Reference answers of a folder that `collect` wrote.

    A prompt is identified by its game and by the token ids before the first reply.

    Args:
        path: the folder.

    Attributes:
        path: the folder.
        tokenizer: hash of the tokenizer of its token ids.
        fingerprint: hash of its content.

    Raises:
        ValueError: the folder does not exist, is incomplete or damaged.
    """

    def __init__(self, path: str) -> None:
        require(isinstance(path, str) and bool(path.strip()), "path", path, "a folder of lit-agentrl collect")
        require_local("path", path)
        folder = open_answers("path", path)
        self.path, self.tokenizer = path, str(folder.described.get("policy", {}).get("tokenizer"))
        hashes = " ".join(shard.sha256 for shard in folder.shards)
        self.fingerprint = hashlib.sha256(hashes.encode()).hexdigest()
        self._best_by_prompt: dict[tuple[str, tuple[int, ...]], Episode] = {}
        for episode in folder.read():
            if not episode.failed and episode.num_action_tokens:
                key = _identify_prompt(episode)
                earlier = self._best_by_prompt.get(key)
                self._best_by_prompt[key] = episode if earlier is None else select_best([earlier, episode])

    def __len__(self) -> int:
        return len(self._best_by_prompt)

    def put_before(self, episode: Episode) -> Episode | None:
        """Put the best recorded answer before each row; None without one for the prompt."""
        reference = self._best_by_prompt.get(_identify_prompt(episode))
        return None if reference is None else put_behind(reference, episode)


def open_answers(option: str, path: str) -> EpisodeFolder:
    """Open a complete folder that `collect` wrote.

    Raises:
        ValueError: the folder does not exist, is incomplete or damaged; the message names the option.
    """
    folder = open_folder(Path(path).expanduser())
    if folder is None:
        raise ValueError(
            f"{option}={path} does not exist or is empty; name a folder that lit-agentrl collect wrote"
        )
    if not folder.is_complete:
        raise ValueError(
            f"{option}={path} has {len(folder.shards)} of {folder.planned} shards; repeat the command that "
            "collects it"
        )
    return folder


def identify_instance(episode: Episode) -> Instance:
    """Return the game, the instance seed and the token ids before the first reply."""
    return episode.task_name, episode.instance_seed, tuple(episode.turns[0].prefix_tokens.tolist())


def _identify_prompt(episode: Episode) -> tuple[str, tuple[int, ...]]:
    return episode.task_name, tuple(episode.turns[0].prefix_tokens.tolist())
