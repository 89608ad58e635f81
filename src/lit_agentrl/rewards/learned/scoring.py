"""Scores of episodes by reward models, computed in batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.episode import Episode
from lit_agentrl.models.reward_model import RewardModel, load_model
from lit_agentrl.rewards.base import RewardContext, Rewards
from lit_agentrl.text.token_bytes import hash_tokenizer


class Scorer:
    """Frozen reward models on the device of the run's networks.

    Args:
        paths: folders of runs that trained them, or of the models themselves.
        context: resources of the run.
        tokens_per_batch: number of tokens that are computed together.
        use: see `models.reward_model.read_about`.
        heads: weights by name, for models with several heads.

    Raises:
        ValueError: one cannot be loaded, or uses another tokenizer than the policy.
    """

    def __init__(
        self,
        paths: Sequence[str],
        context: RewardContext,
        *,
        tokens_per_batch: int,
        use: str = "reward=model",
        heads: Mapping[str, float] | None = None,
    ) -> None:
        tokenizer = hash_tokenizer(context.tokenizer)
        self._models = [load_model(path, tokenizer, use=use) for path in paths]
        for model in self._models:
            network: torch.nn.Module = model.policy.network
            for part in (network, model.head):
                part.to(context.device)
        self._device, self._tokens_per_batch = context.device, tokens_per_batch
        self._heads = heads

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of the weights of each model."""
        return [model.about.fingerprint for model in self._models]

    @property
    def start(self) -> float:
        """Value of an average episode before its first turn, averaged over models."""
        weight = 1.0 if self._heads is None else sum(self._heads.values())
        total = sum(0.5 if model.about.kind == "logit" else 0.0 for model in self._models)
        return weight * total / len(self._models)

    def values(self, episodes: Sequence[Episode]) -> Tensor:
        """Return `compute_turn_values` of each model, (M, A)."""
        return torch.stack(
            [
                compute_turn_values(model, episodes, self._tokens_per_batch, self._device, self._heads)
                for model in self._models
            ]
        )

    @staticmethod
    def split_by_turn(value_A: Tensor, episodes: Sequence[Episode]) -> Rewards:
        """Split the values into the turns of each episode."""
        parts = torch.split(value_A, [len(episode.turns) for episode in episodes])
        return [part.tolist() for part in parts]

    def require_same(self, fingerprints: Any, option: str) -> None:
        """Refuse models other than those of a checkpoint.

        Raises:
            ValueError: the fingerprints differ; the message names ``option``.
        """
        if list(fingerprints) != self.fingerprints:
            own_hash, saved_hash = (
                next(iter(hashes), "none")[:12] for hashes in (self.fingerprints, fingerprints)
            )
            raise ValueError(
                f"{option} holds weights {own_hash}, and this run was trained on {saved_hash}; put the model back"
            )


@torch.no_grad()
def compute_turn_values(
    model: RewardModel,
    episodes: Sequence[Episode],
    tokens_per_batch: int,
    device: torch.device,
    heads: Mapping[str, float] | None = None,
) -> Tensor:
    """Compute the value after each turn of all episodes, in order, (A,), float64.

    The value is ``(score - mean) / std``, ``sigmoid(logit)`` or the cost, depending on the model; for several heads it
    is the weighted sum.

    Args:
        model: a model on the device.
        episodes: at least one.
        tokens_per_batch: number of tokens that are computed together, including padding; a longer row is its own batch.
        device: device of the model.
        heads: weights by name, for models with several heads.

    Raises:
        ValueError: a head has no weight, or an episode (with its reference) is longer than the positions of the model.
    """

    def read(tokens_BT: Tensor, is_scored_BT: Tensor) -> Tensor:
        score_BT: Tensor = model.head(
            model.policy.network, tokens_BT=tokens_BT.to(device), is_scored_BT=is_scored_BT.to(device)
        )
        return score_BT.cpu()[is_scored_BT].double()

    rows = [row for episode in episodes for row in list_rows(episode)]
    _require_positions(model, max((len(tokens) for tokens, _ in rows), default=0))
    score_A = torch.cat(read_in_batches(rows, tokens_per_batch, read))
    about = model.about
    if (weights := about.get_head_weights(heads, model.policy.name)) is not None:
        mean_H, std_H = torch.tensor([*about.heads.values()], dtype=torch.float64).unbind(1)
        value_AH = score_A.sigmoid() if about.kind == "logit" else (score_A - mean_H) / std_H
        return value_AH @ torch.tensor(weights, dtype=torch.float64)
    if about.kind == "cost":  # its zero has a meaning, so it is not normalised
        return score_A
    return score_A.sigmoid() if about.kind == "logit" else (score_A - about.mean) / about.std


def _require_positions(model: RewardModel, size: int) -> None:
    max_positions = getattr(model.policy.network.config.get_text_config(), "max_position_embeddings", None)
    if max_positions is not None and size > max_positions:
        raise ValueError(
            f"a reward model (algo={model.about.algo}) has {max_positions} positions, and is to read {size} tokens; "
            "lower rollout.max_context_tokens, or train one on a network that reads more"
        )


def read_in_batches(
    rows: Sequence[tuple[list[int], list[int]]],
    tokens_per_batch: int,
    read: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """Apply ``read(tokens_BT, is_read_BT)`` to rows in batches of similar length.

    Args:
        rows: token ids, and ascending places at which values are read.
        tokens_per_batch: number of tokens that are computed together, including padding; a longer row is its own batch.
        read: returns one value, or one row of values, for each True of its second argument, row by row.

    Returns:
        The values of each row, in the order of ``rows``.
    """
    order = sorted(range(len(rows)), key=lambda k: -len(rows[k][0]))
    values: dict[int, Tensor] = {}
    while order:
        count = max(1, tokens_per_batch // len(rows[order[0]][0]))
        batch_rows, order = order[:count], order[count:]
        tokens_BT = torch.zeros(len(batch_rows), len(rows[batch_rows[0]][0]), dtype=torch.int64)
        is_read_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        for position, k in enumerate(batch_rows):
            tokens, places = rows[k]
            tokens_BT[position, : len(tokens)] = torch.tensor(tokens)
            is_read_BT[position, places] = True
        parts = torch.split(read(tokens_BT, is_read_BT), [len(rows[k][1]) for k in batch_rows])
        values |= dict(zip(batch_rows, parts, strict=True))
    return [values[k] for k in range(len(rows))]


def list_rows(episode: Episode) -> list[tuple[list[int], list[int]]]:
    """Return token ids and places of turn ends of each row of an episode.

    A turn with ``starts_row`` begins a new row.
    """
    rows: list[tuple[list[int], list[int]]] = []
    for number, turn in enumerate(episode.turns):
        if turn.starts_row or not number:
            rows.append(([], []))
        tokens, ends = rows[-1]
        tokens += [*turn.prefix_tokens.tolist(), *turn.reply_tokens.tolist()]
        ends.append(len(tokens) - 1)
    return rows
