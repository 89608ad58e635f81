"""Make the site's page of named algorithms from the files under ``conf/algo``.

python scripts/algorithm_table.py    # prints the page
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from lit_agentrl.certificates.lines import read_lines
from lit_agentrl.paths import find_config, list_options

BASES = {
    "_base": ("Of rollouts", "Each token gets an advantage and a loss."),
    "_preference": ("Of pairs", "One of two replies is better."),
    "_pointwise": ("Of labels", "Each trajectory is desirable or not."),
}
IDLE = ("none", "fixed", "refill", "reverse_kl")


def read_choices(file: Path) -> dict[str, str]:
    """Return an algorithm's choice on each axis.

    Filter and reward are separate config groups, which an algorithm may override.
    """
    chosen = {}
    for entry in yaml.safe_load(file.read_text())["defaults"]:
        if isinstance(entry, dict):
            [(key, option)] = entry.items()
            chosen[re.sub(r"override |/\w+@_global_\.", "", key)] = option
        elif entry != "_self_":  # a config that this one inherits from
            chosen = read_choices(find_config(f"algo/{entry}.yaml")) | chosen
    return chosen | {"filter": chosen.get("filter", "top_std"), "reward": chosen.get("reward", "none")}


def list_changed_values(axis: str, option: str) -> str:
    """List the values that an option changes in the option it inherits from."""
    group = axis if axis in ("filter", "reward") else f"algo/{axis}"
    content = yaml.safe_load(find_config(f"{group}/{option}.yaml").read_text())
    if "defaults" not in content:
        return ""
    return " " + ", ".join(f"{name} {value}".lower() for name, value in content.items() if name != "defaults")


def format_row(file: Path, axes: Sequence[str]) -> str:
    """Format the row of an algorithm, with its choices on these axes and its paper."""
    text, chosen = file.read_text(), read_choices(file)
    title = text.splitlines()[0].removeprefix("# ").split(". Defaults")[0].rstrip(".")
    paper = re.search(r"arXiv (\d{4}\.\d{5})", text.splitlines()[0])
    source = f"[{paper[1]}](https://arxiv.org/abs/{paper[1]})" if paper else title.partition(", ")[2]
    cells = (
        "–"
        if chosen.get(axis, "none") in IDLE
        else f"`{chosen[axis]}`" + list_changed_values(axis, chosen[axis])
        for axis in axes
    )
    certificate = read_lines().get(file.stem, "–")
    return f"| `{file.stem}` | {' | '.join(cells)} | {source} | {certificate} |"


def find_base(file: Path) -> str:
    """Return the base config that an algorithm inherits from, directly or through others."""
    for entry in yaml.safe_load(file.read_text())["defaults"]:
        if isinstance(entry, str) and entry != "_self_":
            return entry if entry.startswith("_") else find_base(find_config(f"algo/{entry}.yaml"))
    return "_base"


def format_table(base: str) -> str:
    """Format the table of the algorithms that inherit from a base."""
    files = [file for file in list_options("algo") if find_base(file) == base]
    separate_groups = () if base == "_base" else ("filter", "reward")
    # axes that no named algorithm uses would be empty columns
    axes = [
        axis
        for axis in read_choices(find_config(f"algo/{base}.yaml"))
        if axis not in separate_groups
        and any(read_choices(file).get(axis, "none") not in IDLE for file in files)
    ]
    head = f"| `algo=` | {' | '.join(axes)} | paper | certificate |\n|{'---|' * (len(axes) + 3)}\n"
    return head + "\n".join(format_row(file, axes) for file in files) + "\n"


def make_pages() -> dict[str, str]:
    """Return the text of the page by its path."""
    text = [
        "# Named algorithms",
        "",
        "What each `algo=NAME` chooses on each axis; a dash is the default, which does nothing. "
        "The header of its file says where it departs from its paper, "
        "and its [certificate](../findings/certificates.md) says which objective it maximises.",
        "",
    ]
    for base, (title, explanation) in BASES.items():
        text += [f"## {title}", "", explanation, "", format_table(base)]
    return {"reference/algorithms.md": "\n".join(text)}


if __name__ == "__main__":
    print(*make_pages().values())
