"""The benchmark of clients and starts prints a row for each, and says which it leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.bench import gateway_clients

pytestmark = pytest.mark.slow
SMALL = ["--repeats", "1", "--episodes", "2", "--starts", "1"]


@pytest.mark.parametrize("has_sdk", [False, True])
def test_costs_are_told_apart(
    has_sdk: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_sdk:
        pytest.importorskip("openai")
    else:
        monkeypatch.setattr(gateway_clients, "find_spec", lambda name: None)
    gateway_clients.main([*SMALL, "--out", str(tmp_path / "out.json")])
    out, found = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    assert ("pip install openai" in out) is not has_sdk
    [calls], [starts] = found["calls"], found["starts"]
    assert len(calls) == 3 + has_sdk and len(starts) == 3 + has_sdk
    programs = [each for name, each in calls.items() if name != gateway_clients.NATIVE]
    assert all(each["calls"] == 10 and each["return"] > 0 for each in programs)
    assert all(each["program"] > 0 and each["clock"] > 0 for each in starts.values())
    assert all(name in out for name in (*calls, *starts))
