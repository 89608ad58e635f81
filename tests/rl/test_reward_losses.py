"""Losses of reward models: worked numbers, identities, and that nothing but the scored tokens counts."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_agentrl.rl.objective import metric_values
from lit_agentrl.rl.preference import links, margins, pairing, unpaired
from lit_agentrl.rl.preference.judging import Verdicts, judge, sign_metrics
from lit_agentrl.rl.preference.reward_losses import ComparedScores, RankedScores
from lit_agentrl.rl.preference.step_labels import LabelledSteps, so_far, step_metrics
from tests.rl.pairs import rows

FOUR = [1.5, 0.5, 0.2, -0.4]  # scores of a group, best first


def compared(**options: Any) -> ComparedScores:
    defaults = {"pairing": pairing.all_pairs, "link": links.logistic, "centring": 0.0, "name": "test"}
    return ComparedScores(**(defaults | options))


def scored(scores: list[float], worth: list[float], turns: int = 2) -> dict[str, Tensor]:
    """A group of episodes of two turns; the score at each episode's end, garbage everywhere else."""
    made = rows([[[(-1.0, -1.0)] * (k + 1)] * turns for k in range(len(scores))], worth)
    made["group_B"] = torch.zeros_like(made["group_B"])
    last_B = (made["is_action_BT"] * torch.arange(made["is_action_BT"].shape[1])).argmax(1)
    made["score_BT"] = torch.full(made["logp_BT"].shape, 77.0, dtype=torch.float64)
    made["score_BT"][torch.arange(len(scores)), last_B] = torch.tensor(scores, dtype=torch.float64)
    made["is_turn_end_BT"] = made["is_action_BT"] & ~made["is_action_BT"].roll(-1, 1)
    return made


def loss(objective: Any, tensors: dict[str, Tensor]) -> float:
    tensors = tensors | {name: t for name, t in objective.prepare(tensors).items() if t.dim()}
    return float(objective.loss(tensors | objective.count(tensors))[0])


@pytest.mark.parametrize(
    ("objective", "scores", "worth", "value"),
    [
        (compared(), [1.2, 0.3], [1, 0], 0.341154),
        (compared(margin=partial(margins.score_gap, scale=2 / 3)), [1.2, 0.3], [1, 0], 0.583271),
        (compared(centring=0.01), [1.2, 0.3], [1, 0], 0.363654),
        (compared(smoothing=partial(links.conservative, epsilon=0.2)), [1.2, 0.3], [1, 0], 0.521154),
        (compared(), FOUR, [4, 3, 2, 1], 0.337776),
        (compared(over="groups"), FOUR, [4, 3, 2, 1], 0.337776),
        (compared(), FOUR, [4, 3, 3, 1], 0.294460),
        (compared(zero_at=0.0), [0.8, -0.3], [1, 0], 1.212791),  # the first is harmful, the second safe
        (compared(zero_at=2.0), [0.8, -0.3], [1, 0], 0.287335 + 1.171101 + 0.554355),  # both are safe
        (RankedScores(name="t", centring=0.0), FOUR, [4, 3, 2, 1], 1.783944),
        (RankedScores(name="t", centring=0.0, first=1), FOUR, [4, 3, 2, 1], 0.582204),
        (RankedScores(name="t", centring=0.0), [1.2, 0.3], [1, 0], 0.341154),
        # members of equal worth are not in each other's denominators
        (RankedScores(name="t", centring=0.0), [1.2, 0.3, 0.3], [1, 0, 0], math.log(1 + 2 * math.exp(-0.9))),
    ],
)  # fmt: skip
def test_worked_numbers(objective: Any, scores: list[float], worth: list[float], value: float) -> None:
    assert loss(objective, scored(scores, worth)) == pytest.approx(value, abs=2e-6)


def test_steps_by_hand() -> None:
    """Four turns with logits 2, -1, .5, -.2 of one success: the mean of -log sigmoid."""
    tensors = scored([-0.2], [1], turns=4)
    tensors["score_BT"][tensors["is_turn_end_BT"]] = torch.tensor([2.0, -1.0, 0.5, -0.2], dtype=torch.float64)
    steps = partial(LabelledSteps, name="t", label=unpaired.above)
    expected = [math.log1p(math.exp(-x)) for x in (2.0, -1.0, 0.5, -0.2)]
    assert loss(steps(), tensors) == pytest.approx(sum(expected) / 4, abs=1e-9)
    assert loss(steps(last=True), tensors) == pytest.approx(expected[-1], abs=1e-9)
    assert loss(steps(), tensors | {"return_B": torch.zeros(1)}) == pytest.approx(
        sum(x + y for x, y in zip(expected, (2.0, -1.0, 0.5, -0.2), strict=True)) / 4, abs=1e-9
    )
    # labels of the turns 1, .5, 0 and 1, told as what each adds to the one before
    told = torch.zeros_like(tensors["score_BT"])
    told[tensors["is_turn_end_BT"]] = torch.tensor([1.0, -0.5, -0.5, 1.0], dtype=torch.float64)
    by_turn = LabelledSteps(name="t", label=so_far)
    by_hand = [
        x + (1 - y) * z for x, y, z in zip(expected, (1, 0.5, 0, 1), (2.0, -1.0, 0.5, -0.2), strict=True)
    ]
    assert loss(by_turn, tensors | {"reward_BT": told}) == pytest.approx(sum(by_hand) / 4, abs=1e-6)
    with pytest.raises(ValueError, match=r"a turn is labelled 2, and algo=t takes labels in \[0, 1\]"):
        by_turn.prepare(tensors | {"reward_BT": 2 * told})
    found = step_metrics({"score": torch.tensor([9.0, -9.0, 9.0]), "turn": torch.tensor([0, 0, 1]),
                          "good": torch.tensor([1, 0, 1])})  # fmt: skip
    assert found["step_brier"] < 1e-6 and found["step_brier_of_turn"] == pytest.approx(1 / 6)


@pytest.mark.parametrize("over", ["pairs", "groups"])
def test_shares_of_micro_batches_add_up_and_padding_does_not_count(over: str) -> None:
    """Two groups, of six pairs and of one: the whole is the sum of the parts; wider rows change nothing."""
    one, other = scored(FOUR, [4, 3, 2, 1]), scored([0.1, 0.6], [1, 0])
    widest = max(t["score_BT"].shape[1] for t in (one, other)) + 3

    def wider(tensors: dict[str, Tensor], group: int) -> dict[str, Tensor]:
        made = {
            name: torch.nn.functional.pad(t, (0, widest - t.shape[1]), value=0 if t.dtype == torch.bool else 5)
            if name.endswith("_BT") else t for name, t in tensors.items()
        }  # fmt: skip
        return made | {"group_B": torch.full_like(t["group_B"], group) if (t := tensors) else None}

    parts = [wider(one, 0), wider(other, 1)]
    parts[1]["trajectory_B"] = parts[1]["trajectory_B"] + 10
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    for objective in (compared(over=over), RankedScores(name="t")):
        counted = objective.count(whole)
        shares = [float(objective.loss(part | counted)[0]) for part in parts]
        assert sum(shares) == pytest.approx(float(objective.loss(whole | counted)[0]), abs=1e-12)
    own = [loss(compared(), part) for part in parts]
    mean = (own[0] + own[1]) / 2 if over == "groups" else (6 * own[0] + own[1]) / 7
    assert loss(compared(over=over), whole) == pytest.approx(mean, abs=1e-12)


def test_gradient_reaches_the_scored_tokens_alone() -> None:
    tensors = scored([0.2, 0.4, 0.4], [1, 0, 0])
    tensors["score_BT"].requires_grad_()
    objective = compared(centring=0.01)
    prepared = objective.prepare(tensors)
    total, metrics = objective.loss(tensors | objective.count(tensors))
    total.backward()
    is_moved_BT = tensors["score_BT"].grad != 0
    assert torch.equal(is_moved_BT, prepared["is_scored_BT"]) and int(is_moved_BT.sum()) == 3
    values = metric_values(metrics)
    assert values["reward_accuracy"] == 0.0 and values["shorter_wins"] == 1.0
    assert compared().prepare(scored([0, 0, 0], [1, 1, 0]))["keep_B"].all()
    assert not compared().prepare(scored([0, 0], [1, 1]))["keep_B"].any()  # a tie is no pair


def test_verdicts_by_hand() -> None:
    """Lengths are 2, 4 and 6 tokens; equal returns are not compared."""
    found = judge(tensors := scored([0.0, 1.0, 3.0], [1, 0, 1]), tensors["score_BT"])
    assert found.table_PC.tolist() == [[0, -1.0, 2, 4], [0, 2.0, 6, 4]]
    assert found.metrics()["success"] == 0.5 and found.metrics()["shorter_wins"] == 0.5
    # groups 0 and 1; the second has three pairs of equal length
    table = [[0, 1.0, 10, 20], [1, 1.0, 10, 11], [1, -2.0, 10, 10], [1, 0.0, 11, 10]]
    metrics = Verdicts(torch.tensor(table, dtype=torch.float64)).metrics()
    assert metrics["success"] == pytest.approx((1 + 0.5) / 2) and metrics["shorter_wins"] == 0.75
    assert (metrics["equal_length_pairs"], metrics["equal_length_success"]) == (3.0, 0.5)
    sure = [1 / (1 + math.exp(-m)) for m in (1, 2, 0)]
    gaps = [abs(2 * (1 - sure[0])), abs(0 - sure[1]), abs(0.5 - sure[2])]
    assert metrics["calibration_error"] == pytest.approx(sum(gaps) / 4)
    assert Verdicts(torch.zeros(0, 4)).metrics() == {}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: compared(centring=-1), "centring=-1 must be finite and >= 0"),
        (lambda: compared(over="all"), "over=all must be pairs or groups"),
        (lambda: compared(margin=margins.sequence_kl), "a reward model has none: use algo/margin=none"),
        (lambda: RankedScores(name="t", first=0), "first=0 must be a whole number >= 1, or null"),
        (lambda: RankedScores(name="t", centring=math.nan), "centring=nan must be"),
        (lambda: LabelledSteps(name="t", label=unpaired.above, last=1), "last=1 must be true or false"),
    ],
)
def test_constants_that_make_no_sense(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_signs_of_costs() -> None:
    """A cost at `zero_at` is harmless; a pair that both cost too much pushes both up."""
    model = compared(zero_at=1.0)
    assert model.score_kind == "cost" and compared().score_kind == "score"
    tensors = scored([0.0, 0.0], [3, 2])
    tensors["score_BT"].requires_grad_()
    found = model.prepare(tensors)
    assert found["is_costly_BT"].any(1).tolist() == [True, True]
    assert model.prepare(scored([0.0, 0.0], [3, 1]))["is_costly_BT"].any(1).tolist() == [True, False]
    model.loss(tensors | found | model.count(tensors))[0].backward()
    pulls = tensors["score_BT"].grad
    assert pulls is not None and sorted(pulls[pulls != 0].tolist()) == pytest.approx(
        [-1.0]
    )  # the other: 0.5 - 0.5
    told = {
        "score": torch.tensor([1.0, -1.0, 0.0, 2.0]),
        "is_costly": torch.tensor([True, True, False, False]),
    }
    assert sign_metrics(told) == {"sign_accuracy": 0.5, "costly_share": 0.5}
    assert sign_metrics({name: value[:0] for name, value in told.items()}) == {}
