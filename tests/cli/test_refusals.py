"""Commands that once were refused late, in the words of a library, or not at all: one line, and no run is begun."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from lit_agentrl.api import compose
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import parse
from lit_agentrl.loggers.files import CSVLog
from lit_agentrl.rollout.workers import cluster
from lit_agentrl.rollout.workers.opener import PlayingError
from tests.cli.test_invalid_commands import Refused, main_evaluate
from tests.commands import SMALL, files
from tests.conftest import thinned

CASES = [
    (
        "update.minibatches=5 rollout.prompts=2 rollout.members=2",
        "needs 5 trajectories in an iteration, not given by the 4",
    ),
    ("+trainer.max_steps=0", "trainer.max_steps=0 would skip or shorten iterations"),
    ("+trainer.limit_train_batches=0", "trainer.limit_train_batches=0 would skip"),
    ("trainer.precision=16-true", "use bf16-mixed or 32-true"),
    ("trainer.accelerator=tpu", "trainer.accelerator=tpu"),
    ("rollout.prompts=1000000000000", "rollout.prompts=1000000000000 must be a whole number from 1 to"),
    ("rollout.prompts=10000 rollout.members=10000", "are held in memory"),
    ("val=5", "val is a section"),
    ("algo.clip=null", "write algo/clip=NAME; valid:"),
    ("env=mixture env.weights=[1,-1]", "env.weights is a section; set one of its options: "),
    ("optim.optimizer=adam", "give the class of one"),
    ("hydra.output_subdir=/tmp/elsewhere", "would write outside of the run folder"),
    ("--cfg jobb", "valid: --cfg job"),
    ("--cfg job --package nosuch", "--package nosuch is no part of this config; valid: seed, "),
    (
        "--cfg job --package optim.lrr",
        "--package optim.lrr is no part of this config; did you mean optim.lr or",
    ),
    ("--cfg job -p hydra", "--package hydra is no part of this config; valid: "),
    ("--package optim", "--package says how a config is printed; add --cfg job, or leave it out"),
    ("--resolve", "--resolve says how a config is printed; add --cfg job"),
    ("engine.num_slots=0", "engine.num_slots=0 must be a whole number from 1 to"),
    ("engine=vllm engine.num_slots=0", "engine.num_slots=0 must be"),
    ("engine=openai engine.url=http://x engine.mode=chat", "engine=openai engine.mode=tokens"),
    ("engine=openai engine.url=http://x engine.concurrency=0", "engine.concurrency=0 must be"),
    ("engine=openai engine.url=http://x engine.weights_folder=no", "engine.weights_folder=no is not a"),
    (
        "strategy=fsdp model/lora=default",
        "model/lora=default: it does not shard adapters yet; set model/lora=none, or strategy=ddp",
    ),
    ("worker=process worker.share=1 worker.count=1000000", "worker.count=1000000 must be"),
    (
        "-m seed=1,2 hydra/launcher=submitit_local hydra.launcher.timeout_min=-1",
        "hydra.launcher.timeout_min=-1 must",
    ),
    (
        "-m seed=1,2 hydra/launcher=submitit_local hydra.launcher.nodes=3",
        "hydra.launcher.nodes=3 must be a whole number from 1 to 1",
    ),
    ("~trainer", "trainer cannot be left out; valid: default"),
    ("'prompt.style=com\npact'", "prompt.style=com\\npact cannot be read"),
    ("-m hydra/sweeper=optuna +hydra.sweeper.search_space.lr.type=float", "give an option a range"),
    ("-m seed=range(1,100000000)", "this sweep would have 99999999 runs"),
    ("-m seed=range(1,5,0)", "seed=range(1,5,0) never ends"),
    ("-m seed=1,2 hydra.sweeper.max_batch_size=0", "hydra.sweeper.max_batch_size=0 must be"),
    ("engine=openai engine.url=http://x engine.body=[1]", "engine.body takes entries"),
    ("reward=[normalise,none]", "reward names none together with others"),
    ("hydra.run.dir=" + 400 * "x", "cannot be created: File name too long"),
    (
        "-m seed=1,2 hydra/launcher=joblib hydra.launcher.prefer=cake",
        "hydra.launcher.prefer=cake must be processes",
    ),
    ("rollout=8", "rollout is a section; set one of its options: rollout.prompts"),
    (
        "optim.optimizer._target_=torch.optim.LBFGS ~optim.optimizer.betas ~optim.optimizer.weight_decay",
        "optimizer=LBFGS computes the loss several times per step",
    ),
    ("worker=ray worker.share=1 worker.address=127.0.0.1:9", "cannot reach worker.address=127.0.0.1:9"),
    (
        "worker=ray strategy=ddp trainer.devices=2 trainer.accelerator=cpu",
        "worker=ray needs one training process, not given by 2",
    ),
    (
        "engine=vllm_serve engine.url=http://x engine.weights_folder=/tmp rollout.overlap=true",
        "engine=OpenAIEngine needs episodes that are all played with the same version",
    ),
    (
        "-m hydra/sweeper=optuna hydra/sweeper/sampler=grid optim.lr=interval(1e-6,1e-3)",
        "write optim.lr=choice(…), or choose sampler=tpe",
    ),
    ("logger=wandb logger.wandb.tags=blue", "logger.wandb.tags=blue must be a list, such as [a, b]"),
    ("rollout.prompts=[2]", "rollout.prompts=[2] must be a whole number"),
    ("'rollout.overlap={a: 1}'", "rollout.overlap={a: 1} must be true or false"),
    ("rollout=null", "rollout=null: rollout is a section; set one of its options: rollout.prompts"),
    ("'rollout={a: 1}'", "unknown option rollout.a; valid: "),
    ("env.hosting=null", "env.hosting=null must be options of a Hosting, with its _target_"),
    ("callbacks.transcripts.dirpath=null", "callbacks.transcripts.dirpath=null must be a text or a path"),
    ("logger.csv.save_dir=[a]", "logger.csv.save_dir=[a] must be a text or a path"),
    ("env=mixture env.weights.sokoban=many", "env.weights.sokoban=many must be a number"),
    ("val.envs=-1", "val.envs=-1 must be the name of a game, or a list of them"),
    ("traceback=maybe", "traceback=maybe must be true or false"),
    (
        "eval_cache=false",
        "eval_cache was removed; write nothing in its place: the start is always played",
    ),
    ("optim.optimizer.weight_decay=inf", "optim.optimizer.weight_decay=inf must be finite"),
    ("optim.lr=1e-320", "optim.lr=1e-320 must be finite, > 0, from 1e-30 to 1e30"),
]
LATER = [  # found when the parts of the run are made, in a folder that is taken back
    (
        "logger=wandb logger.wandb.project=a/b",
        "logger.wandb.project=a/b must be a name of at most 128 characters",
    ),
    (
        "logger=wandb 'logger.wandb.tags=[\"\"]'",
        "logger.wandb.tags=[] must be a list of texts of 1 to 64 characters",
    ),
    ("logger.tensorboard.save_dir=../elsewhere", "would write outside of it"),
    ("worker=ray worker.gpus=1000", "worker.gpus=1000 is more than this machine has"),
]


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize(("command", "told"), LATER, ids=[case[0] for case in LATER])
def test_nothing_is_left_behind(refused: Refused, in_empty_folder: Path, command: str, told: str) -> None:
    """Not even the folder of the date."""
    assert told in refused(f"{SMALL} {command}")
    assert not list(in_empty_folder.iterdir())


@pytest.mark.slow
def test_options_of_a_dataset_that_have_no_effect(refused: Refused, in_empty_folder: Path) -> None:
    rows = [f'{{"question": "what is {i}?", "answer": "{i}"}}\n' for i in range(100)]
    Path("q.jsonl").write_text("".join(rows))
    command = "env=dataset env.game.path=q.jsonl env.game.tries=3"
    assert "env.game.tries=3 has no effect: an episode ends before" in refused(command)
    command = "env=dataset env.game.path=q.jsonl env.game.instruction=Hi"
    assert "env.game.instruction=Hi has no effect: prompt=compact writes no system message" in refused(
        command
    )
    Path("q.jsonl").write_text("")
    assert "env.game.path=q.jsonl is empty; write one row a line" in refused(
        "env=dataset env.game.path=q.jsonl"
    )


def test_the_python_interface_names_its_own_options(in_empty_folder: Path) -> None:
    Path("file").touch()
    with pytest.raises(
        UserError, match="^folder=file cannot be created: .* choose another with folder=FOLDER"
    ):
        compose(env="bandit", folder="file")


def test_options_of_a_game_that_is_played_keep_their_names(refused: Refused, run_copy: Path) -> None:
    assert refused("run=run env=sokoban env.game.size=2", main_evaluate).startswith(
        "error: env.game.size=2 must be a whole number >= 5"
    )


def test_something_else_than_a_head_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a proxy, which takes every connection."""
    asked = subprocess.CompletedProcess([], 1, "", "much\nRPC error: status: 404\n")
    monkeypatch.setattr(cluster, "require_answer", lambda address: None)
    monkeypatch.setattr(cluster.subprocess, "run", lambda *_, **__: asked)
    with pytest.raises(PlayingError, match=r"worker.address=h:1 is no head of a cluster of Ray \(RPC error"):
        cluster.require_head("h:1")
    with pytest.raises(PlayingError, match=r"finds no cluster of Ray by worker.address=auto \(RPC error"):
        cluster.require_head("auto")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "told"), thinned(CASES, one_in=9), ids=[case[0][:80] for case in CASES])
def test_training(refused: Refused, in_empty_folder: Path, command: str, told: str) -> None:
    assert told in refused(f"env=bandit {command}" if "env=" not in command else command)
    assert not files(in_empty_folder)


def test_an_override_that_is_no_text() -> None:
    with pytest.raises(ValueError, match="None is not an override; write a text"):
        parse([None])  # type: ignore[list-item]


def test_contexts_longer_than_the_model_has_positions() -> None:
    from lit_agentrl.engines.native.support import require_positions
    from tests.conftest import tiny_network

    with pytest.raises(ValueError, match="rollout.max_context_tokens=1000000 is more than the"):
        require_positions(tiny_network(), 1_000_000)


@pytest.mark.slow
def test_evaluations(refused: Refused, in_empty_folder: Path) -> None:
    remote = "model=remote engine=openai engine.mode=chat engine.url=http://127.0.0.1:9"
    told = refused(f"{remote} env=bandit episodes=2", main_evaluate)
    assert "engine.url=http://127.0.0.1:9: nothing answers there" in told
    assert "error: episodes=100000000000" in refused(
        f"{remote} env=bandit episodes=100000000000", main_evaluate
    )


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"RANK": "banana"}, "variable RANK=banana must be a whole number"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "variable RANK=5 must be less than WORLD_SIZE=2"),
        ({"LOCAL_RANK": "0"}, "variable LOCAL_RANK=0 names one of several processes"),
        ({"WORLD_SIZE": "2"}, "variable WORLD_SIZE=2 names one of several processes"),
        ({"NODE_RANK": "1"}, "variable NODE_RANK=1 needs MASTER_ADDR and MASTER_PORT"),
        ({"MASTER_PORT": "http"}, "variable MASTER_PORT=http must be a whole number from 1 to 65535"),
        ({"MKL_NUM_THREADS": "0"}, "variable MKL_NUM_THREADS=0 must be a whole number >= 1"),
        ({"OMP_NUM_THREADS": "two"}, "variable OMP_NUM_THREADS=two must be a whole number >= 1"),
    ],
)
def test_a_variable(
    refused: Refused,
    in_empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    told: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert told in refused("env=bandit")


def test_a_whole_command_in_one_word() -> None:
    with pytest.raises(UserError, match="is more than one option; write each separately"):
        parse(["python train.py algo=grpo"])


def test_a_damaged_table_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(b"iteration,a\r\n1,\r2\r\n")
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged \(.*\); copy it again"):
        CSVLog(tmp_path).log_metrics({"a": 1.0}, 1)


def test_a_sweep_of_evaluations(refused: Refused, in_empty_folder: Path) -> None:
    assert "split=[…] where a list is meant" in refused("run=. split=train,test", main_evaluate)


def test_the_folder_of_a_run_of_a_sweep_needs_no_quotes() -> None:
    (found,) = parse(["run=outputs/0_algo=grpo,seed=1"])
    assert found.value() == "outputs/0_algo=grpo,seed=1"


@pytest.mark.parametrize("place", ["checkpoints", "transcripts"])
def test_a_file_where_a_resumed_run_has_a_folder(tmp_path: Path, place: str) -> None:
    from lit_agentrl.runs.run_folder import UserError, require_writable

    (tmp_path / place).write_text("mine")
    with pytest.raises(UserError, match=f"{place} is not a folder, but a run writes one there"):
        require_writable(tmp_path)
    assert (tmp_path / place).read_text() == "mine"


@pytest.mark.slow
def test_a_template_that_was_edited_ends_the_resumption(
    refused: Refused, in_empty_folder: Path, tiny_model_folder: Path
) -> None:
    template = Path("own.jinja")
    template.write_text((tiny_model_folder / "chat_template.jinja").read_text())
    options = f"model=hf model.name={tiny_model_folder} model.chat_template=own.jinja hydra.run.dir=run"
    main_train(shlex.split(f"{SMALL} {options}"))
    whole = template.read_text()
    template.write_text(whole + "{# edited #}")
    told = refused("resume=run trainer.max_epochs=3")
    assert (
        "model.chat_template=own.jinja: the text of the chat template has changed since the run began" in told
    )
    assert "put the old text back" in told
    template.write_text(whole)
    main_train(shlex.split("resume=run trainer.max_epochs=3"))
