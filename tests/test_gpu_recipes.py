"""The recipes of docs/gpu.md compose, pass the checks, and fit on their cards by the memory plan."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lit_agentrl.build.devices import choose_for_device
from lit_agentrl.build.parts import build_parts
from lit_agentrl.config.composition import make_task_loader
from tests.build.test_devices import H100, RTX, composed
from tests.conftest import ROOT, thinned
from tests.shapes import write_shape

PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^# (24|80) GB: .*\npython train\.py (.+)$", PAGE, flags=re.MULTILINE)


def test_the_page_has_recipes() -> None:
    assert len(RECIPES) == 5


@pytest.mark.slow
@pytest.mark.parametrize(("card", "command"), thinned(RECIPES))
def test_a_recipe(card: str, command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    (name,) = (word.partition("=")[2] for word in words if word.startswith("model.name="))
    folder = write_shape(tmp_path, name)
    cfg = composed(*(f"model.name={folder}" if word.startswith("model.name=") else word for word in words))
    line = choose_for_device(cfg, {"24": RTX, "80": H100}[card])
    assert "planned peak" in line and "too much" not in line and "tight" not in line
    assert cfg.trainer.precision == "bf16-mixed" and cfg.engine.num_slots >= 32
    build_parts(cfg, make_task_loader())
