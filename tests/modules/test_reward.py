"""A reward model as a module: its gradient, how it is judged, its folder, and that a resumed run is the whole run."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose
from hydra.utils import instantiate
from torch import Tensor

from lit_agentrl.batch import StepBatch
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.composition import initialize_hydra
from lit_agentrl.models.reward_model import ABOUT, load_model, read_about
from lit_agentrl.modules.reward import RewardModule, measure_scale
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.rewards.learned.scoring import compute_turn_values
from lit_agentrl.rl.preference.several_heads import SeveralHeads
from lit_agentrl.text.token_bytes import hash_tokenizer
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.conftest import nano_tokenizer, tiny_policy
from tests.rl.test_algo_configs import REWARD_MODELS
from tests.update.bare import BareModule
from tests.update.conftest import recorded


class BareReward(RewardModule, BareModule):
    """With what a Trainer provides."""


def objective(name: str) -> Any:
    with initialize_hydra():
        section = compose("train", overrides=[f"algo={name}"]).algo
    del section.structure
    return instantiate(section)


def module_of(name: str | SeveralHeads, **update: Any) -> BareReward:
    sgd = OptimSettings(optimizer=partial(torch.optim.SGD), lr=1.0)
    settings = UpdateSettings(**({"tokens_per_microbatch": 10_000, "grad_clip": 1e9} | update))
    made = objective(name) if isinstance(name, str) else name
    module = BareReward(tiny_policy(), objective=made, update=settings, optim=sgd)
    module.prepare()
    return module


def change(name: str | SeveralHeads, batch: Any = None, **update: Any) -> dict[str, Tensor]:
    module = module_of(name, **update)
    before = {key: p.detach().clone() for key, p in module.named_parameters()}
    batch = batch or recorded()[1]
    columns = {} if isinstance(name, str) else labels(batch)
    module.training_step(StepBatch(0, [], [], [], trajectories=batch, columns=columns), 0)
    assert module.row["train/loss"] > 0 and "train/logp_gap" not in module.row
    return {key: p.detach() - before[key] for key, p in module.named_parameters()}


def two_heads() -> SeveralHeads:
    return SeveralHeads(objective=objective("bradley_terry"), names=["worth", "brief"])


def labels(batch: Any) -> dict[str, Tensor]:
    """The return, and an order of its own that says nothing of every fifth trajectory."""
    brief_B = torch.where(batch.trajectory_B % 5 == 0, math.nan, -(batch.trajectory_B % 3).float())
    return {"label_BH": torch.stack([batch.return_B, brief_B], dim=1)}


SLOW = [pytest.mark.slow, pytest.mark.sweep]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["bradley_terry", two_heads(), *(pytest.param(n, marks=SLOW) for n in REWARD_MODELS[1:])],
    ids=lambda each: each if isinstance(each, str) else "several_heads",
)
def test_how_rows_are_cut_and_packed_does_not_change_the_gradient(name: str | SeveralHeads) -> None:
    expected = change(name, packing=False)
    assert float(expected["head.linear.weight"].abs().max()) > 1e-4
    assert sum(float(v.abs().sum()) > 0 for v in expected.values()) > 5  # the network is trained too
    batch = recorded()[1]
    order = torch.randperm(batch.num_rows, generator=torch.Generator().manual_seed(1))
    for found in (
        change(name, packing=False, tokens_per_microbatch=1),
        change(name, batch.select(order), packing="shared"),
    ):
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, atol=3e-6, rtol=1e-4)


@pytest.mark.parametrize(("scores", "scale"), [([3.0], 1.0), ([3.0, 3.0], 1e-6), ([1.0, 3.0], math.sqrt(2))])
def test_the_scale_of_held_out_scores_is_a_number_above_0(scores: list[float], scale: float) -> None:
    assert float(measure_scale(torch.tensor(scores))) == pytest.approx(scale)


@pytest.mark.slow
def test_a_folder_is_read_back_to_the_bit_and_others_are_refused(tmp_path: Path) -> None:
    module = module_of("bradley_terry")
    batch = StepBatch(0, [], [], [], trajectories=recorded()[1], given={})
    module.log = lambda *args, **options: None  # type: ignore[method-assign]
    module.validation_step(batch, 0)
    assert module.row["val/pairs"] == sum(outcome.task_name == "pairs" for outcome in batch.outcomes) > 0
    folder = tmp_path / "hf"
    folder.mkdir()
    module.export(folder)
    spoken = hash_tokenizer(module.policy.tokenizer)
    model = load_model(str(tmp_path), spoken)
    assert model.about.kind == "score" and model.about.std == pytest.approx(module.row["val/score_std"])
    rows = recorded()[1].to_dict()
    ask = {"tokens_BT": rows["tokens_BT"], "is_scored_BT": rows["is_turn_end_BT"]}
    with torch.no_grad():
        ours, theirs = module.head(module.policy.network, **ask), model.head(model.policy.network, **ask)
    assert torch.equal(ours, theirs) and not model.head.linear.weight.requires_grad
    about = json.loads((folder / ABOUT).read_text())
    for told, said in (
        ({**about, "fingerprint": "0" * 64}, "and its record says 000000000000: a file was exchanged"),
        ({**about, "tokenizer": "0" * 64}, "another tokenizer than the policy's"),
        ({**about, "kind": "x"}, "a field is of the wrong type"),
        ({**about, "version": 9}, "it is of another format"),
        ({}, "cannot be read"),
    ):
        (folder / ABOUT).write_text(json.dumps(told))
        with pytest.raises(ValueError, match=said) as raised:
            load_model(str(tmp_path), spoken)
        assert "\n" not in str(raised.value)
    for path, said in (
        (str(tmp_path / "no"), "is not there; looked for"),
        (str(CONFIG_DIR), "holds no reward model"),
    ):
        with pytest.raises(ValueError, match=said):
            read_about(path)


@pytest.mark.slow
def test_heads_are_read_back_in_order_and_weighed(tmp_path: Path) -> None:
    """The value is the weighted sum of what each head says, on the scale of its held-out episodes."""
    module = module_of(two_heads())
    episodes, trajectories = recorded()
    batch = StepBatch(0, [], [], [], trajectories=trajectories, columns=labels(trajectories), given={})
    module.log = lambda *args, **options: None  # type: ignore[method-assign]
    module.validation_step(batch, 0)
    pairs = {name: module.row[f"val/{name}pairs"] for name in ("", "head_worth_", "head_brief_")}
    assert pairs[""] == pairs["head_worth_"] + pairs["head_brief_"] > pairs["head_worth_"] > 0
    named = [outcome.task_name for outcome in batch.outcomes]
    assert named.count("head brief") == pairs["head_brief_"] and named.count("pairs") == pairs[""]
    (tmp_path / "hf").mkdir()
    module.export(tmp_path / "hf")
    about = read_about(str(tmp_path))
    assert list(about.heads) == ["worth", "brief"]  # not by the alphabet
    assert about.heads["brief"] == (
        module.row["val/head_brief_score_mean"],
        module.row["val/head_brief_score_std"],
    )
    model = load_model(str(tmp_path), hash_tokenizer(module.policy.tokenizer))
    rows = trajectories.to_dict()
    ask = {"tokens_BT": rows["tokens_BT"], "is_scored_BT": rows["is_turn_end_BT"]}
    with torch.no_grad():
        score_AH = model.head(model.policy.network, **ask)[rows["is_turn_end_BT"]].double()
        assert torch.equal(
            score_AH, module.head(module.policy.network, **ask)[rows["is_turn_end_BT"]].double()
        )
    told = {
        name: (score_AH[:, k] - about.heads[name][0]) / about.heads[name][1]
        for k, name in enumerate(about.heads)
    }
    found = compute_turn_values(model, episodes, 10_000, torch.device("cpu"), {"brief": -0.5, "worth": 2.0})
    torch.testing.assert_close(found, 2 * told["worth"] - 0.5 * told["brief"], atol=1e-5, rtol=1e-5)


def data(folder: Path) -> str:
    """Forty prompts of one turn; the longer answer is the better one."""
    rows = [
        {"prompt": f"{'#' * (k % 8 + 1)} {'P_' * (k // 8 + 1)}", "chosen": "<answer>Up || Down</answer>",
         "rejected": "<answer>Up</answer>"} for k in range(40)
    ]  # fmt: skip
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


SMALL = [
    "env=bandit",
    "data=pairs",
    "data.batch=4",
    "data.held_out=0.4",
    "val.every=2",
    "callbacks.transcripts.every=9",
]


@pytest.mark.slow
@pytest.mark.sweep
def test_a_resumed_run_is_the_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*SMALL, "algo=bradley_terry", f"data.path={data(tmp_path)}"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    main_train([*given, "trainer.max_epochs=4", f"hydra.run.dir={whole}"])
    main_train([*given, "trainer.max_epochs=2", f"hydra.run.dir={cut}"])
    main_train([f"resume={cut}", "trainer.max_epochs=4"])
    one, other = (
        torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (whole, cut)
    )
    assert one.keys() == other.keys() and "head.linear.weight" in one
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert (whole / "metrics.csv").read_text().splitlines()[-1].count(",") > 5
    found = {game["name"]: game for game in json.loads((cut / "summary.json").read_text())["games"]}
    assert found["pairs"]["last"]["success"]["mean"] > 0.9 > found["pairs"]["chance"]["success"]["mean"]
    assert load_model(str(cut), hash_tokenizer(nano_tokenizer())).about.algo == "bradley_terry"
    with pytest.raises(SystemExit):
        main_evaluate([f"run={cut}"])
    assert "trained a reward model, which plays nothing" in capsys.readouterr().err


def ranked(folder: Path) -> str:
    """Forty prompts of one turn; the longer of three answers is better to one head, and the shorter to another."""
    words = ["Up", "Up || Down", "Up || Down || Left"]
    rows = [
        {"prompt": f"{'#' * (k % 8 + 1)} {'P_' * (k // 8 + 1)}",
         "completions": [f"<answer>{word}</answer>" for word in words],
         "scores": [{"long": n, "brief": None if k % 2 else -n} for n in range(3)]} for k in range(40)
    ]  # fmt: skip
    file = folder / "ranked.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.slow
@pytest.mark.sweep
def test_heads_of_a_resumed_run_are_those_of_the_whole_run_and_pay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        *(option for option in SMALL if option != "data=pairs"),
        "data=ranked",
        "algo=bradley_terry",
        "data.score=[long,brief]",
        f"data.path={ranked(tmp_path)}",
    ]
    whole, cut, paid = tmp_path / "whole", tmp_path / "cut", tmp_path / "paid"
    main_train([*given, "trainer.max_epochs=4", f"hydra.run.dir={whole}"])
    main_train([*given, "trainer.max_epochs=2", f"hydra.run.dir={cut}"])
    main_train([f"resume={cut}", "trainer.max_epochs=4"])
    one, other = (
        torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (whole, cut)
    )
    assert one.keys() == other.keys() and one["head.linear.weight"].shape[0] == 2
    assert all(torch.equal(one[key], other[key]) for key in one)
    found = {game["name"]: game for game in json.loads((cut / "summary.json").read_text())["games"]}
    assert {"head long", "head brief"} <= found.keys() and found["head long"]["last"]["success"]["mean"] > 0.9
    play = ["env=bandit", "rollout.prompts=2", "rollout.members=2", "val.episodes=2", "test.episodes=0"]
    play += ["algo=grpo", "reward=model", f"reward.model.path={cut}", "trainer.max_epochs=1"]
    main_train([*play, "reward.model.heads={long:1,brief:-0.5}", f"hydra.run.dir={paid}"])
    assert "reward/model_score" in (paid / "metrics.csv").read_text()
    with pytest.raises(SystemExit):
        main_train([*play, f"hydra.run.dir={tmp_path / 'no'}"])
    assert "has several heads (long, brief), and none of them has a weight" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main_evaluate(["model=nano", "env=bandit", "members=2", "best_of=[2]", f"reward_model={cut}"])
    assert "several heads (long, brief), and best_of needs a single score" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["algo=bradley_terry"], "algo=bradley_terry needs recorded episodes, not given by data=rollouts"),
        *(pytest.param(*each, marks=SLOW) for each in (
        (["algo=process_reward", "data=unpaired", "data.held_out=0"], "not given by data.held_out=0: it trains"),
        (["algo=process_reward", "data=stepwise"], "a label for every turn, not given by algo=process_reward"),
        (["algo=bradley_terry", "data=unpaired"], "groups of 2 episodes or more, not given by data=unpaired"),
        (["algo=cost_model", "data=pairs"], "algo=cost_model needs episodes that are ranked by cost"),
        (["algo=bradley_terry", "data=pairs", "data.score=cost"], "data.score=cost needs an algorithm that learns"),
        (["algo=cost_model", "data=pairs", "data.score=cost", "algo.zero_at=x"], "zero_at=x must be a number or null"),
        (["algo=polar"], "it compares an answer with a reference answer; set data=referred"),
        (["algo=polar", "data=ranked"], "by data=ranked: it compares an answer with a reference answer; set data="),
        (["algo=bradley_terry", "data=referred"], "not given by algo=bradley_terry; set algo=polar, or data=ranked"),
        (["algo=dpo", "data=referred"], "data=referred needs an algorithm that compares an answer with a reference"),
        (["algo=polar", "data=referred", "algo.zero_at=0"], "zero_at is for cost models, and referred=true scores"),
        (["algo=bradley_terry", "data=pairs", "data.score=[a,b]"], "data.score=[a,b] needs a group for each"),
        (["algo=dpo", "data=ranked", "data.score=[a,b]"], "[a,b] needs an algorithm that trains a reward"),
        (["algo=cost_model", "data=ranked", "data.score=[a,b]"], "data.score=[a,b] makes several heads, and algo"),
        (["algo=process_reward", "algo/label=solved", "data=unpaired", "data.score=[a,b]"], "reads none of them: set"),
        (["algo=bradley_terry", "data=pairs", "val.episodes=8"], "a reward model plays nothing"),
        (["algo=bradley_terry", "data=pairs", "update/stop=kl", "update.epochs=2"], "it reads log-probs"),
        )),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = [f"data.path={data(tmp_path)}"] if len(options) > 1 else []
    with pytest.raises(SystemExit):
        main_train([*options, *path, f"hydra.run.dir={tmp_path / 'run'}"])
    assert said in capsys.readouterr().err and not (tmp_path / "run").exists()
