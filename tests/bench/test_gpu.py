"""The slices that wait for a GPU: tiny ones run here, so that none is found broken there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lit_agentrl.build import devices
from lit_agentrl.build.devices import choose_for_device
from lit_agentrl.build.parts import build_parts
from lit_agentrl.config.composition import make_task_loader
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.engines.served import vllm
from scripts.bench import checkpoint_cost, gpu, pack_wheels, resume, rollout_speed, trl_games
from tests.build.test_devices import CPU, H100, composed

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: str, code: int = 0, **variables: str) -> str:
    command = [sys.executable, "-m", "scripts.bench.gpu", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("OUT", gpu.MODEL)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment | variables)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def read(folder: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((folder / "results.json").read_text())["slices"]
    return found


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("name", gpu.SLICES)
def test_slice_runs_on_a_tiny_shape(name: str, tmp_path: Path) -> None:
    call("--cpu-smoke", "--only", name, "--folder", str(tmp_path))
    found = read(tmp_path)[name]
    if gpu.find_reason_against(gpu.SLICES[name], is_smoke=True, model=None):
        assert str(found["ended"]).startswith("skipped: no ")
        return
    assert found["ended"] == "passed" and found["shown"]
    shown = gpu.SLICES[name].shown
    # counted there alone, or with vLLM
    on_a_gpu = {*(f"kernels (window {each})" for each in ("0", "8", "8 copy")), "over vLLM"}
    assert not shown or [part.rpartition(" ")[0] for part in str(found["shown"]).split(", ")] == [
        each for each in shown if each not in on_a_gpu
    ]


def test_the_slice_of_tests_has_all_that_wait_for_a_gpu() -> None:
    files = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if "\n@pytest.mark.gpu\n" in file.read_text(encoding="utf-8")
    }
    assert files == {*gpu.TESTS.split()} and len(files) > 4


@pytest.mark.parametrize("name", [name for name, each in gpu.SLICES.items() if "train.py" in each.command])
def test_a_run_of_a_slice_passes_the_checks_on_a_card(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is chosen for a GPU, such as its precision, must suit the other options."""
    monkeypatch.setattr(vllm, "require_vllm", lambda: "0.32.0")
    words = gpu.SLICES[name].command.replace("OUT", str(tmp_path)).split()
    assert words.pop(0) == "train.py"
    cfg = composed(*words)
    assert choose_for_device(cfg, H100) and cfg.trainer.precision != "auto"
    check_targets(cfg)
    build_parts(cfg, make_task_loader())


def test_a_random_network_is_trained_with_the_sizes_of_its_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the comparisons would train with the micro-batches of a CPU."""
    job = trl_games.list_options(turns=5, prompts=16, members=8, reply_tokens=16, context=432, filler=0)
    assert trl_games.choose_sizes("tiny-random", job) == []  # a CPU
    for module in (trl_games, devices):
        monkeypatch.setattr(module, "find_device", lambda _: H100)
    given = [*job, "model.dtype=bfloat16", "trainer.precision=bf16-true"]
    chosen = dict(option.split("=") for option in trl_games.choose_sizes("0.5b-random", given))
    assert chosen.keys() == {
        "update.checkpoint_activations", "update.tokens_per_microbatch", "update.logits_chunk"
    }  # fmt: skip
    assert int(chosen["update.tokens_per_microbatch"]) >= 8192 and "planned peak" in capsys.readouterr().out
    assert "trainer.precision=bf16-mixed" in trl_games.choose_sizes("135m-random", job)
    assert trl_games.choose_sizes("nano", job) == []
    monkeypatch.setattr(trl_games, "find_device", lambda _: CPU)
    assert trl_games.choose_sizes("0.5b-random", job) == []


def test_checkpoints_that_are_cut_off_leave_the_figures_of_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("held_s", "iteration_s", "share", "saves", "iterations", "bytes")
    sides = iter([dict.fromkeys(names, 1.0)])
    monkeypatch.setattr(checkpoint_cost, "train", lambda *_: next(sides))
    monkeypatch.setattr(sys, "argv", ["checkpoint_cost", "--out", str(tmp_path / "figures.json")])
    with pytest.raises(StopIteration):
        checkpoint_cost.main()
    assert gpu.show_figures(gpu.SLICES["checkpoints"], gpu.read_figures(tmp_path)).startswith("s held 1, ")


def test_rollouts_are_compared_with_vllm_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "rollout_speed --model tiny-random --episodes 2 --reply-tokens 4 --turns 2 --repeats 1 --peers vllm"
    )
    monkeypatch.setattr(sys, "argv", [*words.split(), "--out", str(tmp_path / "found.json")])
    monkeypatch.setattr(rollout_speed.importlib.util, "find_spec", lambda name: None)
    rollout_speed.main()
    assert "vllm: left out" in capsys.readouterr().out
    monkeypatch.setattr(rollout_speed.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        rollout_speed,
        "make_vllm",
        lambda policy, chat, episodes: rollout_speed.make_engine(policy, chat, episodes),
    )
    rollout_speed.main()
    assert json.loads((tmp_path / "found.json").read_text())["ratio"]["vllm"]["median"] > 0


def test_what_a_kill_changed_is_named(tmp_path: Path) -> None:
    for name, loss, weight in (("first", "1", 1.0), ("same", "1", 1.0), ("other", "2", 1.5)):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "metrics.csv").write_text(
            f"iteration,train/loss,time/update,engine/busy\n0,,,\n1,{loss},{name},{name}\n"
        )
        held = {
            "state_dict": {"w": torch.tensor([weight])},
            "optimizer_states": [{"m": torch.zeros(1)}],
            "x": 1,
        }
        torch.save(held, tmp_path / name / "checkpoints" / "last.ckpt")
    first, same, other = (tmp_path / name for name in ("first", "same", "other"))
    assert resume.compare(first, same) == [] and resume.count_iterations(first) == 1
    assert resume.compare(first, other) == ["train/loss", "state_dict w (by up to 0.5)"]


def test_a_resume_that_is_cut_off_leaves_the_figures_of_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def run(words: Sequence[str]) -> None:
        if len(done) == 2:
            raise TimeoutError
        done.append(words[-1])

    monkeypatch.setattr(resume, "run", run)
    monkeypatch.setattr(resume, "kill", lambda *_: 2)
    monkeypatch.setattr(resume, "compare", lambda *_: ["train/loss"])
    monkeypatch.setattr(sys, "argv", ["resume", "--out", str(tmp_path / "figures.json")])
    with pytest.raises(TimeoutError):
        resume.main()
    figures = gpu.read_figures(tmp_path)
    assert gpu.show_figures(gpu.SLICES["resume"], figures) == "differ after a kill 1"
    assert figures and list(figures["seconds"]) == [
        "a run", "a run until its kill", "a run killed in iteration 3",
    ]  # fmt: skip


def make_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **commands: str) -> list[str]:
    """Replace the slices by quick commands; return the arguments of a call of them all."""
    slices = {
        name: gpu.Slice(name, 5, text, text, {"answer": "answer"}, ("no_such_package",) * (name == "peer"))
        for name, text in commands.items()
    }
    monkeypatch.setattr(gpu, "SLICES", slices)
    monkeypatch.setattr(gpu, "SMOKE_LIMIT_S", 3)
    monkeypatch.delenv("OUT", raising=False)
    return ["gpu", "--cpu-smoke", "--folder", str(tmp_path / "results")]


def run_main(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        gpu.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def write_script(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_what_failed_runs_again_and_what_passed_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_script(
        tmp_path / "good.py", "open(__import__('sys').argv[1], 'w').write('{\"answer\": 42}')"
    )
    bad = write_script(
        tmp_path / "bad.py", "print('\\n'.join(map(str, range(40))))\nraise ValueError('no kernel')"
    )
    slow = write_script(tmp_path / "slow.py", "import time\nprint('began', flush=True)\ntime.sleep(60)")
    arguments = make_slices(
        tmp_path, monkeypatch, good=f"{good} OUT/figures.json", bad=bad, slow=slow, peer=good
    )
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert run_main(arguments, monkeypatch) == 1
    found = read(tmp_path / "results")
    assert {name: each["ended"] for name, each in found.items()} == {
        "good": "passed",
        "bad": "failed (1)",
        "slow": "cut off after 3 s",
        "peer": "skipped: no no_such_package in this Python",
    }
    assert found["good"]["shown"] == "answer 42" and found["slow"]["tail"] == ["began"]
    assert len(found["bad"]["tail"]) == 20 and found["bad"]["shown"] == "ValueError: no kernel"  # type: ignore[arg-type]
    assert read(tmp_path / "out") == found and "no kernel" in (tmp_path / "out" / "logs.txt").read_text()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("good: passed, 0 s: answer 42") and lines[1].startswith("bad: failed (1)")

    write_script(tmp_path / "bad.py", "print('mended')")
    assert run_main([*arguments, "--only", "good", "bad"], monkeypatch) == 1  # the slow one has not passed
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "good: passed before" and lines[1].endswith(": mended")
    assert run_main([*arguments, "--only", "good", "--again"], monkeypatch) == 1
    assert capsys.readouterr().out.startswith("good: passed, 0 s")


def test_figures_that_were_cut_off_end_no_later_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = write_script(tmp_path / "cut.py", "open(__import__('sys').argv[1], 'w').write('{\"answ')")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "results.json").write_text('{"slices": {"fir')
    assert (
        run_main(
            make_slices(tmp_path, monkeypatch, cut=f"{cut} OUT/figures.json", last="-c pass"), monkeypatch
        )
        == 0
    )
    found = read(tmp_path / "results")
    assert found["cut"]["figures"] is None and found["last"]["ended"] == "passed"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.csv").write_text("iteration,time/update\n0,2.5\n1,1e")
    assert gpu.read_figures(tmp_path) == {"run": {"iteration": 0.0, "time/update": 2.5}}
    (tmp_path / "run" / "metrics.csv").write_text("")
    assert gpu.read_figures(tmp_path) is None


def test_a_slice_without_time_left_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = make_slices(tmp_path, monkeypatch, first="-c pass")
    assert run_main([*arguments, "--budget-s", "2"], monkeypatch) == 0
    assert "first: skipped: needs about 5 s, and 2 s are left of the budget" in capsys.readouterr().out
    assert run_main(arguments, monkeypatch) == 0
    assert read(tmp_path / "results")["first"]["ended"] == "passed"


def test_a_slice_that_a_stop_interrupts_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = make_slices(tmp_path, monkeypatch, only="-c pass")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "run_slice", stop)
    with pytest.raises(KeyboardInterrupt):
        run_main(arguments, monkeypatch)
    assert read(tmp_path / "results")["only"]["ended"] == "interrupted"


def test_a_slice_that_was_cut_off_goes_on_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import pathlib, sys, time\nnote = pathlib.Path(sys.argv[1], 'begun')\n"
    text += "if not note.exists():\n    note.touch()\n    time.sleep(60)\n"
    arguments = make_slices(tmp_path, monkeypatch, only=f"{write_script(tmp_path / 'long.py', text)} OUT")
    monkeypatch.setitem(gpu.SLICES, "only", replace(gpu.SLICES["only"], continues=True))
    assert run_main(arguments, monkeypatch) == 1 and run_main(arguments, monkeypatch) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("only:")] == [
        "only: cut off after 3 s", "only: passed",
    ]  # fmt: skip
    assert run_main([*arguments, "--again"], monkeypatch) == 1  # from its start


@pytest.mark.slow
def test_slices_are_listed_in_order_of_value() -> None:
    listed = [line.split()[0] for line in call("--list").splitlines()]
    assert listed == list(gpu.SLICES) and listed[:3] == ["decode", "rollouts", "trl"]


@pytest.mark.slow
def test_wheels_are_installed_without_a_network(tmp_path: Path) -> None:
    wheel = tmp_path / "wheels" / "spare_part-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("spare_part.py", "ANSWER = 42")
        about = "spare_part-1.0.dist-info/"
        archive.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: spare-part\nVersion: 1.0\n")
        archive.writestr(about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(about + "RECORD", "")
    gpu.install_wheels(wheel.parent, tmp_path / "site")
    found = gpu.make_environment(tmp_path / "site")["PYTHONPATH"].split(os.pathsep)
    assert found[:3] == [str(ROOT / "src"), str(ROOT), str(tmp_path / "site")]
    assert (tmp_path / "site" / "spare_part.py").exists()
    with pytest.raises(SystemExit, match="has no wheels"):
        gpu.install_wheels(tmp_path, tmp_path / "site")


def test_packed_wheels_are_those_of_the_constraints() -> None:
    packages = pack_wheels.read_requirements()
    lines = (ROOT / "constraints.txt").read_text() + (ROOT / "scripts/bench/requirements-trl.txt").read_text()
    known = {line.lower() for line in lines.splitlines()}
    assert len(packages) > 15 and all(package.lower() in known for package in packages)
    download, build = pack_wheels.make_commands(packages, Path("wheels"), "3.12", ["any"])
    assert "--only-binary=:all:" in download and download[-1] == packages[-1]
    assert build[-1] == "antlr4-python3-runtime==4.9.3" and build[-1] not in download
