"""docs/findings/parity.md names functions and tests that exist; this needs neither verl nor trl."""

from __future__ import annotations

import importlib
import re

import pytest

from lit_agentrl.paths import PACKAGE_DIR
from lit_agentrl.renamed import get_current_name
from tests.oracle.batches import NUM_BATCHES
from tests.oracle.page import PAGE, names, rows


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_row(row: list[str]) -> None:
    ours, oracle, batches, tolerance, result, test = row
    assert names(ours) and names(oracle) and result
    for name in names(ours):
        module, function = name.rsplit(".", 1)
        room = "lit_agentrl" if module.startswith(("models.", "rewards.")) else "lit_agentrl.rl"
        if (PACKAGE_DIR / "experimental" / f"{module}.py").exists():
            room = "lit_agentrl.experimental"
        assert callable(getattr(importlib.import_module(get_current_name(f"{room}.{module}")), function))
    assert int(batches.replace(",", "")) % NUM_BATCHES == 0
    assert 0 <= float(tolerance) <= 1e-5
    for name in names(test):
        file, function = name.split("::")
        source = (PAGE.parents[2] / "tests" / "oracle" / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {function}\(", source, flags=re.MULTILINE), name


def test_versions_are_the_pinned_ones() -> None:
    pins = (PAGE.parents[2] / "tests" / "oracle" / "requirements.txt").read_text(encoding="utf-8")
    for package in ("verl", "trl"):
        (version,) = re.findall(rf"^{package}==(.*)$", pins, flags=re.MULTILINE)
        assert f"{package} {version}" in PAGE.read_text(encoding="utf-8")
