"""Prompts from files: bad rows are named, no question is in two splits, and a function says what answers are worth."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from examples.own_data.verify import verify
from lit_agentrl.build.games import Games, describe_repeated_rows
from lit_agentrl.config.composition import compose_job, format_search_path
from lit_agentrl.data.prompts import EvalSpec
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.checker import check_env
from lit_agentrl.envs.levels import find_levels, locate_levels, make_level_key, measure
from lit_agentrl.envs.tasks.dataset import Dataset, Verdict, exact
from lit_agentrl.paths import CONFIG_DIR

ROOT = Path(__file__).parents[2]
CONF = CONFIG_DIR / "env/dataset.yaml"
SUMS = [{"question": f"{a} + {b} ?", "answer": a + b} for a in range(10) for b in range(10)]
GOOD = b'{"question": "1 + 1 ?", "answer": 2}\n'


def write(path: Path, rows: list[Any] | bytes = SUMS) -> str:
    text = rows if isinstance(rows, bytes) else "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(text)
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(tmp_path / "sums.jsonl")


def task(path: str, **options: Any) -> Task:
    cfg = OmegaConf.load(CONF)
    cfg.game.path = path
    made: Task = instantiate(OmegaConf.merge(cfg, options))
    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_turns": 3},
        {"game": {"reference": None, "reward": {"_target_": "tests.envs.test_dataset.even"}}},
    ],
)
def test_it_keeps_the_contract(path: str, options: dict[str, Any]) -> None:
    check_env(task(path, **options).make, episodes=4)


def even(*, answer: str) -> float:
    return float(answer.isdigit() and int(answer) % 2 == 0)


def test_splits_share_the_rows_and_no_question(path: str) -> None:
    envs = {split: Dataset(path=path, split=split) for split in ("train", "val", "test")}
    assert sum(env.instances or 0 for env in envs.values()) == len(SUMS)
    seen = {split: {env.reset(seed=seed)[0] for seed in range(400)} for split, env in envs.items()}
    assert {split: len(questions) for split, questions in seen.items()} == {
        split: env.instances for split, env in envs.items()
    }
    assert len(set().union(*seen.values())) == len(SUMS)
    spaced = [{**row, "question": f"  {row['question'].replace(' ', '  ')}"} for row in SUMS]
    twice = Dataset(path=write(Path(path).with_name("twice.jsonl"), [*SUMS, *spaced]))
    assert twice.instances == 2 * (envs["train"].instances or 0), "white space makes no other question"


def test_a_split_has_a_file_of_its_own_or_its_share_of_train(path: str, tmp_path: Path) -> None:
    own = write(tmp_path / "test.jsonl", [{"question": "what is 20 + 1 ?", "answer": "21"}])
    files = {"train": path, "test": own}
    sizes = {split: Dataset(path=files, split=split).instances for split in ("train", "val", "test")}
    alone = {split: Dataset(path=path, split=split).instances or 0 for split in ("train", "val", "test")}
    assert sizes == {"train": alone["train"] + alone["test"], "val": alone["val"], "test": 1}
    clash = write(tmp_path / "clash.jsonl", [*SUMS[:3], {"question": " 9 +  9 ?", "answer": 18}])
    with pytest.raises(
        ValueError, match=r"clash.jsonl line 1: column question is that of .*sums.jsonl line 1, and"
    ):
        Dataset(path={"train": path, "test": clash})
    with pytest.raises(ValueError, match=r"few.jsonl: none of 1 rows is in the split \w+; .*test: FILE\}$"):
        Dataset(path=write(tmp_path / "few.jsonl", GOOD))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"question": "a", "answer": ', r"it is no JSON \(Expecting value, character 28\); write one object a line"),
        (b"[1]", r'it is no object; write {"column": value, …}'),
        (b"{}", r"column question is missing \(there are none\); fill it in, or name another with question=COLUMN"),
        (b'{"question": "a", "x": 1}', r"column answer is missing \(there are question, x\); .* with reference=COLUMN"),
        (b'{"question": "a", "answer": null}', r"column answer is empty; fill it in, or name another with"),
        (b'{"question": " ", "answer": 1}', r"column question is ' '; write a text that is not blank"),
        (b'{"question": 3, "answer": 1}', r"column question is 3; write a text that is not blank"),
        (b'{"question": "a", "answer": ""}', r"column answer is blank; fill it in"),
        (b'{"question": "a", "answer": [1]}', r"column answer is \[1\]; write a text, .*, or set reference=null"),
        (b'{"question": "a", "answer": 1e999}', r"column answer is inf; write a text, a finite number"),
        (b'{"question": "a", "answer": NaN}', r"NaN is no number of JSON; write a finite one"),
        (b'{"question": "a", "answer": 1' + b"0" * 5000 + b"}", r"a number has 5001 digits; write it as text"),
        (b'{"question": "\xff", "answer": 1}', r"it is not UTF-8 \(byte 15 of the line\); save the file as UTF-8"),
        (b'{"question": "a", "question": "b"}', r"column question occurs twice; keep one"),
        (rb'{"question": "\ud800", "answer": 1}', r"column question holds half a character .*; write it whole"),
        (b"[" * 100_000, r"it is nested too deeply; make it flat"),
    ],
    ids=map(str, range(16)),
)  # fmt: skip
def test_a_bad_row_is_named_with_file_line_column_and_remedy(
    tmp_path: Path, line: bytes, message: str
) -> None:
    path = write(tmp_path / "bad.jsonl", b"\xef\xbb\xbf" + GOOD + b"\r\n" + line + b"\n")
    with pytest.raises(ValueError, match=rf"^path={path} line 3: {message}") as caught:
        Dataset(path=path)
    assert "\n" not in str(caught.value)


def test_bad_rows_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 2: .* \(the first of 2 bad rows\)$"):
        Dataset(path=write(tmp_path / "bad.jsonl", GOOD + b"1\n2\n"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("http://h/a.jsonl", r"path=http://h/a.jsonl is an address; download the file"),
        ("none.jsonl", r"path=none.jsonl does not exist; looked for .*none.jsonl"),
        ("rows.txt", r"path=rows.txt must be a file that ends in .jsonl, .json, .csv or .parquet"),
        (
            {"val": "sums.jsonl"},
            r"path=\{val: sums.jsonl\} must name a file for train, as in path=\{train: FILE, test: FILE\}",
        ),
        ({"train": "sums.jsonl", "dev": "a.jsonl"}, r"path.dev=a.jsonl: the splits are train, val, test"),
    ],
)
def test_a_bad_path_is_named(
    path: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "sums.jsonl")
    with pytest.raises(ValueError, match=f"^{message}"):
        Dataset(path=path)
    with pytest.raises(ValueError, match=rf"^game\.{message}"):
        task(path).make("train")


def test_parquet_is_read_as_jsonl_is(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra data is not installed")
    table = tmp_path / "sums[1].parquet"
    datasets.Dataset.from_list([*SUMS]).to_parquet(str(table))
    a, b = Dataset(path=path, split="val"), Dataset(path=str(table), split="val")
    assert a.instances == b.instances
    for seed in range(5):
        assert a.reset(seed=seed) == b.reset(seed=seed)
        assert a.optimal_actions(horizon=1) == b.optimal_actions(horizon=1)
    datasets.Dataset.from_list([*SUMS, {"question": "?", "answer": None}]).to_parquet(str(table))
    with pytest.raises(ValueError, match=r"sums\[1\].parquet row 101: column answer is empty; fill it in"):
        Dataset(path=str(table))
    with pytest.raises(ValueError, match=r"cannot be read as Parquet \(.*\); write it again"):
        Dataset(path=write(tmp_path / "no.parquet", b"PAR1 nothing"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install 'datasets>=4', or save the rows as JSONL"):
        Dataset(path=write(tmp_path / "other.parquet", b"PAR1"))


def test_questions_are_messages_and_references_nested(tmp_path: Path) -> None:
    """As verl writes them."""
    asked = [{"role": "user", "content": "1 + 1"}]
    row = {"data_source": "sums", "prompt": asked, "reward_model": {"style": "rule", "ground_truth": "2"}}
    rules = {"role": "system", "content": "Add."}
    names = {"question": "prompt", "reference": "reward_model.ground_truth"}
    files = {split: write_rows(tmp_path, f"{split}.json", [row]) for split in ("train", "val")}
    files["test"] = write_rows(
        tmp_path, "test.json", [row | {"prompt": [rules, {"role": "user", "content": "2 + 2"}]}]
    )
    with pytest.raises(ValueError, match="a question in both train and val would be trained on"):
        Dataset(path=files, **names)
    files["val"] = write_rows(
        tmp_path, "val.json", [row | {"prompt": [{"role": "user", "content": "1 + 2"}]}]
    )
    assert Dataset(path=files, **names).reset(seed=0)[0] == "1 + 1"
    assert Dataset(path=files, **names, split="test").reset(seed=0)[0] == "Add.\n\n2 + 2"
    assert Dataset(path=files, **names).optimal_actions(horizon=1) == ["2"]
    with pytest.raises(
        ValueError, match=r"there are data_source, prompt, reward_model.style, reward_model.ground_truth"
    ):
        Dataset(path=files)
    talk = [*asked, {"role": "assistant", "content": "2"}, *asked]
    files["val"] = write_rows(tmp_path, "val.json", [row | {"prompt": talk}])
    with pytest.raises(
        ValueError, match=r"row 1: column prompt is a dialogue of several turns; write one message"
    ):
        Dataset(path=files, **names)


def write_rows(folder: Path, name: str, rows: list[Any]) -> str:
    (folder / name).write_text(json.dumps(rows))
    return str(folder / name)


def near(*, answer: str, reference: str, turn: int, weight: float = 1.0, unit: str = "") -> Verdict | float:
    """A reward with a constant, a column that not every row has, and words for a wrong answer."""
    if answer == reference:
        return 1.0 + weight
    return Verdict(-weight, False, f"try {turn}{unit}: too {'high' if answer > reference else 'low'}")


def test_an_episode_of_several_tries_played_by_hand(tmp_path: Path) -> None:
    rows = [{"q": f"number {n} ?", "a": "5", "unit": "m"} for n in range(60)]
    options = {"question": "q", "reference": "a", "reward": partial(near, weight=0.5), "tries": 3}
    env = Dataset(path=write(tmp_path / "rows.jsonl", rows), **options)
    question, _ = env.reset(seed=0)
    observation, reward, is_over, _, info = env.step("7")
    assert (observation, reward, is_over) == (f"try 0m: too high\n{question}", -0.5, False)
    assert info["reward_parts"] == {"answer": -0.5} and not info["success"]
    copy = pickle.loads(pickle.dumps(env))
    for each in (env, copy):
        assert each.step("3")[0] == f"try 1m: too low\n{question}"
        assert each.optimal_actions(horizon=1) == ["5"]
        _, reward, is_over, _, info = each.step("5")
        assert (reward, is_over, info["success"]) == (1.5, True, True)
    short = Dataset(path=str(tmp_path / "rows.jsonl"), **options, repeat_question=False)
    short.reset(seed=0)
    assert [short.step("7")[:3] for _ in range(3)] == [
        ("try 0m: too high", -0.5, False), ("try 1m: too high", -0.5, False), ("try 2m: too high", -0.5, True),
    ]  # fmt: skip


def test_without_words_of_the_reward_the_option_is_shown(path: str) -> None:
    env = task(path, max_turns=2, game={"retry": "No."}).make("train")
    question, _ = env.reset(seed=3)
    assert env.step("x")[0] == f"No.\n{question}"
    assert task(path, max_turns=2).action_budget == 2
    assert env.system_text == "Answer the question."


def test_exact_leaves_white_space_and_case_aside() -> None:
    assert exact(answer=" the  Answer", reference="The answer\n")
    assert not exact(answer="42", reference="4 2")


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            lambda answer: answer.nothing,
            r"fails on .*sums.jsonl line \d+ \(AttributeError: .*\); fix the function",
        ),
        (lambda answer: None, r"it must return a number, True, False or a Verdict, not None"),
        (lambda answer: float("nan"), r"nan points are not finite"),
        (lambda answer: sys.exit(3), r"fails on .* \(SystemExit: 3\)"),
        (lambda: 0.9, r"does not count the reference of .*sums.jsonl line \d+ itself as solved; fix"),
        (
            lambda answer, tests: 1,
            r"column tests is missing \(there are question, answer\); fill it in: the reward "
            "has this argument; it may name question, reference, answer, turn, or a column",
        ),
        (len, r"reward=builtins.len takes obj by position only; take it by name"),
        (3, r"reward=3 must be a function: a _target_ with _partial_: true"),
    ],
)
def test_a_reward_that_cannot_work_is_named_before_anything_is_played(
    path: str, reward: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset(path=path, reward=reward)


def test_a_reward_cannot_ask_for_references_that_are_not_there(path: str) -> None:
    with pytest.raises(ValueError, match=r"exact asks for reference, and reference=null; name its column"):
        Dataset(path=path, reference=None)
    env = Dataset(path=path, reference=None, reward=lambda answer: 1)
    assert env.random_action(np.random.default_rng(0)) is env.optimal_actions(horizon=1) is None


def test_levels_are_those_of_references_and_lie_beside_the_data(path: str) -> None:
    made = task(path)
    found = measure(made, "train", 200, seed=0)
    assert (found.oracle_success, found.oracle_return) == (1.0, 1.0)
    assert found.chance_success == pytest.approx(0.067, abs=0.06)  # two sums of a square of ten are equal
    assert locate_levels(made) == Path(path).with_name("levels.json")
    moved = write(Path(path).with_name("moved.jsonl"))
    assert make_level_key(task(moved), "val") == make_level_key(made, "val") != make_level_key(made, "test")
    assert make_level_key(
        task(moved, game={"reward": {"_target_": "tests.envs.test_dataset.even"}}), "val"
    ) != make_level_key(made, "val")
    write(Path(moved), SUMS[1:])
    assert make_level_key(task(moved), "val") != make_level_key(made, "val")
    assert (Dataset(path=moved).instances or 0) < (Dataset(path=path).instances or 0), (
        "a changed file is read anew"
    )


@pytest.mark.slow
@pytest.mark.sweep
def test_the_example_and_its_levels() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        cfg = compose_job("train", ["env=sums"], format_search_path(["examples/own_data/conf"]))
        made: Task = instantiate(cfg.env)
        check_env(made.make, episodes=4)
        shipped, now = find_levels(made, "val"), measure(made, "val", 100, seed=9000)
    assert shipped.oracle_success == now.oracle_success == 1.0
    assert shipped.chance_success == pytest.approx(0.75, abs=0.03), "two coins"
    assert now.chance_success == pytest.approx(0.75, abs=0.16)
    say = partial(verify, "3 + 4 or 9 ?")
    assert say("Right") == say(" < ") == Verdict(1.0, True, "no")
    assert say("left") == Verdict(0.0, False, "no") and say("7") == Verdict(-0.1, False, "Left or Right")
    with pytest.raises(ValueError, match=r"'3 or 9 \?' must read like"):
        verify("3 or 9 ?", "Left")


def test_a_file_that_changes_during_a_run_is_told(path: str) -> None:
    made = task(path)
    for split in ("train", "val", "train"):
        made.make(split)
    write(Path(path), SUMS[1:])
    with pytest.raises(
        ValueError, match=r"^game\.path=.*sums.jsonl has changed since the run began; start a new run"
    ):
        made.make("train")
    task(path).make("train")


def test_text_of_a_row_is_shown_as_it_is(tmp_path: Path) -> None:
    rows = [
        {"question": f"<|im_start|>assistant\n<answer>{n}</answer> ${{seed}} {{{{x}}}}", "answer": str(n)}
        for n in range(60)
    ]
    env = Dataset(path=write(tmp_path / "rows.jsonl", rows))
    observation, _ = env.reset(seed=0)
    assert observation in [row["question"] for row in rows]


def test_more_episodes_than_rows_are_said(path: str) -> None:
    games = Games([task(path)], [1.0], val=[EvalSpec(0, 500)], test=[EvalSpec(0, 1)])
    with closing(task(path).make("val")) as env:
        count = env.instances
    said = describe_repeated_rows(games)
    assert said.startswith(f"val draws 500 episodes of dataset from {count} row") and "test" not in said
    assert "evaluate.py episodes=all" in said
    assert not describe_repeated_rows(Games([task(path)], [1.0], val=[EvalSpec(0, 1)], test=[]))
