"""Losses of single trajectories that are desirable or not, and regressions on quantiles and win rates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from lit_agentrl.batch import TrajectoryBatch
from lit_agentrl.rl.binding import bind
from lit_agentrl.rl.credit import comparison_advantages as comparisons
from lit_agentrl.rl.credit.advantages import group_mean
from lit_agentrl.rl.objective import metric_values
from lit_agentrl.rl.policy import regression
from lit_agentrl.rl.policy.group_loss import GroupLoss
from lit_agentrl.rl.preference import links, pairing, scores, unpaired
from lit_agentrl.rl.preference.objective import PreferenceLoss
from lit_agentrl.rl.preference.unpaired import PointwiseLoss
from tests.rl.pairs import each, objective, rows, three


def points(value=unpaired.prospect, **parts):
    defaults = {
        "name": "test",
        "label": unpaired.above,
        "score": scores.summed,
        "reference": scores.frozen,
        "beta": 0.1,
    }
    return PointwiseLoss(value=value, **(defaults | parts))


def labelled(**columns):
    """The six replies of the three pairs, the better ones desirable; log-ratios before the step have a mean of .2."""
    tensors = three() | {"return_B": torch.tensor([1.0, 0.0] * 3)}
    lengths = tensors["is_action_BT"].sum(1, keepdim=True)
    tensors["old_logp_BT"] = tensors["ref_logp_BT"] + (
        torch.tensor([0.8, -0.2, 0.4, 0.6, -0.1, -0.3]).double()[:, None] / lengths
    )
    return tensors | columns


def loss_of(made, tensors):
    found = made.prepare(tensors)
    tensors = tensors | {name: t for name, t in found.items() if t.dim()}
    return made.loss(tensors | made.count(tensors))


def each_of(made, tensors):
    """The loss of each trajectory alone, after a common start."""
    tensors = tensors | {name: t for name, t in made.prepare(tensors).items() if t.dim()}
    parts = [{name: t[b : b + 1] for name, t in tensors.items()} for b in range(len(tensors["return_B"]))]
    return [float(made.loss(part | made.count(part))[0]) for part in parts]


def test_kto():
    made = points(baseline=unpaired.kl)
    losses = each_of(made, labelled())
    assert losses[::2] == pytest.approx([0.480011, 0.492501, 0.542398], abs=1e-6)
    assert losses[1::2] == pytest.approx([0.482507, 0.482507, 0.507499], abs=1e-6)
    assert float(loss_of(made, labelled())[0]) == pytest.approx(0.497904, abs=1e-6)
    weighted = replace(made, desirable_weight=1.33)
    assert float(loss_of(weighted, labelled())[0]) == pytest.approx(0.581224, abs=1e-6)


def test_the_baseline_is_not_negative():
    tensors = labelled()
    turned = tensors | {"old_logp_BT": 2 * tensors["ref_logp_BT"] - tensors["old_logp_BT"]}
    assert points(baseline=unpaired.kl).prepare(turned)["reward_level_B"].eq(0).all()
    level_B = points(baseline=unpaired.kl).prepare(tensors)["reward_level_B"]
    assert level_B.tolist() == pytest.approx([0.02] * 6)


def test_apo_zero_is_kto_without_a_baseline():
    made = points()
    assert float(loss_of(made, labelled())[0]) == pytest.approx(0.497909, abs=1e-6)
    losses = each_of(made, labelled())
    pairs = [sum(losses[i : i + 2]) for i in (0, 2, 4)]
    assert pairs == pytest.approx(each(objective(links.apo)))


def test_bco():
    """Its shift is the mean reward of the policy: here that of before the step is the one of now."""
    tensors = labelled()
    made = points(unpaired.binary, baseline=unpaired.mean_reward)
    losses = each_of(made, tensors | {"old_logp_BT": tensors["logp_BT"]})
    assert losses[::2] == pytest.approx([0.640447, 0.664406, 0.766487], abs=1e-6)
    assert losses[1::2] == pytest.approx([0.672531, 0.672531, 0.722739], abs=1e-6)


def test_a_batch_of_one_at_its_own_baseline_is_a_half():
    one = {name: t[:1] for name, t in labelled().items()}
    one["old_logp_BT"] = one["logp_BT"]
    assert float(loss_of(points(baseline=unpaired.kl), one)[0]) == pytest.approx(0.5)
    assert float(loss_of(points(), one)[0]) == pytest.approx(0.475021, abs=1e-6)  # 1 - sigmoid(.1)


def test_labels():
    tensors = labelled(success_B=torch.tensor([True, False, False, True, True, True]))
    assert bind(unpaired.solved, tensors).tolist() == tensors["success_B"].tolist()
    tensors["return_B"] = torch.tensor([2.0, 1.0, 0.5, 0.5, -1.0, -0.5])
    assert bind(unpaired.above_group, tensors).tolist() == [True, False, False, False, False, True]
    assert bind(partial(unpaired.above, threshold=0.7), tensors).tolist() == [True, True] + 4 * [False]


def test_metrics_and_what_is_left_out():
    made, tensors = points(), labelled()
    tensors["return_B"][1] = torch.nan
    prepared = made.prepare(tensors)
    assert prepared["keep_B"].tolist() == [True, False, True, True, True, True]
    assert float(prepared["desirable_share"]) == pytest.approx(3 / 5)
    loss, metrics = loss_of(made, tensors)
    others = [value for b, value in enumerate(each_of(made, labelled())) if b != 1]
    assert float(loss) == pytest.approx(sum(others) / 5)
    found = metric_values(metrics)
    assert found["moved_chosen"] == pytest.approx(0.0) and found["logp_chosen"] == pytest.approx(-25 / 3)
    tensors["return_B"][:] = torch.nan
    assert float(loss_of(made, tensors)[0]) == 0


def test_observations_do_not_count():
    tensors = labelled()
    silent = {
        name: tensors[name].masked_fill(~tensors["is_action_BT"], torch.nan)
        for name in ("logp_BT", "ref_logp_BT", "old_logp_BT")
    }
    made = points(baseline=unpaired.kl)
    assert float(loss_of(made, tensors | silent)[0]) == float(loss_of(made, tensors)[0])


def test_wrong_constants():
    with pytest.raises(ValueError, match="undesirable_weight=0 must be finite and > 0"):
        points(undesirable_weight=0)
    with pytest.raises(ValueError, match="use algo/reference=frozen, or algo/baseline=none"):
        points(baseline=unpaired.kl, reference=scores.sampler)
    with pytest.raises(ValueError, match=r"^label\.threshold=inf must be finite"):
        points(label=partial(unpaired.above, threshold=float("inf"))).try_out(
            TrajectoryBatch.make_toy().to_dict()
        )


# ---------------------------------------------------------------------- comparisons within a group
def group(returns, **columns):
    tensors = rows([[[(-1.0, -1.5)] * 2]] * len(returns), returns)
    return tensors | {"group_B": torch.zeros(len(returns), dtype=torch.int64)} | columns


def of_rows(fn, tensors):
    advantage_BT = bind(fn, tensors).advantage_BT
    assert advantage_BT[~tensors["is_action_BT"]].eq(0).all()
    return [float(row[mask][0]) for row, mask in zip(advantage_BT, tensors["is_action_BT"], strict=True)]


def test_win_rates_and_quantiles():
    tensors = group([0.2, 0.9, 0.9, 0.1])
    rates = of_rows(partial(comparisons.win_rate, baseline=0.0), tensors)
    assert rates == pytest.approx([0.333333, 0.833333, 0.833333, 0.0], abs=1e-6)
    assert of_rows(comparisons.win_rate, tensors) == pytest.approx([r - 0.5 for r in rates])
    assert of_rows(comparisons.quantile, tensors) == [0.5, 1.0, 1.0, 0.25]
    assert of_rows(partial(comparisons.above, threshold=0.15), tensors) == [1, 1, 1, 0]
    assert of_rows(comparisons.demonstration, group([0.2, float("nan")])) == [1, 0]
    assert of_rows(comparisons.win_rate, group([0.2, float("nan")])) == [0, 0]
    two = {name: torch.cat([t, t]) for name, t in tensors.items()}
    two |= {"trajectory_B": torch.arange(8), "group_B": torch.arange(8) // 4}
    two["return_B"] = torch.tensor([0.2, 0.9, 0.9, 0.1, 3.0, 2.0, 1.0, 0.0])
    assert of_rows(comparisons.quantile, two)[4:] == [1.0, 0.75, 0.5, 0.25]


def test_sppo_is_its_pairwise_form_where_the_winner_always_wins():
    made = GroupLoss(name="test", loss_of_groups=regression.sppo_loss, advantage=comparisons.win_rate)
    hard = each(objective(links.sppo_hard, beta=1.0))
    for g, expected in enumerate(hard):
        tensors = {name: t[2 * g : 2 * g + 2] for name, t in three().items()}
        tensors |= {"reward_BT": torch.zeros_like(tensors["logp_BT"])}
        found = made.prepare(tensors)
        loss = made.loss(tensors | found | made.count(tensors))[0]
        assert 2 * float(loss) == pytest.approx(expected)


@pytest.mark.parametrize(("transform", "value"), [("identity", 0.014338), ("log", 0.021872)])
def test_qrpo(transform, value):
    """A quantile of .75 and a log-ratio of 1 nat."""
    tensors = group([0.0]) | {"advantage_BT": torch.full((1, 4), 0.75, dtype=torch.float64)}
    loss = bind(partial(regression.qrpo_loss, transform=transform), tensors)
    assert float(loss) == pytest.approx(value, abs=2e-6)  # worked without the last term of log Z, 5e-5


def test_qrpo_of_many_small_nats_does_not_overflow():
    tensors = group([0.0]) | {"advantage_BT": torch.ones(1, 4, dtype=torch.float64)}
    assert bind(partial(regression.qrpo_loss, beta=1e-3), tensors).isfinite()


def test_rebel_over_all_pairs_is_gvpo():
    """The sum of squares of all differences is N times that of the distances from the mean."""
    from lit_agentrl.rl.policy.gvpo import gvpo_loss

    tensors = rows([[[(-1.0, -1.5)] * n] for n in (1, 2, 3)], [0.2, 1.0, 0.1])
    tensors |= {"group_B": torch.zeros(3, dtype=torch.int64)}
    every = partial(pairing.all_pairs, ties=True)
    rebel = PreferenceLoss(
        name="test", pairing=every, score=scores.summed, reference=scores.sampler, link=links.rebel, beta=1.0
    )
    mean_of_pairs = float(rebel.loss(tensors | rebel.count(tensors))[0])
    tensors["advantage_BT"] = bind(group_mean, tensors).advantage_BT
    assert mean_of_pairs == pytest.approx(4 * float(bind(partial(gvpo_loss, beta=1.0), tensors)))
