"""The walls of the house, read from the source: what each room may import, and how large things may grow."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from lit_agentrl.paths import CONFIG_DIR, EXPERIMENTAL_DIR, list_configs, list_options, name_config

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "lit_agentrl"
BASE = {
    "actions", "schemas", "episode", "judging", "batch", "seeds", "files", "distributed", "checks", "renamed",
    "screen", "paths", "requirements", "facts", "task_sampler",
}  # fmt: skip
LEVEL = {  # a room imports itself, base modules and rooms of a lower level
    **dict.fromkeys(["rl"], 0),
    **dict.fromkeys(["models", "text", "envs", "report"], 1),
    **dict.fromkeys(["engines", "rewards"], 2),
    **dict.fromkeys(["rollout", "update", "strategies"], 3),
    **dict.fromkeys(["modules", "data", "certificates"], 4),
    **dict.fromkeys(["loggers"], 5),
    **dict.fromkeys(["callbacks"], 6),
    **dict.fromkeys(["monitor"], 7),
    **dict.fromkeys(["config"], 8),
    **dict.fromkeys(["build"], 9),
    **dict.fromkeys(["runs"], 10),
    **dict.fromkeys(["evaluate"], 11),
    **dict.fromkeys(["offline"], 12),
    **dict.fromkeys(["api"], 13),
    **dict.fromkeys(["cli"], 14),
    **dict.fromkeys(["__main__"], 15),
    **dict.fromkeys(["experimental"], 16),  # imports any room, and none imports it
}
PURE = {"checks", "requirements", "facts"}  # that know no tensor and no run
FORBIDDEN = {
    "rl": {
        "numpy",
        "lightning",
        "transformers",
        *(f"lit_agentrl.{name}" for name in BASE - PURE),
    },
    "envs": {"torch", "lightning", "transformers", "lit_agentrl.batch", "lit_agentrl.rl"},  # batch: torch
    "episode": {"torch", "lightning", "transformers", "lit_agentrl.batch"},
    "modules": {"lit_agentrl.envs", "lit_agentrl.engines", "lit_agentrl.rollout"},
    "update": {"lightning"},
}
ALGORITHMS = {file.stem for file in list_options("algo")}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 80
MAX_FOLDER_FILES = 20
MAX_YAML_LINES, MAX_ROOT_YAML_LINES = 40, 70
REASON = "# long: "  # above a function that must be longer, or below a module's docstring, with the reason

Rule = Callable[[str, str], Iterator[str]]


@cache  # several rules read each file
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source)))


def imports(source: str) -> Iterator[str]:
    """Every imported name with its dots; ``from a import b`` counts as ``a`` and as ``a.b``."""
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "relative imports hide which room is meant"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_import_downwards(room: str, source: str) -> Iterator[str]:
    for name in imports(source):
        package, _, rest = name.partition(".")
        other = rest.split(".")[0]
        if package != "lit_agentrl" or not other or other in BASE or other == room or room == "__init__":
            continue
        if room in BASE:
            yield f"base module {room} imports {name}"
        elif other not in LEVEL:
            # names of the package itself, such as __version__, belong to no room
            if (PACKAGE / other).exists() or (PACKAGE / f"{other}.py").exists():
                yield f"{room} imports {name}, which has no level"
        elif LEVEL[other] >= LEVEL[room]:
            yield f"{room} imports {name}, which is not below it"


def rooms_keep_their_libraries(room: str, source: str) -> Iterator[str]:
    for name in imports(source):
        parts = name.split(".")
        prefixes = {".".join(parts[: i + 1]) for i in range(len(parts))}
        if found := prefixes & FORBIDDEN.get(room, set()):
            yield f"{room} imports {min(found)}"


USES_HYDRA = {"config", "build", "runs", "evaluate", "offline"}


def only_entry_points_import_hydra(room: str, source: str) -> Iterator[str]:
    if room not in USES_HYDRA and any(name.split(".")[0] == "hydra" for name in imports(source)):
        yield f"{room} imports hydra"


def sizes_are_bounded(room: str, source: str) -> Iterator[str]:
    lines = source.splitlines()
    if (length := len(lines)) > MAX_FILE_LINES and not any(line.startswith(REASON) for line in lines[:12]):
        yield f"{length} lines, more than {MAX_FILE_LINES}"
    for node in nodes_of(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES and REASON not in lines[node.lineno - 2]:
                yield f"{node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"


def no_algorithm_is_named(room: str, source: str) -> Iterator[str]:
    """No literal equals the name of an algorithm: neither a comparison nor a table can branch on it."""
    for node in nodes_of(source):
        if isinstance(node, ast.Constant) and node.value in ALGORITHMS:
            yield f"line {node.lineno} names the algorithm {node.value!r}"


RULES: tuple[Rule, ...] = (
    rooms_import_downwards,
    rooms_keep_their_libraries,
    only_entry_points_import_hydra,
    sizes_are_bounded,
    no_algorithm_is_named,
)
FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_source(rule: Rule) -> None:
    broken = []
    for file in FILES:
        inside = file.relative_to(PACKAGE)
        room = inside.parts[0].removesuffix(".py")
        assert room in LEVEL or room in BASE or room == "__init__", f"{inside} is in no known room"
        broken += [f"{inside}: {text}" for text in rule(room, file.read_text(encoding="utf-8"))]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("rule", "room", "source", "is_broken"),
    [
        (rooms_import_downwards, "modules", "from lit_agentrl.callbacks.rollout import X", True),
        (rooms_import_downwards, "engines", "def f():\n    from lit_agentrl import rollout", True),
        (rooms_import_downwards, "data", "import lit_agentrl.callbacks.progress", True),
        (rooms_import_downwards, "batch", "from lit_agentrl.rl.masked import masked_sum", True),
        (rooms_import_downwards, "callbacks", "from lit_agentrl.report.episodes import X", False),
        (rooms_import_downwards, "engines", "from lit_agentrl import __version__, seeds", False),
        (rooms_keep_their_libraries, "envs", "import torch.nn as nn", True),
        (rooms_keep_their_libraries, "envs", "from lit_agentrl.batch import StepBatch", True),
        (rooms_keep_their_libraries, "rl", "import numpy as np", True),
        (rooms_keep_their_libraries, "rl", "from lit_agentrl import seeds", True),
        (rooms_keep_their_libraries, "modules", "from lit_agentrl.engines.base import Engine", True),
        (rooms_keep_their_libraries, "models", "import torch", False),
        (only_entry_points_import_hydra, "callbacks", "from hydra.utils import instantiate", True),
        (only_entry_points_import_hydra, "config", "import hydra", False),
        (sizes_are_bounded, "rl", "x = 1\n" * 401, True),
        (sizes_are_bounded, "rl", "# long: one table\n" + "x = 1\n" * 401, False),
        (sizes_are_bounded, "rl", "x = 1\ndef f():\n" + "    x = 1\n" * 80, True),
        (sizes_are_bounded, "rl", "# long: because\ndef f():\n" + "    x = 1\n" * 80, False),
        (sizes_are_bounded, "rl", "x = 1\n" * 320 + "def f():\n" + "    x = 1\n" * 79, False),
        (no_algorithm_is_named, "modules", "if algorithm.name == 'grpo': pass", True),
        (no_algorithm_is_named, "modules", "match name:\n    case 'rloo': pass", True),
        (no_algorithm_is_named, "modules", "'''Like grpo.'''\nx = 'clip'", False),
    ],
)
def test_each_rule_can_fail(rule: Rule, room: str, source: str, is_broken: bool) -> None:
    assert bool(list(rule(room, source))) == is_broken


def test_no_folder_holds_too_many_files() -> None:
    folders = {file.parent for file in FILES}
    counts = {str(each.relative_to(PACKAGE)): len(list(each.glob("*.py"))) for each in folders}
    assert not {name: count for name, count in counts.items() if count > MAX_FOLDER_FILES}


def test_yaml_files_stay_short() -> None:
    folders = [CONFIG_DIR, *ROOT.glob("examples/*/conf")]
    files = [file for folder in folders for file in folder.rglob("*.yaml")]
    assert len(files) > 30
    too_long = {}
    for file in files:
        length = len(file.read_text(encoding="utf-8").splitlines())
        limit = MAX_ROOT_YAML_LINES if file.parent == CONFIG_DIR else MAX_YAML_LINES
        if length > limit:
            too_long[str(file.relative_to(ROOT))] = length
    assert not too_long


OPEN_DESPITE_THEIR_NAME = {"_exit", "_asdict"}  # of os; of named tuples


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_") and name not in OPEN_DESPITE_THEIR_NAME


def private_api(*sources: str) -> Iterator[str]:
    """Names that a library keeps to itself: imported, or an attribute that no class of these sources has set."""
    nodes = [node for source in sources for node in nodes_of(source)]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own |= {
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    own |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value)
    }
    for source in sources:
        foreign = [name for name in imports(source) if not name.startswith("lit_agentrl.")]
        yield from (part for name in foreign for part in name.split(".") if is_private(part))
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.attr


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def test_private_api_is_listed_and_bounded() -> None:
    """A new version of a library may change it without a word."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = project["tool"]["lit_agentrl"]["private_api"]
    sources = [file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")]
    used = set(private_api(*sources))
    names = {name for table in listed.values() for name in table}
    assert used <= names, f"private API that pyproject.toml does not list: {sorted(used - names)}"
    unused = [name for name in names if not any(name in source for source in sources)]
    assert not unused, f"pyproject.toml lists what nothing uses: {unused}"
    for package in listed:
        (bounds,) = [d for d in project["project"]["dependencies"] if re.match(rf"{package}\b", d)]
        assert ",<" in bounds, f"{package} needs an upper bound, since its private API is in use"


def test_private_api_is_seen() -> None:
    source = "from torch._x import y\nimport torch\nclass A:\n  def f(self):\n    self._own = 1\n"
    assert list(private_api(source)) == ["_x", "_x"]
    assert list(private_api(source + "    return torch.z._hidden, self._inherited, self._own")) == [
        "_x", "_x", "_hidden", "_inherited",
    ]  # fmt: skip


# a method leaves the experimental tier when its own bar was met on five seeds or more (docs/experimental.md)
EXPERIMENTAL = {
    "archer", "arpo", "arpo_replay", "cql", "eepo", "ghpo", "hrl_tar", "ilql", "iql", "mcts_ppo", "nash_md", "spin",
    "svpo", "training_free_grpo", "ufo", "xpo",
}  # fmt: skip


def names_of(node: object) -> Iterator[str]:
    """Yield every text in a YAML file, keys of its defaults list included."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield str(key)
            yield from names_of(child)
    elif isinstance(node, list):
        for child in node:
            yield from names_of(child)
    else:
        yield str(node)


def options_chosen(file: Path) -> Iterator[str]:
    """Yield the options that a config file starts from or chooses, as ``group/name.yaml``."""
    group = name_config(file).rpartition("/")[0]
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    for entry in content.get("defaults", []) if isinstance(content, dict) else []:
        for key, chosen in entry.items() if isinstance(entry, dict) else [("", entry)]:
            place = key.removeprefix("override ").removeprefix("optional ").partition("@")[0]
            place = place[1:] if place.startswith("/") else f"{group}/{place}".strip("/")
            for name in chosen if isinstance(chosen, list) else [chosen]:
                yield f"{place}/{name}.yaml".lstrip("/")


def test_the_core_chooses_nothing_experimental() -> None:
    core = [file for file in list_configs() if not file.is_relative_to(EXPERIMENTAL_DIR)]
    listed = {file.stem for file in (EXPERIMENTAL_DIR / "algo").glob("*.yaml")}
    assert listed == EXPERIMENTAL
    shadowed = [name for file in core if (EXPERIMENTAL_DIR / (name := name_config(file))).exists()]
    assert not shadowed, "an option is in one root alone"
    chosen = {(name_config(file), name) for file in core for name in options_chosen(file)}
    assert ("train.yaml", "algo/grpo.yaml") in chosen and len(chosen) > 200
    assert not [pair for pair in chosen if (EXPERIMENTAL_DIR / pair[1]).is_file()]
    for file in core:
        texts = names_of(yaml.safe_load(file.read_text(encoding="utf-8")))
        assert not [text for text in texts if text.startswith("lit_agentrl.experimental")], file


def test_the_core_imports_nothing_experimental() -> None:
    for file in FILES:
        if file.relative_to(PACKAGE).parts[0] != "experimental":
            assert "lit_agentrl.experimental" not in file.read_text(encoding="utf-8"), file


def test_every_experimental_file_is_documented_and_tested() -> None:
    page = (ROOT / "docs/experimental.md").read_text(encoding="utf-8").split("\n## ")[0]
    tests = [file.read_text(encoding="utf-8") for file in ROOT.glob("tests/experimental/test_*.py")]
    for file in (PACKAGE / "experimental").glob("[!_]*.py"):
        assert f"`{file.stem}`" in page, f"{file.name} has no row in docs/experimental.md"
        names = (f"lit_agentrl.experimental.{file.stem} ", f"lit_agentrl.experimental import {file.stem}\n")
        names += (f"main_{file.stem.removesuffix('ing')}",)  # a command
        assert any(name in text for text in tests for name in names), f"{file.name} has no test"
    for name in EXPERIMENTAL:
        assert f"`algo={name}`" in page, f"algo={name} has no row in docs/experimental.md"
