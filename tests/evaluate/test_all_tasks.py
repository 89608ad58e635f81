"""``episodes=all``: each task of a finite world exactly once, in its order."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path

import pytest

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.config.errors import UserError
from lit_agentrl.data.prompts import EvalSpec, make_evaluation_key
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.games.bandit import Bandit
from lit_agentrl.envs.games.wordle import Wordle
from lit_agentrl.envs.pocket.game import PocketWorld
from lit_agentrl.envs.tasks.dataset import Dataset
from lit_agentrl.evaluate.all_tasks import choose_tasks, list_numbers
from tests.commands import Refused

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def write_rows(**counts: int) -> dict[str, str]:
    """Write a file of so many rows for each split, of which two and two are alike."""
    for split, count in counts.items():
        rows = [{"question": f"{split} {i // 2}", "answer": str(i // 2)} for i in range(count)]
        Path(f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {split: f"{split}.jsonl" for split in counts}


def test_each_row_of_a_split_is_played_once_in_its_order() -> None:
    task = Task("dataset", partial(Dataset, path=write_rows(train=9, val=5, test=37)))
    [spec] = choose_tasks([EvalSpec(0, 1)], [task], "test")
    assert spec.numbers is not None and spec.prompts == len(set(spec.numbers)) == 37
    env = task.make("test")
    seen = [env.reset(seed=make_evaluation_key("test", number))[0] for number in spec.numbers]
    assert seen == [f"test {i // 2}" for i in range(37)]  # rows that are alike count each
    assert len(list_numbers(task, "train")) == 9


@pytest.mark.parametrize("game", [Wordle, PocketWorld])
def test_finite_games_are_listed_whole(game: type) -> None:
    task = Task("game", game, max_turns=16, max_actions_per_turn=1, max_actions=16)
    numbers = list_numbers(task, "val")
    env = task.make("val")
    found = {env.reset(seed=make_evaluation_key("test", number))[1]["instance_id"] for number in numbers}
    assert len(numbers) == env.instances == len(found)


def test_a_game_without_a_list_of_tasks_is_refused() -> None:
    with pytest.raises(UserError, match="episodes=all: bandit has no list of tasks.*episodes=512"):
        list_numbers(Task("bandit", Bandit), "test")


@pytest.mark.slow
def test_a_model_is_evaluated_on_every_row(refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    files = write_rows(train=9, val=5, test=60)
    path = ", ".join(f"{split}: {name}" for split, name in files.items())
    limits = "rollout.max_reply_tokens=4 rollout.max_context_tokens=64"
    main_evaluate(shlex.split(f"model=nano env=dataset 'env.game.path={{{path}}}' episodes=all {limits}"))
    assert "plays 60 episodes of dataset" in capsys.readouterr().out
    [file] = Path("outputs/evaluations").iterdir()
    [record] = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert record["success"]["n"] == len(record["solved"]) == 60
    assert "has no list of tasks" in refused("model=nano env=bandit episodes=all", main_evaluate)
    assert "a whole number from 1 to 1000000, or all" in refused(
        "model=nano env=bandit episodes=every", main_evaluate
    )
