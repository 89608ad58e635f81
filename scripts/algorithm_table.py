"""Writes the table of named algorithms in ``docs/algorithms.md`` from the files under ``conf/algo``.

python scripts/algorithm_table.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "algorithms.md"
BEGIN, END = "<!-- table: scripts/algorithm_table.py -->\n", "<!-- end of table -->\n"
IDLE = ("none", "fixed", "refill")


def choices(file: Path) -> dict[str, str]:
    """What an algorithm chooses on each axis; filter and reward are groups of their own, which it may override."""
    chosen = {}
    for entry in yaml.safe_load(file.read_text())["defaults"]:
        if isinstance(entry, dict):
            [(key, option)] = entry.items()
            chosen[re.sub(r"override |/\w+@_global_\.", "", key)] = option
        elif entry != "_self_":  # the files it starts from
            chosen = choices(file.with_name(f"{entry}.yaml")) | chosen
    return chosen | {"filter": chosen.get("filter", "top_std"), "reward": chosen.get("reward", "none")}


def constants(file: Path) -> dict[str, str]:
    """What it sets for the option that it chooses on an axis, as text."""
    given = yaml.safe_load(file.read_text()).get("constants", {})
    return {
        key.lstrip("/").partition("/")[0]: ", ".join(
            f"{name} {value}".lower() for name, value in values.items()
        )
        for key, values in given.items()
    }


def row(file: Path, axes: Sequence[str]) -> str:
    """One algorithm: what it chooses on these axes, and its paper."""
    text, chosen = file.read_text(), choices(file)
    title = text.splitlines()[0].removeprefix("# ").split(". Defaults")[0].rstrip(".")
    paper = re.search(r"arXiv (\d{4}\.\d{5})", text.splitlines()[0])
    source = f"[{paper[1]}](https://arxiv.org/abs/{paper[1]})" if paper else title.partition(", ")[2]
    own = constants(file)
    cells = (
        "–"
        if chosen.get(axis, "none") in IDLE
        else f"`{chosen[axis]}`" + (f" {own[axis]}" if axis in own else "")
        for axis in axes
    )
    return f"| `{file.stem}` | {' | '.join(cells)} | {source} |"


def table() -> str:
    """The whole table."""
    folder = ROOT / "src/lit_agentrl/conf/algo"
    files = sorted(folder.glob("[!_]*.yaml"))
    # axes that no named algorithm uses would be empty columns
    axes = [
        axis
        for axis in choices(folder / "_base.yaml")
        if any(choices(file).get(axis, "none") not in IDLE for file in files)
    ]
    head = f"| `algo=` | {' | '.join(axes)} | paper |\n|{'---|' * (len(axes) + 2)}\n"
    return head + "\n".join(row(file, axes) for file in files) + "\n"


def updated(page: str) -> str:
    """The page with the current table between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
