"""``critic.beta``: evaluations play the policy reweighed by Q, which a run's own commands repeat, or refuse."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_agentrl.cli.collect import main as main_collect
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.data.episodes import open_folder
from tests.build.test_structure import built
from tests.commands import Refused

SMALL = (
    "env=sokoban env.max_turns=3 trainer.accelerator=cpu val.every=4 val.episodes=32 val.temperature=0 "
    "test.episodes=32 test.temperature=0 ~callbacks.progress trainer.max_epochs=4 update.minibatches=2 data.batch=8 "
    "critic.optim.lr=3e-2"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ILQL whose values have moved much."""
    place = tmp_path_factory.mktemp("reweighted")
    main_collect(shlex.split(f"model=nano env=sokoban episodes=16 members=4 out={place}/eps"))
    data = f"data=demonstrations data.path={place}/eps"
    main_train(shlex.split(f"algo=ilql {SMALL} {data} critic.beta=3 hydra.run.dir={place}/run"))
    return place / "run"


def evaluated(folder: Path, options: str) -> dict[str, Any]:
    """What the newest file of a folder of evaluations says."""
    main_evaluate(shlex.split(f"episodes=32 {options}"))
    newest = max(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads(newest.read_text())["results"][0]
    return found


@pytest.mark.slow
@pytest.mark.sweep
def test_evaluate_repeats_the_numbers_of_the_run(trained: Path) -> None:
    games = json.loads((trained / "summary.json").read_text())["games"]
    for split in ("val", "test"):
        own = next(game["last"] for game in games if game["split"] == split)
        found = evaluated(trained / "evaluations", f"run={trained} split={split} temperature=0")
        assert found["return"] == own["return"] and found["success"] == own["success"]


@pytest.mark.slow
@pytest.mark.sweep
def test_without_beta_it_is_the_policy_that_the_run_exports(trained: Path, in_empty_folder: Path) -> None:
    options = f"run={trained} checkpoint=best"
    reweighed, plain = (evaluated(trained / "evaluations", f"{options} {beta}") for beta in ("", "beta=0"))
    alone = evaluated(
        Path("outputs/evaluations"),
        f"model=hf model.name={trained}/hf env=sokoban env.max_turns=3",
    )
    assert plain["return"] == alone["return"] and plain["solved"] == alone["solved"]
    assert reweighed["return"] != plain["return"], "values have a say"


@pytest.mark.slow
@pytest.mark.sweep
def test_training_episodes_are_of_the_policy_alone(in_empty_folder: Path) -> None:
    """What trains has log-probs of the weights that are trained, however much the values have moved."""
    small = "rollout.prompts=2 rollout.members=4 update.minibatches=1 test.episodes=0 trainer.max_epochs=3"
    main_train(
        shlex.split(
            f"algo=ilql env=bandit critic.beta=50 critic.optim.lr=3e-2 {small} val.every=1 val.episodes=2 "
            "~callbacks.progress trainer.accelerator=cpu hydra.run.dir=online"
        )
    )
    with Path("online/metrics.csv").open() as file:
        found = list(csv.DictReader(file))[1:]
    assert len(found) == 3 and all(float(row["train/logp_gap"]) < 1e-5 for row in found)
    assert abs(float(found[-1]["critic/value"])) > 0.01


@pytest.mark.slow
@pytest.mark.sweep
def test_what_is_recorded_of_it_is_another_policy(trained: Path, in_empty_folder: Path) -> None:
    described, logps = {}, {}
    for name, beta in (("own", ""), ("plain", "beta=0")):
        main_collect(shlex.split(f"run={trained} episodes=4 members=1 out={name} {beta}"))
        found = open_folder(Path(name))
        assert found is not None
        described[name] = found.described["policy"]
        logps[name] = np.concatenate([turn.reply_logps for each in found.read() for turn in each.turns])
    assert described["own"]["beta"] == 3 and "beta" not in described["plain"]
    assert described["own"]["fingerprint"] != described["plain"]["fingerprint"]
    assert logps["own"].shape != logps["plain"].shape or not np.allclose(logps["own"], logps["plain"])


@pytest.mark.slow
@pytest.mark.sweep
def test_what_is_refused(trained: Path, finished_run: Path, in_empty_folder: Path, refused: Refused) -> None:
    """In one line, naming option and remedy."""
    for options, said in (
        (f"run={trained} beta=-1", "beta=-1 must be finite and >= 0"),
        (f"run={trained} diagnostics=true", "critic.beta=3 reweights it; set beta=0"),
        (f"run={finished_run} beta=1", "the run has no critic that reweights the policy"),
        ("model=nano env=sokoban beta=1", "beta would be ignored: it applies to a run"),
    ):
        assert said in refused(options, main_evaluate)
    levels = "algo=ilql algo/structure=two_level model/lora=levels env=bandit"
    assert "no critic reweights the policy, not given by critic.beta=1" in refused(levels)
    Path("weights").mkdir()
    server = "engine=openai engine.url=http://127.0.0.1:1 engine.weights_folder=weights engine.push=[{path:/x,json:{}}]"
    said = "critic.beta=1 needs an engine that computes with the critic, not given by engine=OpenAIEngine"
    assert said in refused(f"algo=ilql {server} env=bandit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("critic.beta=-1",), "critic.beta=-1 must be finite and >= 0"),
        (("critic=conservative",), "needs Q of every token in addition to V, .* set critic=implicit"),
        (("critic=separate",), "needs Q of every token in addition to V, .* set critic=implicit"),
    ],
)
def test_what_does_not_fit(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built("algo=ilql", *options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ("cql", "needs Q of every token, not given by critic=separate; set critic=conservative"),
        (
            "ppo",
            "critic.head=TokensAndState needs .* reads Q .*, not given by algo=ppo; .* or critic=separate",
        ),
    ],
)
def test_others_have_no_use_for_the_critic(algo: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(f"algo={algo}", "critic=implicit")
