"""Best of N: which of several episodes of an instance a reward model would choose, and what that is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from lit_agentrl.build.making import as_list
from lit_agentrl.checks import format_value, require, require_whole
from lit_agentrl.config.errors import UserError
from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import RewardModel, load_model, read_about
from lit_agentrl.report.statistics import best_of_k, mean_interval, pass_at_k, shares_interval
from lit_agentrl.report.summary import estimate
from lit_agentrl.rewards.learned.scoring import turn_values
from lit_agentrl.text.token_bytes import hash_tokenizer

_TOKENS = 8192  # that the reward model reads together


def check_options(cfg: DictConfig) -> None:
    """Refuse values of ``best_of`` and ``reward_model`` that make no sense.

    Raises:
        ValueError: naming the option.
    """
    cfg.best_of = as_list(cfg.best_of)  # one number may stand without brackets
    for k in cfg.best_of:
        require_whole("best_of", k, 2)
        if k > cfg.members:
            raise UserError(
                f"best_of={format_value(cfg.best_of)} needs members >= {k}, and members={cfg.members}"
            )
    path = cfg.reward_model
    if path is None:
        if cfg.best_of:
            raise UserError(
                f"best_of={format_value(cfg.best_of)} needs reward_model=RUN, the folder of a run that trained one"
            )
        return
    require(isinstance(path, str) and bool(path.strip()), "reward_model", path, "the folder of a run")
    if not cfg.best_of:
        raise UserError(
            "reward_model has no effect without best_of; set best_of=8 members=8, or leave it out"
        )
    with _told():
        if heads := read_about(path).heads:
            raise ValueError(
                f"path={path} has several heads ({', '.join(heads)}), and best_of goes by one score; name a model "
                "with one"
            )


@contextmanager
def _told() -> Iterator[None]:
    """Names the option in what is said of a reward model's folder."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("path=", "reward_model=", 1)) from error


@dataclass(frozen=True)
class Chooser:
    """A reward model that chooses among the episodes of an instance."""

    model: RewardModel
    device: torch.device

    def record(self, sizes: Sequence[int], episodes: Sequence[Episode]) -> dict[str, Any]:
        """What it would reach, for each number k of episodes to choose from, with 95 % intervals over instances.

        ``best@k``: success of the episode that it scores highest.  ``pass@k``: of the best one, which no choice can
        exceed.  ``gain@k``: ``best@k`` less the success of an episode by chance, on the same instances.

        Args:
            sizes: each k.
            episodes: of one game; instances of which fewer than k did not fail are left out.
        """
        played = [e for e in episodes if not e.failed and e.turns]
        found: dict[str, Any] = {}
        groups: dict[int, list[tuple[float, bool]]] = {}
        for episode, score in zip(played, self._scores(played), strict=True):
            groups.setdefault(episode.group, []).append((score, episode.success))
        for k in sizes:
            enough = [tuple(zip(*group, strict=True)) for group in groups.values() if len(group) >= k]
            if not enough:
                found |= dict.fromkeys((f"best@{k}", f"gain@{k}", f"pass@{k}"))
                continue
            number = sum(len(solved) for _, solved in enough)
            best = [best_of_k(scores, solved, k) for scores, solved in enough]
            most = [pass_at_k(len(solved), sum(solved), k) for _, solved in enough]
            gained = [one - sum(solved) / len(solved) for one, (_, solved) in zip(best, enough, strict=True)]
            found[f"best@{k}"] = estimate(shares_interval(best, number))
            found[f"gain@{k}"] = estimate(mean_interval(gained))
            found[f"pass@{k}"] = estimate(shares_interval(most, number))
        return found

    def _scores(self, episodes: Sequence[Episode]) -> list[float]:
        """At the end of each."""
        if not episodes:
            return []
        values = turn_values(self.model, episodes, _TOKENS, self.device)
        return [float(rows[-1]) for rows in torch.split(values, [len(e.turns) for e in episodes])]


def opened(cfg: DictConfig, tokenizer: PreTrainedTokenizerBase) -> Chooser | None:
    """What ``best_of`` is measured with; None where it is not asked for.

    Raises:
        ValueError: the reward model cannot be loaded, or reads other token ids.
    """
    if not cfg.best_of:
        return None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with _told():
        model = load_model(cfg.reward_model, hash_tokenizer(tokenizer))
    network: torch.nn.Module = model.policy.network
    for part in (network, model.head):
        part.to(device)
    return Chooser(model, device)
