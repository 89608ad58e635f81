"""One run in two processes, started in each of the supported ways: one folder, one voice, one exit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from lit_agentrl.strategies import launching
from tests.conftest import ROOT
from tests.integration.conftest import TINY, command, environment

TOLD = '{"message": {"message": "RankFailed: the arm: fell off", "extraInfo": {"timestamp": "0"}}}'
DDP = ["strategy=ddp", "trainer.accelerator=cpu", "trainer.max_epochs=1", *TINY]


def meeting_port() -> str:
    """Not one that the system hands out itself, since seconds pass before the processes open it."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return str(port)
    raise OSError("no port is free")


def started(arguments: list[str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, cwd=ROOT, env={**environment(), **variables}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(*processes: subprocess.Popen[str]) -> list[str]:
    """What each printed; all must have ended well."""
    printed = []
    for process in processes:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        printed.append(out)
    return printed


def assert_one_run(folder: Path, printed: str) -> None:
    assert sum(line.startswith("iteration 1/1") for line in printed.splitlines()) == 1
    assert printed.count("results in") == 1
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed" and summary["iterations"] == 1
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3
    files = [file.name.removesuffix(".closing") for file in (folder / "tensorboard").iterdir()]
    writers = {name.split(".")[-2] for name in files}
    assert len(writers) == 1  # process ids
    assert (folder / ".hydra" / "config.yaml").exists()


@pytest.mark.slow
def test_single_refuses_devices_that_it_would_leave_idle() -> None:
    done = subprocess.run(
        command("trainer.devices=2", "trainer.accelerator=cpu", "hydra.run.dir=unused"), cwd=ROOT,
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        "trainer.devices=2 trainer.num_nodes=1: strategy=single is one process on one device" in done.stderr
    )
    assert not (ROOT / "unused").exists()


def running_children() -> set[int]:
    """Processes that this one has started, without those that have ended and are only not yet waited for."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A launch leaves neither a variable nor a signal behind; a sweep's next run would take it for its own."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # which names the phase
    environ, handler = dict(os.environ), signal.getsignal(signal.SIGINT)
    before = running_children()  # such as a helper process of multiprocessing
    yield
    assert {**os.environ, "PYTEST_CURRENT_TEST": ""} == {**environ, "PYTEST_CURRENT_TEST": ""}
    assert signal.getsignal(signal.SIGINT) is handler
    deadline = time.monotonic() + 30  # a killed process ends when it is its turn
    while (left := running_children()) - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left <= before


def launched(code: str, *arguments: str, processes: int = 2) -> None:
    launching.launch([sys.executable, "-c", code, *arguments], processes=processes, job="a job")


def test_processes_divide_the_cores(unchanged: None, tmp_path: Path) -> None:
    code = "import os, sys; e = os.environ; open(f'{sys.argv[1]}/{e[\"RANK\"]}', 'w').write(e['OMP_NUM_THREADS'])"
    launched(code, str(tmp_path))
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"0": threads, "1": threads}


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("exit(3)", "rank 1 ended with code 3"),
        ("os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL"),
        (f"open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({TOLD!r}); exit(1)", "the arm: fell off"),
    ],
)
def test_the_first_cause_is_raised_and_the_others_end(code: str, cause: str, unchanged: None) -> None:
    code = f"import os, time; os.environ['RANK'] == '0' and time.sleep(60); {code}"
    with pytest.raises(launching.RankFailed) as failed:
        launched(code)
    assert str(failed.value) == cause


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all(number: int, unchanged: None, tmp_path: Path) -> None:
    def send() -> None:  # once both processes run, and so the launcher listens
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        launched(
            "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w'); time.sleep(60)", str(tmp_path)
        )
    sender.join()


@pytest.mark.parametrize(("devices", "count"), [(2, 2), ("3", 3), ("auto", 1)])
def test_devices_are_counted(devices: int | str, count: int) -> None:
    assert launching.count_devices("cpu", devices) == count


@pytest.mark.parametrize("devices", [0, "x", [0]])
def test_devices_that_make_no_sense(devices: int | str | list[int]) -> None:
    with pytest.raises(ValueError, match=r"^devices=.*should be an int > 0"):
        launching.count_devices("cpu", devices)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching.CUDAAccelerator, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "x")
    told = (
        r"^accelerator=gpu: torch finds no GPU here \(.*CUDA_VISIBLE_DEVICES=x\); set trainer.accelerator=cpu"
    )
    with pytest.raises(ValueError, match=told):
        launching.count_devices("gpu", 1)


@pytest.mark.slow
def test_a_run_starts_its_processes(tmp_path: Path) -> None:
    (printed,) = ended(started(command(*DDP, "trainer.devices=2", f"hydra.run.dir={tmp_path / 'run'}")))
    assert_one_run(tmp_path / "run", printed)


@pytest.mark.slow
def test_torchrun_starts_the_processes(tmp_path: Path) -> None:
    """The number of devices is torchrun's; the folder is named by the first process alone."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    folder = f"hydra.run.dir={tmp_path}/run-${{now:%f}}"
    (printed,) = ended(started([*torchrun, *command(*DDP, folder)[1:]]))
    (run,) = tmp_path.iterdir()
    assert_one_run(run, printed)


@pytest.mark.slow
def test_srun_starts_the_processes(tmp_path: Path) -> None:
    """As SLURM describes two tasks on one node."""
    job = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0",
           "SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "127.0.0.1",
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": meeting_port()}  # fmt: skip
    arguments = command(*DDP, f"hydra.run.dir={tmp_path}/run-${{now:%f}}")
    tasks = [started(arguments, **job, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in ("0", "1")]
    printed = ended(*tasks)
    (run,) = tmp_path.iterdir()
    assert_one_run(run, printed[0])
    assert "iteration" not in printed[1] and "results in" not in printed[1]


@pytest.mark.slow
def test_two_machines(tmp_path: Path) -> None:
    """One process is started by hand on each; the first composes, and both start their own."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": meeting_port()}
    first = command(*DDP, "trainer.num_nodes=2", f"hydra.run.dir={tmp_path}/run")
    nodes = [
        started(arguments, **meeting, NODE_RANK=rank) for rank, arguments in (("0", first), ("1", command()))
    ]
    printed = ended(*nodes)
    assert_one_run(tmp_path / "run", printed[0])
    assert all(line.startswith("waiting for the first process") for line in printed[1].splitlines())


@pytest.mark.slow
def test_each_run_of_a_sweep_starts_its_own_processes(tmp_path: Path) -> None:
    arguments = command("-m", *DDP, f"hydra.sweep.dir={tmp_path}", "trainer.devices=1,2")
    assert "RANK" not in os.environ
    (printed,) = ended(started(arguments))
    assert printed.count("results in") == 3  # of each run, and of the sweep
    for run in ("trainer.devices=1_0", "trainer.devices=2_1"):
        summary = json.loads((tmp_path / run / "summary.json").read_text())
        assert summary["status"] == "completed"
