"""Every file under conf/ composes as an option of its group, and what it describes can be made."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hydra import compose
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lit_agentrl.actions import Actions, ToolSpec
from lit_agentrl.batch import StepBatch, TrajectoryBatch
from lit_agentrl.build.assembly import build_dict, build_trainer
from lit_agentrl.build.games import build_games, try_games
from lit_agentrl.build.instantiation import get_engine_factory
from lit_agentrl.build.parts import build_parts, build_rewards
from lit_agentrl.config.composition import check_sections, compose_job, initialize_hydra, make_task_loader
from lit_agentrl.config.overrides import rewrite_for_hydra
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.config.trust import is_allowed, iterate_values
from lit_agentrl.data.kinds import Kind
from lit_agentrl.experimental.gateway.context import Calls
from lit_agentrl.experimental.tree_steps import Ranking
from lit_agentrl.models.policy import Policy, load_nano
from lit_agentrl.models.remote import RemotePolicy
from lit_agentrl.paths import (
    CONFIG_DIR,
    EXPERIMENTAL_DIR,
    find_config,
    list_configs,
    list_options,
    name_config,
)
from lit_agentrl.rl.binding import try_out
from lit_agentrl.rl.credit.advantages import Advantage
from lit_agentrl.rl.policy.aggregation import Weights
from lit_agentrl.rl.policy.clipping import Clipped
from lit_agentrl.rl.policy.filters import Selection
from lit_agentrl.rl.preference.objective import NLL
from lit_agentrl.rollout.settings import RolloutSettings
from lit_agentrl.rollout.workers.base import WorkerSettings
from lit_agentrl.runs.early import check_early
from lit_agentrl.task_sampler import TaskSampler
from lit_agentrl.text.chat import ChatRenderer
from lit_agentrl.text.context import Past
from lit_agentrl.text.prompts import Prompt
from lit_agentrl.update.critic import Critic
from lit_agentrl.update.reference import Reference
from lit_agentrl.update.settings import OptimSettings, UpdateSettings
from tests.conftest import NO_LIBRARY, lacks_library, served_game, served_openenv, thinned, tiny_policy
from tests.data.test_reading import folder, played
from tests.rewards.test_model import model as reward_model
from tests.rl.test_algo_configs import AXES, host_of

OPENING: dict[str, Any] = {
    "name": "sokoban", "rules": "", "actions": Actions("names", ("Up",)), "observation": "P _", "max_turns": 5,
    "max_actions": 10, "max_actions_per_turn": 5,
}  # fmt: skip
PROBLEMS = CONFIG_DIR.parent / "examples/own_data/problems.jsonl"


def one_point() -> float:
    """A user's own reward."""
    return 1.0


def find_options() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in list_configs():
        group = name_config(file).rpartition("/")[0]
        if group and not file.stem.startswith("_") and not group.startswith(("hydra", "experiment/")):
            found.setdefault(group, []).append(file.stem)
    return found


OPTIONS = find_options()
PAPERS = [file.stem for file in list_options("experiment/paper")]


def host(group: str) -> str:
    """The algorithm that shows an axis; empty for a group that is none."""
    axis = group.removeprefix("algo/")
    return "" if axis == group else host_of(axis) if axis in AXES else "grpo"


@functools.cache
def learned_reward(tiny: Path, kind: str = "score") -> str:
    """A reward model beside the tiny policy, made once a process."""
    return reward_model(tiny.parent / "reward", kind=kind)


def references(place: Path) -> str:
    """A folder of recorded episodes, made once a process."""
    return str(place / "f") if place.exists() else folder(place, [played(0, 0, 1.0)])


@functools.cache
def composed(round_: int, of_axes: str, tiny: Path, *, adapters: bool = False) -> DictConfig:
    """The config with the ``round_``-th option of every group, since composing each alone takes long.

    The axes of an algorithm have their own rounds.  The algorithm is the default one, or the one that shows them:
    `test_the_settings_of_a_paper` has the others.
    """
    groups = [group for group in OPTIONS if host(group) == of_axes and group != "algo"]
    choices = {g: OPTIONS[g][min(round_, len(OPTIONS[g]) - 1)] for g in groups}
    if lacks_library(choices.get("env", "")):
        choices["env"] = "bandit"  # beside an option of another group
    if choices.get("strategy") == "fsdp":  # which takes no adapters
        choices |= {"strategy": "single"} if adapters else {"model/lora": "none"}
    if choices.get("experiment") == "sokoban_strong":  # which sets an option of its own data alone
        choices["experiment"] = "none" if choices["data"] != "demonstrations" else "sokoban_strong"
    if choices.get("experiment") == "sokoban_online_dpo":  # without axes of others: see test_comparisons
        choices["experiment"] = "none"
    # which have no single game that is played by actions, or want best play of one action
    if choices.get("env") in ("mixture", "program") or choices.get("reward") == "information_gain":
        choices.pop("env/user", None)
    overrides = [f"{'+' * (group == 'env/user')}{group}={name}" for group, name in choices.items()]
    if of_axes:
        overrides.append(f"algo={of_axes}")
    if choices.get("model") == "hf":
        overrides.append(f"model.name={tiny}")
    if choices.get("engine") in ("openai", "vllm_serve"):
        overrides.append("engine.url=http://localhost:1")
    if choices.get("update/stop") == "kl":
        overrides.append("update.epochs=2")  # it never acts in the first step
    if choices.get("task_sampler", "uniform") != "uniform":
        overrides.append("rollout.instances=8")
    if choices.get("env") == "remote":
        overrides.append(f"env.game.url={served_game()}")
    if choices.get("env") == "openenv":
        overrides.append(f"env.game.url={served_openenv()}")
    if choices.get("env") == "mcp":
        raw = Path(__file__).with_name("envs") / "mcp_raw.py"
        overrides += [
            f"env.game.command=[{sys.executable},-S,{raw},book]",
            f"env.game.path={CONFIG_DIR.parent / 'examples/own_mcp/tasks.jsonl'}",
        ]
    if choices.get("env") == "program":
        overrides += ["env.game.mode=function", "env.game.function=tests.experimental.gateway_agents.walk"]
    if choices.get("context") == "summary":
        overrides.append("algo/structure=summary")
    if choices.get("reference", "start") != "start":
        overrides.append("algo/kl=loss_k2")
    if choices.get("reference") == "teacher":
        overrides.append(f"reference.path={tiny}")
    if choices.get("env") == "dataset":
        overrides.append(f"env.game.path={PROBLEMS}")
    if choices.get("env") in ("dataset", "bandit", "bandit_reversed", "judging", "reverse_text"):
        overrides.append("env.max_turns=2")  # what parts about later turns ask for
    if "env/user" in choices:  # whose questions are actions too
        overrides += ["env.max_turns=60", "env.max_actions=60"]
    if choices.get("env/user") == "model":
        overrides.append("env.user.speaker.url=http://localhost:1")
    if choices.get("algo/structure") == "ranked":
        overrides.append("algo.structure.engine.url=http://localhost:1")
    if choices.get("data") == "spin":  # which reads folders
        overrides += [f"data.path={tiny}", f"data.demonstrations={tiny}"]
    elif choices.get("data", "rollouts") != "rollouts":
        overrides.append(f"data.path={PROBLEMS}")
    if (name := choices.get("reward")) in ("function", "sentences"):
        overrides.append(f"reward.{name}.fn._target_=tests.test_conf.one_point")
    if choices.get("reward") == "model":
        overrides.append(f"reward.model.path={learned_reward(tiny)}")
    if choices.get("critic") == "reward_model":
        overrides.append(f"critic.path={learned_reward(tiny)}")
    if choices.get("reward") == "cost":
        overrides += [f"reward.cost.path={learned_reward(tiny, 'cost')}", "algo/cost=lagrange", "filter=none"]
    if choices.get("reward") == "polar":
        overrides += [
            f"reward.polar.path={learned_reward(tiny, 'referred')}",
            f"reward.polar.references.path={references(tiny.parent / 'references')}",
            "reward.polar.max_missing_share=0.99",
        ]
    if choices.get("reward") == "endo":
        overrides.append(f"reward.endo.path={tiny}")
    if choices.get("reward") == "judge":
        overrides.append("reward.judge.engine.url=http://localhost:1")
    if choices.get("reward") == "judge_local":
        overrides.append(f"reward.judge.model.name={tiny}")
    with initialize_hydra():
        return compose(
            config_name="train", overrides=rewrite_for_hydra([*overrides, "trainer.accelerator=cpu"])
        )


def make_axis(cfg: DictConfig, axis: str) -> None:
    part = instantiate(cfg.algo[axis])
    if axis == "kl_controller":
        assert part.update(0.1, 0.2, 100) > 0
    elif axis == "cost":
        assert part is None or part.update(0.5, 100) == {"train/cost_multiplier": 1.0}
    elif axis == "structure":
        assert len(part.plan(StepBatch(0, seed_P=[7], task_P=[0], group_P=[0]), 8)) >= 4
    elif host_of(axis) != "grpo":  # of pairs: `test_algo_configs` tries all parts of such a loss together
        assert part is None or callable(part) or isinstance(part, NLL | Ranking)
    elif part is not None:
        results = {"advantage": Advantage, "clip": Clipped, "aggregate": Weights}
        try_out(f"algo.{axis}", part, results.get(axis, Tensor), TrajectoryBatch.make_toy().to_dict())


def make_callbacks(cfg: DictConfig) -> None:
    made = build_dict(cfg, "callbacks", pl.Callback)
    assert made


def make_context(cfg: DictConfig) -> None:
    context = instantiate(cfg.context)
    opening, chat = (
        functools.partial(Prompt("compact").write_opening, **OPENING),
        ChatRenderer(load_nano().tokenizer),
    )
    past = Past(opening, [], [""], [chat.render_opening(opening())])
    if isinstance(context, Calls):  # programs have no prompts of the run
        with pytest.raises(ValueError, match="env=program alone"):
            context.prompt(past, chat)
        return
    assert context.prompt(past, chat) == past.pieces[0]
    assert context.is_append_only == (cfg.context._target_ == "lit_agentrl.text.context.Full")


def make_engine(cfg: DictConfig) -> None:
    engine = get_engine_factory(cfg)
    assert isinstance(engine, functools.partial) and (
        engine.keywords.get("num_slots", 0) >= 1 or engine.keywords["retries"] >= 1
    )


def make_games(cfg: DictConfig) -> None:
    games = build_games(cfg, make_task_loader())
    assert games.tasks and len(games.weights) == len(games.tasks) == len(games.val)
    observation, _ = games.tasks[0].make("train").reset(seed=0)
    assert observation


def make_experiment(cfg: DictConfig) -> None:
    base = composed(0, "", Path())
    cfg.critic, cfg.engine, cfg.data = base.critic, base.engine, {}  # which fit every algorithm
    assert isinstance(build_parts(cfg, make_task_loader()).rollout, RolloutSettings)


def make_data(cfg: DictConfig) -> None:
    assert not cfg.data or isinstance(instantiate(cfg.data), Kind)


def make_debug(cfg: DictConfig) -> None:
    make_callbacks(cfg)
    make_experiment(cfg)


def make_critic(cfg: DictConfig) -> None:
    critic = instantiate(cfg.critic)(load_nano()) if cfg.critic else None
    assert critic is None or isinstance(critic, Critic)


def make_reference(cfg: DictConfig) -> None:
    made = instantiate(cfg.reference)
    assert isinstance(made, Reference)
    policy = tiny_policy()
    network = made.make(policy, None)
    same = all(
        torch.equal(a, b) for a, b in zip(network.parameters(), policy.network.parameters(), strict=True)
    )
    assert network is not policy.network and same  # the folder of the teacher holds the same weights


def make_filter(cfg: DictConfig) -> None:
    try_out("filter", instantiate(cfg.filter), Selection, TrajectoryBatch.make_toy().to_dict())


def make_update(cfg: DictConfig) -> None:
    assert isinstance(instantiate(cfg["update"]), UpdateSettings)


def make_loggers(cfg: DictConfig) -> None:
    made = build_dict(cfg, "logger", Logger)
    assert made


def make_model(cfg: DictConfig) -> None:
    policy = instantiate(cfg.model)
    if isinstance(policy, RemotePolicy):
        assert policy.tokenizer.chat_template
        return
    assert isinstance(policy, Policy) and policy.tokenizer.chat_template
    assert (policy.adapters is not None) == ("lora" in cfg.model)


def make_optimizer(cfg: DictConfig) -> None:
    settings = instantiate(cfg.optim)
    assert isinstance(settings, OptimSettings)
    optimizer, scheduler = settings.build([torch.nn.Parameter(torch.zeros(1))], iterations=10)
    assert optimizer.param_groups[0]["initial_lr"] == cfg.optim.lr and scheduler.last_epoch == 0


def make_prompt(cfg: DictConfig) -> None:
    assert isinstance(instantiate(cfg.prompt), Prompt)


def make_dialect(cfg: DictConfig) -> None:
    tools = Actions("tools", tools=(ToolSpec("go", "goes", {"type": "object", "properties": {}}),))
    dialect, call = instantiate(cfg.dialect), '{"name": "go", "arguments": {}}'
    assert dialect.parse(dialect.write([call], thought=""), tools, think=True).actions == (call,)


def make_reward(cfg: DictConfig) -> None:
    rewards = build_rewards(cfg.reward)
    try_games(build_games(cfg, make_task_loader()), rewards)
    given = {name: entry._target_.rpartition(".")[2] for name, entry in cfg.reward.items()}
    assert {name: type(part).__name__ for name, part in rewards.parts.items() if name in given} == given
    assert bool(rewards) == bool(given)


def make_task_sampler(cfg: DictConfig) -> None:
    assert isinstance(instantiate(cfg.task_sampler), TaskSampler)


def make_worker(cfg: DictConfig) -> None:
    assert not cfg.worker or isinstance(instantiate(cfg.worker), WorkerSettings)


def make_trainer(cfg: DictConfig) -> None:
    trainer = build_trainer(cfg, callbacks=[], loggers=[])
    assert trainer.max_epochs == cfg.trainer.max_epochs and trainer.world_size == 1


MAKERS: dict[str, Callable[[DictConfig], None]] = {
    "callbacks": make_callbacks,
    "callbacks/collapse": make_callbacks,
    "callbacks/collapse/action": make_callbacks,
    "callbacks/start_kl": make_callbacks,
    "context": make_context,
    "critic": make_critic,
    "data": make_data,
    "debug": make_debug,
    "dialect": make_dialect,
    "engine": make_engine,
    "env": make_games,
    "env/user": make_games,
    "experiment": make_experiment,
    "filter": make_filter,
    "logger": make_loggers,
    "model": make_model,
    "model/lora": make_model,
    "optim": make_optimizer,
    "prompt": make_prompt,
    "reference": make_reference,
    "reward": make_reward,
    "strategy": make_trainer,
    "task_sampler": make_task_sampler,
    "trainer": make_trainer,
    "update": make_update,
    "update/gradients": make_update,
    "update/stop": make_update,
    "worker": make_worker,
}


def round_of(group: str, option: str) -> int:
    """The round that composes an option; each has a group's last option, where it is the only one."""
    return OPTIONS[group].index(option) if len(OPTIONS[group]) > 1 else 1


def check_it_may_be_saved(cfg: DictConfig) -> None:
    """Check that each target of a config is one that a saved config may name."""
    targets = {
        (path, value)
        for path, value in iterate_values(OmegaConf.to_container(cfg), "")
        if path.endswith("._target_")
    }
    assert len(targets) > 10
    # code of the user's, and what would be told a key of whoever evaluates the run
    targets -= {
        (f"reward.{name}.fn._target_", "tests.test_conf.one_point") for name in ("function", "sentences")
    }
    targets -= {
        (f"{place}engine._target_", "lit_agentrl.engines.served.openai.OpenAIEngine")
        for place in ("", "reward.judge.")
    }
    targets.discard(("env.user.speaker._target_", "lit_agentrl.experimental.users.speakers.ModelSpeaker"))
    assert not [
        (path, name) for path, name in targets if not is_allowed(path.removesuffix("._target_"), name)
    ]


@pytest.mark.parametrize(
    ("group", "option"),
    [  # the quick cases are of one round, which has an option of every group
        pytest.param(g, name, marks=() if round_of(g, name) == 1 else (pytest.mark.slow, pytest.mark.sweep))
        for g, names in OPTIONS.items()
        if g != "algo"
        for name in names
    ],
)
def test_option(group: str, option: str, tmp_path: Path, tiny_model_folder: Path) -> None:
    if group == "env" and lacks_library(option):
        pytest.skip(NO_LIBRARY)
    axis = group.removeprefix("algo/") if host(group) else ""
    cfg = composed(
        round_of(group, option), host(group), tiny_model_folder, adapters=group == "model/lora"
    ).copy()
    cfg.run_dir = str(tmp_path)
    check_sections(cfg, "train")
    check_targets(cfg)
    check_early(cfg)
    check_it_may_be_saved(cfg)
    if axis:
        make_axis(cfg, axis)
    else:
        MAKERS[group](cfg)
    assert not list(tmp_path.iterdir()), "making things must not write"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("env.game.options={is_slippery: false}", {"is_slippery": False}),
        ("env.game.options.is_slippery=false", {"is_slippery": False}),
    ],
)
def test_a_table_of_a_part_that_is_empty_takes_entries(given: str, options: dict[str, bool]) -> None:
    """As the docs write them; Hydra alone would ask for a +."""
    assert compose_job("train", ["env=gymnasium", given]).env.game.options == options


@pytest.mark.parametrize("name", thinned(PAPERS, one_in=23))
def test_the_settings_of_a_paper(name: str) -> None:
    with initialize_hydra():
        cfg = compose("train", overrides=[f"experiment=paper/{name}", "trainer.accelerator=cpu"])
    cfg.run_dir = "."
    check_sections(cfg, "train")
    check_targets(cfg)
    check_early(cfg)
    parts = build_parts(cfg, make_task_loader())
    update = parts.update
    groups = f"{parts.rollout.prompts} x {parts.rollout.members}"
    stop = "none" if update.stop is None else f"over {update.stop.bound:g}"
    row = [groups, str(update.epochs), str(update.minibatches), str(update.grad_clip), stop]
    assert cfg.algo.name == name and runs_told(name)["experiment"] == row


def runs_told(name: str) -> dict[str, list[str]]:
    """The table in the header of an algorithm: groups, epochs, minibatches, gradient norm, KL stop of each run."""
    lines = find_config(f"algo/{name}.yaml").read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("# |").split(" | ")] for line in lines if line.startswith("# | ")
    ]
    assert cells[0] == ["run", "groups", "epochs", "minibatches", "gradient norm", "KL stop"]
    return {run: row for run, *row in cells[1:]}


@functools.cache
def read_file(name: str) -> Any:
    return OmegaConf.load(CONFIG_DIR / name)


@pytest.mark.parametrize("name", OPTIONS["algo"])
def test_every_algorithm_says_how_it_is_run(name: str) -> None:
    told, train = runs_told(name), read_file("train.yaml").rollout
    chosen = OmegaConf.load(find_config(f"algo/{name}.yaml")).defaults
    choice = next((c["override /update@_global_.update"] for c in chosen if "update" in str(c)), "default")
    files = [read_file(f"update/{option}.yaml") for option in ("default", choice)]
    update = OmegaConf.merge(*files)
    groups = f"{train.prompts} x {train.members}"
    assert told["here"] == [
        groups,
        str(update.epochs),
        str(update.minibatches),
        str(update.grad_clip),
        "none",
    ]
    assert set(told) - {"experiment"} == {"here", "paper"} and all(told["paper"])
    assert ("experiment" in told) == (name in PAPERS)


@pytest.mark.slow
def test_defaults_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    from lit_agentrl.cli.evaluate import main as main_evaluate
    from lit_agentrl.cli.train import main as main_train

    with pytest.raises(SystemExit) as stopped:
        main_train(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    shown = dict.fromkeys(OPTIONS, "")
    for tier, text in zip(("core", "experimental"), printed.split("\nExperimental: "), strict=True):
        for group, listed in re.findall(r"^([\w/]+): (.+)$", text, flags=re.MULTILINE):
            for name in listed.split(", "):
                is_experimental = find_config(f"{group}/{name}.yaml").is_relative_to(EXPERIMENTAL_DIR)
                assert is_experimental == (tier == "experimental"), name
            shown[group] = f"{shown.get(group, '')}, {listed}"
    assert all(set(names) <= set(shown[group].split(", ")) for group, names in OPTIONS.items())
    assert printed.count("  lit-agentrl train ") >= 5
    main_evaluate(["--help"])
    assert "pass_k: []" in capsys.readouterr().out


def test_run_folders() -> None:
    with initialize_hydra():
        cfg: Any = compose(config_name="train", return_hydra_config=True)
        assert OmegaConf.is_missing(cfg.hydra.runtime, "output_dir")
        date, time = str(cfg.hydra.run.dir).removeprefix("outputs/").split("/")
        assert len(date) == len("2026-01-31") and len(time) == len("23-59-59")
        assert str(cfg.hydra.sweep.dir).startswith("outputs/multirun/20")
        assert cfg.hydra.output_subdir == ".hydra" and not cfg.hydra.job.chdir
