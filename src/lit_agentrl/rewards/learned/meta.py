"""Trained reward models that score judgements, for selection (SPCT) or as value (CLoud)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lit_agentrl.checks import require, require_whole
from lit_agentrl.episode import EndReason, Episode, Turn
from lit_agentrl.models.reward_model import load_model
from lit_agentrl.rewards.learned.scoring import compute_turn_values
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.plain import Plain
from lit_agentrl.text.token_bytes import hash_tokenizer

_TOKENS_PER_BATCH = 8192


def count_voters(meta: str | None, keep: int | None, samples: int) -> int:
    """Return how many samples of a judge vote: all, or ``keep`` of them with ``meta``.

    The default of ``keep`` is half of the samples, rounded up.

    Raises:
        ValueError: an option is invalid or has no effect.
    """
    if meta is None:
        if keep is not None:
            raise ValueError(f"keep={keep} has no effect without meta; name the folder of a reward model")
        return samples
    require(
        isinstance(meta, str) and bool(meta.strip()), "meta", meta, "the folder of a reward model, or null"
    )
    if keep is not None:
        require_whole("keep", keep, 1)
    num_kept = (samples + 1) // 2 if keep is None else keep
    if num_kept >= samples:
        raise ValueError(
            f"meta has no effect with samples={samples}, of which {num_kept} vote; raise samples"
        )
    return num_kept


class JudgementScorer:
    """A reward model that scores judgements, with its own tokenizer.

    A judgement is scored like an episode of ``env=judging prompt=bare dialect=plain``: one user message, and the reply
    with the template's end of a message.

    Args:
        path: folder of a run that trained a reward model, or of the model itself.
        device: device of the model.
        option: name of the option, for error messages.

    Raises:
        ValueError: it cannot be loaded, or its tokenizer is not the one it was trained with.
    """

    def __init__(self, path: str, device: torch.device, *, option: str = "meta") -> None:
        try:
            self._model = load_model(path, None)
        except ValueError as error:
            raise ValueError(f"{option}={str(error).removeprefix('path=')}") from error
        if heads := self._model.about.heads:
            raise ValueError(f"{option}={path} has several heads ({', '.join(heads)}); name a model with one")
        policy = self._model.policy
        if hash_tokenizer(policy.tokenizer) != self._model.about.tokenizer:
            raise ValueError(
                f"{option}={path}: its tokenizer has changed since training; train the model again"
            )
        network: torch.nn.Module = policy.network
        for part in (network, self._model.head):
            part.to(device)
        self._option, self._device = f"{option}={path}", device
        network_config = policy.network.config.get_text_config()
        self._max_positions = getattr(network_config, "max_position_embeddings", None)
        self._chat = ChatRenderer(policy.tokenizer, dialect=Plain(), shows_replies=False)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the weights."""
        return self._model.about.fingerprint

    def values(self, judgements: Sequence[tuple[str, str]]) -> list[float]:
        """Score pairs of question and reply: ``(score - mean) / std``, or ``sigmoid(logit)``.

        Raises:
            ValueError: a judgement is longer than the positions of the model.
        """
        if not judgements:
            return []
        episodes = [self._make_episode(*judgement) for judgement in judgements]
        return [float(v) for v in compute_turn_values(self._model, episodes, _TOKENS_PER_BATCH, self._device)]

    def score_each(self, questions: Sequence[str], replies: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return `values` of all replies to each question."""
        judgements = [
            (question, reply) for question, row in zip(questions, replies, strict=True) for reply in row
        ]
        values = iter(self.values(judgements))
        return [[next(values) for _ in row] for row in replies]

    def _make_episode(self, question: str, reply: str) -> Episode:
        prefix = self._chat.render_opening([{"role": "user", "content": question}])
        written = [*self._chat.encode(reply), *self._chat.end_of_turn_ids[:1]]
        size = len(prefix.tokens) + len(written)
        if self._max_positions is not None and size > self._max_positions:
            raise ValueError(
                f"{self._option} has {self._max_positions} positions, and a judgement has {size} tokens; lower "
                "most_characters or max_reply_tokens"
            )
        turn = Turn(
            observation="", prefix_tokens=np.array(prefix.tokens),
            prefix_segments=np.array(prefix.segments, np.int8), reply_tokens=np.array(written),
        )  # fmt: skip
        return Episode(0, 0, 0, 0, "judging", 0, opening=[], turns=[turn], end=EndReason.TURN_LIMIT)
