"""Commands in an empty folder, and a small finished run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lit_agentrl.cli.train import main as main_train

SMALL = (
    "env=bandit rollout.prompts=2 rollout.members=2 rollout.max_reply_tokens=8 rollout.max_context_tokens=128"
    " trainer.max_epochs=2 trainer.accelerator=cpu val.every=5 val.episodes=1 test.episodes=0 "
    "~callbacks.progress"
)
Refused = Callable[..., str]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in files(folder)}


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must fail; returns its message."""

    def run(command: str, main: Callable[[list[str]], None] = main_train) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(shlex.split(command))
        assert stopped.value.code == 1
        printed = capsys.readouterr().err
        assert printed.startswith("error: ") and printed.count("\n") == 1, printed
        return printed

    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = f"algo/clip=symmetric model=hf model.name={tiny_model_folder} hydra.run.dir={folder}"
    main_train(shlex.split(f"{SMALL} {options}"))
    for file in ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "hf/config.json"):  # however short the run
        assert (folder / file).exists()
    return folder


@pytest.fixture
def run_copy(finished_run: Path, in_empty_folder: Path) -> Path:
    shutil.copytree(finished_run, "run")
    return Path("run")
