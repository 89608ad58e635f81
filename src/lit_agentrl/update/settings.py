"""Settings of an update and of an optimizer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from lit_agentrl.checks import format_value, require, require_number, require_positive, require_whole
from lit_agentrl.facts import NO_IMITATION, STEPS, TRAINS_POLICY
from lit_agentrl.requirements import Offer, Requirement
from lit_agentrl.update.gradients import SpreadBuckets
from lit_agentrl.update.stop import KLStop

Optimizer = torch.optim.Optimizer
if TYPE_CHECKING:
    NumberOrAuto = int  # `UpdateSettings` replaces ``auto``
    SwitchOrAuto = bool
else:
    NumberOrAuto = int | Literal["auto"]
    SwitchOrAuto = bool | Literal["auto"]
_MAX_LANES = 256
# the names of ``transformers.get_scheduler``, except of schedules that measure a loss
SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
)
# values in place of ``auto`` if nothing has planned the memory of the device
CPU_VALUES = {"tokens_per_microbatch": 2048, "logits_chunk": 1024, "checkpoint_activations": False}


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """Settings of the passes over one iteration's trajectories.

    Args:
        epochs: passes over the batch.
        minibatches: optimizer steps per pass.
        tokens_per_microbatch: tokens computed in one forward and backward pass; changes memory, not results.
            ``auto`` is replaced by what the memory of a GPU allows (`fit_microbatch`), and is 2048 otherwise.
        logits_chunk: tokens whose logits exist at a time; more are scored in chunks, whose logits are
            recomputed in the backward pass.  None: all action tokens of a micro-batch at once.  ``auto`` is replaced
            likewise, and is 1024 otherwise.
        packing: False: rows are padded; True: rows are concatenated without padding; ``shared``: common prefixes of
            rows are also computed once; ``auto``: ``shared`` on CPUs, packed on GPUs where one kernel reads the rows,
            and padded if the network's attention allows neither.
        lanes: micro-batches computed in parallel, each with one torch thread, see `Lanes`; 1: one after the other, with
            all threads.
        checkpoint_activations: whether to keep only layer inputs, and recompute layers in the backward pass;
            ``auto`` is replaced by the memory plan of a run (`choose_for_device`), and otherwise False.
        grad_clip: largest gradient norm; larger ones are scaled down.
        max_logp_gap: mean difference (nats) between recorded and recomputed log-probs above which the
            recorded ones are replaced by recomputed ones before the first step.
        max_bad_steps: the run stops after this many consecutive iterations in which filter and row selection leave no
            rows.
        stop: rule that ends the steps of an iteration early; None: all steps are taken.
        gradients: also measure gradient norms by bucket of groups; None: only the norm of each step.

    Raises:
        ValueError: a value is out of range; the message names the option.
    """

    epochs: int = 1
    minibatches: int = 1
    tokens_per_microbatch: NumberOrAuto = 2048
    logits_chunk: NumberOrAuto | None = 1024
    packing: bool | str = "auto"
    lanes: int = 1
    checkpoint_activations: SwitchOrAuto = False
    grad_clip: float = 1.0
    max_logp_gap: float = 0.01
    max_bad_steps: int = 5
    stop: KLStop | None = None
    gradients: SpreadBuckets | None = None

    def __post_init__(self) -> None:
        for name, value in CPU_VALUES.items():
            if getattr(self, name) == "auto":
                object.__setattr__(self, name, value)
        for name in ("epochs", "minibatches", "max_bad_steps"):
            require_whole(name, getattr(self, name), 1)
        require_whole("tokens_per_microbatch", self.tokens_per_microbatch, 1, alternative=", or auto")
        require_whole("lanes", self.lanes, 1, _MAX_LANES)
        if self.logits_chunk is not None:
            require_whole("logits_chunk", self.logits_chunk, 1, alternative=", auto or null")
        is_known = isinstance(self.packing, bool) or self.packing in ("auto", "shared")
        require(is_known, "packing", self.packing, "auto, shared, true or false")
        is_switch = isinstance(self.checkpoint_activations, bool)
        require(is_switch, "checkpoint_activations", self.checkpoint_activations, "auto, true or false")
        for name in ("grad_clip", "max_logp_gap"):
            require_positive(name, getattr(self, name))
        is_rule = self.stop is None or isinstance(self.stop, KLStop)
        require(is_rule, "stop._target_", type(self.stop).__name__, "a KLStop")
        is_rule = self.gradients is None or isinstance(self.gradients, SpreadBuckets)
        require(is_rule, "gradients._target_", type(self.gradients).__name__, "a SpreadBuckets")

    @property
    def requires(self) -> list[Requirement]:
        """Requirements of the early stop and of the gradient measurement."""
        requirements = []
        if self.stop is not None:
            by, off = f"update.stop.bound={self.stop.bound}", "update/stop=none"
            requirements.append(Requirement(TRAINS_POLICY, by=by, reason="it reads log-probs", remedy=off))
            requirements.append(
                Requirement(STEPS, 2, by=by, reason="the first step is always taken", remedy=off)
            )
        if self.gradients is not None:
            reason, off = "it measures gradients of advantages", "update/gradients=none"
            requirements.append(Requirement(NO_IMITATION, by="update.gradients", reason=reason, remedy=off))
        return requirements

    @property
    def provides(self) -> list[Offer]:
        """Optimizer steps of an iteration."""
        steps = f"update.epochs={self.epochs} and update.minibatches={self.minibatches}"
        return [Offer(STEPS, self.epochs * self.minibatches, steps)]


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """An optimizer and its schedule over iterations.

    Args:
        optimizer: constructor that takes the parameters and ``lr``.
        lr: peak learning rate.
        schedule: a name of ``transformers.get_scheduler``.
        warmup_iterations: linear rise from 0, in iterations.
        schedule_args: further arguments of the schedule.

    Raises:
        ValueError: a value is out of range, the optimizer refuses its options, or the schedule is unknown or refuses
            its arguments; the message names the option.
    """

    optimizer: Callable[..., Optimizer]
    lr: float
    schedule: str = "constant_with_warmup"
    warmup_iterations: int = 0
    schedule_args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # above, torch cannot compute a step in float32; below, no weight changes
        require_number("lr", self.lr, "finite, > 0, from 1e-30 to 1e30", lambda lr: 1e-30 <= lr <= 1e30)
        require_whole("warmup_iterations", self.warmup_iterations, 0)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule} is unknown; valid: {', '.join(SCHEDULES)}")
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
            self._get_factor(iterations=1_000_000)
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"schedule_args={format_value(self.schedule_args)} does not fit schedule={self.schedule}: {error}"
            ) from error

    def _check_optimizer(self) -> None:
        """Build the optimizer with a dummy parameter, so that it checks its own options.

        Raises:
            ValueError: the optimizer refuses its options; the message names one if leaving it out helps.
        """
        optimizer = self.optimizer.func if isinstance(self.optimizer, partial) else self.optimizer
        closure = (
            inspect.signature(optimizer.step).parameters.get("closure")
            if hasattr(optimizer, "step")
            else None
        )
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"optimizer={optimizer.__name__} computes the loss several times per step, which an update does only "
                "once; choose another, such as optim.optimizer._target_=torch.optim.AdamW"
            )
        for option, value in self.optimizer.keywords.items() if isinstance(self.optimizer, partial) else ():
            is_finite = not isinstance(value, float) or math.isfinite(value)
            # torch itself accepts weight_decay=inf
            require(is_finite, f"optimizer.{option}", value, "finite")
        if (reason := self._find_refusal(self.optimizer)) is None:
            return
        if not isinstance(self.optimizer, partial):
            raise ValueError(
                f"optimizer={format_value(self.optimizer)} is not an optimizer; give the class of one, such as "
                "optim.optimizer._target_=torch.optim.Adam"
            )
        options = self.optimizer.keywords
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        for option, value in options.items():
            rest = {other: rest_value for other, rest_value in options.items() if other != option}
            # to try the rest takes seconds, since the first optimizer that can be made imports the compiler
            if option in reason or self._find_refusal(partial(optimizer, **rest)) is None:
                raise ValueError(f"optimizer.{option}={format_value(value)} is refused by {name}: {reason}")
        raise ValueError(f"optimizer: {name} cannot be made: {reason}")

    def _find_refusal(self, optimizer: Callable[..., Any]) -> str | None:
        """Return why the optimizer cannot be built, or None.

        It is tried with a matrix and a vector, then with a matrix alone, as in adapters; one success suffices.
        """
        reason = None
        for shapes in ([(2, 2), (2,)], [(2, 2)]):
            try:
                instance = optimizer([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes], lr=self.lr)
            except Exception as error:  # raised by torch or by a user's optimizer
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                reason = reason or kind + (str(error).splitlines() or [""])[0]
                continue
            return (
                None
                if isinstance(instance, Optimizer)
                else f"a {type(instance).__name__} is not a torch Optimizer"
            )
        return reason

    @property
    def depends_on_length(self) -> bool:
        """True if the learning rate of an iteration depends on the number of iterations."""
        short, long = self._get_factor(iterations=1_000), self._get_factor(iterations=2_000)
        return any(short(i) != long(i) for i in (self.warmup_iterations + 1, 500, 999))

    def _get_factor(self, iterations: int) -> Callable[[int], float]:
        """Return the library's learning rate factor, using a dummy optimizer."""
        dummy = torch.optim.SGD([torch.zeros(1)], lr=self.lr)  # some schedules take absolute minimum rates
        from transformers import get_scheduler  # slow to import, and checks need no schedule

        library = get_scheduler(
            self.schedule,
            dummy,
            num_warmup_steps=None if self.schedule == "constant" else self.warmup_iterations,
            num_training_steps=iterations,
            scheduler_specific_kwargs=dict(self.schedule_args) or None,
        )
        factor: Callable[[int], float] = library.lr_lambdas[0]
        return factor

    def build(
        self, parameters: Iterable[torch.nn.Parameter], iterations: int
    ) -> tuple[Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Build the optimizer and a scheduler that is stepped once per iteration."""
        optimizer = self.optimizer(list(parameters), lr=self.lr)
        factor = self._get_factor(iterations)

        def get_iteration_factor(iteration: int) -> float:
            # the library warms up from 0, which would waste the rollouts of the first iteration
            return float(factor(iteration + 1 if iteration < self.warmup_iterations else iteration))

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, get_iteration_factor)


def check_critic(
    *,
    coef: float = 1.0,
    grad_clip: float = 1.0,
    warmup_iterations: int = 0,
    target_rate: float = 1.0,
    beta: float = 0.0,
) -> None:
    """Check the options of a `Critic`, whose module takes seconds to import.

    Raises:
        ValueError: an invalid value; the message names the option.
    """
    require_number(
        "coef", coef, "finite and > 0; critic=separate learns without the policy", lambda value: value > 0
    )
    require_positive("grad_clip", grad_clip)
    require_whole("warmup_iterations", warmup_iterations, 0)
    require_number("target_rate", target_rate, "above 0 and at most 1", lambda share: 0 < share <= 1)
    require_number("beta", beta, "finite and >= 0; 0 plays the policy without Q", lambda value: value >= 0)
