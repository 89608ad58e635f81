"""Pictures of structures: what is drawn of a tree, and that the docs show them."""

from __future__ import annotations

import re

from lit_agentrl.episode import PLANNER
from lit_agentrl.paths import list_options
from tests.conftest import ROOT, load_script
from tests.experimental.test_mcts import over


def test_branches_stand_below_their_parents() -> None:
    made = load_script("structure_pictures")
    branches = [over(2, 0.0, 4, (0, 1)), over(3, 0.0, 4, (0, 3)), over(4, 0.0, 3, (0, 1), (2, 2))]
    group = [over(0, 1.0, 4), over(1, 0.0, 2), *branches]
    for each in branches:
        each.tree = 0
    lines = made.arrange_branches(group)
    assert [(e.label, e.begin, e.parent) for e in lines] == [
        ("episode 0", 0, None), ("episode 3", 3, 0), ("episode 2", 1, 0), ("episode 4", 2, 2), ("episode 1", 0, None),
    ]  # fmt: skip
    drawn = made.format_svg("tree", lines)
    own = [e.turns - e.begin for e in lines]
    group[1].turns[0].player = PLANNER
    assert made.format_svg("two_level", made.arrange_branches(group)).count("-7 7z") == 1  # a diamond
    assert drawn.count("<circle") == sum(own) + 1 and "algo/structure=tree" in drawn  # and the legend's


def test_the_docs_show_each_that_is_drawn() -> None:
    pages = (ROOT / "docs" / name for name in ("structures.md", "experimental.md", "rewards.md"))
    page = "".join(page.read_text(encoding="utf-8") for page in pages)
    shown = set(re.findall(r"images/structure_(\w+)\.svg", page))
    assert shown == set(load_script("structure_pictures").RUNS)
    structures = list_options("algo/structure")
    variants = {path.stem for path in structures if "\ndefaults:" in path.read_text(encoding="utf-8")}
    assert variants == {
        "distilled",
        "guided",
        "league",
        "mcts_critic",
        "opponent_mixture",
        "parts",
        "ranked",
    }  # the same pictures with other numbers
    assert {path.stem for path in structures} - variants <= shown
    assert all((ROOT / "docs" / "images" / f"structure_{name}.svg").exists() for name in shown)
