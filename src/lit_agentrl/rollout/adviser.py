"""A model other than the policy that answers questions, local or behind an API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from lit_agentrl.checks import name_errors
from lit_agentrl.engines.base import Engine, MeteredEngine, SamplingParams
from lit_agentrl.engines.needs import check_engine_options, check_server, open_engine
from lit_agentrl.models.remote import load_remote
from lit_agentrl.rollout.questions import Question, ask
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.dialects.blocks import NoStop
from lit_agentrl.text.reply_ends import list_model_ends


class Adviser:
    """A model with fixed weights of its own that answers questions; see `rewards.base.Answerer`.

    Args:
        engine: Constructor of the engine.
        model: Constructor of the policy whose network answers; None if the model is behind an API.
        params: Sampling options, as in `SamplingParams`.
        device: Device of the model's network.

    Raises:
        ValueError: An option is invalid, the server does not answer, or the model has too few positions.
    """

    def __init__(
        self,
        engine: Callable[..., Engine],
        model: Callable[..., Any] | None,
        params: dict[str, Any],
        *,
        device: torch.device,
    ) -> None:
        self._params, self._make_engine = SamplingParams(**params), engine
        check_engine_options(engine)
        check_server(engine)
        with name_errors("model"):
            policy = load_remote() if model is None else model()
            ends = list_model_ends(policy.network, policy.tokenizer)
            self._chat = ChatRenderer(policy.tokenizer, shows_replies=False, model_ends=ends)
        self._network = policy.network
        if self._network is not None:
            self._network.requires_grad_(False).to(device)
            longest = getattr(self._network.config.get_text_config(), "max_position_embeddings", None)
            if longest is not None and longest < self._params.max_context_tokens:
                raise ValueError(
                    f"max_context_tokens={self._params.max_context_tokens} is more than the {longest} positions that "
                    "the judge's model has; lower it"
                )
        self._counts: Counter[str] = Counter()
        self._engine: Engine | None = None
        self._open_engine()  # opened now, so that errors appear at once

    def ask(self, questions: Sequence[tuple[str, int]]) -> list[str]:
        """Answer questions; see `rewards.base.Answerer`."""
        if not questions:
            return []
        asked = ask(
            self._open_engine(), self._chat, [Question(*question) for question in questions], self._params
        )
        self._counts.update(
            {"requests": len(questions), "tokens_in": asked.num_read, "tokens_out": asked.num_written}
        )
        return asked.texts

    def meter(self) -> dict[str, float]:
        """Return the usage, with what a server bills, if any; see `rewards.base.Answerer`."""
        counted = {name: float(count) for name, count in self._counts.items()}
        return counted | (self._engine.meter() if isinstance(self._engine, MeteredEngine) else {})

    def close(self) -> None:
        """Stop the engine; see `rewards.base.Answerer`."""
        if self._engine is not None:
            self._engine.stop()
            self._engine = None

    def _open_engine(self) -> Engine:
        if self._engine is None:
            self._engine = open_engine(
                self._make_engine, network=self._network, stop=NoStop(),
                end_of_turn_ids=self._chat.end_of_turn_ids, max_context_tokens=self._params.max_context_tokens,
                forward_context=nullcontext,
            )  # fmt: skip
        return self._engine
