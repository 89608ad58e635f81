"""Several heads by hand: the mean of their losses, each with labels, pairs and a count of its own."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_agentrl.rl.objective import metric_values
from lit_agentrl.rl.preference import pairing, unpaired
from lit_agentrl.rl.preference.reward_losses import RankedScores
from lit_agentrl.rl.preference.several_heads import SeveralHeads, of_head
from lit_agentrl.rl.preference.step_labels import LabelledSteps, so_far
from tests.rl.test_reward_losses import compared, loss, scored

NAN = math.nan


def softplus(x: float) -> float:
    """``-log sigmoid(-x)``."""
    return math.log1p(math.exp(x))


def with_labels(scores: list[list[float]], labels: list[list[float]]) -> dict[str, Tensor]:
    """A group of episodes; a list for each head."""
    made = scored(scores[0], [0.0] * len(scores[0]))
    others = [scored(each, [0.0] * len(each))["score_BT"] for each in scores]
    made["score_BTH"] = torch.stack(others, dim=-1)
    made["label_BH"] = torch.tensor(labels, dtype=torch.float64).T.contiguous()
    del made["score_BT"]
    return made


def heads(one: Any, *names: str) -> SeveralHeads:
    return SeveralHeads(objective=one, names=names)


def prepared(objective: SeveralHeads, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    tensors = tensors | {name: t for name, t in objective.prepare(tensors).items() if t.dim()}
    return tensors | objective.count(tensors)


def test_two_heads_by_hand() -> None:
    """Of three episodes a ranks 1 > 2 = 3, two pairs; b ranks 3 > 2, one pair, and says nothing of 1."""
    tensors = with_labels([[1.2, 0.3, -0.1], [9.0, 0.5, 0.1]], [[1, 0, 0], [NAN, 1, 2]])
    both = heads(compared(), "a", "b")
    expected = (softplus(-0.9) + softplus(-1.3)) / 2, softplus(0.4)
    assert loss(both, tensors) == pytest.approx(sum(expected) / 2, abs=1e-9)
    ready = prepared(both, tensors)
    assert [int(ready[f"head{k}_num_compared"]) for k in (0, 1)] == [2, 1]
    told = metric_values(both.loss(ready)[1])
    assert told["head_a_reward_accuracy"] == 1.0 and told["head_b_reward_accuracy"] == 0.0
    assert told["reward_accuracy"] == pytest.approx(2 / 3)  # of the three pairs


@pytest.mark.parametrize(
    "one", [compared(centring=0.01), compared(over="groups"), compared(pairing=pairing.best_worst),
            RankedScores(name="t"), LabelledSteps(name="t", label=partial(unpaired.above, threshold=1.0))],
)  # fmt: skip
def test_one_head_is_the_objective_itself_to_the_bit(one: Any) -> None:
    plain = scored([1.2, 0.3, -0.1, 0.7], [2, 0, 3, 0])
    named = {n: t for n, t in plain.items() if n != "score_BT"}
    named |= {"score_BTH": plain["score_BT"][..., None], "label_BH": plain["return_B"][:, None]}
    named["return_B"] = torch.full_like(plain["return_B"], 5.0)  # it counts for nothing
    results = []
    for objective, tensors, column in ((one, plain, "score_BT"), (heads(one, "a"), named, "score_BTH")):
        score = tensors[column].clone().requires_grad_()
        tensors = tensors | {n: t for n, t in objective.prepare(tensors).items() if t.dim()}
        value, _ = objective.loss(tensors | objective.count(tensors) | {column: score})
        results.append((value, torch.autograd.grad(value, score)[0].view(plain["score_BT"].shape)))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert float(results[0][1].abs().sum()) > 0


def test_what_has_no_label_has_no_part() -> None:
    """Neither in the loss of that head nor in the gradient of its score; to the other one it counts."""
    both = heads(compared(centring=0.01), "a", "b")
    tensors = with_labels([[1.0, 0.2, 0.5], [0.3, 0.6, -0.4]], [[1, 0, NAN], [0, 1, 2]])
    score = tensors["score_BTH"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(both.loss(prepared(both, tensors) | {"score_BTH": score})[0], score)
    is_end_BT = tensors["is_action_BT"] & ~tensors["is_action_BT"].roll(-1, 1)
    last_B = (is_end_BT * torch.arange(is_end_BT.shape[1])).argmax(1)
    at_end = gradient[torch.arange(3), last_B]
    assert bool((at_end != 0).equal(torch.tensor([[True, True], [True, True], [False, True]])))
    gradient[torch.arange(3), last_B] = 0
    assert not bool(gradient.any())  # nothing but the ends counts


def test_a_row_that_one_head_drops_is_not_met_again_through_the_other() -> None:
    """Best against worst of a is (1, 3); b keeps 2 too, whose label lies between."""
    both = heads(compared(pairing=pairing.best_worst), "a", "b")
    tensors = with_labels([[1.0, 0.5, 0.2], [0.4, 0.8, 0.1]], [[3, 2, 1], [1, 3, 2]])
    found = both.prepare(tensors)
    assert bool(found["keep_B"].all())
    assert found["head0_return_B"].isnan().tolist() == [False, True, False]
    assert loss(both, tensors) == pytest.approx((softplus(-0.8) + softplus(-0.4)) / 2, abs=1e-9)


def test_padding_order_and_cuts_into_groups_change_nothing() -> None:
    both = heads(compared(centring=0.01), "a", "b")
    parts = [
        with_labels([[1.0, 0.2, 0.5], [0.3, 0.6, -0.4]], [[1, 0, NAN], [0, 1, 2]]),
        with_labels([[0.1, 0.9, 0.4], [0.3, -0.2, 0.8]], [[1, 0, 2], [1, 1, 1]]),  # b ties
    ]
    parts[1]["group_B"] += 1
    parts[1]["trajectory_B"] += 3
    parts[1]["tokens_BT"] += 1000
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    expected = loss(both, whole)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    assert loss(both, {name: t[order] for name, t in whole.items()}) == pytest.approx(expected, abs=1e-12)
    wide = {
        name: torch.cat([t, torch.zeros_like(t[:, :2])], dim=1)
        if t.dim() > 1 and t.shape[1] == whole["tokens_BT"].shape[1]
        else t
        for name, t in whole.items()
    }
    assert wide["tokens_BT"].shape[1] == whole["tokens_BT"].shape[1] + 2
    assert loss(both, wide) == pytest.approx(expected, abs=1e-12)
    ready = prepared(both, whole)
    shares = 0.0
    for group in (0, 1):
        rows = ready["group_B"] == group
        shares += float(both.loss({n: t[rows] if t.dim() else t for n, t in ready.items()})[0])
    assert shares == pytest.approx(expected, abs=1e-12)


def test_rows_that_only_take_part_count_for_no_head() -> None:
    """Their return is NaN; what the heads made of them is 0, as of any filler."""
    both = heads(compared(), "a", "b")
    ready = prepared(both, with_labels([[1.0, 0.2], [0.3, 0.6]], [[1, 0], [0, 1]]))
    expected = float(both.loss(ready)[0])
    more = {n: torch.cat([t, torch.zeros_like(t[:1])]) if t.dim() else t for n, t in ready.items()}
    more["return_B"] = torch.tensor([0.0, 0.0, NAN], dtype=torch.float64)
    more["is_action_BT"][2] = more["is_action_BT"][0]
    more["trajectory_B"][2] = -1
    assert math.isnan(float(of_head(more, 1)["return_B"][2]))
    assert float(both.loss(more)[0]) == pytest.approx(expected, abs=1e-12)
    alone = {n: t[2:] if t.dim() else t for n, t in more.items()}
    assert float(both.loss(alone)[0]) == 0.0


def test_what_cannot_be_repeated_is_refused() -> None:
    with pytest.raises(ValueError, match=r"score=\[a,b\] makes several heads, and algo=test trains one"):
        heads(compared(zero_at=0.0), "a", "b")
    with pytest.raises(ValueError, match="algo/label as it stands reads none of them"):
        heads(LabelledSteps(name="t", label=so_far), "a", "b")
