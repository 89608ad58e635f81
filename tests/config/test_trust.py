"""A run folder of a stranger executes nothing; one of one's own does where ``trust_run=true`` is given."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback
from omegaconf import OmegaConf

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config import composition
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.saved import format_trust_option, read_saved_config
from lit_agentrl.config.trust import _LIGHTNING_CALLBACKS, UntrustedError, _import_object, resolve_untrusted
from lit_agentrl.evaluate.results_file import write_results
from lit_agentrl.renamed import rename_targets

CALL = {"_target_": "os.system", "command": "touch owned"}
PROFILERS = "lightning.pytorch.profilers"
HOSTILE = [  # key of a saved config, what a stranger wrote there
    ("optim.optimizer._target_", "torch.hub.load"),
    ("optim.optimizer._target_", "torch.optim.lr_scheduler.LambdaLR"),
    ("optim.optimizer._target_", ["torch.optim.AdamW"]),
    ("optim.schedule_args.power", CALL),
    ("optim.schedule_args.milestones", [1, [CALL]]),
    ("optim.optimizer._args_", [CALL]),
    ("optim.optimizer._recursive_", False),
    ("env.game._target_", "stranger.Game"),
    ("env.game._target_", "lit_agentrl.envs.checker.check_env"),
    ("env.name", CALL),
    ("env.game.command", ["touch", "owned"]),
    ("env.game.command", "touch owned"),
    ("val.envs", [CALL]),
    ("algo._target_", "torch.load"),
    ("algo.clip._target_", "lit_agentrl.rl.policy.clipping.torch.hub.load"),
    ("algo.clip._target_", "lit_agentrl.rl.policy.clipping.Tensor"),
    ("algo.clip", {**CALL, "_partial_": True}),
    ("algo.name", "${oc.env:HOME}"),
    ("algo.name", r"\${oc.env:HOME}"),
    ("algo.name", "${model.${oc.env:HOME}}"),
    ("filter._target_", "lit_agentrl.files.replace_folder"),
    ("strategy._target_", "lit_agentrl.strategies.checkpoint_io.remove_checkpoint"),
    ("engine._target_", "lit_agentrl.__main__.main"),
    ("engine._target_", "lit_agentrl..x"),
    ("trainer._target_", "builtins.eval"),
    ("trainer.profiler", CALL),
    ("trainer.profiler", {"_target_": f"{PROFILERS}.PyTorchProfiler", "dirpath": "/elsewhere"}),
    ("trainer.profiler", {"_target_": f"{PROFILERS}.SimpleProfiler"}),
    ("model._target_", "transformers.AutoModelForCausalLM.from_pretrained"),
    ("reward.mine", CALL),
    ("reward.mine._target_", "lit_agentrl.rewards.pipeline.RewardPipeline"),
    ("callbacks.mine._target_", "lightning.pytorch.callbacks.LambdaCallback"),
    ("callbacks.mine._target_", "lightning.pytorch.callbacks.ModelCheckpoint"),
    ("callbacks.mine._target_", "lightning.pytorch.callbacks.StochasticWeightAveraging"),
    ("callbacks.mine", {"_target_": "lightning.pytorch.callbacks.Timer", "duration": CALL}),
    ("callbacks.last.dirpath", "/elsewhere/checkpoints"),
    ("callbacks.last.dirpath", "relative"),
    ("logger.csv.name", "../../elsewhere"),
    ("data", {"cache_reference": "/elsewhere/kept"}),
    ("data", {"cache_reference": "relative"}),
    ("worker.address", "elsewhere:6379"),
    (
        "env.game",
        {
            "_target_": "lit_agentrl.envs.hosted.remote.Remote",
            "_partial_": True,
            "url": "http://elsewhere",
        },
    ),
    ("resume", CALL),
    ("_target_", "os.system"),
]


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    """As Hydra saves it: references not followed."""
    options = ["reward=[potential,count]", "algo=ppo", "algo/kl=loss_k3", "context=single", "worker=process"]
    cfg = composition.compose_job("train", options)
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    found = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(found, dict) and "${" in str(found)
    return {**found, "run_dir": "/runs/1"}


@pytest.mark.slow
def test_what_was_composed_of_shipped_parts_is_settled(saved: dict[str, Any]) -> None:
    settled = resolve_untrusted(saved, Path("/runs/1"))
    assert settled["callbacks"]["last"]["dirpath"] == "/runs/1/checkpoints"
    assert settled["callbacks"]["transcripts"]["dialect"] == settled["dialect"]
    other = copy.deepcopy(saved)
    other["optim"]["optimizer"]["_target_"] = "torch.optim.SGD"
    other["algo"]["clip"]["_target_"] = "lit_agentrl.rl.policy.clipping.cispo"
    others = {name: {"_target_": f"lightning.pytorch.callbacks.{name}"} for name in _LIGHTNING_CALLBACKS}
    assert all(issubclass(_import_object(each["_target_"]), Callback) for each in others.values())
    other["callbacks"] |= others
    assert resolve_untrusted(other, Path("/runs/1"))["algo"]["clip"]["_target_"].endswith("cispo")


def test_a_profiled_run_is_settled() -> None:
    cfg = composition.compose_job("train", ["debug=profile"])
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    cfg.run_dir = "/runs/1"
    settled = resolve_untrusted(OmegaConf.to_container(cfg, resolve=False), Path("/runs/1"))  # type: ignore[arg-type]
    assert settled["trainer"]["profiler"]["dirpath"] == "/runs/1/profile"


@pytest.mark.parametrize("name", ["preference.NLL", "preference.no_nll"])
def test_names_of_earlier_runs_stay(saved: dict[str, Any], name: str) -> None:
    other = copy.deepcopy(saved)
    other["algo"]["nll"] = {"_target_": f"lit_agentrl.rl.{name}"}
    assert resolve_untrusted(rename_targets(other), Path("/runs/1"))["algo"]["nll"]


@pytest.mark.parametrize(("key", "value"), HOSTILE, ids=lambda value: str(value)[:50])
def test_what_a_stranger_wrote_is_refused(
    saved: dict[str, Any], key: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    hostile = copy.deepcopy(saved)
    node, *path = hostile, *key.split(".")
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = value
    with pytest.raises(UntrustedError, match=rf"^{key}.*; if it is your own, add trust_run=true$"):
        resolve_untrusted(hostile, Path("/runs/1"))
    assert not Path("owned").exists() and "stranger" not in sys.modules


def write(folder: Path, config: dict[str, Any], sources: list[dict[str, str]] | None = None) -> Path:
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(config), folder / ".hydra" / "config.yaml")
    of_hydra = {"hydra": {"runtime": {"config_sources": sources or []}}}
    OmegaConf.save(OmegaConf.create(of_hydra), folder / ".hydra" / "hydra.yaml")
    return folder


@pytest.mark.slow
def test_the_configs_beside_a_run_are_not_read(saved: dict[str, Any], tmp_path: Path) -> None:
    """A game named by a saved config, or on the command line, could come from a folder that the saved one names."""
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "theirs.yaml").write_text("_target_: stranger.Game\n")
    source = {"schema": "file", "path": str(tmp_path / "conf"), "provider": "command-line"}
    for place, added in (({"val": {**saved["val"], "envs": ["theirs"]}}, []), ({}, [("env", "theirs")])):
        folder = write(tmp_path / f"run{len(added)}", {**saved, **place}, [source])
        with pytest.raises(
            UntrustedError, match=r"env=theirs is an option of the run's own config folder .*conf"
        ):
            read_saved_config(folder, "run", added=added)
        assert read_saved_config(folder, "run", trusted=True, added=added)[1] == [str(tmp_path / "conf")]
    assert read_saved_config(tmp_path / "run1", "run")[1] == []
    assert [format_trust_option(tmp_path / f"run{i}") for i in range(2)] == [" trust_run=true", ""]


@pytest.mark.slow
def test_a_link_that_leads_out_of_a_run_is_refused(saved: dict[str, Any], tmp_path: Path) -> None:
    """What is written to it would replace what it leads to."""
    folder, theirs = write(tmp_path / "run", saved), tmp_path / "theirs"
    theirs.write_text("mine")
    (folder / "inner").symlink_to(folder / ".hydra")
    assert read_saved_config(folder, "run")[1] == []
    (folder / "evaluations").mkdir()
    (folder / "evaluations" / ".run.lock").symlink_to(theirs)
    with pytest.raises(
        UntrustedError, match=r"\.run\.lock is a link that leads out of the run folder.*trust_run=true"
    ):
        read_saved_config(folder, "run")
    assert (
        read_saved_config(folder, "run", trusted=True)[1] == []
        and format_trust_option(folder) == " trust_run=true"
    )
    assert (
        write_results(folder / "evaluations", "last", {"config": {}}) is None and theirs.read_text() == "mine"
    )


def test_a_text_of_the_dialect_is_no_place(saved: dict[str, Any]) -> None:
    other = copy.deepcopy(saved)
    other["dialect"]["separator"] = "/"
    assert (
        resolve_untrusted(other, Path("/runs/1"))["callbacks"]["transcripts"]["dialect"]["separator"] == "/"
    )


@pytest.mark.parametrize("broken", [{"algo": "grpo"}, {"algo": 3, "rollout": [1]}])
def test_a_config_of_another_shape_is_one_line(saved: dict[str, Any], tmp_path: Path, broken: Any) -> None:
    with pytest.raises(UserError, match=r"^run=.*run"):
        read_saved_config(write(tmp_path / "run", {**saved, **broken}), "run")


@pytest.mark.slow
def test_own_code_runs_again_where_the_run_is_trusted(
    saved: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "mine.py").write_text(
        "from lit_agentrl.envs.games.bandit import Bandit\nclass Mine(Bandit): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run: list[str] = []

    def evaluated(*_: Any, **__: Any) -> SimpleNamespace:
        run.append("evaluated")
        return SimpleNamespace(paths=["here"])

    monkeypatch.setattr("lit_agentrl.evaluate.evaluation.evaluate", evaluated)
    monkeypatch.setattr("lit_agentrl.runs.training.train", lambda *_, **__: run.append("resumed"))
    game = {"_target_": "mine.Mine", "payoff": "expected"}
    folder = write(tmp_path / "run", {**saved, "env": {**saved["env"], "game": game}})
    for main, command in ((main_evaluate, f"run={folder}"), (main_train, f"resume={folder}")):
        for given, why in (
            ("", "env.game._target_=mine.Mine is not an object"),
            (" trust_run=maybe", "true or false"),
        ):
            with pytest.raises(SystemExit):
                main(f"{command}{given}".split())
            error = capsys.readouterr().err
            assert error.count("\n") == 1 and why in error and "trust_run" in error
        assert "mine" not in sys.modules or run
        main([command, "trust_run=true"])
    assert run == ["evaluated", "resumed"]
    with pytest.raises(SystemExit):
        main_train(["trust_run=true"])
    assert "trust_run applies only with resume=FOLDER" in capsys.readouterr().err
