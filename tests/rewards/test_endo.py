"""A model's own logits as reward: the worked numbers, a row at a time by hand, the mean, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_agentrl.episode import Episode
from lit_agentrl.models.policy import Policy
from lit_agentrl.rewards.learned.endo import Endogenous, compute_endogenous_rewards
from lit_agentrl.rewards.pipeline import RewardPipeline
from tests.conftest import nano_tokenizer, tiny_policy
from tests.rewards.conftest import context, episode, turn


def test_worked_numbers_and_the_sum_of_an_episode() -> None:
    """Logits [1, 0] and [0.5, 2] with actions 0 and 1; rewards sum to log pi + V of the first state."""
    logits_AV, taken_A = torch.tensor([[1.0, 0.0], [0.5, 2.0]]), torch.tensor([1.0, 2.0])
    value_A = torch.logsumexp(logits_AV, -1)
    found = compute_endogenous_rewards(taken_A, value_A)
    assert found.tolist() == pytest.approx([-1.201413, 2.0], abs=1e-6)
    logp = torch.log_softmax(logits_AV, -1)[[0, 1], [0, 1]].sum()
    assert float(found.sum()) == pytest.approx(float(logp + value_A[0]), abs=1e-6)
    shifted = compute_endogenous_rewards(
        taken_A + 3, value_A + 3
    )  # logits are known up to a constant of each state
    assert (shifted - found).tolist() == pytest.approx([0.0, 3.0], abs=1e-6)


def saved(folder: Path, seed: int = 0) -> str:
    torch.manual_seed(seed)
    policy = Policy(tiny_policy().network, nano_tokenizer(), "tiny")
    for weight in policy.network.parameters():
        weight.data += 0.05 * seed * torch.randn_like(weight)
    (folder / f"run{seed}" / "hf").mkdir(parents=True)
    policy.save(folder / f"run{seed}" / "hf")
    return str(folder / f"run{seed}")


def made(path: str, **options: Any) -> Endogenous:
    part = Endogenous(path=path, **options)
    part.name = "endo"
    part.setup(context())
    return part


def played() -> list[Episode]:
    """Two turns in a row, two rows, one long turn."""
    first = [turn(3, reward=1.0), turn(5, reward=2.0, reward_parts={"invalid": -0.1})]
    rows = [turn(2), turn(4, starts_row=True, sampled=[9, 3, 9, 4])]
    return [
        episode(first, success=True),
        episode(rows, member=1),
        episode([turn(9, sampled=[3] * 9)], member=2),
    ]


def by_hand(part: Endogenous, each: Episode) -> list[float]:
    """One row at a time, a token at a time, each against all logits of its row."""
    taken, values, owners, tokens = [], [], [], []
    with torch.no_grad():
        for number, played_turn in enumerate(each.turns):
            fresh = played_turn.prefix_tokens.tolist()
            tokens = [*([] if played_turn.starts_row else tokens), *fresh]
            for token in played_turn.reply_tokens.tolist():
                logits_V = part._network(torch.tensor([tokens])).logits[0, -1].double() / part.temperature
                taken.append(part.temperature * float(logits_V[token]))
                values.append(part.temperature * float(logits_V.exp().sum().log()))
                owners.append(number)
                tokens.append(token)
    sums = [0.0] * len(each.turns)
    for owner, logit, after in zip(owners, taken, [*values[1:], 0.0], strict=True):
        sums[owner] += logit - after
    return sums


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_values_are_those_of_the_network_and_stand_at_their_turns(tmp_path: Path, temperature: float) -> None:
    path, episodes = saved(tmp_path), played()
    plain = made(path, centre=False, temperature=temperature, tokens_per_batch=1)
    hand = [by_hand(plain, each) for each in episodes]
    together = made(path, centre=False, temperature=temperature)
    for part in (plain, together):
        for found, expected in zip(part.values(episodes), hand, strict=True):
            assert found == pytest.approx(expected, abs=1e-4)
    centred = made(path, temperature=temperature).values(episodes)
    mean = sum(map(sum, hand)) / 3
    assert centred[0] == pytest.approx([hand[0][0], hand[0][1] - mean], abs=1e-4)
    assert sum(map(sum, centred)) == pytest.approx(0.0, abs=1e-4)
    backwards = made(path, temperature=temperature).values(episodes[::-1])
    assert backwards[::-1] == [pytest.approx(row, abs=1e-5) for row in centred]
    game = [[t.reward for t in e.turns] for e in episodes]
    told = made(path, centre=False, temperature=temperature, weight=2.0).apply(game, episodes, iteration=0)
    assert told[0] == pytest.approx([2 * hand[0][0], 2 * hand[0][1] - 0.1], abs=1e-4)
    beside = made(path, centre=False, temperature=temperature, replaces=False)
    found = beside.apply(game, episodes, iteration=0)
    assert found[0] == pytest.approx([1 + hand[0][0], 2 + hand[0][1]], abs=1e-4)


def test_it_is_watched_and_knows_its_model_again(tmp_path: Path) -> None:
    path, episodes = saved(tmp_path), played()
    pipeline = RewardPipeline({"endo": Endogenous(path=path)})
    pipeline.setup(context())
    pipeline.score(episodes, iteration=0)
    row = pipeline.learn(episodes, iteration=0)
    assert {"reward/endo_score", "reward/endo_success", "reward/endo_auc", "reward/endo_gap"} <= row.keys()
    state = json.loads(json.dumps(pipeline.parts["endo"].state_dict()))
    made(path).load_state_dict(state)
    with pytest.raises(
        ValueError, match=r"reward\.endo\.path=.* this run was trained on .*; put the model back"
    ):
        made(saved(tmp_path, seed=1)).load_state_dict(state)


def test_what_makes_no_sense_is_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path)
    for options, said in (
        ({"path": "/no/such"}, "path=/no/such is not there"),
        ({"path": str(tmp_path)}, "holds no model: no config.json in it"),
        ({"path": ""}, "path="),
        ({"weight": 0.0}, "weight=0 would set all rewards to 0"),
        ({"weight": float("nan")}, "weight=nan must be finite and >= 0"),
        ({"temperature": 0.0}, "temperature=0.0 must be finite and > 0"),
        ({"centre": "no"}, "centre=no must be true or false"),
        ({"tokens_per_batch": 0}, "tokens_per_batch=0"),
    ):
        with pytest.raises(ValueError, match=said):
            Endogenous(**({"path": path} | options))
    (Path(path) / "hf" / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^reward\.endo\.path=.* could not be loaded"):
        made(path)
