"""The start is taken over only where it would be played alike, and then leaves what playing it leaves."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from lit_agentrl.build.assembly import Run, build
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.composition import compose_job, task_loader
from lit_agentrl.data.prompts import PromptStream
from lit_agentrl.engines.base import SamplingParams
from lit_agentrl.envs.base import Task
from lit_agentrl.envs.games.sokoban import Sokoban
from lit_agentrl.envs.tasks.dataset import Dataset
from lit_agentrl.episode import EndReason, Episode
from lit_agentrl.report import summary as reports
from lit_agentrl.rollout.kept import KeptPlays
from lit_agentrl.rollout.players import Players
from lit_agentrl.rollout.scheduler import EpisodeSpec, Wave
from lit_agentrl.rollout.workers.base import Played
from lit_agentrl.runs import eval_cache
from lit_agentrl.runs.eval_cache import Start, code_digest, is_closed, why_played
from tests.callbacks.test_resume import scalars, texts
from tests.conftest import load_task_yaml
from tests.integration.conftest import checkpoint_of

TINY = (
    "env=bandit rollout.prompts=2 rollout.members=2 rollout.max_reply_tokens=8 rollout.max_context_tokens=128 "
    "trainer.max_epochs=1 trainer.accelerator=cpu val.every=1 val.episodes=3 test.episodes=5 engine.num_slots=4 "
    "callbacks/start_kl=val callbacks.transcripts.every=1"
)
WAVE = Wave("val", 0, SamplingParams(), (EpisodeSpec(0, 0, 0, 0, 17),))
TAKEN_OVER = "the start was played before: its numbers are taken over (eval_cache=false plays it)"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    asked = ["env=bandit", "val.episodes=2", "test.episodes=0", "trainer.accelerator=cpu"]
    cfg = compose_job("train", asked)
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    cfg.run_dir, cfg.callbacks, cfg.logger = str(tmp_path_factory.mktemp("run")), {}, {}
    return build(cfg, task_loader())


class Tilted(Sokoban):
    """A game of a user's."""


def generous(*, answer: str) -> bool:
    return bool(answer)


# ------------------------------------------------------------------ what it is known by
def _weights(run: Run) -> None:
    with torch.no_grad():
        next(run.module.policy.network.parameters()).view(-1)[0] += 1e-7


def _set(path: str, value: Any) -> Callable[[Run], None]:
    return lambda run: OmegaConf.update(run.cfg, path, value)


def _rules(**changed: Any) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        run.rules = replace(run.rules, **changed)

    return change


def _task(**changed: Any) -> Callable[[Run], None]:
    def change(run: Run) -> None:
        run.games.tasks[0] = replace(run.games.tasks[0], **changed)

    return change


def _template(run: Run) -> None:
    run.module.policy.tokenizer.chat_template = "other"  # type: ignore[assignment]


CHANGES: dict[str, Callable[[Run], None]] = {
    "weights": _weights,
    "chat template": _template,
    "prompt": _set("prompt.force_think", True),
    "dialect": _set("dialect._target_", "lit_agentrl.text.dialects.code.Code"),
    "context": _set("context", {"turns": 1}),
    "model": _set("model.name", "nano_tools"),
    "engine": _set("engine.num_slots", 7),
    "worlds": _set("worlds.delay", 3),
    "precision": _set("trainer.precision", "bf16-true"),
    "seed": _rules(seed=1),
    "length": _rules(max_context_tokens=300),
    "game": _task(game=load_task_yaml("bandit_reversed").game),
    "limits": _task(max_turns=4),
    "penalty": _task(invalid_penalty=-0.2),
}


def test_all_that_numbers_depend_on_is_in_the_key(
    made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval_cache, "code_digest", lambda: "code")
    packages = eval_cache._packages()
    assert any(name.startswith("torch-") for name in packages)
    monkeypatch.setattr(eval_cache, "_packages", lambda: packages)

    def key(wave: Wave = WAVE, change: Callable[[Run], None] = lambda run: None) -> str:
        weight = next(made.module.policy.network.parameters())
        before, template = weight.detach().clone(), made.module.policy.tokenizer.chat_template
        run = replace(made, cfg=made.cfg.copy(), games=replace(made.games, tasks=[*made.games.tasks]))
        try:
            change(run)
            return Start(run, KeptPlays(tmp_path)).key(wave)
        finally:
            made.module.policy.tokenizer.chat_template = template
            with torch.no_grad():
                weight.copy_(before)

    found = {name: key(change=change) for name, change in CHANGES.items()}
    assert key() == key()
    for name, wave in {
        "split": replace(WAVE, split="test"),
        "temperature": replace(WAVE, params=SamplingParams(temperature=0.5)),
        "instance": replace(WAVE, specs=(replace(WAVE.specs[0], instance_seed=18),)),
        "one more": replace(WAVE, specs=(*WAVE.specs, replace(WAVE.specs[0], group=1))),
    }.items():
        found[name] = key(wave)
    with monkeypatch.context() as patch:
        patch.setenv("MKL_CBWR", "COMPATIBLE")
        found["variable"] = key()
    with monkeypatch.context() as patch:
        patch.setattr(eval_cache, "code_digest", lambda: "other code")
        found["code"] = key()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 77)
        found["threads"] = key()
    with monkeypatch.context() as patch:
        patch.setattr(eval_cache, "_packages", lambda: packages[1:])
        found["packages"] = key()
    found["none"] = key()
    assert len({*found.values()}) == len(found)
    # what the start does not depend on
    others = {
        "algo": {},
        "optim.lr": 1.0,
        "trainer.max_epochs": 7,
        "rollout.prompts": 3,
        "run_dir": "elsewhere",
    }
    for path, value in others.items():
        assert key(change=_set(path, value)) == found["none"], path


def test_the_code_is_that_of_the_whole_package(tmp_path: Path) -> None:
    package, configs = tmp_path / "package", tmp_path / "conf"
    for name in (
        "package/a.py", "package/b/c.py", "package/b/d.yaml", "package/b/e.pyc", "package/w.safetensors",
        "conf/env/f.yaml",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    before = code_digest(package, configs)
    for name in (
        "package/b/e.pyc",
        "package/w.safetensors",
    ):  # made of source; hashed where they are played
        (tmp_path / name).write_text("other")
    assert code_digest(package, configs) == before
    for name in ("package/a.py", "package/b/d.yaml", "conf/env/f.yaml"):
        (tmp_path / name).write_text("other")
        before, old = code_digest(package, configs), before
        assert before != old
    (package / "b/c.py").rename(package / "b/f.py")
    before, old = code_digest(package, configs), before
    assert before != old
    configs.rename(package / "conf")  # as in a wheel
    assert code_digest(package, package / "conf") == before


# ------------------------------------------------------------------ what is played
@pytest.mark.parametrize("name", ["bandit", "bandit_reversed", "frozen_lake", "maths", "pocket", "sokoban"])
def test_games_of_this_package_are_closed(name: str) -> None:
    assert is_closed(load_task_yaml(name))


@pytest.mark.parametrize(
    "name",
    ["babyai", "code", "gymnasium", "mcp", "openenv", "reasoning_gym", "remote", "textarena", "webshop"],
)
def test_games_that_ask_others_or_a_clock_are_not(name: str) -> None:
    assert not is_closed(load_task_yaml(name))


def test_code_of_a_user_is_not(tmp_path: Path) -> None:
    assert not is_closed(Task("mine", Tilted))
    assert is_closed(Task("data", Dataset))
    assert is_closed(Task("data", partial(Dataset, path="x.jsonl")))
    assert not is_closed(Task("data", partial(Dataset, path="x.jsonl", reward=partial(generous))))
    assert not is_closed(Task("data", partial(Dataset, path="x.jsonl", reward=[generous])))
    assert not is_closed(Task("room", partial(Sokoban, size=tmp_path)))


def test_what_a_key_cannot_hold_is_played(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made
    monkeypatch.setattr(eval_cache.psutil.Process, "create_time", lambda self: math.inf)
    assert why_played(run) is None
    reasons: dict[str, Callable[[Run], None]] = {
        "context names own.Context": _set("context", {"_target_": "own.Context"}),
        "callbacks names own.Callback": _set("callbacks", {"a": {"_target_": "own.Callback"}}),
        "trainer names own.Plugin": _set("trainer.plugins", [{"_target_": "own.Plugin"}]),
        "worlds.wait=false": _rules(worlds=replace(run.rules.worlds, wait=False)),
        "bandit may answer with more": _task(game=Tilted),
    }
    for reason, change in reasons.items():
        changed = replace(run, cfg=run.cfg.copy(), games=replace(run.games, tasks=[*run.games.tasks]))
        change(changed)
        assert reason in str(why_played(changed))
    with monkeypatch.context() as patch:
        patch.setattr(eval_cache, "engine_of", lambda cfg: SimpleNamespace(func=object))
        assert "does not compute with the network of this process" in str(why_played(run))
    with monkeypatch.context() as patch:
        patch.setattr(eval_cache, "is_parallel", lambda strategy: True)
        assert "strategy=single plays on a CPU" in str(why_played(run))
    with monkeypatch.context() as patch:
        patch.setattr(eval_cache.psutil.Process, "create_time", lambda self: 0.0)
        assert "files of this package changed after" in str(why_played(run))


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(eval_cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert eval_cache.folder() == tmp_path / "lit-agentrl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert eval_cache.folder() == Path("/home/somebody/.cache/lit-agentrl")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert eval_cache.folder() is None
    monkeypatch.setenv(eval_cache.FOLDER, "here")
    assert eval_cache.folder() == Path("here")


# ------------------------------------------------------------------ what is kept
class Keyed(Start):
    """Of which the key is known."""

    def key(self, wave: Wave) -> str:
        return f"{wave.split}-key"


def test_lines_tell_what_was_taken_over_and_what_could_not_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Wave] = []

    def play(wave: Wave, version: int) -> Played:
        calls.append(wave)
        return Played([Episode(0, 0, 0, 0, "bandit", 17, end=EndReason.TURN_LIMIT)], seconds=3.0)

    def go(*splits: str, folder: Path = tmp_path) -> list[str]:
        start = Keyed(None, KeptPlays(folder))  # type: ignore[arg-type]
        for split in splits:
            assert start.through(play, replace(WAVE, split=split), 0).episodes == play(WAVE, 0).episodes
            calls.pop()
        return capsys.readouterr().out.splitlines()

    assert go("val", "test") == [] and len(calls) == 2
    assert go("val", "test") == [TAKEN_OVER] and len(calls) == 2
    (tmp_path / "val-key.json.gz").write_bytes(b"x")
    (line,) = go("val")
    assert line.startswith("warning: a kept evaluation is damaged and is played anew: ") and len(calls) == 3
    assert go("val") == [TAKEN_OVER]
    (tmp_path / "file").write_text("")
    (line,) = go("val", "test", folder=tmp_path / "file")
    assert line.startswith("warning: the start is not kept for later runs in ") and len(calls) == 5

    def failing(wave: Wave, version: int) -> Played:
        return Played([Episode(0, 0, 0, 0, "bandit", 17, end=EndReason.ERROR)])

    Keyed(None, KeptPlays(tmp_path / "other")).through(failing, WAVE, 0)  # type: ignore[arg-type]
    assert not (tmp_path / "other").exists()


# ------------------------------------------------------------------ what a run leaves
def _without_clock(found: Any) -> Any:
    """Tensors as bytes; without seconds and bytes of memory."""
    if isinstance(found, torch.Tensor):
        return (found.dtype, tuple(found.shape), found.detach().reshape(-1).tolist())
    if isinstance(found, dict):
        return {
            key: _without_clock(value)
            for key, value in found.items()
            if not str(key).startswith(("time/", "speed/", "seconds", "peak_memory", "command"))
        }
    return [_without_clock(each) for each in found] if isinstance(found, list | tuple) else found


def left(folder: Path) -> dict[str, Any]:
    """Everything in a run folder, but what the clock says and where it lies."""
    found: dict[str, Any] = {"scalars": _without_clock(scalars(folder)), "texts": texts(folder)}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".ckpt" or name.endswith(".ckpt.prev"):
            found[name] = repr(_without_clock(checkpoint_of(folder, path.name)))
        elif name == "metrics.csv":
            header, *rows = [line.split(",") for line in path.read_text().splitlines()]
            timed = [n for n, column in enumerate(header) if column.startswith(("time/", "speed/"))]
            found[name] = [[cell for n, cell in enumerate(row) if n not in timed] for row in (header, *rows)]
        elif name == "summary.json":
            found[name] = _without_clock(dict(reports.read(path)))
        elif "tensorboard" not in name:
            text = path.read_bytes().replace(str(folder).encode(), b"FOLDER")
            found[name] = (
                text.replace(b"eval_cache: false", b"eval_cache: true") if ".hydra" in name else text
            )
    return found


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]


def trained(folder: Path, *overrides: str) -> dict[str, Any]:
    options = dict(text.split("=", 1) for text in (*shlex.split(TINY), *overrides))
    main_train([*(f"{name}={value}" for name, value in options.items()), f"hydra.run.dir={folder}"])
    return left(folder)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(eval_cache.FOLDER, str(tmp_path / "cache"))
    # somebody may work on the package while the tests run
    monkeypatch.setattr(eval_cache.psutil.Process, "create_time", lambda self: math.inf)
    return tmp_path / "cache" / "starts"


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [[], ["env=sokoban", "val.envs=[sokoban,frozen_lake]", "rollout.max_context_tokens=256"]]
)
def test_a_run_that_takes_its_start_over_leaves_what_one_that_plays_it_leaves(
    more: list[str], cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = trained(tmp_path / "played", "eval_cache=false", *more)
    assert not cache.exists() and TAKEN_OVER not in capsys.readouterr().out
    fills = trained(tmp_path / "fills", *more)
    count = len([*cache.iterdir()])
    assert count == (3 if more else 2) and TAKEN_OVER not in capsys.readouterr().out
    reads = trained(tmp_path / "reads", *more)
    assert capsys.readouterr().out.count(TAKEN_OVER) == 1
    overrides = {".hydra/overrides.yaml", ".hydra/hydra.yaml"}  # which name eval_cache=false
    assert {*differing(played, fills)} <= overrides
    assert differing(fills, reads) == []
    assert "checkpoints/last.ckpt" in reads and "transcripts/val.jsonl" in reads and reads["texts"]
    if more:
        return
    # another algorithm begins alike, other lengths do not
    trained(tmp_path / "rloo", "algo=rloo")
    assert TAKEN_OVER in capsys.readouterr().out and len([*cache.iterdir()]) == count
    trained(tmp_path / "longer", "rollout.max_reply_tokens=9")
    assert TAKEN_OVER not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("at", "is_filled"), [("test of the start", False), ("first update", True)])
def test_a_run_that_was_killed_ends_alike_with_and_without(
    at: str, is_filled: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(tmp_path / "whole", "eval_cache=false")
    if is_filled:
        trained(tmp_path / "other")
    folder = tmp_path / "killed"
    with monkeypatch.context() as patch:
        if at == "first update":
            patch.setattr(Players, "update_begins", _killed)
        else:
            patch.setattr(PromptStream, "test_dataloader", _killed)
        with pytest.raises(SystemExit):
            main_train([*shlex.split(TINY), f"hydra.run.dir={folder}"])
    main_train([f"resume={folder}"])
    names = {*differing(whole, left(folder))} - {".hydra/overrides.yaml", ".hydra/hydra.yaml"}
    assert names <= {"scalars", "texts"}  # TensorBoard keeps the events of before


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_one_line(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    trained(tmp_path / "run")
    told = [line for line in capsys.readouterr().out.splitlines() if "start is not kept" in line]
    assert told == [f"warning: the start is not kept for later runs in {cache}: File exists"]
