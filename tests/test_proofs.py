"""The index of proofs names tests that exist, and all identities."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "findings" / "proofs.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Reduction identities")[1].split("\n## ")[0]
NAMED = re.findall(r"\| `(test_\w+\.py)::(test_\w+)` \|", SECTION)


def names_in(file: str) -> set[str]:
    return set(re.findall(r"^def (test_\w+)\(", (ROOT / "tests/rl" / file).read_text(), flags=re.MULTILINE))


def test_every_named_test_exists() -> None:
    assert len(NAMED) == SECTION.count("\n| ") - 1 >= 15
    missing = [f"{file}::{name}" for file, name in NAMED if name not in names_in(file)]
    assert not missing


def test_every_identity_is_named() -> None:
    assert {name for file, name in NAMED if file == "test_identities.py"} == names_in("test_identities.py")


def test_the_page_is_linked() -> None:
    assert "(findings/proofs.md)" in (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
