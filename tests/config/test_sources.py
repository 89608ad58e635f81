"""The source of a part shows its arguments and its first checks, so that torch need not be loaded for them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_object

from lit_agentrl.checks import require_whole
from lit_agentrl.config import signatures, sources
from lit_agentrl.config.source_checks import run_checks
from lit_agentrl.paths import CONFIG_DIR

TARGET = re.compile(r"_target_: *(lit_agentrl[\w.]+)")
SHIPPED = sorted({name for file in CONFIG_DIR.rglob("*.yaml") for name in TARGET.findall(file.read_text())})
# classes without arguments of their own, or made by a library's constructor
NOT_SHOWN = {
    "lit_agentrl.callbacks.iteration_log.IterationLog",
    "lit_agentrl.experimental.q_losses.TokenValues",
    "lit_agentrl.experimental.q_losses.TokensAndState",
    "lit_agentrl.models.heads.ValuesAndCosts",
    "lit_agentrl.rl.policy.entropy.top_entropy_quantile",
    "lit_agentrl.rollout.structures.independent.Independent",
    "lit_agentrl.task_sampler.Uniform",
    "lit_agentrl.update.critic.separate_if_needed",
    "lit_agentrl.update.reference.Start",
}
WRONG = [
    ("callbacks.progress.LiveDisplay", {"every": 0}, "every=0 must be a whole number >= 1"),
    ("callbacks.checkpoints.LastCheckpoint", {"dirpath": "a", "every": 0}, "every=0 must be a whole number"),
    ("callbacks.checkpoints.LastCheckpoint", {"dirpath": "a", "keep": 3}, "keep=3 must be 1"),
    ("callbacks.checkpoints.BestCheckpoint", {"dirpath": "a", "mode": "up"}, "mode=up must be one of max, min"),
    ("callbacks.transcripts.Transcripts", {"dirpath": "a", "episodes": 0}, "episodes=0 must be"),
    ("monitor.rules.Rule", {"signal": "a", "below": 1.0, "patience": 0}, "patience=0 must be"),
    ("monitor.rules.Rule", {"signal": "a", "below": 1.0, "above": 1.0}, "below=1.0 must be given, or else above"),
    ("engines.native.engine.NativeEngine", {"num_slots": 0}, "num_slots=0 must be a whole number from 1"),
    ("engines.native.engine.NativeEngine", {"window": -2}, "window=-2 must be a whole number from 0"),
    ("engines.native.engine.NativeEngine", {"prefill": "no"}, "prefill=no must be auto, packed or padded"),
    ("strategies.ddp.DDP", {"timeout_s": -1.0}, "timeout_s=-1.0 must be > 0 seconds"),
    ("strategies.fsdp.FSDP", {"timeout_s": -1.0}, "timeout_s=-1.0 must be > 0 seconds"),
    ("strategies.fsdp.FSDP", {"compute_dtype": "int8"}, "compute_dtype=int8 must be one of float32, bfloat16"),
    ("engines.served.settings.ServerSettings", {"mode": "chat", "price_in": -1.0}, "price_in=-1.0 must be"),
    ("rollout.workers.process.ProcessSettings", {"count": 0}, "count=0 must be a whole number from 1"),
]  # fmt: skip


def get_words(annotation: Any) -> str | None:
    try:
        return signatures._describe(annotation)
    except KeyError:  # a type that is not described, and that allows all
        return None


@pytest.mark.slow
@pytest.mark.parametrize("target", SHIPPED)
def test_the_source_shows_the_arguments_as_python_does(target: str) -> None:
    described, made = sources.describe(target), get_object(target)
    assert (described is None) == (target in NOT_SHOWN)
    if described is None:
        return
    parameters = inspect.signature(made).parameters
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    assert list(described.arguments) == [name for name, each in parameters.items() if each.kind not in kinds]
    assert described.takes_any == any(each.kind is kinds[0] for each in parameters.values())
    hints = signatures._get_hints(made)
    for name, argument in described.arguments.items():
        if name in hints and (told := get_words(argument.annotation)) is not None:
            assert told == get_words(hints[name])
        if argument.default is not sources.UNKNOWN and not callable(argument.default):
            assert argument.default == parameters[name].default


@pytest.mark.parametrize(("target", "values", "told"), WRONG)
def test_a_wrong_value_is_told_by_the_source(target: str, values: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        run_checks(f"lit_agentrl.{target}", values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "values", "told"), [each for each in WRONG if not each[0].startswith("engines.")]
)
def test_the_source_tells_what_the_part_tells(target: str, values: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as by_part:
        get_object(f"lit_agentrl.{target}")(**values)
    with pytest.raises(ValueError) as by_source:
        run_checks(f"lit_agentrl.{target}", values)
    assert str(by_source.value) == str(by_part.value)


def run_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, **values: Any) -> None:
    package = tmp_path / "lit_agentrl"
    package.mkdir()
    (package / "part.py").write_text(text)
    monkeypatch.setattr(sources, "_ROOT", package)
    for cached in (sources.describe, sources.get_value, sources._parse):
        cached.cache_clear()
    try:
        run_checks("lit_agentrl.part.make", values)
    finally:
        for cached in (sources.describe, sources.get_value, sources._parse):
            cached.cache_clear()


@pytest.mark.parametrize(
    "statements",
    [
        "a = read(a)\n    require_whole('a', a, 1)",  # a was set by what was not run
        "for a in read():\n        pass\n    require_whole('a', a, 1)",
        "if read():\n        return\n    require_whole('a', a, 1)",
        "if a < 1:\n        return\n    require_whole('a', a, 1)",
        "require_whole('b', b, 1)",  # unknown, though the module has a b
        "with read():\n        require_whole('a', a, 1)",
        "require_whole('a', torch.tensor(a), 1)",
        "require_whole('a', one(a), 1)",  # two functions that call each other
    ],
)
def test_what_the_source_leaves_open_is_left_to_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statements: str
) -> None:
    text = (
        "import torch\nfrom lit_agentrl.checks import require_whole\nb = 0\n"
        "def one(a):\n    return other(a)\ndef other(a):\n    return one(a)\n"
        f"def make(a, b):\n    {statements}\n"
    )
    run_source(tmp_path, monkeypatch, text, a=0)
    with pytest.raises(ValueError, match="a=0 must be"):
        require_whole("a", 0, 1)


@pytest.mark.parametrize(
    "statements",
    [
        "require_whole('a', a, 1)",
        "c = torch.ones(1)\n    require_whole('a', a, 1)",
        "c = a - 1\n    if c < 0:\n        require_whole('a', a, 1)",
        "check(a)",
        "if a == MOST:\n        raise ValueError(f'a={a} must be more')",
    ],
)
def test_what_the_source_shows_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statements: str
) -> None:
    text = (
        "import torch\nfrom lit_agentrl.checks import require_whole\nLEAST, MOST = 1, 0\n"
        f"def check(a):\n    require_whole('a', a, LEAST)\ndef make(a, b):\n    {statements}\n"
    )
    with pytest.raises(ValueError, match="a=0 must be"):
        run_source(tmp_path, monkeypatch, text, a=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "callbacks.progress.every=0",
        "callbacks.last.every=x",
        "engine.num_slots=0",
        "strategy=fsdp strategy.compute_dtype=int8",
        "algo=dpo data=pairs data.path=nosuch.jsonl",
    ],
)
def test_a_wrong_value_is_told_without_torch(tmp_path: Path, options: str) -> None:
    code = (
        "import sys\nfrom lit_agentrl.__main__ import main\n"
        f"try:\n    main(['train', *{options.split()}])\nexcept SystemExit as end:\n    print(end.code)\n"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split()[-1] == "False"
    assert options.split()[-1] in run.stderr
