"""Wrong options that the config alone shows are told without Lightning, in the words of the part itself."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import get_type_hints

import pytest
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from lit_agentrl.config import composition
from lit_agentrl.config.overrides import rewrite_for_hydra
from lit_agentrl.runs.early import CHECKS, check_early
from lit_agentrl.update.settings import SCHEDULES
from tests.commands import Refused
from tests.conftest import thinned

WRONG = [
    "rollout.prompts=0",
    "rollout.top_p=2",
    "algo.clip.epsilon=-1",
    "algo=dapo algo.clip.high=0",
    "algo/kl=loss_k3 algo.kl.coef=-1",
    "algo.advantage.eps=2",
    "algo/tokens=top_entropy algo.tokens.share=0",
    "algo.clip.epsilon=many",
    "algo.clip={_target_:lit_agentrl.rl.policy.clipping.symmetric,_partial_:true,epsilon:0.2,lower:1}",
    "algo.clip._target_=lit_agentrl.rl.policy.clipping.nosuch",
    "filter.ratio=1.3",
    "optim.lr=-1",
    "optim.schedule=cosin",
    "+optim.optimizer.momentum=0.9",
    "optim.optimizer.weight_decay=inf",
    "update.epochs=0",
    "env.game.size=2",
    "env.max_turns=0",
    "env=dataset env.game.path=nosuch.csv",
    "data=demonstrations data.path=nosuch.jsonl",
    "data=pairs data.path=rows.jsonl data.batch=0",
    "reward=format reward.format.weight=0",
    "context=window context.turns=0",
    "val.temperature=-1",
    "trainer.precision=16-true",
    "trainer.precision=nosuch",
    "trainer.devices=2",
    "+trainer.deterministic=nosuch",
    "+trainer.gradient_clip_algorithm=norm",
    "task_sampler=success_band rollout.instances=8 task_sampler.low=2",
    "seed=-1",
    "callbacks.transcripts.every=abc",
    "callbacks.progress.every=0",
    "callbacks.transcripts=7",
    "callbacks.best.mode=most",
    "callbacks.last.keep=3",
    "callbacks.collapse.rules.gradient.patience=0",
    "callbacks/start_kl=val callbacks.start_kl.episodes=0",
    "callbacks/collapse/action=rollback callbacks.collapse.action.lr_factor=7",
    "engine.num_slots=0",
    "engine.window=-3",
    "engine.prefill=some",
    "engine=vllm engine.sleep=7",
    "engine=openai engine.url=http://localhost:1 engine.timeout_s=-1",
    "model=hf model.name=a/b model.dtype=float8",
    "model=hf model.name=a/b model/lora=default model.lora.r=0",
    "algo=ppo critic.grad_clip=-1",
    "algo=archer critic.target_rate=7",
    "worker=process worker.count=3",
    "worker=ray worker.cpus=0",
    "strategy=ddp strategy.timeout_s=-1",
    "strategy=fsdp strategy.reduce_dtype=float8",
]


def compose(job: str) -> DictConfig:
    cfg = composition.compose_job("train", rewrite_for_hydra(shlex.split(job)))
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    cfg.run_dir = "."
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize("job", thinned(WRONG, one_in=4))
def test_a_wrong_value_is_told_early_as_it_is_told_late(
    refused: Refused, in_empty_folder: Path, job: str
) -> None:
    Path("rows.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 40)
    with pytest.raises(ValueError) as told:
        check_early(compose(job))
    assert refused(job) == f"error: {' '.join(str(told.value).split())}\n"


@pytest.mark.parametrize(("part", "check"), CHECKS.items())
def test_an_early_check_has_the_names_and_types_of_its_part(part: str, check: str) -> None:
    checked, own = (
        get_type_hints(found.__init__ if inspect.isclass(found) else found)
        for found in map(get_object, (check, part))
    )
    shared = (checked.keys() & own.keys()) - {"return"}
    assert shared or "options" in own  # passes all its options on
    assert {name: checked[name] for name in shared} == {name: own[name] for name in shared}


def test_the_schedules_are_those_of_transformers() -> None:
    from transformers import SchedulerType

    assert {kind.value for kind in SchedulerType} - {"reduce_lr_on_plateau", "greedy"} == set(SCHEDULES)


def test_a_folder_without_a_model_is_told_early_with_that_of_the_run(tmp_path: Path) -> None:
    cfg = composition.compose_job("train", ["env=bandit", "model=hf", f"model.name={tmp_path}"])
    with pytest.raises(
        ValueError, match=r"could not be loaded \(it has no config\.json\); give a folder with"
    ):
        check_early(cfg)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").touch()
    with pytest.raises(ValueError, match=f"the weights of this run are in model.name={tmp_path}/hf"):
        check_early(cfg)
