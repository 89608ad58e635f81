"""One line for any error."""

from __future__ import annotations

import os
import re
import sys
from contextlib import nullcontext

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from lit_agentrl.checks import require
from lit_agentrl.config.errors import explain, find_nearest, report
from lit_agentrl.config.signatures import check_targets
from lit_agentrl.runs.jobs import set_command_line
from lit_agentrl.strategies.checkpoint_io import CheckpointError
from lit_agentrl.update.settings import UpdateSettings


def caught(target: str, **options: object) -> Exception:
    cfg = OmegaConf.create({"part": {"_target_": target, **options}})
    with pytest.raises(Exception) as caught:
        instantiate(cfg.part)
    return caught.value


def test_instantiation_errors_show_their_cause() -> None:
    name = f"{UpdateSettings.__module__}.{UpdateSettings.__qualname__}"
    assert explain(caught(name, epochs=0)) == "part.epochs=0 must be a whole number >= 1"
    assert explain(caught("nosuch.Thing")) == "part._target_ cannot be imported: No module named 'nosuch'"
    assert explain(caught("tests.oddities.Absent")).endswith("tests.oddities has no Absent")
    target = "lit_agentrl.envs.base.Mixture"
    assert explain(caught(target)) == "part.weights has no value; set part.weights=…"


def test_messages_for_users_are_kept_and_others_say_where_to_look() -> None:
    assert explain(ValueError("a=1 must be 2\nmore")) == "a=1 must be 2"
    assert explain(CheckpointError("cannot write x: disk full")) == "cannot write x: disk full"
    assert explain(FileNotFoundError(2, "No such file", "x.yaml")) == "x.yaml: No such file"
    assert explain(KeyError("x")) == "KeyError: 'x' (add traceback=true to see where)"
    assert explain(RuntimeError()) == "RuntimeError: RuntimeError (add traceback=true to see where)"


def test_values_that_are_not_there() -> None:
    cfg = OmegaConf.create({"a": {"b": "???", "c": "${nosuch.d}"}})
    with pytest.raises(Exception) as missing:
        _ = cfg.a.b
    assert explain(missing.value) == "a.b has no value; set a.b=…"
    with pytest.raises(Exception) as dangling:
        _ = cfg.a.c
    assert explain(dangling.value).startswith("a.c: Interpolation key 'nosuch.d' not found; ")


def test_report_is_one_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    report("filter=[a, b] " + "is long " * 40 + "\nand has two lines")
    assert capsys.readouterr().err == "error: filter=[a, b] " + "is long " * 40 + "and has two lines\n"


@pytest.mark.parametrize("before", [None, "0"])
def test_what_hydra_is_told_is_taken_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", before or "")
    if before is None:
        monkeypatch.delenv("HYDRA_FULL_ERROR")
    argv = list(sys.argv)
    with set_command_line([], ["seed=1"]):
        assert os.environ["HYDRA_FULL_ERROR"] == "1" and sys.argv[1:] == ["seed=1"]
    assert os.environ.get("HYDRA_FULL_ERROR") == before and sys.argv == argv


def test_control_characters_of_others_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    report("name=\x1b]0;owned\x1b\\ \u2026 is no name")
    assert capsys.readouterr().err == "error: name=\\x1b]0;owned\\x1b\\ \u2026 is no name\n"


def test_names_are_near_in_capitals_too() -> None:
    assert find_nearest("GRPO", ["rloo", "grpo", "Adam"]) == ["grpo"]
    assert find_nearest("adamm", ["rloo", "grpo", "Adam"]) == ["Adam"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1e30, "part.grad_clip=1e+30 must be 0, or from 1e-30 to 1e+15 in size"),
        (10**16, "part.grad_clip=10000000000000000 must be at most 1e+15"),
        (1e-320, "part.grad_clip=1e-320 must be 0, or from 1e-30"),
        ("1e-6", "part.grad_clip='1e-6' must be a number"),
    ],
)
def test_numbers_that_no_sum_can_hold_and_texts_that_look_like_numbers(value: object, told: str) -> None:
    name = f"{UpdateSettings.__module__}.{UpdateSettings.__qualname__}"
    check_targets(OmegaConf.create({"part": {"_target_": name, "grad_clip": float("inf")}}))
    with pytest.raises(ValueError, match=re.escape(told)):
        check_targets(OmegaConf.create({"part": {"_target_": name, "grad_clip": value}}))
    with pytest.raises(ValueError, match="^a='1.5' must be b"):
        require(False, "a", "1.5", "b")


def test_a_name_where_options_stand_is_told_its_group() -> None:
    monitor = {"_target_": "lit_agentrl.monitor.callback.CollapseMonitor", "rules": {}, "action": "stop"}
    with pytest.raises(
        ValueError, match=r"callbacks/collapse/action=NAME chooses its options; NAME is .* rollback or stop"
    ):
        check_targets(OmegaConf.create({"callbacks": {"collapse": monitor}}))


@pytest.mark.parametrize(
    ("signal", "told"),
    [(7, "part.signal=7 must be a text or options of a function, with its _target_"), ("a", "")],
)
def test_what_is_no_function_is_told(signal: object, told: str) -> None:
    rule = {"_target_": "lit_agentrl.monitor.rules.Rule", "signal": signal, "below": 1.0}
    with pytest.raises(ValueError, match=f"^{told}$") if told else nullcontext():
        check_targets(OmegaConf.create({"part": rule}))
