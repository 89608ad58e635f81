"""Certificates, which compare the expected update of an objective with exact gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from torch import Tensor

from lit_agentrl import facts
from lit_agentrl.certificates.estimator import Estimator, Moments
from lit_agentrl.certificates.games import TableGame
from lit_agentrl.certificates.invariances import measure_invariances
from lit_agentrl.certificates.objectives import RETURN, list_gradients
from lit_agentrl.certificates.shipped import GAMES, LENGTHS, ONE_TURN
from lit_agentrl.requirements import Requirement
from lit_agentrl.rl.credit.advantages import loo
from lit_agentrl.rl.objective import LOGPS, Objective
from lit_agentrl.rl.policy import clipping, ratios
from lit_agentrl.rl.policy.aggregation import seq_mean_token_sum
from lit_agentrl.rl.policy.algorithm import Algorithm

MEMBERS = 4
SIZES = (2, 4, 8, 16)  # members of the groups whose variance is stated
EXACT = 1e-10  # largest bias, relative to the update, that counts as rounding
_SMALL = 1e-12  # shorter updates and gradients count as 0
# facts that no table game provides -> what the objective needs instead
_MISSING = {
    facts.BRANCHES: "needs episodes that branch",
    facts.PLANS: "needs turns of a planner",
    facts.OPPONENT: "needs episodes of an opponent",
}


@dataclass(frozen=True)
class Direction:
    """The expected update of an objective in a game, compared with exact gradients.

    Attributes:
        game: name of the game.
        meant: the objective whose gradient is meant: the return, less its KL term if there is one.
        cosine: cosine of the expected update and that gradient; 0 if the update is 0.
        scale: factor that brings the gradient nearest to the update.
        bias: length of the update less the scaled gradient, relative to the length of the update.
        objective: the candidate whose gradient is nearest to the update.
        objective_bias: bias against that candidate.
        half_width: half of the 95 % interval of the update, relative to its length; 0 where all batches were listed.
        lag: steps by which the policy that played is older.
    """

    game: str
    meant: str
    cosine: float
    scale: float
    bias: float
    objective: str
    objective_bias: float
    half_width: float = 0.0
    lag: int = 0

    @property
    def is_exact(self) -> bool:
        """True if the expected update is a positive multiple of the gradient that is meant."""
        return self.scale > 0 and self.bias <= EXACT


@dataclass(frozen=True)
class Certificate:
    """The comparison of an objective with exact gradients in every game.

    Attributes:
        name: name of the objective.
        directions: one for each game.
        variances: for each size of `SIZES`, the trace of the covariance over the squared length of the part of the
            expected update along the gradient, relative to leave-one-out; infinite where that part does not point
            along the gradient.
        invariances: see `measure_invariances`.
        missing: why there is no certificate; empty if there is one.
    """

    name: str
    directions: Sequence[Direction] = ()
    variances: Sequence[float] = ()
    invariances: dict[str, str] = field(default_factory=dict)
    missing: str = ""

    @property
    def line(self) -> str:
        """Say in one line how well the expected update agrees with the meant gradient."""
        if self.missing:
            return f"no certificate: it {self.missing}"
        if all(each.scale == 0 and each.cosine == 0 for each in self.directions):
            return "the policy's own episodes teach it nothing in the first step"
        current, lagged = (
            [d for d in self.directions if bool(d.lag) == has_lag] for has_lag in (False, True)
        )
        worst = min(current, key=lambda each: (each.is_exact, each.cosine))
        if not worst.is_exact:
            exact = sum(each.is_exact for each in current)
            where = f"cosine {format_cosine(worst.cosine)} in `{worst.game}`"
            text = f"biased: {where}, exact in {exact} of {len(current)} games"
            return f"{text}; it maximises {other}" if (other := self.find_other()) else text
        text = f"unbiased in {len(current)} games"
        if lagged and (worst := min(lagged, key=lambda each: each.cosine)).is_exact:
            return f"{text}, and where an older policy played"
        return f"{text}; where an older policy played, cosine {format_cosine(worst.cosine)} or more"

    def find_other(self) -> str:
        """Return the other objective whose gradient equals the update; empty if there is none."""
        biased = [each for each in self.directions if not each.is_exact and not each.lag]
        names = {each.objective for each in biased}
        return names.pop() if len(names) == 1 and all(each.objective_bias <= EXACT for each in biased) else ""


def format_cosine(cosine: float, digits: int = 3) -> str:
    """Format a cosine, rounded towards 0 so that it never reads as 1.

    >>> format_cosine(0.98765), format_cosine(0.99999, 2), format_cosine(-0.004, 2)
    ('0.987', '0.99', '0.00')
    """
    power: int = 10**digits
    return f"{math.trunc(cosine * power) / power + 0.0:.{digits}f}"


def certify(
    objective: Objective, games: Sequence[TableGame] = GAMES, *, members: int = MEMBERS
) -> Certificate:
    """Compare the updates of an objective with exact gradients.

    Args:
        objective: as a run composes it.
        games: the games.
        members: members of each group, for directions and invariances.
    """
    if missing := find_missing(objective):
        return Certificate(objective.name, missing=missing)
    try:
        is_ordered = Estimator(objective, LENGTHS).is_ordered(members)
        directions = [measure_direction(objective, game, members, is_ordered=is_ordered) for game in games]
        variances = measure_variances(objective, is_ordered=is_ordered)
        invariances = measure_invariances(objective, members, is_ordered=is_ordered)
    except ValueError as error:
        return Certificate(objective.name, missing=f"cannot learn from table games: {error}")
    return Certificate(objective.name, directions, variances, invariances)


def find_missing(objective: Objective) -> str:
    """Return why an objective cannot be certified in table games; empty if it can."""
    if not objective.trains:
        return "takes no step"
    if objective.reads != LOGPS:
        return "trains a reward model"
    required = [each.fact if isinstance(each, Requirement) else each for each in objective.requires]
    return next((why for fact, why in _MISSING.items() if fact in required), "")


def measure_direction(
    objective: Objective, game: TableGame, members: int = MEMBERS, *, is_ordered: bool = False
) -> Direction:
    """Compare the expected update of an objective in a game with the exact gradients."""
    estimator = Estimator(objective, game)
    moments = estimator.compute_moments(members, is_ordered=is_ordered)
    coef = getattr(getattr(objective, "kl", None), "coef", 0.0) or 0.0
    return compare(moments, list_gradients(estimator.table, float(coef)), game)


def compare(moments: Moments, gradients: dict[str, Tensor], game: TableGame) -> Direction:
    """Compare an expected update with gradients; the first is the one that is meant."""
    update, length = moments.mean, float(moments.mean.norm())
    projections = {name: _project(update, gradient) for name, gradient in gradients.items()}
    meant = next(iter(projections))

    def rank(name: str) -> tuple[bool, float]:
        each = projections[name]
        return each.bias <= EXACT and each.scale > 0, round(each.cosine, 9)

    nearest = max(projections, key=rank)
    return Direction(
        game.name, meant, *projections[meant], nearest, projections[nearest].bias,
        moments.half_width / length if length > _SMALL else 0.0, game.lag,
    )  # fmt: skip


class _Projection(NamedTuple):
    """An update against a gradient, as in `Direction`."""

    cosine: float
    scale: float
    bias: float


def _project(update: Tensor, gradient: Tensor) -> _Projection:
    length, gradient_length = float(update.norm()), float(gradient.norm())
    if length <= _SMALL or gradient_length <= _SMALL:
        return _Projection(0.0, 0.0, 0.0 if length <= _SMALL and gradient_length <= _SMALL else 1.0)
    scale = float(update @ gradient) / gradient_length**2
    bias = float((update - scale * gradient).norm()) / length
    return _Projection(scale * gradient_length / length, scale, bias)


def measure_noise(objective: Objective, game: TableGame, members: int, *, is_ordered: bool = False) -> float:
    """Return the variance of the update, relative to its square along the gradient."""
    estimator = Estimator(objective, game)
    moments = estimator.compute_moments(members, is_ordered=is_ordered)
    gradient = list_gradients(estimator.table, 0.0)[RETURN]
    scale = _project(moments.mean, gradient).scale
    return moments.variance / (scale * float(gradient.norm())) ** 2 if scale > 0 else math.inf


def measure_variances(
    objective: Objective, sizes: Sequence[int] = SIZES, *, is_ordered: bool = False
) -> list[float]:
    """Return the noise of an objective in groups of these sizes, relative to leave-one-out."""
    return [
        measure_noise(objective, ONE_TURN, size, is_ordered=is_ordered) / _measure_leave_one_out(size)
        for size in sizes
    ]


@cache
def _measure_leave_one_out(members: int) -> float:
    plain = Algorithm(
        name="leave-one-out",
        advantage=loo,
        ratio=ratios.none,
        clip=clipping.none,
        aggregate=seq_mean_token_sum,
    )
    return measure_noise(plain, ONE_TURN, members)
