"""Whose folder it is: new when a run begins, and one process's at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
from lit_agentrl.config.errors import UserError
from lit_agentrl.config.overrides import parse
from lit_agentrl.runs import run_folder
from lit_agentrl.runs.run_folder import LOCK, FolderInUse, find_owner, lock_folder, unlock_folder
from tests.commands import Refused, contents

pytestmark = pytest.mark.usefixtures("in_empty_folder")
OTHER = {"host": "elsewhere", "process": 4711, "start": "2026-01-31 12:00:00+00:00"}
TOLD = "in use by process 4711 on elsewhere since 2026-01-31 12:00:00+00:00"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "PATIENCE_S", 0.0)


@contextmanager
def held_by_another(folder: Path) -> Iterator[None]:
    """Another open file holds the lock, as that of another process would."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        json.dump(OTHER, file)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_folder_has_one_owner() -> None:
    folder = Path("new/run")
    with lock_folder(folder), lock_folder("new/../new/run"):
        about = json.loads((folder / LOCK).read_text())
        assert (about["host"], about["process"]) == (socket.gethostname(), os.getpid()) and about["start"]
        assert find_owner(folder) is None  # no other
        with (folder / LOCK).open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not folder.exists()  # nothing was written
    with lock_folder(folder):
        (folder / "file").touch()
        unlock_folder(folder)
        with held_by_another(folder):
            assert find_owner(folder) == TOLD.removeprefix("in use by ")
            with pytest.raises(FolderInUse, match=TOLD.replace("+", r"\+")), lock_folder(folder):
                pass
    assert sorted(os.listdir(folder)) == [LOCK, "file"]


def test_the_lock_of_a_killed_process_hinders_nobody() -> None:
    Path("run").mkdir()
    Path("run", LOCK).write_text(json.dumps(OTHER))
    assert find_owner("run") is None
    with lock_folder("run"):
        assert json.loads(Path("run", LOCK).read_text())["process"] == os.getpid()
    assert not os.listdir("run")


def test_a_lock_that_its_last_owner_removed_meanwhile_is_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    real, removed = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(Path("run", LOCK).unlink())
        real(descriptor, operation)

    monkeypatch.setattr(run_folder, "PATIENCE_S", 5.0)
    monkeypatch.setattr(fcntl, "flock", late)
    with lock_folder("run"):
        assert Path("run", LOCK).exists()


def test_a_file_system_without_locks_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with lock_folder("run"):
        assert find_owner(Path("run").absolute().parent) is None
    assert "cannot be locked (Function not implemented)" in caplog.text


def test_a_folder_that_cannot_be_made_is_told() -> None:
    Path("file").touch()
    with (
        pytest.raises(UserError, match=r"folder .*file/run cannot be written \(Not a directory\)"),
        lock_folder("file/run"),
    ):
        pass


@pytest.mark.slow
def test_a_folder_in_use_is_left_alone(refused: Refused) -> None:
    with held_by_another(Path("run")):
        before = contents(Path("run"))
        assert TOLD in refused("env=bandit hydra.run.dir=run")
        with pytest.raises(
            UserError, match="hydra.run.dir=run/a/b lies in .*run, which is in use by process 4711"
        ):
            run_folder.require_new("hydra.run.dir", Path("run/a/b"))
        assert contents(Path("run")) == before


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_that_goes_on_is_left_alone(refused: Refused, run_copy: Path) -> None:
    with held_by_another(run_copy):
        before = contents(run_copy)
        assert TOLD in refused("resume=run trainer.max_epochs=3")
        assert TOLD in refused("run=run episodes=1", main_evaluate)
        assert TOLD in refused("run=run/checkpoints/last.ckpt episodes=1", main_evaluate)
        assert contents(run_copy) == before


HELD = [
    "hf/weights",
    "checkpoints/last.ckpt",
    "summary.json",
    "notes.txt",
    ".hydra/overrides.yaml",
    ".git/HEAD",
]


@pytest.mark.parametrize("theirs", HELD)
def test_a_folder_that_holds_something_is_not_new(theirs: str) -> None:
    file = Path("mine", theirs)
    file.parent.mkdir(parents=True)
    file.write_text("theirs")
    with pytest.raises(UserError, match=r"^hydra\.run\.dir=mine is not empty already; choose a new folder$"):
        run_folder.require_new("hydra.run.dir", Path("mine"))
    with pytest.raises(UserError, match="holds a run already"):
        run_folder.require_untouched(Path("mine"), {"other", "other.log"})


@pytest.mark.slow
@pytest.mark.parametrize("option", ["hydra.run.dir=mine", "-m seed=1 hydra.sweep.dir=mine"])
def test_a_folder_that_holds_something_is_left_alone(refused: Refused, option: str) -> None:
    Path("mine").mkdir()
    Path("mine", "summary.json").write_text("theirs")
    assert "dir=mine is not empty" in refused(f"env=bandit {option}")
    assert contents(Path("mine")) == {"mine/summary.json": b"theirs"}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of runs that were begun; each leaves a file and no more."""
    folders: list[Path] = []

    def train(cfg: Any, *_: object, **__: object) -> None:
        assert find_owner(cfg.run_dir) is None and Path(cfg.run_dir, LOCK).exists()
        Path(cfg.run_dir, "metrics.csv").write_text(str(len(folders)))
        folders.append(Path(cfg.run_dir))

    monkeypatch.setattr("lit_agentrl.runs.training.train", train)
    return folders


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_without_its_config_is_not_written_over(refused: Refused, trained: list[Path]) -> None:
    main_train(["env=bandit", "hydra.run.dir=run", "hydra.output_subdir=null"])
    assert "hydra.run.dir=run is not empty" in refused(
        "env=bandit hydra.run.dir=run hydra.output_subdir=null"
    )
    assert contents(Path("run")) == {"run/metrics.csv": b"0"}


@pytest.mark.slow
@pytest.mark.sweep
def test_nothing_is_written_beside_the_run_folder(refused: Refused) -> None:
    Path("other").mkdir()
    Path("other", "val.jsonl").write_text("theirs")
    message = refused("env=bandit hydra.run.dir=run callbacks.transcripts.dirpath=other")
    assert "callbacks.transcripts.dirpath=other would write outside of it" in message
    assert contents(Path()) == {"other/val.jsonl": b"theirs"}


@pytest.mark.parametrize(
    ("option", "value", "is_fine"),
    [
        ("logger.csv.save_dir", "${run_dir}/../other", False), ("logger.csv.save_dir", "${run_dir}/logs", True),
        ("callbacks.best.dirpath", "${run_dir}/weights", False), ("callbacks.last.dirpath", "checkpoints", False),
        ("callbacks.last", None, True),
    ],
)  # fmt: skip
def test_what_a_run_writes_lies_in_its_folder(option: str, value: str | None, is_fine: bool) -> None:
    parts = {
        "callbacks": {
            name: {
                "_target_": f"lit_agentrl.callbacks.checkpoints.{name}",
                "dirpath": "${run_dir}/checkpoints",
            }
            for name in ("best", "last")
        },
        "logger": {"csv": {"save_dir": "${run_dir}"}},
    }
    cfg = OmegaConf.create({"run_dir": "run", **parts})
    OmegaConf.update(cfg, option, value)
    with nullcontext() if is_fine else pytest.raises(UserError, match=rf"^{option}=.* would write "):
        run_folder.require_within(cfg)


@pytest.mark.slow
def test_runs_of_a_sweep_do_not_share_a_folder(refused: Refused, in_empty_folder: Path) -> None:
    message = refused("-m env=bandit seed=1,2 hydra.sweep.dir=sweep hydra.sweep.subdir=same")
    assert "hydra.sweep.subdir=same is the folder of several runs" in message and "${seed}" in message
    assert not os.listdir(in_empty_folder)


@pytest.mark.parametrize("name", ["it's, = {new}", "back\\", "~", "a b", '$(x) "y"'])
def test_folders_of_any_name(name: str) -> None:
    given = ["env=bandit", "hydra.run.dir=${now:%f}", "++hydra.run.dir=x", "seed=1"]
    *others, last = run_folder.pin_folder(given, "hydra.run.dir", Path(name))
    (override,) = parse([last])
    assert (override.key_or_group, override.value()) == ("hydra.run.dir", name)
    assert others == ["env=bandit", "seed=1"]


@pytest.mark.slow
@pytest.mark.sweep
def test_what_a_kill_at_the_very_start_left_is_no_hindrance(trained: list[Path]) -> None:
    """Its lock, and a config that was not written to its end."""
    folder = Path("it's new")
    (folder / ".hydra").mkdir(parents=True)
    (folder / LOCK).write_text(json.dumps(OTHER))
    (folder / ".hydra" / "config.yaml").write_text("env:")
    main_train(["env=bandit", "hydra.run.dir='it\\'s new'"])
    assert "bandit" in (folder / ".hydra" / "config.yaml").read_text()
    assert [path.name for path in trained] == ["it's new"]
    assert sorted(os.listdir(folder)) == [".hydra", "metrics.csv"]


@pytest.mark.slow
@pytest.mark.sweep
def test_a_run_that_another_process_began_while_nobody_owned_it_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """Its processes are being started: until the first of them owns the folder, ``resume=`` may."""

    def start(cfg: Any) -> None:
        Path("run", "metrics.csv").write_text("iteration\n0\n")
        from lit_agentrl.runs.training import train

        monkeypatch.setattr("lit_agentrl.runs.ranks.is_training_process", lambda cfg: True)
        train(cfg, jobs_of[0])

    jobs_of: list[Any] = []
    monkeypatch.setattr("lit_agentrl.runs.ranks.is_training_process", lambda cfg: False)
    monkeypatch.setattr("lit_agentrl.runs.ranks.share", lambda job, nodes: jobs_of.append(job))
    monkeypatch.setattr("lit_agentrl.runs.ranks.start", start)
    assert "run holds a run that another process has started meanwhile" in refused(
        "env=bandit hydra.run.dir=run"
    )
    assert Path("run", "metrics.csv").read_text() == "iteration\n0\n"
    assert not Path("run", "summary.json").exists()


@pytest.mark.slow
@pytest.mark.sweep
def test_of_several_processes_the_first_owns_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that starts them gives it up, and leaves the summary alone that somebody else has begun to write."""
    with ExitStack() as stack:

        def start(cfg: Any) -> None:
            assert not Path("run", LOCK).exists()
            stack.enter_context(held_by_another(Path("run")))
            Path("run", "summary.json").write_text("{}")
            raise ValueError("a rank has failed")

        monkeypatch.setattr("lit_agentrl.runs.ranks.is_training_process", lambda cfg: False)
        monkeypatch.setattr("lit_agentrl.runs.ranks.start", start)
        with pytest.raises(SystemExit):
            main_train(["env=bandit", "hydra.run.dir=run"])
        assert Path("run", "summary.json").read_text() == "{}"
        assert json.loads(Path("run", LOCK).read_text()) == OTHER
