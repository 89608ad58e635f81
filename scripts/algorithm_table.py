"""Writes the table of named algorithms in ``docs/algorithms.md`` from the files under ``conf/algo``.

python scripts/algorithm_table.py
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "algorithms.md"
BEGIN, END = "<!-- table: scripts/algorithm_table.py -->\n", "<!-- end of table -->\n"
AXES = ("advantage", "rows", "ratio", "clip", "aggregate", "kl", "entropy", "filter", "reward")


def row(file: Path) -> str:
    """One algorithm: what it chooses on each axis, and its paper."""
    text = file.read_text()
    chosen = {"reward": "none"}
    for entry in yaml.safe_load(text)["defaults"]:
        if isinstance(entry, dict):
            [(key, option)] = entry.items()
            # filter and reward are groups of their own, which an algorithm overrides
            chosen[key.rpartition(".")[2] if key.startswith("override") else key] = option
    title = text.splitlines()[0].removeprefix("# ").split(". Defaults")[0].rstrip(".")
    paper = re.search(r"arXiv (\d{4}\.\d{5})", text.splitlines()[0])
    source = f"[{paper[1]}](https://arxiv.org/abs/{paper[1]})" if paper else title.partition(", ")[2]
    cells = ("–" if chosen[axis] == "none" else f"`{chosen[axis]}`" for axis in AXES)
    return f"| `{file.stem}` | {' | '.join(cells)} | {source} |"


def table() -> str:
    """The whole table."""
    files = sorted((ROOT / "conf" / "algo").glob("*.yaml"))
    head = f"| `algo=` | {' | '.join(AXES)} | paper |\n|{'---|' * (len(AXES) + 2)}\n"
    return head + "\n".join(row(file) for file in files) + "\n"


def updated(page: str) -> str:
    """The page with the current table between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
