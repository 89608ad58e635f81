"""The interface of training objectives: loss, requirements, and adaptive coefficients.

`Algorithm` (a sum over tokens) and `GroupLoss` (an error per group) are two objectives.  To write your own, inherit
from `Objective`, override what differs from the defaults, and name the class in ``algo._target_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from lit_agentrl.requirements import Fact, Requirement
from lit_agentrl.rl.facts import list_provisions, list_requirements

Tensors = dict[str, Tensor]
LOGPS = ("logp_BT", "entropy_BT")  # outputs of a policy that carry gradient
REF_KL = "ref_kl_BT"  # a further such output, for objectives that need it
SCORES = ("score_BT",)  # output of the head of a reward model
ScoreKind = Literal["score", "logit", "cost", "referred"]  # see models.reward_model.RewardModelInfo
# columns that every `Objective.prepare` receives
ALWAYS = ("is_action_BT", "return_B", "group_B", "trajectory_B")


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Requirements of an objective on the run, apart from tensors; by default none.

    Attributes:
        min_members: smallest group size (episodes per prompt) with which it learns anything.
        min_steps: smallest number of optimizer steps per iteration with which all of its parts act.
        prompt_factor: prompts to roll out per prompt of the update.
        whole_trajectories: axes whose parts need the whole trajectory in one row (``context=full``).
        reference_dtype: precision of the frozen reference; None uses that of the policy.
        all_groups: it averages over all episodes, so no filter may drop groups.
    """

    min_members: int = 1
    min_steps: int = 1
    prompt_factor: float = 1.0
    whole_trajectories: tuple[str, ...] = ()
    reference_dtype: str | None = None
    all_groups: bool = False


@runtime_checkable
class Term(Protocol):
    """A coefficient that is updated once per iteration.

    The value of ``coef`` is its only state; checkpoints contain it.

    Attributes:
        place: axis of the coefficient, such as ``kl``; its key in checkpoints.
        measure: name of the measured value that drives it: a metric of the update (mean per token), or `measured_by`.
        measured_by: computes (B, T) from columns and, after the update, the policy's ``logp_BT``; the measured value is
            its mean over sampled tokens.  None: a metric of the update or, with ``is_before``, a scalar of `prepare`.
        is_before: update the coefficient before the first step of an iteration, from columns alone, instead of after
            the last step.
        coef: current value of the coefficient.
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
        """Update ``coef`` from the value measured on ``num_tokens`` tokens; return metrics."""
        ...


@runtime_checkable
class Held(Protocol):
    """A `Term` whose coefficient may be constant, so that others may set it.

    Attributes:
        is_held: the term does not change its coefficient itself.
    """

    @property
    def is_held(self) -> bool: ...


class Objective(Protocol):
    """A loss and the columns that it is computed from.

    Everything but ``name`` and `loss` has a default.  Columns are those of `TrajectoryBatch`, and ``old_logp_BT``: the
    log-probs of the sampler (nats) or, where `needs` asks for ``sampler_logp_BT`` too, those of the policy before the
    first step.

    Attributes:
        name: name in messages and logs.
        unit: column such as ``group_B``; `loss` must see rows with equal numbers together, so neither minibatches,
            micro-batches nor ranks split them.  None: the loss is a sum over rows, and minibatches consist of whole
            trajectories.
        reads: outputs of the network that `loss` receives with gradient: `LOGPS` of a policy, or `SCORES` of a reward
            model.  The head of a reward model reads the tokens that ``is_scored_BT`` of `prepare` marks; with several
            `heads` it gives ``score_BTH``.
        trains: if False, nothing is trained: `loss` is never called and no optimizer is made.
    """

    name: str
    unit: ClassVar[str | None] = None
    reads: ClassVar[tuple[str, ...]] = LOGPS
    trains: ClassVar[bool] = True

    @property
    def score_kind(self) -> ScoreKind:
        """Meaning of the scores of a reward model."""
        return "score"

    @property
    def heads(self) -> Sequence[str]:
        """Names of the heads of a reward model; empty for one head without a name."""
        return ()

    @property
    def requirements(self) -> Requirements:
        """Requirements that are checked when the run starts."""
        return Requirements()

    @property
    def requires(self) -> Iterable[Fact | Requirement]:
        """Facts that other parts of the run must provide."""
        return list_requirements(self)

    @property
    def provides(self) -> Iterable[Fact]:
        """Facts that hold for the run because of this objective."""
        return list_provisions(self)

    def needs(self, tensor: str) -> bool:
        """Return True if the objective needs the column.

        ``ref_logp_BT`` requests a frozen reference, ``ref_kl_BT`` its KL to the policy over the vocabulary in each step
        (nats, with gradient), ``value_BT`` a critic, ``entropy_BT`` entropies with gradient, ``baseline_B`` a greedy
        episode per prompt, ``ref_quantile_B`` rewards of the reference, ``rank_BT`` a critic's ranks; `prepare`
        receives any other column that is needed.
        """
        return False

    def try_out(self, rows: Mapping[str, Tensor]) -> None:
        """Run on a toy batch at start-up, so that wrong constants fail before rollouts.

        Raises:
            ValueError: an option is invalid.
        """
        return None

    def ratio_bounds(self, rows: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Return options, such as ``clip.epsilon``, of bounds that never act at ratio 1.

        In the first step of an iteration all ratios are 1, so there these options have no effect.

        Args:
            rows: a toy batch, as for `try_out`.
        """
        return ()

    def prepare(self, tensors: Tensors) -> Tensors:
        """Compute columns once per iteration from the rows of all ranks, without gradient.

        Some columns have a fixed meaning: ``keep_B``, the rows to train on; ``is_kept_BT``, the tokens that count;
        ``return_BT`` and ``is_value_target_BT``, the targets of a critic.  A scalar is a metric, logged as
        ``train/<name>``.

        Args:
            tensors: the columns for which `needs` is True, ``is_action_BT``, ``return_B``, ``group_B`` and
                ``trajectory_B``.
        """
        return {}

    def count(self, tensors: Tensors) -> Tensors:
        """Compute denominators and weights of the loss over a whole minibatch.

        It is called before the minibatch is cut into micro-batches.

        Args:
            tensors: the rows of the minibatch on this rank.

        Returns:
            Scalars, which are summed over ranks, and columns of these rows; `loss` receives both.
        """
        return {}

    def loss(self, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """Return a micro-batch's share of the minibatch loss, and detached metrics.

        Shares are summed over micro-batches and ranks; metrics are merged by `add_metrics`.  A micro-batch may contain,
        or consist of, units without sampled tokens whose ``return_B`` is NaN: their share must be 0 and finite.

        Args:
            tensors: all columns of whole units, the result of `count`, and the columns that `reads` names.  Those carry
                gradient: ``logp_BT`` and ``entropy_BT`` (nats) of a policy, or ``score_BT``; and ``ref_kl_BT`` if it is
                needed.
        """
        ...

    def value_loss(self, tensors: Tensors) -> tuple[Tensor, Tensors] | None:
        """Return an additional critic loss of a micro-batch and metrics, or None.

        It is added to the loss on the targets of `prepare`, before the weight of a critic that shares the trunk of the
        policy is applied.

        Args:
            tensors: as for `loss`, and the columns of the critic, such as ``value_BT`` (in reward units), which carry
                gradient.
        """
        return None

    def terms(self) -> Sequence[Term]:
        """Return the adaptive coefficients."""
        return ()

    def measured(self, tensors: Tensors) -> Tensors:
        """Return the rows on which terms and update limits are measured.

        The default is all rows with all of their tokens.
        """
        return tensors


def try_loss(objective: Objective, rows: Mapping[str, Tensor]) -> list[str]:
    """Run `prepare`, `count` and `loss` of an objective once on a toy batch.

    Args:
        objective: the objective to try.
        rows: columns of the toy batch and the tensors that an update computes; see `binding.with_computed`.

    Returns:
        The names of the metrics that the loss returns.

    Raises:
        ValueError: a method raises or returns something that an update cannot use; the message names the method.
    """
    if objective.unit is not None and objective.unit not in rows:
        raise ValueError(f"unit={objective.unit} must be a column, such as group_B")
    # only for objectives that need them
    optional = (
        "ref_logp_BT", "value_BT", "target_value_BT", "q_BT", "spread_BT", "old_value_BT", "cost_value_BT",
        "old_cost_value_BT", "implicit_q_BT", "old_implicit_q_BT", "target_implicit_q_BT",
        "ref_quantile_B", "ref_count_B", "rank_BT",
    )  # fmt: skip
    tensors = {name: t for name, t in rows.items() if name not in optional or objective.needs(name)}
    computed = (
        "logp_BT", "entropy_BT", "ratio_BT", "advantage_BT", "return_BT", "cost_return_BT", "is_value_target_BT",
    )  # fmt: skip
    tensors = {name: t for name, t in tensors.items() if name not in computed}
    with torch.no_grad():
        needed = {name: t for name, t in tensors.items() if name in ALWAYS or objective.needs(name)}
        columns = _call_method("prepare", objective.prepare, needed)
        tensors |= {name: t for name, t in columns.items() if name != "keep_B" and t.dim()}
        tensors |= _call_method("count", objective.count, tensors)
    like = rows["logp_BT"]
    reads = (*objective.reads, *[REF_KL] * objective.needs(REF_KL))
    scores = {name: rows.get(name, 0 * like).clone().requires_grad_() for name in reads}
    with torch.enable_grad():
        result = _call_method("loss", objective.loss, tensors | scores)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor)):
        raise ValueError(f"loss must return a scalar and its metrics, and returned a {type(result).__name__}")
    if objective.needs("value_BT"):
        _call_method("value_loss", objective.value_loss, tensors)
    loss, metrics = result
    if loss.dim() or not bool(torch.isfinite(loss)) or not loss.requires_grad:
        raise ValueError(
            f"loss must return a finite scalar through which gradient flows into {objective.reads[0]}"
        )
    for name, value in metrics.items():
        if value.shape != (torch.Size() if name.endswith("_max") else torch.Size([2])):
            raise ValueError(f"loss: metric {name} must be [sum, weight], or a scalar where it ends in _max")
    return list(metrics)


def _call_method(method: str, call: Callable[[Tensors], Any], tensors: Tensors) -> Any:
    try:
        return call(dict(tensors))
    except Exception as error:  # an objective may be user code and raise anything
        raise ValueError(f"{method} failed on small rows: {type(error).__name__}: {error}") from error


def coefficients(objective: Objective) -> dict[str, float]:
    """Return the adaptive coefficients by axis, for checkpoints."""
    return {term.place: term.coef for term in objective.terms()}


def set_coefficients(objective: Objective, saved: Mapping[str, float]) -> None:
    """Set the coefficients that `coefficients` returned; others stay as configured."""
    for term in objective.terms():
        term.coef = saved.get(term.place, term.coef)


def token_mean_metric(value_BT: Tensor, is_action_BT: Tensor) -> Tensor:
    """Return ``[sum, count]`` of a metric over sampled tokens, detached."""
    chosen_BT = torch.where(is_action_BT, value_BT.detach(), torch.zeros_like(value_BT))
    return torch.stack([chosen_BT.sum(), is_action_BT.sum().to(value_BT.dtype)])


def add_metrics(total: Mapping[str, Tensor], part: Mapping[str, Tensor]) -> Tensors:
    """Merge the metrics of two micro-batches or ranks.

    ``[sum, weight]`` pairs are added; of ``*_max`` the larger value is taken.
    """
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
    """Return means (or maxima) as numbers; a mean over no token is 0."""
    return {
        name: float(value if name.endswith("_max") else value[0] / value[1].clamp(min=1))
        for name, value in total.items()
    }
