"""Best of N: the success of the episode that a reward model chooses among N."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import RewardModel, load_model, read_about
from lit_agentrl.report.statistics import (
    compute_mean_interval,
    compute_share_interval,
    estimate_best_of_k,
    estimate_pass_at_k,
)
from lit_agentrl.report.summary import to_estimate
from lit_agentrl.rewards.learned.scoring import compute_turn_values
from lit_agentrl.text.token_bytes import hash_tokenizer

_TOKENS = 8192  # tokens per batch of the reward model


@contextmanager
def _rename_option() -> Iterator[None]:
    """Replace ``path=`` by ``reward_model=``, the option's name, in error messages."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("path=", "reward_model=", 1)) from error


@dataclass(frozen=True)
class Chooser:
    """A reward model that chooses among the episodes of a prompt."""

    model: RewardModel
    device: torch.device

    def record(self, sizes: Sequence[int], episodes: Sequence[Episode]) -> dict[str, Any]:
        """Estimate the success of choosing among k episodes, for each k.

        ``best@k``: success of the episode that the model scores highest.  ``pass@k``: success of the best episode, an
        upper bound of any choice.  ``gain@k``: ``best@k`` minus the success of a random episode of the same prompts.
        All have 95 % intervals over prompts, and are None if no prompt has k episodes.

        Args:
            sizes: the values of k.
            episodes: episodes of one game; failed episodes, and prompts with fewer than k others, are left out.
        """
        played = [e for e in episodes if not e.failed and e.turns]
        results: dict[str, Any] = {}
        groups: dict[int, list[tuple[float, bool]]] = {}
        for episode, score in zip(played, self._score_episodes(played), strict=True):
            groups.setdefault(episode.group, []).append((score, episode.success))
        for k in sizes:
            large_groups = [tuple(zip(*group, strict=True)) for group in groups.values() if len(group) >= k]
            if not large_groups:
                results |= dict.fromkeys((f"best@{k}", f"gain@{k}", f"pass@{k}"))
                continue
            num_episodes = sum(len(solved) for _, solved in large_groups)
            best = [estimate_best_of_k(scores, solved, k) for scores, solved in large_groups]
            passes = [estimate_pass_at_k(len(solved), sum(solved), k) for _, solved in large_groups]
            gains = [
                chosen - sum(solved) / len(solved)
                for chosen, (_, solved) in zip(best, large_groups, strict=True)
            ]
            results[f"best@{k}"] = to_estimate(compute_share_interval(best, num_episodes))
            results[f"gain@{k}"] = to_estimate(compute_mean_interval(gains))
            results[f"pass@{k}"] = to_estimate(compute_share_interval(passes, num_episodes))
        return results

    def _score_episodes(self, episodes: Sequence[Episode]) -> list[float]:
        """Score each episode at its end."""
        if not episodes:
            return []
        values = compute_turn_values(self.model, episodes, _TOKENS, self.device)
        return [float(rows[-1]) for rows in torch.split(values, [len(e.turns) for e in episodes])]


def load_chooser(cfg: DictConfig, tokenizer: PreTrainedTokenizerBase) -> Chooser | None:
    """Load the reward model for ``best_of``; return None if ``best_of`` is not set.

    Raises:
        ValueError: the reward model cannot be loaded, or uses other token ids.
    """
    if not cfg.best_of:
        return None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with _rename_option():
        if heads := read_about(cfg.reward_model).heads:
            raise ValueError(
                f"path={cfg.reward_model} has several heads ({', '.join(heads)}), and best_of needs a single score; "
                "name a model with one head"
            )
        model = load_model(cfg.reward_model, hash_tokenizer(tokenizer))
    network: torch.nn.Module = model.policy.network
    for part in (network, model.head):
        part.to(device)
    return Chooser(model, device)
