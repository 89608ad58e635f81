"""What a policy is trained to do: the loss of some rows, what it needs of a run, and its coefficients that move.

`Algorithm`, a mix of rules per token, and `GroupLoss`, an error of whole groups, are two objectives; an own one is a
class that inherits `Objective` and says what differs from the defaults, named by ``algo._target_``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
LOGPS = ("logp_BT", "entropy_BT")  # what a policy gives a loss, with gradient
SCORES = ("score_BT",)  # what the head of a reward model gives
ScoreKind = Literal["score", "logit", "cost", "referred"]  # see models.reward_model.RewardModelInfo
ALWAYS = ("is_action_BT", "return_B", "group_B", "trajectory_B")  # that every `Objective.prepare` is given


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What an objective asks of the run around it, apart from tensors; the defaults ask nothing.

    Attributes:
        min_members: episodes of a prompt below which it learns nothing.
        min_steps: optimizer steps of an iteration below which one of its parts never acts.
        prompt_factor: prompts to roll out for each one whose episodes fit the update.
        whole_trajectories: axes whose parts need each row to hold its whole trajectory (the full context).
        reference_dtype: precision of the frozen reference; None is the policy's.
        all_groups: it measures what is played, which a filter must not choose from.
    """

    min_members: int = 1
    min_steps: int = 1
    prompt_factor: float = 1.0
    whole_trajectories: tuple[str, ...] = ()
    reference_dtype: str | None = None
    all_groups: bool = False


@runtime_checkable
class Term(Protocol):
    """A coefficient that moves once an iteration; its value is all its state, and lies in checkpoints.

    Attributes:
        place: axis whose coefficient it is, such as ``kl``; its key in checkpoints.
        measure: what it goes by: the mean per token of the update's metric of this name, or of `measured_by`.
        measured_by: gives (B, T) from columns and, after the update, the policy's ``logp_BT``; its mean over sampled
            tokens is what is measured.  None: a metric of the update; with ``is_before``, a scalar of `prepare`.
        is_before: told before the first step of an iteration, of columns alone, instead of after the last.
        coef: the coefficient as it is now.
    """

    @property
    def place(self) -> str: ...
    @property
    def measure(self) -> str: ...
    @property
    def measured_by(self) -> Callable[..., Tensor] | None: ...
    @property
    def is_before(self) -> bool: ...

    coef: float

    def update(self, measured: float, num_tokens: int) -> dict[str, float]:
        """Moves ``coef`` by what ``num_tokens`` sampled tokens showed; returns metrics to log."""
        ...


@runtime_checkable
class Held(Protocol):
    """A `Term` that can say whether its coefficient stands still, so that others may set it.

    Attributes:
        is_held: nothing of its own moves it.
    """

    @property
    def is_held(self) -> bool: ...


class Objective(Protocol):
    """A loss, and what goes before it.  Everything but ``name`` and `loss` has a default.

    Columns are those of `TrajectoryBatch`, and ``old_logp_BT``: the sampler's log-probs (nats), or those of the policy
    before the first step where `needs` asks for ``sampler_logp_BT`` too.

    Attributes:
        name: for messages and logs.
        unit: column whose equal numbers mark rows that `loss` must see together, such as ``group_B``; neither
            minibatches, micro-batches nor ranks part them.  None: a sum over rows, whose minibatches are of whole
            trajectories.
        reads: columns of a network that `loss` is given, which carry gradient: `LOGPS` of a policy, `SCORES` of a
            reward model, whose head reads the tokens that ``is_scored_BT`` of `prepare` names (``score_BTH`` where it
            has several `heads`).
        trains: False: nothing is trained, `loss` is never called, and no optimizer is made.
    """

    name: str
    unit: ClassVar[str | None] = None
    reads: ClassVar[tuple[str, ...]] = LOGPS
    trains: ClassVar[bool] = True

    @property
    def score_kind(self) -> ScoreKind:
        """Of a reward model: what its scores mean."""
        return "score"

    @property
    def heads(self) -> Sequence[str]:
        """Of a reward model with several: their names.  Empty: it has one, without a name."""
        return ()

    @property
    def requirements(self) -> Requirements:
        """What the run must offer; refused at start where it does not."""
        return Requirements()

    def needs(self, tensor: str) -> bool:
        """Whether a column is asked for.

        ``ref_logp_BT`` asks for a frozen reference, ``value_BT`` for a critic, ``entropy_BT`` for entropies with
        gradient, ``baseline_B`` for each prompt's greedy episode; any other for being given to `prepare`.
        """
        return False

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Called at start with a toy batch, so that wrong constants fail before anything is played.

        Raises:
            ValueError: an option that makes no sense.
        """
        return None

    def ratio_bounds(self, rows: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Options, such as ``clip.epsilon``, of bounds that act on no ratio of 1, so not in an iteration's first step.

        Args:
            rows: a toy batch, as of `try_out`.
        """
        return ()

    def prepare(self, tensors: Tensors) -> Tensors:
        """Columns made or replaced once an iteration from the rows of all ranks, without gradient.

        Columns with a meaning of their own: ``keep_B``, the rows to train on; ``is_kept_BT``, tokens that count;
        ``return_BT`` and ``is_value_target_BT``, what a critic learns.  A scalar is a metric, logged below ``train/``.

        Args:
            tensors: what `needs` names, ``is_action_BT``, ``return_B``, ``group_B`` and ``trajectory_B``.
        """
        return {}

    def count(self, tensors: Tensors) -> Tensors:
        """What divides and weighs the loss, counted over a minibatch before it is cut up.

        Args:
            tensors: this rank's rows of it.

        Returns:
            Scalars, which are added up over ranks, and columns of these rows; `loss` is given both.
        """
        return {}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """A micro-batch's share of the minibatch's loss, and metrics for `add_metrics`, detached.

        Shares add up over micro-batches and ranks.  Units without sampled tokens, whose ``return_B`` is NaN, may be
        among them, also on their own: their share must be 0 and finite.

        Args:
            tensors: all columns of whole units, what `count` gave, and those that `reads` names, which carry gradient:
                ``logp_BT`` and ``entropy_BT`` (nats) of a policy, or ``score_BT``.
        """
        ...

    def value_loss(self, tensors: Tensors) -> tuple[Tensor, Tensors] | None:
        """What a critic learns of a micro-batch beside ``return_BT``, and metrics, as of `loss`; None: nothing.

        It is added to the loss of `prepare`'s targets, before the weight of a critic on the policy's trunk.

        Args:
            tensors: as of `loss`, and the columns of the critic, such as ``value_BT`` (points), which carry gradient.
        """
        return None

    def terms(self) -> Sequence[Term]:
        """Its coefficients that move."""
        return ()

    def measured(self, tensors: Tensors) -> Tensors:
        """The rows as its terms, and the limits of an update, measure them: all, with all of their tokens."""
        return tensors


def try_loss(objective: Objective, rows: Mapping[str, Tensor]) -> list[str]:
    """Runs `Objective.prepare`, `Objective.count` and `Objective.loss` once on small rows, before anything is played.

    Args:
        objective: to be tried.
        rows: small ones, each column under its name, and what an update computes from them, as `binding.with_computed`.

    Returns:
        The names of the metrics that the loss gives.

    Raises:
        ValueError: one of them raises, or gives what an update cannot use; names the method.
    """
    if objective.unit is not None and objective.unit not in rows:
        raise ValueError(f"unit={objective.unit} must be a column, such as group_B")
    asked = (
        "ref_logp_BT", "value_BT", "target_value_BT", "q_BT", "spread_BT", "old_value_BT", "cost_value_BT",
        "old_cost_value_BT", "implicit_q_BT", "old_implicit_q_BT", "target_implicit_q_BT",
    )  # fmt: skip  # made for those that ask for them
    tensors = {name: t for name, t in rows.items() if name not in asked or objective.needs(name)}
    made = (
        "logp_BT", "entropy_BT", "ratio_BT", "advantage_BT", "return_BT", "cost_return_BT", "is_value_target_BT",
    )  # fmt: skip
    tensors = {name: t for name, t in tensors.items() if name not in made}
    with torch.no_grad():
        given = {name: t for name, t in tensors.items() if name in ALWAYS or objective.needs(name)}
        found = _tried("prepare", objective.prepare, given)
        tensors |= {name: t for name, t in found.items() if name != "keep_B" and t.dim()}
        tensors |= _tried("count", objective.count, tensors)
    like = rows["logp_BT"]
    scores = {name: rows.get(name, 0 * like).clone().requires_grad_() for name in objective.reads}
    with torch.enable_grad():
        result = _tried("loss", objective.loss, tensors | scores)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor)):
        raise ValueError(f"loss must return a scalar and its metrics, and returned a {type(result).__name__}")
    if objective.needs("value_BT"):
        _tried("value_loss", objective.value_loss, tensors)
    loss, metrics = result
    if loss.dim() or not bool(torch.isfinite(loss)) or not loss.requires_grad:
        raise ValueError(
            f"loss must return a finite scalar through which gradient flows into {objective.reads[0]}"
        )
    for name, value in metrics.items():
        if value.shape != (torch.Size() if name.endswith("_max") else torch.Size([2])):
            raise ValueError(f"loss: metric {name} must be [sum, weight], or a scalar where it ends in _max")
    return list(metrics)


def _tried(method: str, call: Callable[[Tensors], Any], tensors: Tensors) -> Any:
    try:
        return call(dict(tensors))
    except Exception as error:  # the code of whoever wrote the objective
        raise ValueError(f"{method} failed on small rows: {type(error).__name__}: {error}") from error


def coefficients(objective: Objective) -> dict[str, float]:
    """Those that move, by place, for checkpoints."""
    return {term.place: term.coef for term in objective.terms()}


def set_coefficients(objective: Objective, saved: Mapping[str, float]) -> None:
    """The inverse of `coefficients`; what is not saved stays as configured."""
    for term in objective.terms():
        term.coef = saved.get(term.place, term.coef)


def token_mean_metric(value_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """A metric's ``[sum, count]`` over sampled tokens, detached."""
    chosen_BT = torch.where(is_action_BT, value_BT.detach(), torch.zeros_like(value_BT))
    return torch.stack([chosen_BT.sum(), is_action_BT.sum().to(value_BT.dtype)])


def add_metrics(total: Mapping[str, Tensor], part: Mapping[str, Tensor]) -> Tensors:
    """Merges metrics of two micro-batches or ranks; ``[sum, weight]`` pairs add, ``*_max`` the larger."""
    merged = dict(total)
    for name, value in part.items():
        if name not in merged:
            merged[name] = value
        elif name.endswith("_max"):
            merged[name] = torch.maximum(merged[name], value)
        else:
            merged[name] = merged[name] + value
    return merged


def metric_values(total: Mapping[str, Tensor]) -> dict[str, float]:
    """Means (or maxima) as numbers; a mean over no token is 0."""
    return {
        name: float(value if name.endswith("_max") else value[0] / value[1].clamp(min=1))
        for name, value in total.items()
    }
