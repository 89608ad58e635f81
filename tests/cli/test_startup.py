"""What a command imports before it is known to make sense."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, environment

HEAVY = ("torch", "lightning", "transformers", "tensorboard", "torchmetrics", "gymnasium", "numpy")
COMMANDS = [  # entry point, arguments, what is printed
    ("train", "--help", "Groups and their options"),
    ("train", "algo=loop --help", "Certificate: biased"),
    ("train", "--cfg job", "max_epochs:"),
    ("train", "algo=grppo", "did you mean grpo or"),
    ("train", "filter.ratoi=0.5", "unknown option filter.ratoi"),
    ("train", "-m seed=1,2 algo.clip.epsilom=0.2", "unknown option algo.clip.epsilom"),
    ("train", "trainer.max_epoch=1", "unknown option trainer.max_epoch"),
    ("train", "--hepl", "unknown flag --hepl"),
    ("train", "resume=no/such/folder", "is not a folder"),
    ("evaluate", "--help", "temperature:"),
    ("evaluate", "run=no/such/folder", "is not a folder"),
]
PROBE = """
import json, sys
from lit_agentrl.__main__ import main as main_any
from lit_agentrl.cli.evaluate import main as main_evaluate
from lit_agentrl.cli.train import main as main_train
sys.argv[0] = "train.py"
for entry, arguments, _ in json.loads(sys.argv.pop()):
    try:
        {"train": main_train, "evaluate": main_evaluate, "lit-agentrl": main_any}[entry](arguments.split())
    except SystemExit:
        pass
    loaded = [name for name in json.loads(sys.argv[1]) if name in sys.modules]
    print("LOADED", json.dumps([entry, arguments, loaded]), flush=True)
"""


def loaded_by(commands: list[tuple[str, str, str]]) -> dict[tuple[str, str], tuple[list[str], str]]:
    """The heavy modules that are loaded after each command, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(HEAVY), json.dumps(commands)],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
    )  # fmt: skip
    found, printed = {}, ""
    for line in done.stdout.splitlines():
        if line.startswith("LOADED "):
            entry, arguments, loaded = json.loads(line.removeprefix("LOADED "))
            found[entry, arguments], printed = (loaded, printed), ""
        else:
            printed += f"{line}\n"
    assert len(found) == len(commands), done.stdout[-2000:]
    return found


@pytest.mark.slow
@pytest.mark.sweep
def test_help_and_typing_errors_wait_for_no_library() -> None:
    found = loaded_by(COMMANDS)
    for entry, arguments, expected in COMMANDS:
        loaded, printed = found[entry, arguments]
        assert expected in printed and "loading" not in printed, (arguments, printed[-500:])
        assert not loaded, f"{entry}.py {arguments} imports {', '.join(loaded)}"


@pytest.mark.slow
@pytest.mark.sweep
def test_values_of_an_evaluation_are_checked_before_torch_is_loaded(tmp_path: Path) -> None:
    hydra = tmp_path / ".hydra"
    hydra.mkdir()
    (hydra / "config.yaml").write_text("seed: 0")
    commands = [
        ("evaluate", f"run={tmp_path} split=tset", "split=tset must be one of"),
        ("evaluate", f"run={tmp_path} shots=1001", "shots=1001 must be a whole number from 0 to 1000"),
        ("evaluate", f"run={tmp_path} checkpoint=betst", "checkpoint=betst is unknown"),
        ("evaluate", "model=nano env=bandit temperature=-1", "temperature=-1 must be a number >= 0"),
        ("evaluate", "model=nosuch env=bandit", "unknown option model=nosuch"),
        ("evaluate", "model=nano env=[bandit,nosuch]", "there is no game named nosuch"),
        ("lit-agentrl", "play model=nano env=nosuch", "there is no game named nosuch"),
        ("lit-agentrl", "levels env=nosuch", "unknown option env=nosuch"),
    ]
    found = loaded_by(commands)
    for entry, arguments, expected in commands:
        loaded, printed = found[entry, arguments]
        assert expected in printed and "torch" not in loaded, (arguments, printed[-500:])


@pytest.mark.slow
@pytest.mark.sweep
def test_values_of_a_run_are_checked_before_lightning_is_loaded() -> None:
    commands = [
        ("train", "filter.ratio=1.3", "filter.ratio=1.3 must be in (0, 1]"),
        ("train", "rollout.prompts=0", "rollout.prompts=0 must be a whole number"),
        ("train", "algo.clip.epsilon=-1", "algo.clip.epsilon=-1 must be in (0, 1)"),
        ("train", "data=pairs data.path=nosuch.jsonl", "data.path=nosuch.jsonl is not there"),
        ("train", "trainer.precision=nosuch", "trainer.precision=nosuch must be one of auto"),
        ("train", "+trainer.benchmark=nosuch", "trainer.benchmark=nosuch must be true or false"),
        ("train", "+trainer.gradient_clip_val=1", "it is decided by update.grad_clip"),
        ("train", "optim.lr=-1", "optim.lr=-1 must be finite, > 0"),
        ("train", "callbacks.last.every=0", "callbacks.last.every=0 must be a whole number >= 1"),
        ("train", "engine.window=-3", "engine.window=-3 must be a whole number from 0 to 256"),
        ("train", "env.game.size=2", "env.game.size=2 must be a whole number >= 5"),
        ("train", "model=hf model.name=/no/such", "model.name=/no/such is not there"),
        ("train", "-m seed=1,2 update.epochs=0", "update.epochs=0 must be a whole number >= 1"),
    ]
    found = loaded_by(commands)
    for entry, arguments, expected in commands:
        loaded, printed = found[entry, arguments]
        assert expected in printed and "loading" not in printed, (arguments, printed[-500:])
        assert not {"lightning", "transformers"} & set(loaded), arguments


@pytest.mark.slow
@pytest.mark.sweep
def test_the_probe_sees_what_a_checked_run_imports() -> None:
    """Of parts that do not fit together, which only the parts themselves can tell."""
    (loaded, printed), *_ = loaded_by([("train", "rollout.members=1", "")]).values()
    assert {"torch", "lightning", "transformers"} <= set(loaded)
    told = printed.splitlines()
    assert told[0] == "loading torch and Lightning …" and "rollout.members=1" in told[-1]


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_as_before_and_leaves_what_was_imported_alone(is_enabled: bool) -> None:
    script = (
        "import gc, json, sys; from lit_agentrl.config import signatures\n"
        f"gc.enable() if {is_enabled} else gc.disable()\n"
        "signatures.load_libraries(); first = gc.get_freeze_count(); signatures.load_libraries()\n"
        "print(json.dumps([gc.isenabled(), first, gc.get_freeze_count(), 'torch' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told, result = done.stdout.splitlines()
    assert told == "loading torch and Lightning …"
    enabled, first, second, is_loaded = json.loads(result)
    assert enabled == is_enabled and first == second > 100_000 and is_loaded


def test_help_may_be_cut_off_by_its_reader() -> None:
    program = [sys.executable, str(ROOT / "train.py"), "--help"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and started.stderr is not None
        started.stdout.close()  # before anything is written
        assert (started.stderr.read(), started.wait(60)) == ("", 0)
