"""Make the reference of options from ``conf`` and docstrings, one page for each config group.

The comment after a key explains it; without a comment, the docstring of the function or class that receives the key
(``_target_``) does.  Nothing is imported: griffe reads the sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import griffe
import yaml

from lit_agentrl.paths import CONFIG_DIR, list_configs, name_config

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "lit_agentrl"
OWN = ("_target_", "_partial_", "defaults")  # keys of Hydra, not options


@dataclass(frozen=True)
class Option:
    """An option, which is a leaf of a config file."""

    key: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Choice:
    """A file of a config group, ``group=name``; a root (``train.yaml``) has no group."""

    group: str
    name: str
    header: str
    body: str
    is_mix: bool
    targets: list[str] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@cache
def load_package() -> griffe.Object:
    """Load the source of the package once."""
    return griffe.load(PACKAGE, search_paths=[ROOT / "src"], allow_inspection=False)  # type: ignore[return-value]


def import_target(target: str) -> griffe.Object | None:
    """Find the function or class that a ``_target_`` names, if it belongs to this package."""
    if not target.startswith(f"{PACKAGE}."):
        return None
    member = load_package()[target.removeprefix(f"{PACKAGE}.")]
    return member.final_target if member.is_alias else member


def read_summary(target: str) -> str:
    """Return the first line of a target's docstring."""
    member = import_target(target)
    docstring = member.docstring if member else None
    return to_markdown(docstring.value.splitlines()[0]) if docstring else ""


def find_meaning(target: str, argument: str) -> str:
    """Return the description of a target's argument from docstrings.

    The docstrings of the target, its base classes and their ``__init__`` are searched.
    """
    member = import_target(target)
    if member is None:
        return ""
    places = (
        [
            member,
            *member.mro(),
            *(c.members["__init__"] for c in [member, *member.mro()] if "__init__" in c.members),
        ]
        if isinstance(member, griffe.Class)
        else [member]
    )
    for place in places:
        for section in place.docstring.parse("google", warnings=False) if place.docstring else []:
            if section.kind.value in ("parameters", "attributes", "other parameters"):
                for item in section.value:
                    if argument in item.name.split(", "):
                        return to_markdown(" ".join(item.description.split()))
    return ""


def to_markdown(text: str) -> str:
    """Convert the markup of a docstring into Markdown, on one line."""
    return " ".join(text.replace("``", "`").split())


def read_choice(file: Path) -> Choice:
    """Read a config file with its header, targets and options."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    head = [line.removeprefix("#").strip() for line in lines[:first]]
    group = name_config(file).rpartition("/")[0]
    place = next((h.split()[1] for h in head if h.startswith("@package")), group.replace("/", "."))
    place = "" if place == "_global_" or not group else place
    root = yaml.compose(text)
    choice = Choice(
        group, file.stem, format_header([h for h in head if not h.startswith("@package")]),
        "\n".join(lines[first:]).strip(), is_mix=group != "" and (place == "" or "defaults" in list_keys(root)),
    )  # fmt: skip
    for option, target in list_options(root, place, lines):
        choice.targets.append(target) if option is None else choice.options.append(option)
    return choice


def list_keys(node: yaml.Node | None) -> list[str]:
    """Return the keys of a mapping, or an empty list for other nodes."""
    return [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []


def list_options(
    node: yaml.Node | None, place: str, lines: list[str], parent_comment: str = ""
) -> Iterator[tuple[Option | None, str]]:
    """Yield every option below a mapping, and (None, target) for each object that it makes.

    Args:
        node: the mapping.
        place: the path of the mapping in the config.
        lines: lines of the file.
        parent_comment: comment of the mapping's own key.
    """
    if not isinstance(node, yaml.MappingNode):
        return
    values = {key.value: value for key, value in node.value}
    target = values["_target_"].value if "_target_" in values else ""
    if target:
        yield None, target
    for key, value in node.value:
        name = f"{place}.{key.value}" if place else key.value
        if key.value in OWN:
            continue
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from list_options(value, name, lines, read_comment(key, value, lines))
        else:
            inherited = find_meaning(target, key.value) if target else parent_comment
            yield Option(name, quote_default(value), read_comment(key, value, lines) or inherited), ""


def read_comment(key: yaml.Node, value: yaml.Node, lines: list[str]) -> str:
    """Return the comment after a value on its key's line.

    If the value begins on the next line, the comment is after the key.
    """
    is_below = value.start_mark.line > key.end_mark.line
    rest = lines[key.end_mark.line][key.end_mark.column + 1 if is_below else value.end_mark.column :]
    match = re.match(r"\s*#\s*(.*)", rest if is_below or value.end_mark.line == key.end_mark.line else "")
    return match[1] if match else ""


def quote_default(value: yaml.Node) -> str:
    """Return a value as written."""
    text = value.start_mark.buffer[value.start_mark.pointer : value.end_mark.pointer].rstrip("\x00").strip()
    return "a text" if "\n" in text else text or "null"


def format_header(lines: list[str]) -> str:
    """Format the comment at the top of a file as Markdown, including its tables."""
    out: list[str] = []
    for line in lines:
        if line.startswith("|") and not (out and out[-1].startswith("|")):
            cells = line.count("|") - 1
            out += ["", line, "|" + "---|" * cells]
        else:
            if out and out[-1].startswith("|") and not line.startswith("|"):
                out.append("")
            out.append(line)
    return "\n".join(out).strip()


@cache
def read_choices() -> tuple[Choice, ...]:
    """Read all config files."""
    help_texts = CONFIG_DIR / "hydra" / "help"
    return tuple(read_choice(file) for file in list_configs() if file.parent != help_texts)


def group_choices() -> dict[str, list[Choice]]:
    """Return the choices of each group; each root is a group and comes first."""
    choices_by_group: dict[str, list[Choice]] = {}
    for choice in read_choices():
        choices_by_group.setdefault(choice.group or f"{choice.name}.yaml", []).append(choice)
    return dict(sorted(choices_by_group.items(), key=lambda item: (not item[0].endswith(".yaml"), item[0])))


def make_uri(group: str) -> str:
    """Return the path of a group's page."""
    return f"reference/conf/{group.removesuffix('.yaml').replace('/', '-')}.md"


def read_defaults() -> dict[str, str]:
    """Return the choice of ``train.yaml`` in each group."""
    listed = yaml.safe_load((CONFIG_DIR / "train.yaml").read_text(encoding="utf-8"))["defaults"]
    base = yaml.safe_load((CONFIG_DIR / "algo" / "_base.yaml").read_text(encoding="utf-8"))["defaults"]
    chosen = {key: value for entry in listed if isinstance(entry, dict) for key, value in entry.items()}
    return chosen | {f"algo/{k}": v for entry in base if isinstance(entry, dict) for k, v in entry.items()}


def make_pages() -> dict[str, str]:
    """Return the text of every page by its path, in the order of the navigation."""
    pages = {make_uri(group): format_page(group, listed) for group, listed in group_choices().items()}
    return {"reference/conf/index.md": format_index()} | pages


def format_index() -> str:
    """Format the page that lists all groups."""
    chosen = read_defaults()
    rows = [
        f"| [`{group}`]({Path(make_uri(group)).name}) "
        f"| {', '.join(f'`{c.name}`' for c in listed if c.name != '_base')} | "
        + (f"`{chosen[group]}` |" if group in chosen else "– |")
        for group, listed in group_choices().items()
        if not group.endswith(".yaml")
    ]
    return "\n".join([
        "# Options", "",
        "A run is a choice of each group (`env=sokoban`, `algo/clip=dual`) and a value of each option "
        "(`rollout.members=16`). These pages are made from the files of `conf`. "
        "`python train.py --cfg job` prints what a command has composed.", "",
        "Options that belong to no group: [train](train.md), [evaluate](evaluate.md), [play](play.md).", "",
        "| group | choices | default |", "|---|---|---|", *rows, "",
    ])  # fmt: skip


def format_page(group: str, listed: list[Choice]) -> str:
    """Format the page of one group."""
    if group.endswith(".yaml"):
        (choice,) = listed
        return "\n".join([f"# {choice.name}", "", choice.header, "", *format_table(choice), ""])
    chosen = read_defaults().get(group)
    out = [f"# {group}", ""]
    out += [f"`{group}=…`; the default is `{chosen}`." if chosen else f"`{group}=…`", ""]
    for choice in listed:
        out += [f"## {choice.name}", "", choice.header, ""]
        for target in dict.fromkeys(choice.targets):
            member = import_target(target)
            name = f"[`{target}`][{target}]" if member else f"`{target}`"
            out += [f"{name}: {read_summary(target)}" if member else name, ""]
        if choice.is_mix:
            out += ["```yaml", choice.body, "```", ""]
        else:
            out += format_table(choice)
    return "\n".join(out)


def format_table(choice: Choice) -> list[str]:
    """Format the table of a file's options."""
    if not choice.options:
        return []
    rows = [f"| `{o.key}` | `{o.default}` | {escape_cell(o.meaning)} |" for o in choice.options]
    return ["| option | default | meaning |", "|---|---|---|", *rows, ""]


def list_unexplained() -> list[str]:
    """List the options that neither a comment nor a docstring explains."""
    return [o.key for choice in read_choices() if not choice.is_mix for o in choice.options if not o.meaning]


def escape_cell(text: str) -> str:
    """Escape a text for a table cell: bars, brackets and ``<`` are shown literally."""
    if "`" in text:
        return text.replace("|", "\\|")
    return re.sub(r"([|\[\]*_])", r"\\\1", text).replace("<", "&lt;")
