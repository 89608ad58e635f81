"""A second player in each group: the reference, or its mixture with the policy.

The structure, the mixture and the engine of both players are here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lit_agentrl import facts
from lit_agentrl.batch import StepBatch
from lit_agentrl.checks import require, require_number, require_whole
from lit_agentrl.engines.base import Engine, TurnRequest, TurnResult
from lit_agentrl.engines.native.attention import NAME
from lit_agentrl.engines.native.inference import Inference, Reader
from lit_agentrl.engines.native.ragged import Packed
from lit_agentrl.engines.native.support import find_obstacle
from lit_agentrl.episode import OPPONENT as SECOND_PLAYER
from lit_agentrl.episode import Episode, Source, Turn
from lit_agentrl.models.lora import disable_adapters, find_adapter_layers
from lit_agentrl.requirements import Requirement
from lit_agentrl.rollout.branching import Branching
from lit_agentrl.rollout.hooks import PlayHook
from lit_agentrl.rollout.scheduler import EpisodeSpec
from lit_agentrl.rollout.structures.base import Progress, group_episodes
from lit_agentrl.rollout.structures.hook import StructureHook, Training
from lit_agentrl.rollout.structures.refill import Refill

MakeContext = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class OpponentHook(PlayHook):
    """A hook that lets the opponent write all replies of an episode."""

    def mark_episode(self, episode: Episode) -> None:
        episode.source = Source.OPPONENT

    def before_turn(self, turn: Turn, turns: Sequence[Turn]) -> None:
        turn.player = SECOND_PLAYER


class Opponent(StructureHook, Refill):
    """A structure in which an opponent plays the last episodes of each group.

    The opponent is ``policy^(1 - mix) reference^mix``, normalised at each token.  With ``mix=1`` it is the reference,
    as in XPO (arXiv 2405.21046); between 0 and 1 it is a geometric mixture, as in Nash-MD (arXiv 2312.00886).  Its
    episodes have the same task as those of the policy, and keep the log-probs of the player that sampled them.  Only
    the policy plays evaluations.  Groups are refilled as by `Refill`.

    Args:
        mix: weight of the reference, from 0 to 1.
        opponents: number of episodes per group that the opponent plays; None: half of them, rounded down.
        max_waves: see `Refill`.

    Raises:
        ValueError: a value is out of range.
    """

    requires = frozenset(
        {
            Requirement(
                facts.READS_OPPONENT, reason="other algorithms would train on them as the policy's own"
            ),
            facts.READS_REFERENCE,
            facts.PLAYS_REFERENCE,
            facts.PLAYED_HERE,
            Requirement(facts.WHOLE_WEIGHTS, reason="it plays with the reference"),
            facts.PLAYED,
        }
    )
    provides = Refill.provides | {facts.OPPONENT}
    curves: Sequence[str] = ("opponent_return", "opponent_success", "win_rate")

    def __init__(
        self, *, mix: float = 1.0, opponents: int | None = None, max_waves: int | None = None
    ) -> None:
        require_number("mix", mix, "from 0, the policy, to 1, the reference", lambda value: 0 <= value <= 1)
        if opponents is not None:
            require_whole("opponents", opponents, 1, alternative=", or null for half of rollout.members")
        self._mix, self._opponents = float(mix), opponents
        super().__init__(max_waves)

    def branching(self, members: int) -> Branching | None:
        """Return None, and check that policy and opponent each play an episode of the group.

        Raises:
            ValueError: one of them plays no episode.
        """
        require(
            1 <= self._count_opponents(members) < members, "opponents", self._opponents,
            f"at least 1 and fewer than rollout.members={members}, since both play; set rollout.members=2 or more",
        )  # fmt: skip
        return None

    def setup(self, training: Training) -> Any:
        return training.reference

    def wrap_engine(self, make: Callable[..., Engine]) -> Callable[..., Engine]:
        return partial(OpponentEngine, make, mix=self._mix)

    def count_stores(self) -> int:
        """Return 1 for the policy, and 1 for each network that the opponent mixes."""
        return 1 + (self._mix > 0) + (self._mix < 1)

    def plan(self, prompts: StepBatch, members: int) -> list[EpisodeSpec]:
        first = members - self._count_opponents(members)
        return [
            replace(spec, extra=OpponentHook()) if spec.member >= first else spec
            for spec in super().plan(prompts, members)
        ]

    def learn(self, progress: Progress) -> Mapping[str, tuple[float, float]]:
        """Return reward and success of opponents, and the policy's win rate.

        The policy wins against an opponent of its group if it earns more; a tie counts one half.
        """
        wins, duels = 0.0, 0
        for group in group_episodes(progress.sampled).values():
            returns, opponent_returns = (
                [e.training_return for e in group if _is_opponent(e) == side] for side in (False, True)
            )
            wins += sum(float(a > b) + 0.5 * float(a == b) for a in returns for b in opponent_returns)
            duels += len(returns) * len(opponent_returns)
        played = [e for e in progress.sampled if _is_opponent(e) and not e.failed]
        return {
            "opponent_return": (sum(e.total_reward for e in played), len(played)),
            "opponent_success": (sum(e.success for e in played), len(played)),
            "win_rate": (wins, duels),
        }

    def _count_opponents(self, members: int) -> int:
        return members // 2 if self._opponents is None else self._opponents


def _is_opponent(episode: Episode) -> bool:
    return episode.source is Source.OPPONENT


class Mixture:
    """A reader that mixes the logits of two networks: Nash-MD, arXiv 2312.00886.

    ``(1 - mix) logits + mix reference logits``, normalised by a softmax at each token, gives
    ``policy^(1 - mix) reference^mix``.  A network of weight 0 is not run: with ``mix=0`` the logits are bit-identical
    to the policy's, with ``mix=1`` to the reference's.

    Args:
        network: network of the policy.
        reference: network with the policy's vocabulary; if it has adapters, they are disabled.
        mix: weight of the reference, from 0 to 1.

    Raises:
        ValueError: ``mix`` is out of range.
    """

    def __init__(self, network: PreTrainedModel, reference: PreTrainedModel, mix: float) -> None:
        require(0 <= mix <= 1, "mix", mix, "from 0, the policy, to 1, the reference")
        disable: MakeContext = nullcontext
        if find_adapter_layers(reference):  # searched once, not at every token

            def disable() -> AbstractContextManager[object]:
                return disable_adapters(reference)

        shared = ((network, nullcontext, 1 - mix), (reference, disable, mix))
        self._players = [
            (Inference(player, NAME), around, share) for player, around, share in shared if share
        ]
        self._vocabulary = network.config.get_text_config().vocab_size

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with ExitStack() as stack:
            for inference, _, _ in self._players:
                stack.enter_context(inference())
            yield

    def make_cache(self, num_slots: int, max_length: int) -> _Caches:
        """Make a cache for both networks; see `Reader`."""
        return _Caches(inference.make_cache(num_slots, max_length) for inference, _, _ in self._players)

    def read(self, cache: _Caches, packed: Packed) -> Tensor:
        """Read tokens with both networks; see `Inference.read`."""
        logits = []
        for (inference, around, _), part in zip(self._players, cache, strict=True):
            with around():
                logits.append(_fit_vocabulary(inference.read(part, packed), self._vocabulary))
        if len(logits) == 1:
            return logits[0]
        return torch.stack(
            [share * x_AV.float() for (*_, share), x_AV in zip(self._players, logits, strict=True)]
        ).sum(0)


class _Caches(list[Any]):
    """The cache of each network."""

    def move(self, source: int, target: int, length: int) -> None:
        for cache in self:
            cache.move(source, target, length)


def _fit_vocabulary(logits_AV: Tensor, vocabulary: int) -> Tensor:
    """Cut logits to the policy's vocabulary, or pad them with -inf, which is never sampled."""
    missing = vocabulary - logits_AV.shape[-1]
    return torch.nn.functional.pad(logits_AV, (0, missing), value=-math.inf) if missing else logits_AV


class OpponentEngine:
    """A pair of engines, one for the policy and one for the opponent.

    One of the engines plays all turns of an episode.  The policy's engine plays as it would without an opponent.  The
    engines decode one after the other.

    Args:
        make: function that makes an engine and takes a ``reader``.
        network: network of the policy.
        forward_context: precision context of the strategy.
        mix: see `Mixture`.
        reference: network of the reference; None if no opponent will play.
        given: further arguments for ``make``.

    Raises:
        ValueError: see ``make`` and `Mixture`; or the slots of the cache cannot hold the state of the reference.
    """

    def __init__(
        self,
        make: Callable[..., Engine],
        network: PreTrainedModel,
        forward_context: MakeContext = nullcontext,
        *,
        mix: float,
        reference: PreTrainedModel | None = None,
        **given: Any,
    ) -> None:
        given |= {"network": network, "forward_context": forward_context}
        self._engines = [make(**given)]
        if reference is not None:
            reader: Reader = Mixture(network, reference, mix)
            if reason := find_obstacle(reference, given["max_context_tokens"], forward_context):
                raise ValueError(
                    f"slots cannot hold the state of the reference ({reason}); use another reference"
                )
            self._engines.append(make(**given, reader=reader))
        self.capabilities = replace(self._engines[0].capabilities, fork=False)

    @property
    def capacity(self) -> int:
        return self._engines[0].capacity

    @property
    def num_steps(self) -> int:
        return sum(engine.num_steps for engine in self._engines)

    @property
    def num_pending(self) -> int:
        return sum(engine.num_pending for engine in self._engines)

    def submit(self, request: TurnRequest) -> None:
        """Submit a request to the engine of its player; see :class:`Engine`.

        Raises:
            ValueError: the request asks for a reply of the opponent, and the engine has no reference.
        """
        is_opponent = request.player == SECOND_PLAYER
        if is_opponent and len(self._engines) == 1:
            raise ValueError("an opponent plays with the reference, and this run has none")
        self._engines[is_opponent].submit(request)

    def poll(self, timeout: float | None = None, *, steps: int | None = None) -> list[TurnResult]:
        """Poll both engines, the policy's first; see :class:`Engine`."""
        return [
            result
            for engine in self._engines
            if engine.num_pending
            for result in engine.poll(timeout, steps=steps)
        ]

    def fork(self, parent: int, child: int, at: int) -> None:
        raise ValueError("episodes cannot be forked in a run with an opponent")

    def close(self, episode: int) -> None:
        for engine in self._engines:
            engine.close(episode)

    def load(self, weights: Mapping[str, Tensor] | None, version: int) -> None:
        for engine in self._engines:  # both engines share the policy's network, so it is loaded once
            engine.load(weights, version)
            weights = None

    def stop(self) -> None:
        for engine in self._engines:
            engine.stop()
