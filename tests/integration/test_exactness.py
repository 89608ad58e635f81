"""Equal seeds give equal bits; a run killed anywhere and resumed is the uninterrupted run."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.conftest import TINY, assert_equal_runs, command, environment, launch, outcome, run

KILLS = 10
TORN = """
import os, runpy, signal, sys
from lit_agentrl.callbacks import transcripts

append, left = transcripts.append_durable, int(os.environ["TORN"])

def torn(path, text):
    global left
    left -= 1
    append(path, text if left else text[: len(text) // 2])
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

transcripts.append_durable = torn
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("option", ["algo=starpo", "algo=dapo"])
def test_same_seed_same_bits_and_resume_after_a_finished_run(option: str, tmp_path: Path) -> None:
    """Two iterations straight equal one, then a longer target through resume=.

    Also with a critic, and with waves.
    """
    straight, extended = tmp_path / "straight", tmp_path / "extended"
    tiny = [
        "val.every=1" if each.startswith("val.every=") else each for each in TINY
    ]  # the last one always is
    for folder, iterations in ((straight, 2), (extended, 1)):
        length = f"trainer.max_epochs={iterations}"
        done = run(command(*tiny, option, length, f"hydra.run.dir={folder}"))
        assert done.returncode == 0, done.stderr
    done = run(command(f"resume={extended}", "trainer.max_epochs=2"))
    assert done.returncode == 0, done.stderr
    assert_equal_runs(straight, extended)
    assert len(outcome(straight)[1]) == 3


@pytest.mark.slow
def test_killed_at_random_instants_and_resumed(tmp_path: Path) -> None:
    """SIGKILL at ten instants: five random, five while a checkpoint is being written."""
    iterations, generator = 8, random.Random(0)
    reference = tmp_path / "reference"
    started = time.monotonic()
    done = run(launch(reference, f"trainer.max_epochs={iterations}"))
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - started
    for number in range(KILLS):
        folder = tmp_path / f"killed{number}"
        in_write = number % 2 == 1
        arguments = launch(folder, f"trainer.max_epochs={iterations}")
        while (instant := _kill_once(arguments, folder, generator, seconds, in_write)) is None:
            shutil.rmtree(folder)  # it had ended before the instant came: once more
        if (folder / ".hydra" / "config.yaml").exists():
            resumed = run(command(f"resume={folder}"))
        else:  # killed before there was a run: it starts over
            resumed = run(launch(folder, f"trainer.max_epochs={iterations}"))
        assert resumed.returncode == 0, resumed.stderr
        assert_equal_runs(reference, folder)
        print(f"kill {number}: {instant}: equal")


def _kill_once(
    arguments: list[str], folder: Path, generator: random.Random, seconds: float, in_write: bool
) -> str | None:
    """Where the run was when it was killed; None if it had already ended."""
    process = subprocess.Popen(
        arguments, cwd=Path(__file__).parents[2], env=environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    started = time.monotonic()
    if in_write:
        writes, wanted, was_there = 0, generator.randint(1, 7), False
        while process.poll() is None:
            is_there = any((folder / "checkpoints").glob("*.tmp")) if folder.exists() else False
            writes += is_there and not was_there
            was_there = is_there
            if writes >= wanted and is_there:
                break
            time.sleep(0.0005)
    else:
        time.sleep(seconds * generator.uniform(0.3, 0.95))
    was_running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not was_running:
        return None
    kind = "inside a checkpoint write" if in_write else "at a random instant"
    return f"{kind}, {time.monotonic() - started:.2f} s after launch"


@pytest.mark.slow
def test_killed_within_a_transcript_write_and_resumed(tmp_path: Path) -> None:
    """Half of a write is on disk: the first of all, one of training, one of validation, one after training."""
    reference = tmp_path / "reference"
    options = ["trainer.max_epochs=3"]
    done = run(launch(reference, *options))
    assert done.returncode == 0, done.stderr
    for number in (1, 2, 4, 5):
        folder = tmp_path / f"torn{number}"
        python, program, *arguments = launch(folder, *options)
        killed = subprocess.run(
            [python, "-c", TORN, program, *arguments], cwd=Path(__file__).parents[2], capture_output=True,
            env={**environment(), "TORN": str(number)}, timeout=600,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
        resumed = run(command(f"resume={folder}"))
        assert resumed.returncode == 0, resumed.stderr
        assert resumed.stderr.count("dropped what a killed write left of a line") == 1
        assert_equal_runs(reference, folder)
        for split in ("train", "val"):
            ours, theirs = (each / "transcripts" / f"{split}.jsonl" for each in (folder, reference))
            assert ours.read_text() == theirs.read_text()
