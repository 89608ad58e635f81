"""The numbers of scripts/house_numbers.py, on a package of three files and on this one."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.conftest import ROOT, load_script

house = load_script("house_numbers")
PARTS = """
def read(text):
    raise ValueError(text)

class Part:
    def __init__(self, size):
        if size < 1:
            raise ValueError("size")

    def act(self):
        try:
            read("")
        except ValueError:
            raise
        raise TypeError
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    package = tmp_path / "src" / "lit_agentrl"
    for name, text in {
        "__init__.py": "",
        "checks.py": PARTS,
        "rl/__init__.py": "",
        "rl/parts.py": PARTS,
        "experimental/mcts.py": "a = 1\nb = 2\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (tmp_path / "docs" / "findings").mkdir(parents=True)
    (tmp_path / "README.md").write_text("two words\n")
    (tmp_path / "docs" / "findings" / "one.md").write_text("three words more\n")
    return tmp_path


def test_a_new_error_counts_outside_of_constructors_and_what_is_raised_again_does_not() -> None:
    assert [ast.unparse(each) for each in house.find_raises(PARTS)] == [
        "raise ValueError(text)",
        "raise TypeError",
    ]


def test_a_small_checkout(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, length = house.collect_numbers(checkout), len(PARTS.splitlines())
    assert found["lines of each room"] == {"base": length, "rl": length, "experimental": 2}
    assert (found["lines of the core"], found["lines of experimental"]) == (2 * length, 2)
    assert found["raise outside of constructors and checks"] == 2
    assert found["words of docs"] == 5
    assert found["folders of more than 20 files"] == {}
    for number in range(21):
        (checkout / "src/lit_agentrl/rl" / f"p{number}.py").touch()
    assert house.collect_numbers(checkout)["folders of more than 20 files"] == {"lit_agentrl/rl": 22}
    house.main([str(checkout)])
    printed = capsys.readouterr().out
    assert printed.startswith(str(checkout))
    assert f"lines of the core {2 * length}" in " ".join(printed.split())


@pytest.mark.slow
def test_the_way_of_a_config_is_followed() -> None:
    found = house.trace(ROOT)
    assert json.dumps(found)
    assert {"cli/train.py", "config/composition.py"} <= set(found["files"])
    assert "rollout/scheduler.py" not in [frame.split(":")[0] for frame in found["frames"]]
