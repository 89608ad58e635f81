"""What all episodes of a run have in common, in one object that another process can be given as well."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from lit_agentrl.engines.base import Engine
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Message
from lit_agentrl.rewards.base import Probe
from lit_agentrl.rollout.worlds.pool import Worlds
from lit_agentrl.rollout.worlds.seats import Look
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL, Context
from lit_agentrl.text.prompts import Prompt

ForwardContext = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How episodes are played.

    Args:
        tasks: the run's games; ``Episode.task`` indexes them.
        prompt, chat: wording and template.
        engine: makes the engine from ``network``, ``stop``, ``end_of_turn_ids``, ``max_context_tokens`` and
            ``forward_context``.
        context: what of an episode the policy reads before a reply.
        seed: run seed.
        max_context_tokens: length that the engine must hold.
        probes: measured before every turn of training episodes, into ``Turn.probes``.
        worlds: when the answers of games are awaited.
        shots: solved episodes that stand before the own message of an opening, by the name of the game.
        asks: what a game is asked before each reply, into ``TurnRequest.note``; None: nothing.
    """

    tasks: Sequence[Task]
    prompt: Prompt
    chat: ChatRenderer
    engine: Callable[..., Engine]
    context: Context = FULL
    seed: int = 0
    max_context_tokens: int = 1024
    probes: Mapping[str, Probe] = field(default_factory=dict)
    worlds: Worlds = Worlds()
    shots: Mapping[str, Sequence[Message]] = field(default_factory=dict)
    asks: Look | None = None

    def open_engine(
        self, network: PreTrainedModel, forward_context: ForwardContext = nullcontext, **more: Any
    ) -> Engine:
        """The engine around this network, and what ``more`` it is made of."""
        return self.engine(**self.engine_options(network, forward_context), **more)

    def engine_options(
        self, network: PreTrainedModel | None, forward_context: ForwardContext = nullcontext
    ) -> dict[str, Any]:
        """What an engine is made of beside its own options; no network: of a model behind an API."""
        return {
            "network": network,
            "stop": self.chat.dialect.stop(self.chat.tokenizer),
            "end_of_turn_ids": self.chat.end_of_turn_ids,
            "max_context_tokens": self.max_context_tokens,
            "forward_context": forward_context,
        }

    def require_picklable(self) -> None:
        """Find what could not be sent to another process.

        Raises:
            ValueError: naming the option that it comes from.
        """
        parts = {
            "env": self.tasks, "engine": self.engine, "prompt": self.prompt, "model": self.chat,
            "context": self.context, "reward": self.probes,
        }  # fmt: skip
        for option, part in parts.items():
            try:
                pickle.dumps(part)
            except Exception as error:  # pickling runs the objects' own code, which may raise anything
                raise ValueError(
                    f"worker=process plays in a process of its own, and {option} cannot be sent there "
                    f"({type(error).__name__}: {error}); define it at the top level of a module, or set "
                    "worker=none rollout.overlap=false"
                ) from error
