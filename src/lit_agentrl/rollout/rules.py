"""Settings that all episodes of a run share, as one object that can be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from lit_agentrl.checks import require_members
from lit_agentrl.engines.base import Engine
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Message
from lit_agentrl.rewards.base import Probe
from lit_agentrl.rollout.worlds.environments import Look
from lit_agentrl.rollout.worlds.pool import Worlds
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL, Context
from lit_agentrl.text.prompts import Prompt

ForwardContext = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules by which all episodes of a run are played.

    Args:
        tasks: Games of the run; ``Episode.task`` is an index into them.
        prompt, chat: Wording of the messages and chat template.
        engine: Constructor of the engine, called with ``network``, ``stop``, ``end_of_turn_ids``,
            ``max_context_tokens`` and ``forward_context``.
        context: Part of an episode that the policy reads before a reply.
        seed: Seed of the run.
        max_context_tokens: Sequence length that the engine must support.
        probes: Functions measured before every turn of training episodes, recorded in ``Turn.probes``.
        worlds: When the scheduler waits for the answers of games.
        shots: Solved episodes shown before the first message of an episode, by the name of the game.
        asks: Function called on the game before each reply, whose result becomes ``TurnRequest.note``; None for none.
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

    def encode_reply(self, action: str) -> list[int]:
        """Return the tokens of a reply that plays an action, after its header.

        Where the run has thoughts, that of the reply is empty.
        """
        dialect = self.chat.dialect
        text = dialect.write([action], thought="" if self.prompt.think else None)
        return self.chat.encode(text.removeprefix(dialect.think_start) if self.chat.forced_think else text)

    def open_engine(
        self, network: PreTrainedModel, forward_context: ForwardContext = nullcontext, **more: Any
    ) -> Engine:
        """Return an engine for this network; ``more`` holds further arguments of its constructor.

        Raises:
            ValueError: The engine lacks a member of `Engine`.
        """
        engine = self.engine(**self.make_engine_options(network, forward_context), **more)
        require_members("engine", engine, Engine)
        return engine

    def make_engine_options(
        self, network: PreTrainedModel | None, forward_context: ForwardContext = nullcontext
    ) -> dict[str, Any]:
        """Return the arguments of an engine that do not come from its own options.

        ``network`` is None if the model is behind an API.
        """
        return {
            "network": network,
            "stop": self.chat.dialect.stop(self.chat.tokenizer),
            "end_of_turn_ids": self.chat.end_of_turn_ids,
            "max_context_tokens": self.max_context_tokens,
            "forward_context": forward_context,
        }

    def require_picklable(self) -> None:
        """Check that every part can be sent to another process.

        Raises:
            ValueError: A part cannot be pickled; the message names its option.
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
