"""AOT: pairs, or desirable and undesirable trajectories, sorted apart over the rows of an iteration."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch.nn.functional import logsigmoid, pad

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.preference import links, margins, pairing, scores, unpaired
from lit_agentrl.rl.preference.objective import NLL
from lit_agentrl.rl.preference.pairing import Pairs
from lit_agentrl.rl.preference.sorting import at_same_rank, of_rows, to_rows
from lit_agentrl.rl.preference.unpaired import PointwiseLoss
from tests.rl.pairs import loss_of as loss_at_once
from tests.rl.pairs import objective, rows, three
from tests.rl.ragged import ragged

SIZES = (4, 3, 5, 2)
RULES = {
    "all_pairs": pairing.all_pairs,
    "best_rest": pairing.best_rest,
    "equal_state": pairing.equal_state,
    "widest": partial(pairing.all_pairs, most=3),
}


def aot(link=links.logistic, **parts):
    return objective(link, margin=margins.sorted_reference, **parts)


def aot_unpaired(**parts):
    given = {"label": unpaired.above, "value": unpaired.binary, "baseline": unpaired.same_rank, "beta": 0.1}
    given |= {"name": "test", "score": scores.summed, "reference": scores.frozen}
    return PointwiseLoss(**(given | parts))


def prepared(made, tensors):
    """The columns of a step, its rows kept."""
    found = made.prepare(dict(tensors))
    tensors = tensors | {name: t for name, t in found.items() if t.dim()}
    return {name: t[found["keep_B"]] for name, t in tensors.items()}


def loss_of(made, tensors):
    """Of one step, and its gradient in the log-probs of all rows."""
    leaf = tensors["logp_BT"].detach().clone().requires_grad_()
    columns = prepared(made, tensors | {"logp_BT": leaf})
    loss = made.loss(columns | made.count(columns))[0]
    loss.backward()
    return loss.detach(), leaf.grad


def on_policy(tensors):
    """The first step of an iteration: the policy is that of before it."""
    return tensors | {"old_logp_BT": tensors["logp_BT"].clone()}


def batch(seed=0):
    return on_policy(ragged(seed, sizes=SIZES))


# ---------------------------------------------------------------------- slow loops, of the formulas as they stand
def sums_of(tensors, b, logp_BT):
    own, ref = tensors["is_action_BT"][b], tensors["ref_logp_BT"][b]
    return logp_BT[b][own].sum(), ref[own].sum()


def slow_aot(tensors, logp_BT, f):
    """Over every pair of a group; Python's sort."""
    returns, groups = tensors["return_B"].tolist(), tensors["group_B"].tolist()
    policy, reference = [], []
    for a, high in enumerate(returns):
        for b, low in enumerate(returns):
            if groups[a] == groups[b] and high > low:
                (one, ref_one), (other, ref_other) = (sums_of(tensors, i, logp_BT) for i in (a, b))
                policy.append(one - other)
                reference.append(ref_one - ref_other)
    policy, reference = sorted(policy, key=torch.Tensor.item), sorted(reference, key=torch.Tensor.item)
    return sum(f(0.1 * (u - v)) for u, v in zip(policy, reference, strict=True)) / len(policy)


def slow_unpaired(tensors, logp_BT):
    """The mean over ranks, where there are as many of both."""
    sides = {True: [], False: []}
    for b, points in enumerate(tensors["return_B"].tolist()):
        own, reference = sums_of(tensors, b, logp_BT)
        sides[points > 0].append(own - reference)
    chosen, rejected = (sorted(side, key=torch.Tensor.item) for side in sides.values())
    ranks = zip(chosen, rejected, strict=True)
    return sum(-logsigmoid(0.1 * (one - other)) for one, other in ranks) / len(chosen)


def with_slope(slow, tensors, *args):
    leaf = tensors["logp_BT"].detach().clone().requires_grad_()
    loss = slow(tensors, leaf, *args)
    loss.backward()
    return float(loss.detach()), leaf.grad


# ---------------------------------------------------------------------- worked numbers, and against the loops
def test_worked_numbers():
    tensors = on_policy(three())
    made = aot()
    assert loss_at_once(made, prepared(made, tensors)) == pytest.approx(0.686791, abs=1e-6)
    assert loss_at_once(objective(), tensors) == pytest.approx(0.687831, abs=1e-6)
    made = aot_unpaired(label=unpaired.above_group)
    assert loss_at_once(made, prepared(made, tensors)) == pytest.approx(0.685751, abs=1e-6)


def test_ranks_and_quantiles():
    def of(own, other):
        return at_same_rank(torch.tensor(own), torch.tensor(other)).tolist()

    assert of([0.3, 0.1, 0.2], [7.0, 9.0, 8.0]) == [9.0, 7.0, 8.0]
    assert of([0.1, 0.1, 0.0], [3.0, 1.0, 2.0]) == [2.0, 3.0, 1.0]  # equal ones in their order
    assert of([1.0, 0.0], [10.0, 20.0, 30.0, 40.0]) == [40.0, 20.0]  # quantiles 3/4 and 1/4
    assert of([3.0, 0.0, 2.0, 1.0], [20.0, 10.0]) == [20.0, 10.0, 20.0, 10.0]
    assert of([5.0], [3.0, 1.0, 2.0]) == [2.0]
    assert of([], [1.0]) == [] and math.isnan(of([1.0], [])[0])


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_aot_is_the_slow_loop(seed, epsilon):
    tensors = batch(seed)
    smoothing = partial(links.conservative, epsilon=epsilon) if epsilon else links.certain
    value, slope = loss_of(aot(smoothing=smoothing), tensors)
    expected, gradient = with_slope(
        slow_aot, tensors, lambda z: -(1 - epsilon) * logsigmoid(z) - epsilon * logsigmoid(-z)
    )
    assert float(value) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(slope, gradient, rtol=1e-9, atol=1e-12)
    plain, other = loss_of(objective(smoothing=smoothing), tensors)
    assert abs(float(plain) - expected) > 1e-5 and (other - slope).abs().max() > 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_aot_unpaired_is_the_slow_loop_and_half_of_its_gradient(seed):
    tensors = batch(seed)
    tensors["return_B"] = torch.tensor([1.0, -1.0] * 7)[
        torch.randperm(14, generator=torch.Generator().manual_seed(seed))
    ]
    value, slope = loss_of(aot_unpaired(), tensors)
    expected, gradient = with_slope(slow_unpaired, tensors)
    assert float(value) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(2 * slope, gradient, rtol=1e-9, atol=1e-12)
    assert abs(float(loss_of(aot_unpaired(baseline=unpaired.kl), tensors)[0]) - expected) > 1e-3


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("group", range(3))
def test_one_pair_is_dpo(group):
    tensors = {name: t[2 * group : 2 * group + 2] for name, t in on_policy(three()).items()}
    made = aot()
    assert loss_at_once(made, prepared(made, tensors)) == pytest.approx(loss_at_once(objective(), tensors))
    made = aot_unpaired(label=unpaired.above_group)
    assert loss_at_once(made, prepared(made, tensors)) == pytest.approx(loss_at_once(objective(), tensors))


def test_where_policy_and_reference_rank_alike_it_is_dpo():
    tensors = batch()
    tensors["old_logp_BT"] = tensors["ref_logp_BT"]  # a policy that has not moved
    for one, other in zip(loss_of(aot(), tensors), loss_of(objective(), tensors), strict=True):
        torch.testing.assert_close(one, other)


def test_the_order_is_that_of_before_the_first_step():
    """The reference says .5, -1.5 and -1 of the pairs, the policy 2, -.5 and -3, and after a step -5, 0 and 4."""
    made, columns = aot(), prepared(aot(), on_policy(three()))
    length_B = columns["is_action_BT"].sum(1, keepdim=True)
    step = torch.tensor([-7.0, 0.0, 0.5, 0.0, 7.0, 0.0])[:, None] / length_B
    later = columns | {"logp_BT": columns["logp_BT"] + step}
    expected = -logsigmoid(0.1 * torch.tensor([-5 - 0.5, 0 + 1.0, 4 + 1.5])).mean()
    assert loss_at_once(made, later) == pytest.approx(float(expected))
    again = prepared(made, on_policy(later))
    expected = -logsigmoid(0.1 * torch.tensor([-5 + 1.5, 0 + 1.0, 4 - 0.5])).mean()
    assert loss_at_once(made, again) == pytest.approx(float(expected))


def test_nll_beside_it_is_added():
    tensors = on_policy(three())
    made = aot(nll=NLL(coef=0.2))
    alone = objective(nll=NLL(coef=0.2))
    nll = loss_at_once(alone, tensors) - loss_at_once(objective(), tensors)
    assert loss_at_once(made, prepared(made, tensors)) == pytest.approx(0.686791 + nll, abs=1e-6)


# ---------------------------------------------------------------------- what must not change it
def objectives():
    made = {name: aot(pairing=rule) for name, rule in RULES.items()}
    return made | {"averaged": aot(score=scores.length_averaged), "unpaired": aot_unpaired()}


every_one = pytest.mark.parametrize("name", objectives())


@every_one
def test_row_order_and_padding(name):
    made, tensors = objectives()[name], batch()
    value, slope = loss_of(made, tensors)
    assert slope.abs().sum() > 0.01
    order = torch.randperm(len(tensors["group_B"]), generator=torch.Generator().manual_seed(3))
    shuffled = {name: t[order] for name, t in tensors.items()}
    wider = {n: pad(t, (0, 3), value=0) if n.endswith("_BT") else t for n, t in tensors.items()}
    again, other = loss_of(made, shuffled)
    assert float(again) == pytest.approx(float(value), abs=1e-12)
    torch.testing.assert_close(other, slope[order])
    again, other = loss_of(made, wider)
    assert float(again) == pytest.approx(float(value), abs=1e-12)
    torch.testing.assert_close(other[:, :-3], slope)


@every_one
def test_micro_batches_add_up(name):
    """Prepared at once, of shuffled rows; then the loss of each group alone, in another order and cut."""
    made, tensors = objectives()[name], batch()
    order = torch.randperm(len(tensors["group_B"]), generator=torch.Generator().manual_seed(4))
    value, slope = loss_of(made, tensors)
    columns = prepared(made, {name: t[order] for name, t in tensors.items()})
    number = made.count(columns)
    total, found = 0.0, torch.zeros_like(slope)
    for g in reversed(columns["group_B"].unique().tolist()):
        part = {name: t[columns["group_B"] == g].flip(0) for name, t in columns.items()}
        width = int(part["is_real_BT"].sum(1).max())
        part = {name: t[:, :width] if name.endswith("_BT") else t for name, t in part.items()}
        part["logp_BT"] = part["logp_BT"].detach().requires_grad_()
        loss = made.loss(part | number)[0]
        loss.backward()
        total += float(loss.detach())
        for b, trajectory in enumerate(part["trajectory_B"]):
            row = int((tensors["trajectory_B"] == trajectory).nonzero())
            found[row, :width] = part["logp_BT"].grad[b]
    assert total == pytest.approx(float(value), abs=1e-12)
    torch.testing.assert_close(found, slope)


def test_only_sorting_reads_the_policy_before_the_step():
    assert aot().needs("sampler_logp_BT") and aot_unpaired().needs("sampler_logp_BT")
    assert not objective().needs("sampler_logp_BT") and not objective().needs("old_logp_BT")
    assert set(objective().prepare(three())) == {"keep_B", "pairless_share"}


# ---------------------------------------------------------------------- sides that are unequal, or empty
def test_what_has_no_counterpart_is_left_out():
    tensors = on_policy(three()) | {"return_B": torch.ones(6)}
    found = aot_unpaired().prepare(tensors)
    assert not found["keep_B"].any() and found["reward_level_B"].isnan().all()
    tensors["return_B"] = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, math.nan])
    found = aot_unpaired().prepare(tensors)
    assert found["keep_B"].tolist() == [True] * 5 + [False]
    # rewards .1, -.05, .05 and -.05 are desirable, -.05 is not: it is compared with the upper one of the middle
    assert found["reward_level_B"].tolist()[:5] == pytest.approx([-0.05, -0.05, -0.05, 0.05, -0.05])


def test_no_pair_is_no_loss():
    tensors = on_policy(three()) | {"return_B": torch.ones(6)}
    made = aot()
    assert not made.prepare(tensors)["keep_B"].any()
    tensors |= {"reordered_BK": made.prepare(tensors)["reordered_BK"]}
    assert loss_at_once(made, tensors) == 0


# ---------------------------------------------------------------------- columns of rows
def test_a_pair_is_found_again_in_its_row():
    tensors = rows([[[(-1.0, -0.5)]], [[(-2.0, -0.1)]], [[(-3.0, -0.1)]]], [2.0, 1.0, 0.0])
    tensors |= {"group_B": torch.zeros(3, dtype=torch.int64)}
    found = objective().pairing(**{
        name: tensors[name]
        for name in ("return_B", "group_B", "trajectory_B", "is_action_BT", "turn_BT", "first_turn_B", "tokens_BT")
    })  # fmt: skip
    x_P = torch.tensor([1.0, 2.0, 3.0])
    x_BK = to_rows(x_P, found, tensors["is_action_BT"])
    assert x_BK.nan_to_num(0).tolist() == [[1, 2], [3, 0], [0, 0]]
    assert of_rows(x_BK, found, tensors["is_action_BT"]).tolist() == [1, 2, 3]
    fewer = Pairs(found.units, found.chosen_P[1:], found.rejected_P[1:])
    with pytest.raises(ValueError, match=r"finds other pairs than .* not algo/structure=two_level"):
        of_rows(x_BK, fewer, tensors["is_action_BT"])


# ---------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: aot(reference=scores.without), "sorts pairs by a frozen reference: use algo/reference=frozen"),
        (lambda: aot(reference=scores.round_start), "sorts pairs by a frozen reference: use algo/reference=frozen"),
        (lambda: aot(divergence=scores.forward_kl), "use algo/divergence=reverse_kl"),
        (lambda: aot(partial(links.rebel, eta=0.5)), "link takes gap_P of single pairs: use algo/link=logistic"),
        (lambda: aot(links.nca), "link takes both rewards instead of z: use algo/margin=none"),
        (lambda: objective(links.apo, margin=margins.constant), "link takes both rewards instead of z"),
        (lambda: aot_unpaired(reference=scores.sampler), "use algo/reference=frozen, or algo/baseline=none"),
        (
            lambda: aot_unpaired(baseline=lambda reward_S: reward_S[:1]).try_out(TrajectoryBatch.make_toy().to_dict()),
            "baseline=.* must be a scalar, or a number for each trajectory",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_they_are_tried_out_before_anything_is_played():
    for made in objectives().values():
        made.try_out(TrajectoryBatch.make_toy().to_dict())
