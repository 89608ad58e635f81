"""What builds the site finds what is wrong; ``make docs`` builds the site itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import load_script

YAML = """\
# What it is.
# | a | b |
# | 1 | 2 |
_target_: lit_agentrl.parts.Long
weight: 2.0 # of the sum
solved_long: 0.5
loss: # of what is below
  clip: null
bare: [1, 2]
"""
PYTHON = '''\
class Long:
    """Points for what is long.

    Args:
        solved_short, solved_long: at ``L``.
    """
'''


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="x"></h1><a href="#x">1</a><a href="b.html#y">2</a><a href="b.html#z">3</a><a href="c.html">4</a>'
        '<img src="no.png"><script src="https://a.b/c.js"></script><a href="https://a.b">5</a>'
    )
    (tmp_path / "b.html").write_text('<a id="y" href="a.html">1</a>')
    found = sorted(load_script("docs_check").find_faults(tmp_path))
    assert [line.split("; copy it")[0] for line in found] == [
        "a.html links to b.html#z, which has no such anchor",
        "a.html links to c.html, which is not there",
        "a.html links to no.png, which is not there",
        "a.html loads https://a.b/c.js",
    ]


def test_options_are_read_with_their_comments_or_docstrings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_script("docs_conf")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "CONFIG_DIR", tmp_path)
    monkeypatch.setattr("lit_agentrl.paths.CONFIG_DIR", tmp_path)
    for file, text in {
        "reward/long.yaml": YAML,
        "train.yaml": "defaults: [{reward: long}]",
        "algo/_base.yaml": "defaults: []",
        "src/lit_agentrl/__init__.py": "",
        "src/lit_agentrl/parts.py": PYTHON,
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    script.load_package.cache_clear()  # another test may have read the real one
    choice = script.read_choice(tmp_path / "reward" / "long.yaml")
    assert choice.header == "What it is.\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    assert choice.targets == ["lit_agentrl.parts.Long"]
    assert [(o.key, o.default, o.meaning) for o in choice.options] == [
        ("reward.weight", "2.0", "of the sum"),
        ("reward.solved_long", "0.5", "at `L`."),
        ("reward.loss.clip", "null", "of what is below"),
        ("reward.bare", "[1, 2]", ""),
    ]
    monkeypatch.setattr(script, "read_choices", lambda: (choice,))
    assert script.list_unexplained() == ["reward.bare"]
    page = script.format_page("reward", [choice])
    assert (
        "the default is `long`" in page
        and "[`lit_agentrl.parts.Long`][lit_agentrl.parts.Long]: Points for" in page
    )
    assert "| `reward.bare` | `[1, 2]` |  |" in page
    script.load_package.cache_clear()
