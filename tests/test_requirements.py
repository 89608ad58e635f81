"""Facts that parts require and provide: the first that is unmet is refused with its remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from lit_agentrl.build.parts import Parts, build_parts
from lit_agentrl.config.composition import format_search_path, make_task_loader
from lit_agentrl.paths import CONFIG_DIR
from lit_agentrl.requirements import Fact, Offer, Requirement, describe_part, match

LIGHT = Fact("light", "a lamp of {} watts or more", "lamp=on", "lamp")
OWN = """
from lit_agentrl.requirements import Fact
from lit_agentrl.rewards.shaping.format import Format
from lit_agentrl.rollout.structures.refill import Refill

TIDE = Fact("tide", "a tide", "reward=tidal")


class Harbour(Refill):
    requires = Refill.requires | {TIDE}


class Tidal(Format):
    provides = frozenset({TIDE})
"""


def test_amounts_are_compared_and_whoever_gives_too_little_is_named() -> None:
    reader = describe_part("reader", name="book", requires=[Requirement(LIGHT, 40, reason="it is night")])
    lamp = describe_part("lamp", name="old", provides=[Offer(LIGHT, 25, "lamp.watts=25")])
    with pytest.raises(ValueError) as error:
        match([reader, lamp])
    assert str(error.value) == (
        "reader=book needs a lamp of 40 watts or more, not given by lamp.watts=25: it is night; set lamp=on"
    )
    match([reader, lamp, describe_part("sun", provides=[LIGHT])])


def test_the_first_unmet_requirement_is_reported_in_the_same_order_always() -> None:
    facts = [Fact(name, f"the {name}", f"x={name}") for name in "cab"]
    parts = [
        describe_part("one", type("One", (), {"requires": frozenset(facts[:2])})()),
        describe_part("two", requires=facts),
    ]
    with pytest.raises(ValueError, match="^one=One needs the a, not given by any part of this run; set x=a$"):
        match(parts)
    match(parts, undecided=[""])


def test_what_owns_a_fact_but_does_not_give_it_is_named_and_what_is_undecided_is_not_missed() -> None:
    reader = describe_part("reader", requires=[Requirement(LIGHT, remedy="reader=none")])
    with pytest.raises(ValueError, match=r"not given by lamp=off; set lamp=on, or reader=none$"):
        match([reader, describe_part("lamp", name="off")])
    match([reader], undecided={"lamp"})


def test_a_declaration_that_is_no_fact_is_refused() -> None:
    with pytest.raises(ValueError, match="^part=X declares 'light', which must be a Fact or Requirement"):
        describe_part("part", name="X", requires=["light"])  # type: ignore[list-item]


def built(folder: Path, *overrides: str) -> Parts:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIG_DIR)):
        cfg = compose("train", overrides=["env=sokoban", *overrides, *format_search_path([str(folder)])])
    cfg.run_dir = "."
    return build_parts(cfg, make_task_loader())


def test_a_part_of_ones_own_is_one_file_and_one_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names no other part; a remedy may be a part of one's own, too."""
    (tmp_path / "own_facts.py").write_text(OWN)
    for place, name in (("algo/structure/harbour", "Harbour"), ("reward/tidal", "Tidal")):
        file = tmp_path / f"{place}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        entry = f"_target_: own_facts.{name}\n"
        file.write_text(entry if place.startswith("algo") else "tidal:\n  " + entry)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_facts", raising=False)
    with pytest.raises(ValueError) as error:
        built(tmp_path, "algo/structure=harbour")
    assert (
        str(error.value)
        == "algo.structure=Harbour needs a tide, not given by any part of this run; set reward=tidal"
    )
    assert type(built(tmp_path, "algo/structure=harbour", "reward=tidal").structure).__name__ == "Harbour"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("needs", "facts in requires and provides"),
        ("is_off_policy", "facts in requires and provides"),
        ("take_critic", "facts in requires and provides"),
        ("evaluated", "StructureHook first, and name it plan_evaluation"),
        ("check_game", "StructureHook first, and name it check_game"),
    ],
)
def test_a_structure_that_declares_as_in_0_2_is_refused(
    name: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"old_{name}.py").write_text(
        f"from lit_agentrl.rollout.structures.refill import Refill\nclass Old(Refill):\n    {name} = frozenset()\n"
    )
    file = tmp_path / "algo" / "structure" / "old.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"_target_: old_{name}.Old\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=rf"^algo.structure=Old declares {name}, .*{remedy}"):
        built(tmp_path, "algo=grpo", "algo/structure=old")
