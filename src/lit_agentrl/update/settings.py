"""What an update does with a batch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import SchedulerType, get_scheduler

from lit_agentrl.checks import format_value, require, require_number, require_positive, require_whole
from lit_agentrl.facts import NO_IMITATION, STEPS, TRAINS_POLICY
from lit_agentrl.requirements import Offer, Requirement
from lit_agentrl.update.gradients import SpreadBuckets
from lit_agentrl.update.stop import KLStop

Optimizer = torch.optim.Optimizer
_MOST_LANES = 256


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """Passes over one iteration's trajectories.

    Args:
        epochs: passes over the batch.
        minibatches: optimizer steps per pass.
        tokens_per_microbatch: tokens computed in one forward and backward; memory, not mathematics.
        logits_chunk: tokens whose logits exist at a time; more are scored in chunks, whose logits are computed
            again in the backward pass.  None: all action tokens of a micro-batch at once.
        packing: False: rows are padded; True: one after the other without padding; ``shared``: so, and what rows
            begin alike in is computed once; ``auto``: ``shared`` on CPUs where the network's attention allows it, else
            padded.
        lanes: micro-batches that are computed at the same time, each with one thread of torch, see `Lanes`; 1: one
            after the other, with all threads.
        checkpoint_activations: keep only what enters each layer, and run layers again in the backward pass.
        grad_clip: largest gradient norm; larger ones are scaled down.
        max_logp_gap: mean difference (nats) between recorded and recomputed log-probs above which the
            recorded ones are replaced by recomputed ones before the first step.
        max_bad_steps: consecutive iterations in which filter or row selection leave nothing to train on before the run
            stops.
        stop: ends the steps of an iteration early; None: all are taken.
        gradients: measures gradient norms of parts of the rows; None: only that of each step.

    Raises:
        ValueError: a value out of range, naming the option.
    """

    epochs: int = 1
    minibatches: int = 1
    tokens_per_microbatch: int = 2048
    logits_chunk: int | None = 1024
    packing: bool | str = "auto"
    lanes: int = 1
    checkpoint_activations: bool = False
    grad_clip: float = 1.0
    max_logp_gap: float = 0.01
    max_bad_steps: int = 5
    stop: KLStop | None = None
    gradients: SpreadBuckets | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches", "tokens_per_microbatch", "max_bad_steps"):
            require_whole(name, getattr(self, name), 1)
        require_whole("lanes", self.lanes, 1, _MOST_LANES)
        if self.logits_chunk is not None:
            require_whole("logits_chunk", self.logits_chunk, 1, alternative=", or null")
        is_known = isinstance(self.packing, bool) or self.packing in ("auto", "shared")
        require(is_known, "packing", self.packing, "auto, shared, true or false")
        is_switch = isinstance(self.checkpoint_activations, bool)
        require(is_switch, "checkpoint_activations", self.checkpoint_activations, "true or false")
        for name in ("grad_clip", "max_logp_gap"):
            require_positive(name, getattr(self, name))
        is_rule = self.stop is None or isinstance(self.stop, KLStop)
        require(is_rule, "stop._target_", type(self.stop).__name__, "a KLStop")
        is_rule = self.gradients is None or isinstance(self.gradients, SpreadBuckets)
        require(is_rule, "gradients._target_", type(self.gradients).__name__, "a SpreadBuckets")

    @property
    def requires(self) -> list[Requirement]:
        """What its limit and its measurement go by."""
        found = []
        if self.stop is not None:
            by, off = f"update.stop.bound={self.stop.bound}", "update/stop=none"
            found.append(Requirement(TRAINS_POLICY, by=by, reason="it goes by log-probs", remedy=off))
            found.append(Requirement(STEPS, 2, by=by, reason="the first is always taken", remedy=off))
        if self.gradients is not None:
            reason, off = "it measures what advantages teach", "update/gradients=none"
            found.append(Requirement(NO_IMITATION, by="update.gradients", reason=reason, remedy=off))
        return found

    @property
    def provides(self) -> list[Offer]:
        """Optimizer steps of an iteration."""
        steps = f"update.epochs={self.epochs} and update.minibatches={self.minibatches}"
        return [Offer(STEPS, self.epochs * self.minibatches, steps)]


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """An optimizer and its schedule over iterations.

    Args:
        optimizer: takes the parameters and ``lr``.
        lr: peak learning rate.
        schedule: a name that ``transformers.get_scheduler`` knows.
        warmup_iterations: linear rise from 0, in iterations.
        schedule_args: further arguments of that schedule.

    Raises:
        ValueError: a value out of range, an optimizer that refuses its options, an unknown schedule or arguments that
            it does not take, naming the option.
    """

    optimizer: Callable[..., Optimizer]
    lr: float
    schedule: str = "constant_with_warmup"
    warmup_iterations: int = 0
    schedule_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # beyond, torch cannot compute a step in float32, and below, no weight would move
        require_number("lr", self.lr, "finite, > 0, from 1e-30 to 1e30", lambda lr: 1e-30 <= lr <= 1e30)
        require_whole("warmup_iterations", self.warmup_iterations, 0)
        valid = [kind.value for kind in SchedulerType if kind.value not in ("reduce_lr_on_plateau", "greedy")]
        if self.schedule not in valid:
            raise ValueError(f"schedule={self.schedule} is unknown; valid: {', '.join(valid)}")
        if self.schedule == "constant" and self.warmup_iterations:
            raise ValueError(
                f"warmup_iterations={self.warmup_iterations} has no effect under "
                "schedule=constant; use constant_with_warmup"
            )
        if self.schedule_args and self.schedule in ("constant", "constant_with_warmup"):
            raise ValueError(
                f"schedule_args={format_value(self.schedule_args)} has no effect under schedule={self.schedule}"
            )
        self._check_optimizer()
        try:
            self._factor(iterations=1_000_000)
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"schedule_args={format_value(self.schedule_args)} does not fit schedule={self.schedule}: {error}"
            ) from error

    def _check_optimizer(self) -> None:
        """Make the optimizer of a stand-in parameter: it refuses its own options when it is made.

        Raises:
            ValueError: it does, naming the option, where leaving one out helps.
        """
        made = self.optimizer.func if isinstance(self.optimizer, partial) else self.optimizer
        closure = inspect.signature(made.step).parameters.get("closure") if hasattr(made, "step") else None
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"optimizer={made.__name__} computes the loss several times a step, and episodes give their gradient "
                "once; choose another, such as optim.optimizer._target_=torch.optim.AdamW"
            )
        for option, value in self.optimizer.keywords.items() if isinstance(self.optimizer, partial) else ():
            is_finite = not isinstance(value, float) or math.isfinite(value)
            require(
                is_finite, f"optimizer.{option}", value, "finite"
            )  # torch itself takes a weight_decay=inf
        if (reason := self._refusal(self.optimizer)) is None:
            return
        if not isinstance(self.optimizer, partial):
            raise ValueError(
                f"optimizer={format_value(self.optimizer)} is no optimizer; name the class of one, such as "
                "optim.optimizer._target_=torch.optim.Adam"
            )
        given = self.optimizer.keywords
        name = getattr(made, "__name__", type(made).__name__)
        for option, value in given.items():
            rest = {other: kept for other, kept in given.items() if other != option}
            if self._refusal(partial(made, **rest)) is None:
                raise ValueError(f"optimizer.{option}={format_value(value)} is refused by {name}: {reason}")
        raise ValueError(f"optimizer: {name} cannot be made: {reason}")

    def _refusal(self, optimizer: Callable[..., Any]) -> str | None:
        """Why it can be made neither of matrices alone, as adapters are, nor of matrices and vectors; None: it can."""
        reason = None
        for shapes in ([(2, 2), (2,)], [(2, 2)]):
            try:
                made = optimizer([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes], lr=self.lr)
            except Exception as error:  # of torch, or of an optimizer of one's own
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                reason = reason or kind + (str(error).splitlines() or [""])[0]
                continue
            return (
                None if isinstance(made, Optimizer) else f"a {type(made).__name__} is no Optimizer of torch"
            )
        return reason

    @property
    def depends_on_length(self) -> bool:
        """Whether the learning rate of an iteration depends on how many there are in all."""
        one, other = self._factor(iterations=1_000), self._factor(iterations=2_000)
        return any(one(i) != other(i) for i in (self.warmup_iterations + 1, 500, 999))

    def _factor(self, iterations: int) -> Callable[[int], float]:
        """The library's factor of the learning rate, read off a stand-in optimizer."""
        stand_in = torch.optim.SGD(
            [torch.zeros(1)], lr=self.lr
        )  # lowest rates are given as such, not as factors
        library = get_scheduler(
            self.schedule,
            stand_in,
            num_warmup_steps=None if self.schedule == "constant" else self.warmup_iterations,
            num_training_steps=iterations,
            scheduler_specific_kwargs=dict(self.schedule_args) or None,
        )
        factor: Callable[[int], float] = library.lr_lambdas[0]
        return factor

    def build(
        self, parameters: Iterable[torch.nn.Parameter], iterations: int
    ) -> tuple[Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """The optimizer and a scheduler to be stepped once an iteration."""
        optimizer = self.optimizer(list(parameters), lr=self.lr)
        factor = self._factor(iterations)

        def factor_of_iteration(iteration: int) -> float:
            # the library starts its rise at 0, which would waste the first iteration's rollouts
            return float(factor(iteration + 1 if iteration < self.warmup_iterations else iteration))

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor_of_iteration)
