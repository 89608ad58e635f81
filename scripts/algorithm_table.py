"""Make the site's page of named algorithms and experimental parts from their files under ``conf``.

python scripts/algorithm_table.py    # prints the page
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml
from markdown.extensions.toc import slugify

from lit_agentrl.certificates.lines import read_lines
from lit_agentrl.paths import EXPERIMENTAL_DIR, PACKAGE_DIR, find_config, list_options

BASES = {
    "_base": ("Of rollouts", "Each token gets an advantage and a loss."),
    "_preference": ("Of pairs", "One of two replies is better."),
    "_pointwise": ("Of labels", "Each trajectory is desirable or not."),
    "_compared": ("Reward models of comparisons", "One of two trajectories has the higher score."),
    "_scored": ("Reward models of labels", "Each turn or trajectory has a label."),
}
# pages with figures of runs, most general first
MEASURED = (
    "findings/learning.md", "findings/preferences.md", "findings/reward_models.md", "findings/costs.md",
    "findings/structures.md", "findings/collapse.md", "experimental.md",
)  # fmt: skip
MOST_FIGURES = 2
DOCS = Path(__file__).resolve().parent.parent / "docs"
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


@cache
def list_sections() -> list[tuple[str, str, str]]:
    """List the sections that have a figure with three decimals: address, title, text."""
    sections = []
    for page in MEASURED:
        for section in re.split(r"^#+ ", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            title, _, text = section.partition("\n")
            text = re.sub(r"[^.]*\bnot measured\b[^.]*\.", "", text)
            if re.search(r"\b[01]\.\d{3}\b", text):
                sections.append((f"../{page}#{slugify(title, '-')}", title, text))
    return sections


def link_figures(name: str, option: str) -> str:
    """Link the first sections with figures that name an option; a dash without one."""
    pattern = re.compile(rf"`{name}`|\b{option}\b(?!/)" if option.startswith("algo=") else rf"\b{option}\b")
    links = [f"[{title}]({path})" for path, title, text in list_sections() if pattern.search(text)]
    return ", ".join(links[:MOST_FIGURES]) or "–"


def format_row(file: Path, axes: Sequence[str]) -> str:
    """Format the row of an algorithm: tier, choices on these axes, paper, certificate, figures."""
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
    tier = "experimental" if file.is_relative_to(EXPERIMENTAL_DIR) else "core"
    row = [f"`{file.stem}`", tier, *cells, source, certificate, link_figures(file.stem, f"algo={file.stem}")]
    return f"| {' | '.join(row)} |"


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
    names = ["`algo=`", "tier", *axes, "paper", "certificate", "figures"]
    head = f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n"
    return head + "\n".join(format_row(file, axes) for file in files) + "\n"


def find_source(file: Path) -> str:
    """Link the paper that the file or the target of a part names.

    A dash stands for none.
    """
    text = file.read_text()
    for target in re.findall(r"_target_: (lit_agentrl\.experimental\.[\w.]+)", text):
        module, _, name = target.rpartition(".")
        tree = ast.parse((PACKAGE_DIR.parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
                text += ast.get_docstring(node) or ""
    paper = re.search(r"arXiv (\d{4}\.\d{5})", text)
    return f"[{paper[1]}](https://arxiv.org/abs/{paper[1]})" if paper else "–"


def format_parts() -> str:
    """Format the table of the experimental parts, which any algorithm may choose."""
    lines = ["| option | paper | figures |", "|---|---|---|"]
    for file in sorted(EXPERIMENTAL_DIR.rglob("*.yaml")):
        *group, _ = file.relative_to(EXPERIMENTAL_DIR).parts
        if group not in ([], ["algo"]) and group[0] != "experiment":
            option = f"{'/'.join(group)}={file.stem}"
            lines.append(f"| `{option}` | {find_source(file)} | {link_figures(file.stem, option)} |")
    return "\n".join(lines) + "\n"


def make_pages() -> dict[str, str]:
    """Return the text of the page by its path."""
    text = [
        "# Named algorithms",
        "",
        "What each `algo=NAME` chooses on each axis; a dash is the default, which does nothing. "
        "The header of its file says where it departs from its paper, "
        "its [certificate](../findings/certificates.md) says which objective it maximises, and *figures* links "
        "sections with figures of runs that name it. [Experimental](../experimental.md) ones have no proven gain.",
        "",
    ]
    for base, (title, explanation) in BASES.items():
        text += [f"## {title}", "", explanation, "", format_table(base)]
    about = "Their tier is experimental. An advantage is certified with `lit-agentrl certify algo/advantage=NAME`."
    text += ["## Experimental parts", "", about, "", format_parts()]
    return {"reference/algorithms.md": "\n".join(text)}


if __name__ == "__main__":
    print(*make_pages().values())
