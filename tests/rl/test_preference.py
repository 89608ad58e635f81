"""Losses of pairs: worked numbers, identities, gradients, and that observations never count."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from lit_agentrl.rl.objective import metric_values
from lit_agentrl.rl.preference import links, margins, pairing, scores
from lit_agentrl.rl.preference.objective import NLL
from tests.rl.pairs import LENGTH, POLICY, each, loss_of, objective, rows, several_turns, three

AVERAGED = {"score": scores.length_averaged, "reference": scores.without}
DPO = [0.620957, 0.644397, 0.798139]


def golden(name, made, *values):
    return pytest.param(made, list(values), id=name)


@pytest.mark.parametrize(
    ("made", "values"),
    [
        golden("dpo", objective(), *DPO),
        golden("cdpo", objective(smoothing=links.conservative), 0.635957, 0.654397, 0.778139),
        golden("robust", objective(smoothing=links.robust), 0.602207, 0.631897, 0.823139),
        golden("hinge", objective(links.hinge), 0.85, 0.9, 1.2),
        golden("exponential", objective(links.exponential), 0.860708, 0.904837, 1.221403),
        golden("truncated quadratic", objective(links.truncated_quadratic), 0.7225, 0.81, 1.44),
        golden("savage", objective(links.savage), 0.213971, 0.225645, 0.302317),
        golden("squared", objective(links.squared), 0.7225, 0.81, 1.44),
        golden("exo", objective(links.exo), 2.505517, 2.589954, 3.110397),
        golden("discopop", objective(links.discopop), 0.849338, 0.873792, 0.805752),
        golden("ipo", objective(links.ipo, beta=1.0), 12.25, 16.0, 49.0),
        golden(
            "ipo averaged", objective(links.ipo, beta=1.0, score=scores.length_averaged),
            22.880278, 22.800625, 31.640625,
        ),
        golden("dpo averaged", objective(score=scores.length_averaged), 0.682373, 0.68196, 0.724885),
        golden("r-dpo", objective(margin=margins.length), 0.639659, 0.649159, 0.80365),
        golden("odpo", objective(margin=margins.log_gap), 0.829015, 0.086621, 1.236287),
        golden("margin", objective(margin=margins.score_gap), 1.580509, 0.693147, 2.305083),
        golden("rpo", objective(links.distance), 0.173269, 0.0, 0.408964),
        golden("nll 1", objective(nll=NLL(coef=1.0)), 2.620957, 1.644397, 3.798139),
        golden("nll 0.2", objective(nll=NLL(coef=0.2)), 1.020957, 0.844397, 1.398139),
        golden("dpop", objective(margin=margins.falling_chosen), 0.620957, 0.644397, 1.276956),
        golden("forward kl", objective(divergence=scores.forward_kl), 0.631154, 0.642395, 0.90556),
        golden("js", objective(divergence=scores.jensen_shannon), 0.660652, 0.66846, 0.756396),
        golden("alpha", objective(divergence=scores.alpha_divergence), 0.627691, 0.6439, 0.835894),
        golden("nca", objective(links.nca), 1.350825, 1.361919, 1.440665),
        golden("bco", objective(links.bco), 1.312856, 1.336919, 1.489417),
        golden("sppo hard", objective(links.sppo_hard, beta=1.0), 36.25, 40.5, 72.5),
        golden("apo zero", objective(links.apo), 0.962523, 0.975005, 1.049927),
        golden("apo down", objective(partial(links.apo, side="down")), 0.987549, 0.987518, 1.012404),
        golden("rebel", objective(links.rebel, beta=1.0), 0.0, 0.81, 16.0),
        golden("rebel eta .5", objective(partial(links.rebel, eta=0.5), beta=1.0), 2.25, 0.64, 36.0),
        golden(
            "simpo", objective(margin=partial(margins.constant, gamma=1.375), beta=2.5, **AVERAGED),
            2.929882, 2.237822, 5.130929,
        ),
        golden(
            "simpo 2", objective(margin=margins.constant, beta=2.0, **AVERAGED), 2.305083, 1.783901, 4.01815
        ),
        golden(
            "alphapo",
            objective(
                margin=partial(margins.constant, gamma=1.375), beta=2.5, divergence=scores.alpha_power, **AVERAGED
            ),
            3.696656, 2.398083, 7.995423,
        ),
        golden(
            "orpo",
            objective(divergence=scores.log_odds, beta=1.0, weight=0.1, nll=NLL(coef=1.0), **AVERAGED),
            2.112856, 1.099139, 3.186898,
        ),
    ],
)  # fmt: skip
def test_worked_numbers(made, values):
    assert each(made) == pytest.approx(values, abs=1e-6)


def test_batches_are_means_over_pairs():
    assert loss_of(objective(), three()) == pytest.approx(0.687831, abs=1e-6)
    assert loss_of(objective(nll=NLL(coef=0.2, per="token")), three()) == pytest.approx(1.072446, abs=1e-6)
    cpo = objective(reference=scores.without, nll=NLL(coef=1.0, per="token"))
    assert loss_of(cpo, three()) == pytest.approx(2.646728, abs=1e-6)


def test_log_odds_of_averages():
    averages = torch.tensor(
        [[p / n for p, n in zip(*each, strict=True)] for each in zip(POLICY, LENGTH, strict=True)]
    )
    odds = scores.log_odds(averages)
    assert (odds[:, 0] - odds[:, 1]).tolist() == pytest.approx([-0.737741, -0.527666, -1.701413], abs=1e-6)
    assert scores.log_odds(torch.zeros(1)).isfinite().all()


def test_links_beyond_their_corners():
    z = {"z_P": torch.tensor([1.7], dtype=torch.float64)}
    found = [f(**z).item() for f in (links.hinge, links.truncated_quadratic, links.squared, links.logistic)]
    assert found == pytest.approx([0.0, 0.0, 0.49, 0.167786], abs=1e-6)


def test_several_turns():
    tensors = several_turns()
    assert loss_of(objective(), tensors) == pytest.approx(0.630258, abs=1e-6)
    for discount, value in ((0.7, 0.654366), (1.0, 0.649956)):
        score = partial(scores.turn_discounted, discount=discount)
        assert loss_of(objective(score=score), tensors) == pytest.approx(value, abs=1e-6)
    assert loss_of(objective(score=scores.length_desensitised), tensors) == pytest.approx(0.634946, abs=1e-6)
    later = tensors | {"is_action_BT": tensors["is_action_BT"] & (tensors["turn_BT"] > 0)}
    assert loss_of(objective(beta=0.4), later) == pytest.approx(0.52926, abs=1e-6)


def test_turn_weights_are_those_of_the_paper():
    made = [[[(0.5, 0.0)], [(0.3, 0.0)], [(0.2, 0.0)]], [[(-0.1, 0.0)], [(-0.2, 0.0)]]]
    dmpo = objective(score=scores.turn_discounted)
    assert loss_of(dmpo, rows(made, [1.0, 0.0])) == pytest.approx(0.649631, abs=1e-6)


def test_what_the_game_says_does_not_count_and_would_change_the_loss():
    """trl sums over everything behind the prompt, observations too: 0.135534 instead of 0.630258 on a like pair."""
    tensors = several_turns()
    loss = loss_of(objective(), tensors)
    observed = ~tensors["is_action_BT"]
    for name in ("logp_BT", "ref_logp_BT"):
        assert loss_of(objective(), tensors | {name: tensors[name].masked_fill(observed, math.nan)}) == loss
    counted = tensors["is_action_BT"].clone()
    counted[0, 4:6] = True  # the second observation of the chosen side, two tokens of 9 nats
    ratio = tensors["logp_BT"].masked_fill(observed, 9.0)
    wrong = tensors | {"logp_BT": ratio, "ref_logp_BT": tensors["ref_logp_BT"].masked_fill(observed, 0.0)}
    assert loss_of(objective(), wrong | {"is_action_BT": counted}) < loss - 0.3


def test_tdpo_with_given_kls():
    """The margin is of any estimate of the KLs: here the worked ones, times beta."""
    kls = {"chosen_kl_P": torch.tensor([0.04]), "rejected_kl_P": torch.tensor([0.09])}
    first = partial(margins.sequence_kl, alpha=1.0, stop_chosen=False)
    for margin, value in ((first, 0.644397), (margins.sequence_kl, 0.632599)):
        assert links.logistic(z_P=0.15 + margin(**kls)).item() == pytest.approx(value, abs=1e-6)
    kls = {name: kl.requires_grad_() for name, kl in kls.items()}
    margins.sequence_kl(**kls).sum().backward()
    assert kls["chosen_kl_P"].grad is None and kls["rejected_kl_P"].grad.item() == -0.5


def test_tdpo_sums_the_kls_of_the_vocabulary_over_the_sampled_tokens():
    """The specification's pair, 0.4 against 0.9 nats, spread over tokens."""
    tensors = rows([[[(0.75, 0.0)] * 2], [[(0.0, 0.0)] * 3]], [1.0, 0.0])
    of_token_B1 = torch.tensor([[0.4 / 2], [0.9 / 3]], dtype=torch.float64)
    tensors["ref_kl_BT"] = torch.where(tensors["is_action_BT"], of_token_B1, math.nan).requires_grad_()
    second = objective(margin=margins.vocabulary_kl)
    first = objective(margin=partial(margins.vocabulary_kl, alpha=1.0, stop_chosen=False))
    for made, value in ((first, 0.644397), (second, 0.632599)):
        assert made.needs("ref_kl_BT") and loss_of(made, tensors) == pytest.approx(value, abs=1e-6)
    loss, _ = second.loss(tensors | second.count(tensors))
    (grad_BT,) = torch.autograd.grad(loss, tensors["ref_kl_BT"])
    assert grad_BT[0].eq(0).all() and (grad_BT[1, 2:5] > 0).all()


def test_each_chosen_side_counts_as_often_as_it_is_chosen():
    made = [[[(p, 0.0)] * length] for p, length in ((-1.0, 1), (-0.6, 2), (-1.4, 3))]
    tensors = rows(made, [0.2, 0.1, 0.9]) | {"group_B": torch.zeros(3, dtype=torch.int64)}
    alone = loss_of(objective(), tensors)
    for per, mean in (("unit", (1.0 + 1.4 + 1.4) / 3), ("token", (1.0 + 2 * 3 * 1.4) / 7)):
        nll = NLL(coef=1.0, of="pairs", per=per)
        assert loss_of(objective(nll=nll), tensors) - alone == pytest.approx(mean)
    for made in (NLL(coef=1.0, of="pairs"), NLL(coef=1.0, of="pairs", per="token")):
        of_best = replace(made, of="best")
        assert loss_of(objective(nll=made), three()) == loss_of(objective(nll=of_best), three())


def test_rrhf():
    made = [[[(p, 0.0)] * 2] for p in (-1.0, -0.6, -1.4)]
    tensors = rows(made, [0.2, 0.1, 0.9]) | {"group_B": torch.zeros(3, dtype=torch.int64)}
    rank = objective(partial(links.hinge, width=0.0), beta=1.0, over="groups", **AVERAGED)
    assert loss_of(rank, tensors) == pytest.approx(1.6)
    assert loss_of(replace(rank, nll=NLL(coef=1.0)), tensors) == pytest.approx(3.0)
    assert loss_of(replace(rank, nll=NLL(coef=1.0, of="pairs")), tensors) == pytest.approx(
        1.6 + (1.0 + 1.4 + 1.4) / 3
    )


STABLE_ALIGNMENT = objective(
    partial(links.hinge_of_mean), pairing=pairing.best_rest, beta=1.0, weight=0.2, over="groups",
    margin=partial(margins.score_gap, scale=10 / 7), nll=NLL(coef=1.0), **AVERAGED,
)  # fmt: skip


def test_stable_alignment_is_the_loss_of_its_authors():
    """The NLL of the best answer, and 0.2 times max(0, mean(L_best - L_i + 10 (r_best - r_i) / 7))."""
    tensors = rows([[[(logp, 0.0)]] for logp in (-1.0, -2.0, -0.5, -9.0, -40.0, -1.0)], [7, 4, 1, 5, 4, 4])
    tensors["group_B"] = torch.tensor([0, 0, 0, 1, 1, 1])
    first = (1 - 2 + 30 / 7 + 1 - 0.5 + 60 / 7) / 2
    second = (9 - 40 + 10 / 7 + 9 - 1 + 10 / 7) / 2
    assert second < 0 < first
    assert loss_of(STABLE_ALIGNMENT, tensors) == pytest.approx((1.0 + 0.2 * first + 9.0) / 2)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_stable_alignment_is_the_loop_of_the_release(order):
    """With ratings of their own in every order: the release looks them up in sorted order by unsorted index."""
    logps, ratings = (
        [(-1.2, -0.4, -2.0), (-3.0, -0.1), (-0.7, -0.9, -0.2, -0.6)],
        torch.tensor([6.0, 3.0, 2.0]),
    )
    losses = torch.tensor([-math.fsum(each) / len(each) for each in logps], dtype=torch.float64)
    best_score, best_loss, distances = ratings[0], losses[0], []
    for loss, rating in zip(losses[1:], ratings[1:], strict=True):
        distances.append(best_loss - loss + (best_score - rating) / 7 * 10)
    expected = best_loss + 0.2 * max(0.0, float(sum(distances)) / len(distances))
    made = [[[(logp, 0.0) for logp in logps[k]]] for k in order]
    tensors = rows(made, [float(ratings[k]) for k in order]) | {"group_B": torch.zeros(3, dtype=torch.int64)}
    assert loss_of(STABLE_ALIGNMENT, tensors) == pytest.approx(float(expected), abs=1e-6)


# ---------------------------------------------------------------------- identities
@pytest.mark.parametrize("z", [-3.0, -0.2, 0.0, 0.15, 4.0])
def test_identities_of_links(z):
    def of(link, z=z, **constants):
        return link(z_P=torch.tensor([z], dtype=torch.float64), **constants)

    right, turned = of(links.logistic), of(links.logistic, -z)
    assert (right - turned).item() == pytest.approx(-z)
    robust = [links.robust(a, b, epsilon=0.1) for a, b in ((right, turned), (turned, right))]
    torch.testing.assert_close(0.9 * robust[0] + 0.1 * robust[1], right)
    nearly = links.conservative(right, turned, epsilon=1e-12), links.robust(right, turned, epsilon=1e-12)
    torch.testing.assert_close(torch.stack(nearly), torch.stack([right, right]))
    # IPO with tau = beta / 2 is the squared link, times 1 / beta^2
    beta = 0.2
    torch.testing.assert_close(of(links.ipo, z / beta, tau=beta / 2) * beta**2, of(links.squared))
    if z < 0:
        epsilon = 1 / (1 + math.exp(-z))
        assert of(links.exo, -z, epsilon=epsilon).item() == pytest.approx(0, abs=1e-12)
    gap = {"gap_P": torch.tensor([z], dtype=torch.float64)}
    assert of(links.distance, **gap).item() == pytest.approx(0, abs=1e-12)


def test_one_turn_is_dpo_and_so_are_equal_lengths():
    tensors = three() | {"turn_BT": torch.zeros_like(three()["turn_BT"])}
    for score in (scores.turn_discounted, partial(scores.length_desensitised, alpha=1.0)):
        assert each(objective(score=score), tensors) == pytest.approx(each(objective()))
    alike = rows([[[(-1.0, -0.5)] * 4], [[(-2.0, -0.5)] * 4]], [1.0, 0.0])
    for score in (scores.length_averaged, scores.length_desensitised):
        beta = 0.4 if score is scores.length_averaged else 0.1
        assert each(objective(score=score, beta=beta), alike) == pytest.approx(each(objective(), alike))


def test_simpo_is_dpo_without_a_reference_and_with_lengths():
    """Its margin apart: a reference of equal averages on both sides is none."""
    tensors = three() | {"ref_logp_BT": torch.full_like(three()["logp_BT"], -2.5)}
    with_one = each(objective(score=scores.length_averaged), tensors)
    assert with_one == pytest.approx(each(objective(**AVERAGED)))


def test_only_differences_of_reference_ratios_count():
    tensors, length = three(), torch.tensor([n for pair in LENGTH for n in pair])
    moved = tensors | {"ref_logp_BT": tensors["ref_logp_BT"] + 3.0 / length[:, None]}
    assert each(objective(), moved) == pytest.approx(each(objective()))


def test_the_gradient_is_spread_over_sampled_tokens_alone():
    tensors = three()
    tensors["logp_BT"] = tensors["logp_BT"].clone().requires_grad_()
    tensors["ref_logp_BT"] = tensors["ref_logp_BT"].clone().requires_grad_()
    made = objective()
    made.loss(tensors | made.count(tensors))[0].backward()
    slope = torch.tensor([-0.046257, 0.046257, -0.047502, 0.047502, -0.054983, 0.054983]) / 3
    expected = torch.where(tensors["is_action_BT"], slope[:, None].double(), 0.0)
    torch.testing.assert_close(tensors["logp_BT"].grad, expected, atol=1e-6, rtol=0)
    assert tensors["ref_logp_BT"].grad is None


# ---------------------------------------------------------------------- around the loss
def test_metrics():
    made, tensors = objective(), three()
    found = metric_values(made.loss(tensors | made.count(tensors))[1])
    assert found["reward_accuracy"] == pytest.approx(2 / 3) and found["shorter_wins"] == 1
    assert found["reward_margin"] == pytest.approx(0.016667, abs=1e-6)
    assert found["reward_chosen"] == pytest.approx(0.0) and found["moved_chosen"] == pytest.approx(0.0)
    assert found["logp_chosen"] == pytest.approx(-25 / 3)
    assert found["logp_rejected"] == pytest.approx(-23.5 / 3)
    assert found["moved_rejected"] == pytest.approx(-0.5 / 3)


def test_a_policy_that_is_its_reference_ranks_by_chance():
    made, tensors = objective(), three()
    tensors["ref_logp_BT"] = tensors["logp_BT"].clone()
    assert metric_values(made.loss(tensors | made.count(tensors))[1])["reward_accuracy"] == 0.5


def test_groups_without_a_pair_are_dropped_and_counted():
    tensors = three()
    tensors["return_B"][2:4] = 1.0
    found = objective().prepare(tensors)
    assert found["keep_B"].tolist() == [True, True, False, False, True, True]
    assert float(found["pairless_share"]) == pytest.approx(1 / 3)
    assert loss_of(objective(), tensors) == pytest.approx((DPO[0] + DPO[2]) / 2, abs=1e-6)
    tensors["return_B"][:] = 0.5
    assert loss_of(objective(nll=NLL(coef=1.0)), tensors) == 0
    assert float(objective().prepare(tensors)["pairless_share"]) == 1


def test_without_a_reference_log_probs_have_moved_from_those_of_the_sampler():
    made, tensors = objective(**AVERAGED), three()
    found = metric_values(made.loss(tensors | made.count(tensors))[1])
    assert found["moved_rejected"] == pytest.approx(-0.5 / 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: objective(beta=0.0), "beta=0.0 must be finite and > 0"),
        (lambda: objective(over="rows"), "over=rows must be pairs or groups"),
        (
            lambda: objective(reference=scores.sampler, margin=margins.vocabulary_kl),
            r"margin takes the KL to the network of a reference.*algo/margin=sequence_kl",
        ),
        (
            lambda: objective(reference=scores.without, margin=margins.sequence_kl),
            "algo/reference=none has none",
        ),
        (lambda: NLL(coef=1.0, of="all"), "of=all must be best or pairs"),
        (lambda: NLL(coef=0.0), "coef=0.0 must be finite and > 0; algo/nll=none"),
        (lambda: NLL(coef=1.0, per="row"), "per=row must be unit or token"),
        (lambda: tried(link=partial(links.ipo, tau=0.0)), r"^link\.tau=0.0 must be finite and > 0"),
        (
            lambda: tried(score=partial(scores.turn_discounted, discount=2.0)),
            r"^score\.discount=2.0 must be in",
        ),
        (lambda: tried(divergence=partial(scores.alpha_power, alpha=0.0)), r"^divergence\.alpha=0.0 must be"),
        (lambda: tried(smoothing=partial(links.robust, epsilon=0.5)), r"^smoothing\.epsilon=0.5 must be in"),
        (lambda: tried(margin=partial(margins.log_gap, alpha=-1.0)), r"^margin\.alpha=-1.0 must be"),
        (lambda: tried(pairing=partial(pairing.all_pairs, most=0)), r"^pairing\.most=0 must be"),
        (
            lambda: tried(pairing=partial(pairing.all_pairs, most=0.5)),
            r"^pairing\.most=0.5 must be a whole number",
        ),
        (
            lambda: tried(pairing=partial(pairing.all_pairs, ties=True, min_gap=0.1)),
            r"^pairing\.ties=true must be false, since min_gap=0.1 excludes ties",
        ),
    ],
)
def test_wrong_constants(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def tried(link=links.logistic, **parts):
    from lit_agentrl.batch import TrajectoryBatch

    objective(link, **parts).try_out(TrajectoryBatch.make_toy().to_dict())
