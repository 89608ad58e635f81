"""Mistakes in subcommands other than train and evaluate: one line, before torch is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lit_agentrl.__main__ import main
from tests.cli.test_invalid_commands import ROOT
from tests.commands import Refused

pytestmark = pytest.mark.usefixtures("in_empty_folder")


@pytest.mark.parametrize(
    ("command", "named", "remedy"),
    [
        ("--versoin", "unknown subcommand --versoin", "did you mean --version?"),
        ("env=bandit", "unknown subcommand env=bandit", "options belong to one, such as train env=bandit"),
        ("train env = bandit", "env is not an override", "such as env=sokoban"),
        ("train --env bandit", "unknown flag --env", "options are written key=value, without dashes"),
        ("train env=bandit algo=[grpo,ppo]", "algo=[grpo,ppo]", "valid: "),
        ("data show none.jsonl", "data.path=none.jsonl is not there", "looked for /"),
        ("data show full", "full is a folder of something else", "name one that lit-agentrl collect wrote"),
        ("play model=nano", "env has no value", "such as env=bandit"),
        ("play model=nano env=[bandit,sokoban]", "env=[bandit, sokoban]", "the name of one game"),
        ("play model=nano env=nosuch", "there is no game named nosuch", "valid: babyai"),
        ("play model=nano env=bandit optim.lr=1", "unknown option optim.lr=1", "valid: "),
        ("evaluate model=nosuch env=bandit", "unknown option model=nosuch", "valid: hf, nano"),
        ("levels env=nosuch", "unknown option env=nosuch", "valid: babyai"),
        ("train grpo", "grpo is not an override", "such as algo=grpo"),
        ("certify rloo", "rloo is not an override", "such as algo=rloo"),
        ("train -m seed=1,2 --cfg job", "-m has no effect where the config is printed", "leave it out"),
        ("data", "show FILE must be given", "data --help shows its options"),
        ("fetch", "NAME must be given", "fetch --help shows its options"),
        ("push runs repo=a repo=b", "repo is given twice, as repo=a and repo=b", "keep one"),
        ("convert", "FILE.gguf must be given", "convert --help shows its options"),
        (
            "label data=/no/such out=y reward=judge",
            "data=/no/such is not there",
            "the command that collects it",
        ),
        (
            "pipeline recipe=iterated_dpo out=full",
            "out=full exists and holds no pipeline",
            "name a new folder",
        ),
        ("report run=full", "run=full is not a folder", "write full alone"),
        ("levels env=bandit rollout.prompts=2", "rollout.prompts=2 has no effect", "env=NAME env.KEY=VALUE"),
        ("collect model=nano env=bandit out=x first=-1", "first=-1", "a whole number >= 0"),
        ("collect run=full out=x shard=0", "shard=0", "a whole number from 1 to"),
        ("play run=full instance=-1", "instance=-1", "a whole number >= 0"),
        ("evaluate run=full env=[]", "env=[] names no game", "such as env=[sokoban,bandit]"),
        ("evaluate run=full compare=[no.json]", "compare=no.json", "cannot be read"),
        ("evaluate run=full/checkpoints", "no .hydra/config.yaml; did you mean run=", "/full?"),
        ("train resume=full/checkpoints/last.ckpt", "is not a folder", "did you mean resume="),
    ],
)
def test_a_mistake_is_one_line(refused: Refused, command: str, named: str, remedy: str) -> None:
    (Path("full") / ".hydra").mkdir(parents=True)
    (Path("full") / ".hydra" / "config.yaml").touch()
    (Path("full") / "checkpoints").mkdir()
    message = refused(command, main)
    assert named in message and remedy in message


@pytest.mark.parametrize("name", ["train.py", "evaluate.py"])
def test_a_script_without_its_environment_names_the_remedy(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / name)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "no module lit_agentrl; run make setup once, then . .venv/bin/activate" in done.stderr
