"""Check the names and docstrings of the source for plain English.

``python tests/test_language.py src/lit_agentrl/rl`` lists what a file or folder breaks.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "lit_agentrl"
WORDS = yaml.safe_load((ROOT / "tests" / "language.yaml").read_text(encoding="utf-8"))
VERBS = frozenset(WORDS["verbs"].split())
BANNED = re.compile(rf"\b(?:{'|'.join(map(re.escape, WORDS['banned_in_text']))})\b", re.IGNORECASE)
MAX_WORDS = 15
PREFIXES = frozenset(WORDS["prefixes"].split())
FRAMEWORK = frozenset(WORDS["framework"].split())
INVERTED = frozenset(WORDS["inverted"].split())
# the interfaces of docs/extend.md, whose methods code of users names
CONTRACTS = (
    "api.py", "data/kinds.py", "envs/base.py", "envs/world.py", "envs/splits.py", "text/dialects/base.py",
    "text/context.py", "engines/base.py", "rollout/branching.py", "rollout/structures/base.py",
    "rollout/structures/hook.py", "rollout/workers/base.py", "rewards/base.py", "rewards/shaping/novelty.py",
    "rl/objective.py", "rl/preference/critic_terms.py",
)  # fmt: skip
# an entry of "Raises:" whose sentence leaves out the noun or the verb of its condition, or who names something
ELLIPSIS = re.compile(
    r"\w+: (?:also )?(?:if )?(?:it|they) (?:do|does|did|is|are|was|were|can|cannot|has|have)(?: not| none)?(?:[.;,]|$)",
    re.IGNORECASE,
)
NO_SUBJECT = re.compile(r"\w+: (?:names|says|naming|saying) |; (?:names|says) ")
# a comment behind the closing bracket of a split statement, far from what it explains
TRAILING = re.compile(r"^ *[\])}][^#\n\"']* # (?!fmt|type|noqa)(.*)", re.MULTILINE)
# rooms that a reader has not been through yet
UNREAD: tuple[str, ...] = ()


def find_sources(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def list_part_names() -> frozenset[str]:
    """Return the names that configs and the public interfaces give: they are nouns of the field."""
    targets = set()
    for file in (ROOT / "conf").rglob("*.yaml"):
        targets |= set(re.findall(r"lit_agentrl\.[\w.]*\.(\w+)", file.read_text(encoding="utf-8")))
    for contract in CONTRACTS:
        tree = ast.parse((SOURCE / contract).read_text(encoding="utf-8"))
        targets |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    records = ast.walk(
        ast.parse((SOURCE / "episode.py").read_text(encoding="utf-8"))
    )  # fields are written to disk
    targets |= {ast.unparse(node.target) for node in records if isinstance(node, ast.AnnAssign)}
    return frozenset(targets)


def list_option_names() -> frozenset[str]:
    """Return the keys of configs, which are parameters of constructors."""
    files = (ROOT / "conf").rglob("*.yaml")
    return frozenset(
        key
        for file in files
        for key in re.findall(r"^ +(\w+):", file.read_text(encoding="utf-8"), re.MULTILINE)
    )


PARTS = list_part_names() | frozenset(WORDS["columns"].split())
OPTIONS = list_option_names()


def split_name(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def check_first_line(node: ast.AST, is_function: bool) -> Iterator[str]:
    text = ast.get_docstring(node)  # type: ignore[arg-type]
    if not text:
        return
    line = text.splitlines()[0]
    words = line.split()
    first = words[0].strip("`,.:;")
    if len(words) > MAX_WORDS:
        yield f"first line has {len(words)} words, at most {MAX_WORDS}: {line!r}"
    if not line.rstrip().endswith((".", "?", ":")):
        yield f"first line does not end its sentence: {line!r}"
    if is_function and first.lower() not in VERBS:
        yield f"first line does not begin with a verb (Return, Compute, …): {line!r}"
    elif first in INVERTED:
        yield f"first line begins with {first!r}: {line!r}"


def check_raises(node: ast.AST) -> Iterator[str]:
    """Yield what the entries of ``Raises:`` leave out."""
    _, heading, entries = (ast.get_docstring(node) or "").partition("Raises:\n")  # type: ignore[arg-type]
    for line in entries.splitlines() if heading else ():
        if ELLIPSIS.match(line.strip()):
            yield f"the condition leaves out its noun or verb: {line.strip()!r}"
        if NO_SUBJECT.search(line):
            yield f"write that the message names it: {line.strip()!r}"


def list_parameters(node: ast.AST) -> set[str] | None:
    """Return the parameters of a function, or of the constructor of a class; None if they are inherited."""
    if isinstance(node, ast.ClassDef):
        constructors = [each for each in node.body if getattr(each, "name", "") == "__init__"]
        if not constructors:
            fields = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
            return None if node.bases else fields
        node = constructors[0]
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}  # type: ignore[attr-defined]


def check_arguments(node: ast.AST) -> Iterator[str]:
    """Yield the entries of ``Args:`` that are no parameters."""
    docstring, parameters = ast.get_docstring(node) or "", list_parameters(node)  # type: ignore[arg-type]
    entries = re.search(r"^Args:\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    if entries is None or parameters is None:
        return
    for names in re.findall(r"^    (\S[^:]*):", entries[1], re.MULTILINE):
        for name in names.split(", "):
            if name.lstrip("*") not in parameters:
                yield f"Args: names {name}, which is no parameter"


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def check_function_name(node: ast.FunctionDef | ast.AsyncFunctionDef, is_public_maths: bool) -> Iterator[str]:
    if node.name.startswith("__") or is_property(node) or node.name in PARTS | FRAMEWORK:
        return
    if any(
        name in ast.unparse(each)
        for each in node.decorator_list
        for name in ("overload", "setter", "override")
    ):
        return
    if is_public_maths and not node.name.startswith("_"):
        return
    words = split_name(node.name)
    if words and words[0] not in VERBS | PREFIXES:
        yield f"function {node.name} does not begin with a verb"


def find_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if node.attr.lstrip("_") not in OPTIONS:
                yield node.lineno, node.attr
        elif isinstance(node, ast.arg) and node.arg not in OPTIONS:
            yield node.lineno, node.arg


def find_texts(file: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""
    with tokenize.open(file) as stream:
        for token in tokenize.generate_tokens(stream.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def check_file(file: Path) -> list[str]:
    """Return one line for each name and sentence that breaks a rule."""
    source = file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    is_maths = (SOURCE / "rl") in file.parents
    found: list[tuple[int, str]] = [(1, line) for line in check_first_line(tree, is_function=False)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found += [(node.lineno, line) for line in (*check_raises(node), *check_arguments(node))]
        if isinstance(node, ast.ClassDef):
            found += [(node.lineno, line) for line in check_first_line(node, is_function=False)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_noun = is_property(node) or (is_maths and not node.name.startswith("_"))
            found += [(node.lineno, line) for line in check_first_line(node, is_function=not is_noun)]
            found += [(node.lineno, line) for line in check_function_name(node, is_maths)]
    for number, name in find_names(tree):
        for word in split_name(name):
            if word in WORDS["banned_in_names"] and name not in PARTS:
                found.append((number, f"name {name}: instead of {word!r}, {WORDS['banned_in_names'][word]}"))
    for match in TRAILING.finditer(source):
        number = source.count("\n", 0, match.start(1)) + 1
        found.append((number, f"comment after a closing bracket, move it above the statement: {match[1]!r}"))
    # finding comments takes long, so only where a phrase stands anywhere in the file
    for number, text in find_texts(file, tree) if BANNED.search(source) else ():
        for phrase in BANNED.findall(text):
            plain = WORDS["banned_in_text"][phrase.lower()]
            found.append((number, f"instead of {phrase.lower()!r}, write {plain!r}"))
    return [f"{file.relative_to(ROOT)}:{number}: {line}" for number, line in sorted(found)]


def list_rooms() -> list[str]:
    return sorted(
        each.name for each in SOURCE.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()
    )


@pytest.mark.parametrize("room", [room for room in list_rooms() if room not in UNREAD])
def test_names_and_sentences_are_plain(room: str) -> None:
    broken = [line for file in find_sources(SOURCE / room) for line in check_file(file)]
    assert not broken, "\n".join(broken)


def test_names_and_sentences_of_the_scripts_are_plain() -> None:
    broken = [line for file in sorted((ROOT / "scripts").rglob("*.py")) for line in check_file(file)]
    assert not broken, "\n".join(broken)


def test_every_unread_room_exists() -> None:
    assert set(UNREAD) <= set(list_rooms())


def test_what_is_not_plain_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "odd.py"
    raises = (
        "    Raises:\n        ValueError: it is not.\n        OSError: If a file is lost; names the file.\n"
    )
    file.write_text(
        '"""What is odd."""\n\n\ndef told():\n    """A thing, lest it fails"""\n    it.foretold = 1\n\n\n'
        f'def tell(it):\n    """Tell it.\n\n    Args:\n        them: a thing.\n\n{raises}    """\n'
        "    return (\n        1,\n    ).count(1)  # one\n"
    )
    assert [line.split(": ", 1)[1].split(":")[0] for line in check_file(file)] == [
        "first line begins with 'What'",
        "first line does not begin with a verb (Return, Compute, …)",
        "first line does not end its sentence",
        "function told does not begin with a verb",
        "instead of 'lest', write 'so that … not'",
        "name told",
        "name foretold",
        "Args",
        "the condition leaves out its noun or verb",
        "write that the message names it",
        "comment after a closing bracket, move it above the statement",
    ]


if __name__ == "__main__":
    lines = [
        line
        for place in sys.argv[1:]
        for file in find_sources(Path(place).resolve())
        for line in check_file(file)
    ]
    print("\n".join(lines))
    print(f"{len(lines)} in {', '.join(sys.argv[1:])}")
