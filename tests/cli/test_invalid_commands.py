"""Commands that make no sense end with one line that names cause and remedy, before anything is played."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lit_agentrl.build.parts import Parts, build_parts
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.paths import CONFIG_DIR
from tests.commands import SMALL, Refused, contents, files
from tests.conftest import thinned

ROOT = Path(__file__).resolve().parents[2]
ODD = "tests.oddities"
pytestmark = pytest.mark.usefixtures("in_empty_folder")

MALFORMED = [  # command, what the message names, what it tells to do
    # keys, groups and options that do not exist
    ("filter.ratoi=1", "filter.ratoi", "filter.ratio"),
    ("lr=1e-4", "lr", "optim.lr"),
    ("algoo=grpo", "algoo", "did you mean algo?"),
    ("algo/clp=none", "algo/clp", "algo/clip"),
    ("env=sokobann", "env=sokobann", "did you mean sokoban? valid: "),
    ("critic.grad_clip=2", "critic.grad_clip=2 has no effect", "algo/advantage=gae_token"),
    (
        "algo=gvpo algo/clip=symmetric",
        "algo/clip=symmetric has no effect: algo=gvpo has no algo/clip",
        "another algo",
    ),
    (
        "strategy=ddp trainer.accelerator=gpu trainer.devices=auto",
        "trainer.accelerator=gpu: torch finds no GPU here",
        "accelerator=cpu",
    ),
    ("critic.nosuch=2", "unknown option critic.nosuch", "critic.grad_clip"),
    ("algo/kl_controller=ziegler", "algo.kl_controller=Ziegler has no coefficient", "algo/kl=loss_k3"),
    (
        "algo=ppo_penalty update.minibatches=1",
        "algo.kl.coef needs 2 optimizer steps",
        "update=four_minibatches",
    ),
    ("algo/advantage=tree", "needs episodes that branch", "algo/advantage=group_mean_std"),
    ("algo=remax env=sokoban reward=count", "not given by reward=[count", "reward=none"),
    ("algo=svpo critic=none", "algo.targets of svpo needs the values of a critic", "critic=separate"),
    (
        "algo=step_dpo critic=separate",
        "reads the values of a critic, not given by algo=step_dpo",
        "algo/targets=tree",
    ),
    ("algo=dpo algo/ranking=margin", "algo/targets=none has none", "algo/targets=tree"),
    ("algo=svpo algo.ranking.width=-1", "algo.ranking.width=-1", "finite and >= 0"),
    ("algo/kl=loss_k3 algo.kl.reference_dtype=int8", "algo.kl.reference_dtype=int8", "bfloat16"),
    ("algo/tokens=top_entropy algo.tokens.share=0", "algo.tokens.share=0", "1.0 keeps every token"),
    ("filter=null", "filter=null", "valid: dynamic_sampling"),
    ("env=[sokoban,bandit]", "env=[sokoban,bandit]", ", bandit, "),
    ("logger=[csv,tensorbord]", "logger=tensorbord", "tensorboard"),
    ("logger=[csv,csv]", "logger=[csv,csv]", "keep one"),
    ("algo.clip.nosuch=1", "algo.clip.nosuch", "algo.clip.epsilon, algo.clip.lower"),
    ("algo.clip.low=0.2", "algo.clip.low", "algo/clip=clip_higher, dual"),
    ("experiment=paper/dapoo", "unknown option experiment=paper/dapoo", "did you mean paper/dapo"),
    ("algo/clip=asymmetric_seed", "algo/clip=asymmetric_seed was removed", "algo.clip.low=0.15"),
    ("algo=gspo algo/clip=symmetric algo.clip.low=0.2", "algo.clip.low", "algo/clip=clip_higher, dual"),
    ("filter=none filter.ratio=0.5", "filter=none", "filter=top_std"),
    ("trainer.no_such_arg=1", "trainer.no_such_arg", "valid: trainer.accelerator"),
    ("+trainer.max_epoch=1", "trainer.max_epoch", "max_epochs"),
    ("+trainer.check_val_every_n_epoch=1", "trainer.check_val_every_n_epoch", "val.every"),
    ("+env.game.sise=7", "env.game.sise", "size"),
    ("+optim.optimizer.momentum=0.9", "optim.optimizer.momentum", "weight_decay"),
    ("+optim.optimizer.lr=1", "optim.optimizer.lr", "optim.lr"),
    ("env.game._target_=nosuch.Game", "env.game._target_=nosuch.Game", "No module named 'nosuch'"),
    ("+notes.author=me", "notes.author", "valid: algo, callbacks, "),
    ("+val.evry=1", "val.evry", "did you mean val.every?"),
    ("+rollout.prompts=4", "rollout.prompts exists already", "write rollout.prompts=4 without the +"),
    ("rollout.n=8", "rollout.n", "did you mean rollout.members?"),
    ("algo.kl_coef=0.1", "algo.kl_coef", "did you mean algo.kl.coef?"),
    ("model=Qwen/Qwen3-4B", "model=Qwen/Qwen3-4B", "write model=hf model.name=Qwen/Qwen3-4B"),
    (
        "filter=dynamic_sampling filter.target=161",
        "filter.target=161",
        "not given by the 160 groups that 10 waves",
    ),
    ("~seed", "~seed", "seed=…"),
    ("~callbacks", "callbacks", "is missing"),
    ("run_dir=here", "run_dir=here", "hydra.run.dir=FOLDER"),
    ("context=windw", "context=windw", "did you mean window?"),
    (
        "algo=dpo data=pairs data.columns.prompt=q",
        "data.columns takes one value",
        "write 'data.columns={prompt: …}'",
    ),
    ("context.turns=2", "context=full has no option turns", "belongs to context=window"),
    ("algo=sft data.path=x", "data.path belongs to data=demonstrations, beside, pairs", ", unpaired"),
    ("algo=dpo data.path=x", "data.path belongs to data=pairs, beside, demonstrations", ", unpaired"),
    ("context.condense.count=2", "context=full has no option condense.count", "belongs to context=single"),
    ("context=window context.trns=2", "context.trns", "did you mean context.turns"),
    (
        "context=single context.condense.cuont=2",
        "context.condense.cuont",
        "did you mean context.condense.count?",
    ),
    # grammar and flags
    ("sokoban", "sokoban", "env=sokoban"),
    ("filter.ratio=", "filter.ratio=", "write a value"),
    ("filter.ratio=[0.5", "filter.ratio=[0.5", "close every bracket"),
    ("filter.ratio=0.5,1.0", "filter.ratio=0.5,1.0", "add -m"),
    ("env=sokob\u00e1n", "'\u00e1' needs quotes", "write 'env=\"sokob\u00e1n\"'"),
    ("\u00fcnicode=1", "'\u00fc' is in no name of an option", "letters of --help"),
    ("seed=\uff11", "needs quotes", "digits and letters of ASCII"),
    ("optim.lr=1e-4,", "no value stands before or after a comma", "leave the comma out"),
    ("-m seed=1,,2", "no value stands before or after a comma", "leave the comma out"),
    ("-m 'seed=choice()'", "choice() has no values", "seed=1,2,3"),
    ("-m 'seed=glob(*)'", "seed=glob(*) names no option of seed", "seed=1,2"),
    (
        "'seed=${oc.env:NO_SUCH}'",
        "seed: the environment variable NO_SUCH is not set",
        "${oc.env:NO_SUCH,VALUE}",
    ),
    ("reward=[]", "reward=[]: reward names no option", "write reward=none"),
    ("logger=[]", "logger=[]: logger names no option", "valid: csv, default"),
    ("resume=", "resume= has no value", "resume=outputs/DATE/TIME"),
    ("seed=range(3)", "seed=range(3)", "add -m"),
    ("seed=1 seed=2", "seed is given twice", "keep one"),
    ("+env=bandit", "+env=bandit", "write env=bandit"),
    ("filter.ratio=${nosuch}", "filter.ratio", "must name a key"),
    ("--multirn seed=1,2", "--multirn", "--multirun"),
    ("--config-dir /no/such", "--config-dir /no/such", "is not a folder"),
    # values out of range or of the wrong type
    ("filter.ratio=1.3", "filter.ratio=1.3", "(0, 1]"),
    ("-m seed=1,2,1", "several runs have the options seed=1; give", "each value once"),
    ("-m filter.ratio=1.0,1.3", "filter.ratio=1.3", "(0, 1]"),
    ("rollout.members=1", "rollout.members=1", "rollout.members >= 2"),
    ("rollout.prompts=many", "rollout.prompts=many", "a whole number"),
    ("rollout.temperature=0", "rollout.temperature=0", "> 0"),
    ("rollout.top_p=0.9", "rollout.top_p=0.9", "rollout.allow_truncated_sampling=true"),
    ("rollout.top_p=2", "error: rollout.top_p=2", "(0, 1]; 1 keeps all tokens"),
    ("worker=process worker.threads=0", "error: worker.threads=0", "from 1 to 1024"),
    ("rollout.max_context_tokens=40", "rollout.max_context_tokens=40", "must exceed"),
    ("env.max_actions_per_turn=11", "env.max_actions_per_turn=11", "1 to 10"),
    ("env.game.size=2", "env.game.size=2", ">= 5"),
    ("env=mixture env.weights.bandit=-1", "env.weights.bandit", ">= 0; 0 leaves the game out"),
    ("optim.lr=-1", "optim.lr=-1", "> 0"),
    ("optim.lr=fast", "optim.lr=fast", "a number"),
    ("optim.lr=inf", "error: optim.lr=inf", "finite, > 0"),
    ("algo=ppo critic.optim.lr=inf", "error: critic.optim.lr=inf", "finite, > 0"),
    ("rollout.temperature=inf", "error: rollout.temperature=inf", "finite and > 0"),
    ("val.temperature=inf", "error: val.temperature=inf", "a finite number >= 0"),
    ("algo/entropy=bonus algo.entropy.coef=inf", "error: algo.entropy.coef=inf", "finite and > 0"),
    ("optim.schedule=cosin", "optim.schedule=cosin", "cosine"),
    ("update.minibatches=0", "update.minibatches=0", ">= 1"),
    ("val.every=0", "val.every=0", ">= 1"),
    ("val.temperature=-1", "error: val.temperature=-1", ">= 0"),
    ("worlds.wait=false worlds.delay=2", "error: worlds.delay=2", "where wait=false"),
    ("val.envs=[nosuch]", "val.envs", ", bandit, "),
    ("val.envs=[]", "val.envs=[] names no game", "null stands for the games trained on"),
    ("test.envs=[bandit,bandit]", "test.envs=[bandit,bandit]", "twice"),
    ("trainer.max_epochs=-3", "trainer.max_epochs=-3", ">= 1"),
    ("trainer.max_epochs=abc", "trainer.max_epochs=abc", "a whole number"),
    ("seed=-1", "seed=-1", "from 0"),
    ("model=hf", "model.name", "set model.name="),
    ("model=hf model.name=/no/such", "model.name=/no/such", "give a folder with config.json"),
    ("model.lora.r=8", "model/lora=none has no option r", "belongs to model/lora=default"),
    ("model.lora=8", "model.lora is chosen by name", "model/lora=NAME; valid: default, levels, none"),
    ("model/lora=default model.lora.rank=8", "model.lora.rank", "did you mean model.lora.r"),
    ("model/lora=default model.lora.r=0", "model.lora.r=0", "a whole number >= 1"),
    ("model/lora=default model.lora.alpha=-1", "model.lora.alpha=-1", "> 0"),
    (
        "model/lora=default model.lora.target_modules=[q_proj,w]",
        "model.lora.target_modules=w",
        "up_proj, v_proj",
    ),
    (
        "model/lora=default model.lora.target_modules=[lm_head]",
        "target_modules=lm_head",
        "all-linear, or any of",
    ),
    (
        "model/lora=default model.lora.target_modules=[]",
        "model.lora.target_modules=[]",
        "all-linear selects all",
    ),
    (
        "model/lora=default algo/kl=loss_k3 algo.kl.reference_dtype=bfloat16",
        "algo.kl.reference_dtype=bfloat16",
        "leave it null",
    ),
    ("prompt.think=false prompt.force_think=true", "prompt.force_think=true", "prompt.think=true"),
    ("context=window context.turns=0", "context.turns=0", ">= 1"),
    ("context=window context.turns=few", "context.turns=few", "a whole number"),
    ("context=single context.condense.count=-1", "context.condense.count=-1", ">= 0, or null"),
    ("context=single context.condense=all", "context.condense=all", "_target_"),
    ("context=window algo=gspo", "algo.ratio of gspo", "set context=full, or algo/ratio=token"),
    ("context=single algo=gmpo", "algo.clip of gmpo", "set context=full, or algo/clip=symmetric"),
    ("algo/ratio=none", "algo.clip.epsilon", "algo/clip=none"),
    ("callbacks.last.every=0", "error: callbacks.last.every=0", ">= 1"),
    ("callbacks.best.mode=maximum", "callbacks.best.mode=maximum", "max, min"),
    ("callbacks.best=yes", "best=yes", "_target_"),
    # reward parts
    ("reward=formt", "reward=formt", "did you mean format? valid: caps, "),
    ("reward=[format,nosuch]", "reward=nosuch", "valid: caps, "),
    ("reward=null", "reward=null", "valid: caps, "),
    ("reward.format.weight=1", "reward.format.weight", "belongs to reward=format"),
    ("reward=format reward.format.weigth=1", "reward.format.weigth", "did you mean reward.format.weight?"),
    ("reward=format reward.format.weight=0", "reward.format.weight=0", "leave the part out"),
    ("reward=format reward.format.weight=[1]", "reward.format.weight=[1]", "must be a number"),
    ("reward=[delta,top_lambda]", "reward: delta and top_lambda", "choose one"),
    ("reward=overlong rollout.max_reply_tokens=4", "reward.overlong.buffer=8", "<= max_tokens=4"),
    ("reward=normalise reward.normalise.by=all", "reward.normalise.by=all", "batch or group"),
    ("reward=potential reward.potential.of.scale=0", "reward.potential.of.scale=0", "> 0"),
    ("reward=count env=bandit", "reward.count", "a game of several turns"),
    ("algo=grpo_lambda reward.top_lambda.alpha=2", "reward.top_lambda.alpha=2", "in (0, 1]"),
    ("+reward.mine=5", "reward.mine=5", "_target_"),
    (
        "+reward.mine._target_=lit_agentrl.text.prompts.Prompt +reward.mine.style=compact",
        "reward.mine",
        "must be a RewardPart",
    ),
    ("agorithm=grpo", "unknown option agorithm", "did you mean algo?"),
    ("rollout.max_waves=3", "unknown option rollout.max_waves", "did you mean algo.structure.max_waves?"),
    ("trainer.devices=0", "trainer.devices=0", "a whole number >= 1"),
    ("val.episodes=null", "val.episodes=null", "a whole number from 1 to"),
    ("optim.optimizer.betas=[0.9]", "error: optim.optimizer.betas=[0.9] is refused by AdamW", "IndexError"),
    ("optim.optimizer.weight_decay=-1", "error: optim.optimizer.weight_decay=-1", "refused by AdamW"),
    ("algo=ppo critic.optim.optimizer.weight_decay=-1", "critic.optim.optimizer.weight_decay=-1", "AdamW"),
    ("callbacks.best.monitor=val/sucess", "callbacks.best.monitor=val/sucess", "did you mean val/success"),
    (
        "env.game.size=8 callbacks.best.monitor=val/normalised",
        "val/normalised is not measured",
        "val/",
    ),
    ("callbacks.best.monitor=train/los", "callbacks.best.monitor=train/los is", "did you mean train/loss"),
    ("callbacks.best.monitor=critic/loss", "critic/loss is not measured", "did you mean train/loss"),
    ("reward=format callbacks.best.monitor=reward/fromat", "reward/fromat is", "did you mean reward/format"),
    # what would not act
    ("test.temperature=0.5 test.episodes=0", "test.temperature=0.5 has no effect", "set test.episodes"),
    ("rollout.allow_truncated_sampling=true", "nothing is truncated", "set rollout.top_p below 1"),
    (
        "algo/correction=truncated update.max_logp_gap=1",
        "update.max_logp_gap=1 has no",
        "algo/correction=none",
    ),
    ("env.hosting.restarts=3", "env.hosting.restarts=3 has no effect", "env.hosting.where=thread"),
    ("algo=ppo critic.warmup_iterations=60", "critic.warmup_iterations=60 of trainer.max_epochs=60", "raise"),
    ("reward=delta reward.delta.at_iteration=90", "reward.delta.at_iteration=90 has no effect", "max_epochs"),
    ("-m seed=1,2 hydra.run.dir=x", "hydra.run.dir=x has no effect with -m", "hydra.sweep.dir=FOLDER"),
    ("hydra.sweep.dir=x", "hydra.sweep.dir=x has no effect without -m", "hydra.run.dir=FOLDER"),
    ("hydra.mode=MULTIRUN", "hydra.mode=MULTIRUN", "a sweep is chosen with -m"),
    ("--config-dir . --config-dir ..", "--config-dir is given twice, as . and ..", "into one folder"),
    # parts of one's own
    (
        f"algo/structure=independent algo.structure._target_={ODD}.Nothing",
        f"algo.structure._target_={ODD}.Nothing makes a Nothing",
        "does not inherit lit_agentrl.rollout.structures.base.Structure",
    ),
    (f"worker=process worker._target_={ODD}.Nothing", "worker._target_=", "workers.base.WorkerSettings"),
    (f"engine._target_={ODD}.Nothing engine._partial_=false", "engine has no _partial_", "_partial_: true"),
    (f"+callbacks.mine._target_={ODD}.Nothing", "callbacks.mine._target_=", "callbacks.callback.Callback"),
    (f"algo=ppo critic._target_={ODD}.Nothing critic._partial_=false", "critic has no _partial_", "true"),
    (f"prompt._target_={ODD}.Nothing", "prompt._target_=", "lit_agentrl.text.prompts.Prompt"),
    (f"dialect._target_={ODD}.Nothing", "makes a Nothing without formats", "text.dialects.base.Dialect"),
    (f"dialect._target_={ODD}.Raising", "dialect: IndexError", "string index out of range"),
    (f"dialect._target_={ODD}.Silent", "dialect: parse must return a Reply", "NoneType"),
    (f"+reward.mine._target_={ODD}.NoStage", "reward: mine has no stage", "stage = Stage.SHAPING"),
    # resuming
    ("resume=/no/such", "resume=/no/such", "give the folder of a run"),
    ("resume=.", "resume=.", "no .hydra/config.yaml"),
    ("resume=here -m", "resume=here is not a sweep", "the folder that holds its runs"),
]
MALFORMED_EVALUATIONS = [
    ("", "run", "set run=FOLDER"),
    ("run=/no/such", "run=/no/such", "give the folder of a run"),
    ("run=nosuch.ckpt", "run=nosuch.ckpt", "give a run folder"),
    ("run=. episodse=3", "episodse=3", "episodes"),
    ("run=. -m", "-m", "take lists"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "named", "remedy"), thinned(MALFORMED, one_in=18), ids=[case[0] for case in MALFORMED]
)
def test_training(refused: Refused, in_empty_folder: Path, command: str, named: str, remedy: str) -> None:
    message = refused(command)
    assert named in message and remedy in message
    assert not files(in_empty_folder)  # no run was begun


@pytest.mark.parametrize(("command", "named", "remedy"), MALFORMED_EVALUATIONS)
def test_evaluation(refused: Refused, in_empty_folder: Path, command: str, named: str, remedy: str) -> None:
    message = refused(command, main_evaluate)
    assert named in message and remedy in message
    assert not files(in_empty_folder)


@pytest.mark.slow
def test_engine_is_refused_before_anything_is_played(refused: Refused, tiny_model_folder: Path) -> None:
    message = refused(f"{SMALL} model=hf model.name={tiny_model_folder} engine.num_slots=0 hydra.run.dir=run")
    assert "engine.num_slots=0 must be a whole number from 1 to" in message
    assert not Path("run/transcripts").exists() and not Path("run/checkpoints").exists()


@pytest.mark.slow
@pytest.mark.sweep
def test_an_engine_that_an_update_cannot_trust_is_refused(
    refused: Refused, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = (
        f"{SMALL} model=hf model.name={tiny_model_folder} engine._target_=tests.engines.test_needs.Inexact"
    )
    assert "own weights, not given by engine=Inexact" in refused(f"{command} hydra.run.dir=run")
    assert not Path("run/transcripts").exists() and not Path("run/checkpoints").exists()
    main_train(shlex.split(f"{command} algo/correction=truncated hydra.run.dir=corrected"))
    assert Path("corrected/checkpoints/last.ckpt").exists()
    run = Path("corrected").resolve()  # which names code that is not the package's
    told = capsys.readouterr().out
    assert told.endswith(f"evaluate run={run} trust_run=true\n")
    begun = [line for line in told.splitlines() if line.endswith(" …")]
    assert begun[:2] == [
        "building the policy and testing the games …",
        "measuring the start: val, 1 episode of bandit …",
    ]
    assert "training for 2 iterations …" in begun


@pytest.mark.slow
@pytest.mark.sweep
def test_folder_below_a_file(refused: Refused) -> None:
    Path("file").touch()
    message = refused("hydra.run.dir=file/run")
    assert "hydra.run.dir=file/run" in message and "file is not a folder" in message
    assert "hydra.sweep.dir=file/run" in refused("-m seed=1,2 hydra.sweep.dir=file/run")


@pytest.mark.slow
def test_unknown_key_of_a_config_file(refused: Refused) -> None:
    file = Path("mine/experiment/typo.yaml")
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nrolout:\n  prompts: 3\n")
    assert "unknown option rolout; did you mean rollout?" in refused("--config-dir mine experiment=typo")
    file.write_text("# @package _global_\nfilter:\n  ratoi: 0.5\n")
    assert "unknown option filter.ratoi; did you mean ratio?" in refused("--config-dir mine experiment=typo")


@pytest.mark.slow
def test_a_folder_of_configs_is_refused_where_ours_would_be_taken(refused: Refused) -> None:
    file = Path("mine/env/sokoban.yaml")
    file.parent.mkdir(parents=True)
    shutil.copy(CONFIG_DIR / "env" / "sokoban.yaml", file)
    assert "unknown option nosuch" in refused("--config-dir mine nosuch=1")  # the same file does no harm
    file.write_text(file.read_text().replace("size: 6", "size: 7"))
    message = refused("--config-dir mine env=sokoban")
    assert "env/sokoban.yaml is also the name of a shipped file" in message and "rename yours" in message


@pytest.mark.slow
def test_a_broken_yaml_is_named_with_its_line_and_a_whole_one_is_found(refused: Refused) -> None:
    file = Path("mine/env/broken.yaml")
    file.parent.mkdir(parents=True)
    file.write_text("name: broken\nmax_turns: 3: 4\n")
    for command in ("env=broken", "val.envs=[broken]"):
        message = refused(f"--config-dir mine {command}")
        assert f"{file}, line 2: mapping values are not allowed here" in message
    shutil.copy(CONFIG_DIR / "env" / "bandit.yaml", "mine/env/own.yaml")
    message = refused("--config-dir mine val.envs=[own] callbacks.best.monitor=val/sucess")
    assert "did you mean val/success" in message  # the game of that folder was found


@pytest.mark.slow
def test_a_yaml_file_that_is_not_utf8_is_named(refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "own" / "env" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"max_turns: 1\nname: caf\xe9\n")
    for command in ("env=mine", "val.envs=[mine]"):
        message = refused(f"--config-dir {tmp_path / 'own'} {command}")
        assert f"{file}, line 2: byte 0xe9 is not UTF-8; save the file as UTF-8" in message


@pytest.mark.slow
def test_traceback_is_shown_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_train(["filter.ratio=1.3", "traceback=true"])
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed
    assert printed.splitlines()[-1].startswith("error: filter.ratio=1.3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "named", "remedy"),
    thinned(
        [
            ("resume=run seed=3", "seed=3", "only trainer.max_epochs"),
            ("resume=run +trainer.max_epochs=3 env=bandit", "env=bandit", "only trainer.max_epochs"),
            ("resume=run resume=run", "resume=run", "one run"),
            ("resume=run trainer.max_epochs=1", "trainer.max_epochs=1", "at least 2"),
            ("resume=run trainer.max_epochs=0", "trainer.max_epochs=0", ">= 1"),
            ("resume=run trainer.max_epochs=all", "trainer.max_epochs=all", "a whole number"),
            ("hydra.run.dir=run", "hydra.run.dir=run", "resume=run"),
        ]
    ),
)
def test_resume_leaves_the_run_alone(
    refused: Refused, run_copy: Path, command: str, named: str, remedy: str
) -> None:
    before = contents(run_copy)
    message = refused(command)
    assert named in message and remedy in message
    assert contents(run_copy) == before


@pytest.mark.slow
def test_a_finished_run_has_nothing_left(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lit_agentrl.runs.jobs.load_train", lambda: pytest.fail("it is trained again"))
    before = contents(run_copy)
    main_train(["resume=run"])
    printed = capsys.readouterr().out
    assert printed.startswith(
        "nothing is left: 2 of 2 iterations are done; a higher trainer.max_epochs continues"
    )
    assert "completed: 2 of 2 iterations" in printed and "results in" in printed
    assert contents(run_copy) == before
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        main_train(["resume=run", "trainer.max_epochs=3"])


@pytest.mark.slow
def test_damaged_checkpoints(refused: Refused, run_copy: Path) -> None:
    for file in (run_copy / "checkpoints").glob("last.ckpt*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
    before = contents(run_copy)
    message = refused("resume=run trainer.max_epochs=3")
    assert "last.ckpt is damaged" in message and "no intact predecessor" in message
    assert contents(run_copy) == before


@pytest.mark.parametrize(
    ("key", "named"),
    [("colour", "unknown option colour"), ("rollout.colour", "unknown option rollout.colour")],
)
def test_config_of_another_version(refused: Refused, run_copy: Path, key: str, named: str) -> None:
    file = run_copy / ".hydra" / "config.yaml"
    cfg = OmegaConf.load(file)
    OmegaConf.update(cfg, key, "blue")
    OmegaConf.save(cfg, file)
    message = refused("resume=run")
    assert named in message and "another version" in message


def test_unreadable_config(refused: Refused, run_copy: Path) -> None:
    (run_copy / ".hydra" / "config.yaml").write_text("")
    assert "config.yaml holds no config; copy the file again" in refused("resume=run")
    (run_copy / ".hydra" / "config.yaml").write_text("{")
    message = refused("resume=run")
    assert "resume=run: its saved config cannot be read" in message and "config.yaml, line 1" in message


def test_folder_of_runs_names_them(refused: Refused, finished_run: Path) -> None:
    assert "it holds the runs run" in refused(f"resume={finished_run.parent}")


@pytest.mark.parametrize(
    ("options", "named", "remedy"),
    thinned(
        [
            ("checkpoint=newest", "checkpoint=newest", "last, best, start"),
            ("split=dev", "split=dev", "train, val, test"),
            ("episodes=0", "episodes=0", "from 1 to"),
            ("env=sokobann", "sokobann", ", bandit, "),
            ("temperature=-1", "temperature=-1", ">= 0"),
            ("temperature=hot", "temperature=hot", "a number >= 0"),
            ("temperature=null", "temperature=null", "a number >= 0"),
            ("episodes=null", "episodes=null", "a whole number from 1 to"),
            ("members=two", "members=two", "a whole number from 1 to"),
            ("seed=x", "seed=x", "a whole number"),
            ("pass_k=4", "pass_k=[4] needs members >= 4", "members=1"),
            ("env=[bandit,bandit]", "error: env=[bandit,bandit]", "twice"),
            ("env.game.pay=1", "unknown option env.game.pay", "did you mean payoff?"),
            ("env=[bandit,sokoban] env.game.size=7", "env.game.size=7 changes one game", "env=NAME"),
            (
                "checkpoint=start run=run/checkpoints/last.ckpt",
                "checkpoint=start would be ignored",
                "leave one",
            ),
        ]
    ),
)
def test_evaluation_of_a_run(refused: Refused, run_copy: Path, options: str, named: str, remedy: str) -> None:
    run = "" if "run=" in options else "run=run "
    message = refused(f"{run}{options}", main_evaluate)
    assert named in message and remedy in message
    assert not (run_copy / "evaluations").exists()


@pytest.mark.slow
@pytest.mark.sweep
def test_a_variant_is_evaluated_and_shown_where_nothing_can_be_written(
    run_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_copy / "evaluations").touch()  # in place of a folder
    main_evaluate(shlex.split("run=run episodes=1 env.game.payoff=expected"))
    printed = capsys.readouterr()
    assert (
        printed.err
        == "warning: run/evaluations cannot be written (Not a directory): results are shown but not saved\n"
    )
    assert "env.game.payoff=expected" in printed.out and "bandit" in printed.out
    (run_copy / "evaluations").unlink()
    main_evaluate(shlex.split("run=run episodes=1 env=bandit env.game.payoff=expected"))
    [file] = (run_copy / "evaluations").iterdir()
    written = json.loads(file.read_text())
    assert written["config"]["variant"] == ["env.game.payoff=expected"]
    assert written["results"][0]["levels"]["chance_success"] is None  # they are of the game as it is shipped


def test_bounds_that_never_act_are_told_in_the_summary(finished_run: Path) -> None:
    line, *_ = json.loads((finished_run / "summary.json").read_text())["warnings"]
    assert line.startswith("algo.clip.epsilon never acts") and "update=four_minibatches makes it act" in line


@pytest.mark.slow
def test_shell(in_empty_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "filter.ratoi=1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert not files(in_empty_folder)


@pytest.mark.slow
@pytest.mark.sweep
def test_a_sweep_goes_on_after_a_failed_run(
    capsys: pytest.CaptureFixture[str], tiny_model_folder: Path, in_empty_folder: Path
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main_train(shlex.split(f"-m {SMALL} model=hf model.name=/no/such,{tiny_model_folder}"))
    assert stopped.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    (sweep,) = in_empty_folder.glob("outputs/multirun/*/*")
    assert line.startswith(f"error: {sweep}/0: model.name=/no/such could not be loaded")
    assert not (sweep / "0").exists() and (sweep / "1" / ".hydra" / "config.yaml").exists()
    assert (sweep / "1" / "summary.json").exists()
    main_train([f"resume={sweep.relative_to(in_empty_folder)}/1"])  # complete: nothing is left to do
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.sweep
def test_what_was_checked_is_used(monkeypatch: pytest.MonkeyPatch, in_empty_folder: Path) -> None:
    """Every job's parts are made before the first begins, and not again, unless one depends on the run folder."""
    made: list[Parts] = []
    used: list[Parts | None] = []

    def made_parts(*given: Any) -> Parts:
        made.append(build_parts(*given))
        return made[-1]

    def trained(*_: object, parts: Parts | None, **__: object) -> None:
        assert len(made) == len(names)
        used.append(parts)

    monkeypatch.setattr("lit_agentrl.build.parts.build_parts", made_parts)
    monkeypatch.setattr("lit_agentrl.runs.training.train", trained)
    names = ["a", "b", "'${run_dir}'"]
    with pytest.raises(SystemExit):  # since nothing was trained
        main_train(["-m", f"algo.name={','.join(names)}", "env=bandit"])
    assert [parts.algorithm.name for parts in used[:2] if parts] == names[:2]
    assert used == [made[0], made[1], None] and used[0] is not used[1]


@pytest.mark.slow
@pytest.mark.sweep
def test_interrupt_tells_how_to_continue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_empty_folder: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lit_agentrl.runs.training.train", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main_train(["hydra.run.dir=run"])
    assert stopped.value.code == 130
    folder = in_empty_folder / "run"
    expected = f"interrupted; continue with: lit-agentrl train resume={folder}\n"
    assert capsys.readouterr().err == expected and (folder / ".hydra" / "config.yaml").exists()
