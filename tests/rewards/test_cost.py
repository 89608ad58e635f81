"""A trained cost model: what it says is what training counts as cost, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lit_agentrl.cli.train import main as main_train
from lit_agentrl.facts import COSTS
from lit_agentrl.rewards.base import Rewards
from lit_agentrl.rewards.function import Function
from lit_agentrl.rewards.learned.cost import LearnedCost
from lit_agentrl.rewards.learned.model import Learned
from lit_agentrl.rewards.pipeline import RewardPipeline
from lit_agentrl.rollout.pack import pack
from tests.rewards.conftest import context
from tests.rewards.test_model import model, part, played


def costs(path: str) -> LearnedCost:
    made = LearnedCost(path=path)
    made.name = "cost"
    made.setup(context())
    return made


def test_its_score_is_the_cost_of_an_episode_and_points_stay(tmp_path: Path) -> None:
    of_costs, of_rewards = model(tmp_path, kind="cost"), model(tmp_path)
    episodes = played()
    episodes[0].turns[0].cost = 5.0
    pipeline = RewardPipeline({"cost": costs(of_costs)})
    assert COSTS in costs(of_costs).provides and COSTS not in part(of_rewards).provides
    pipeline.score(episodes, iteration=0)
    raw = [
        0.25 + 2 * row[-1] for row in part(of_rewards).values(episodes)
    ]  # the same weights, not standardised
    told = [[turn.told_cost for turn in each.turns] for each in episodes]
    assert [row[-1] for row in told] == pytest.approx(raw) and told[0][0] == 0.0 and told[1][0] == 0.0
    assert [turn.training_reward for turn in episodes[0].turns] == [1.0, 2.0]
    assert episodes[0].total_cost == 5.0, "what is reported stays the game's"
    packed = pack(episodes).cost_BT.sum(1)
    assert packed.tolist() == pytest.approx([raw[0], 0.0, raw[1], raw[2]], rel=1e-6)
    row = pipeline.learn(episodes, iteration=0)
    assert row["reward/cost_score"] == pytest.approx(sum(raw) / 3) and "reward/cost" not in row
    assert row["reward/cost_costly_share"] == pytest.approx(sum(each > 0 for each in raw) / 3)


class Twice(Function):
    """A function that also tells costs."""

    def costs(self, episodes: Any) -> Rewards:
        return [[1.0] * len(each.turns) for each in episodes]


def test_costs_of_parts_add_up_and_a_wrong_shape_is_named(tmp_path: Path) -> None:
    def nothing(turn: Any, episode: Any) -> float:
        return 0.0

    episodes = played()
    alone = RewardPipeline({"cost": costs(model(tmp_path, kind="cost"))})
    alone.score(episodes, iteration=0)
    before = [turn.told_cost or 0.0 for each in episodes for turn in each.turns]
    both = RewardPipeline({**alone.parts, "twice": Twice(fn=nothing, weight=1.0)})
    for _ in range(2):  # a second wave scores all episodes again
        both.score(episodes, iteration=0)
        assert [turn.told_cost for each in episodes for turn in each.turns] == pytest.approx(
            [cost + 1 for cost in before]
        )
    both.parts["twice"].costs = lambda given: [[float("nan")]] * len(given)  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"reward\.twice must give one finite number for every turn"):
        both.score(episodes, iteration=0)


@pytest.mark.slow
def test_costs_that_nothing_reads_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model(tmp_path, kind="cost")
    with pytest.raises(SystemExit):
        main_train(["reward=cost", f"reward.cost.path={path}", f"hydra.run.dir={tmp_path / 'run'}"])
    assert (
        "needs an algorithm that reads the costs of episodes, not given by algo=grpo: it sets"
        in capsys.readouterr().err
    )


def test_models_of_the_other_kind_and_other_weights_are_refused(tmp_path: Path) -> None:
    of_costs, of_rewards = model(tmp_path, kind="cost"), model(tmp_path)
    with pytest.raises(
        ValueError,
        match="holds a model of algo=cost, which is used as reward=cost; set that, or name a model for reward=model",
    ):
        Learned(path=of_costs)
    with pytest.raises(
        ValueError,
        match="holds a model of algo=score, which is used as reward=model; set that, or name a model for reward=cost",
    ):
        LearnedCost(path=of_rewards)
    saved = costs(of_costs).state_dict()
    costs(of_costs).load_state_dict(saved)
    with pytest.raises(
        ValueError, match=r"reward\.cost\.path=.* and this run was trained on .*; put the model back"
    ):
        costs(model(tmp_path, seed=1, kind="cost")).load_state_dict(saved)
