"""Everything that playing needs, in one object that another process can be given as well."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lit_agentrl.engines.base import Engine, SamplingParams
from lit_agentrl.envs.base import Task
from lit_agentrl.episode import Episode
from lit_agentrl.rewards.base import Probe
from lit_agentrl.rollout.scheduler import EpisodeSpec, Sampler
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import FULL, Context
from lit_agentrl.text.prompts import Prompt

ForwardContext = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class PlayRequest:
    """Which episodes are wanted: ``members`` of each (group, task, instance seed), in this order."""

    split: str
    iteration: int
    prompts: tuple[tuple[int, int, int], ...]
    members: int
    params: SamplingParams
    wave: int = 0


class Player:
    """Plays episodes with an engine around a network.

    Args:
        tasks: the run's games; the task of a prompt indexes them.
        engine: makes the engine from ``network``, ``stop``, ``end_of_turn_ids``, ``max_context_tokens`` and
            ``forward_context``.
        prompt, chat: wording and template.
        context: what of an episode the policy reads before a reply.
        seed: run seed.
        max_context_tokens: length that the engine must hold.
        probes: measured before every turn of training episodes.
    """

    def __init__(
        self,
        *,
        tasks: Sequence[Task],
        engine: Callable[..., Engine],
        prompt: Prompt,
        chat: ChatRenderer,
        context: Context = FULL,
        seed: int = 0,
        max_context_tokens: int = 1024,
        probes: Mapping[str, Probe] | None = None,
    ) -> None:
        self._tasks = tasks
        self._make_engine = engine
        self._prompt = prompt
        self._chat = chat
        self._context = context
        self.seed = seed
        self._max_context = max_context_tokens
        self._probes = dict(probes or {})
        self._engine: Engine | None = None
        self._samplers: dict[tuple[str, SamplingParams], Sampler] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Another process opens an engine of its own."""
        return {**self.__dict__, "_engine": None, "_samplers": {}}

    def require_picklable(self) -> None:
        """Find what could not be sent to another process.

        Raises:
            ValueError: naming the option that it comes from.
        """
        parts = {
            "env": self._tasks, "engine": self._make_engine, "prompt": self._prompt, "model": self._chat,
            "context": self._context, "reward": self._probes,
        }  # fmt: skip
        for option, part in parts.items():
            try:
                pickle.dumps(part)
            except Exception as error:  # pickling runs the objects' own code, which may raise anything
                raise ValueError(
                    f"rollout.overlap=true plays in a process of its own, and {option} cannot be sent there "
                    f"({type(error).__name__}: {error}); define it at the top level of a module, or set "
                    "rollout.overlap=false"
                ) from error

    def open(self, network: PreTrainedModel, forward_context: ForwardContext = nullcontext) -> Engine:
        """Build the engine around this network."""
        self.close()
        self._engine = self._make_engine(
            network=network,
            stop=self._chat.dialect.stop(self._chat.tokenizer),
            end_of_turn_ids=self._chat.end_of_turn_ids,
            max_context_tokens=self._max_context,
            forward_context=forward_context,
        )
        return self._engine

    def close(self) -> None:
        """Close the games that are kept for further episodes."""
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers = {}

    def play(self, request: PlayRequest, *, version: int) -> list[Episode]:
        """The episodes, failed ones included, played with the network as it is now.

        Args:
            request: what to play.
            version: of the weights.
        """
        assert self._engine is not None, "open() comes before play()"
        self._engine.sync_weights(version)
        if (request.split, request.params) not in self._samplers:
            self._samplers[request.split, request.params] = Sampler(
                self._engine, tasks=self._tasks, split=request.split, prompt=self._prompt, chat=self._chat,
                params=request.params, seed=self.seed, context=self._context,
                probes=self._probes if request.split == "train" else None,
            )  # fmt: skip
        return self._samplers[request.split, request.params].play(
            EpisodeSpec(request.iteration, group, member, task, seed, request.wave)
            for group, task, seed in request.prompts
            for member in range(request.members)
        )
