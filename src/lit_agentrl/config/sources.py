"""Read the arguments of a part from its source, without importing it.

Importing a part of this package may load torch, Lightning and transformers, which takes seconds.  The source is parsed
instead.  What it does not show is left to the part itself, which is checked when it is imported.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "lit_agentrl"
_ROOT = Path(__file__).parents[1]
# modules whose functions checks may call; importing them costs nothing
_CHEAP = ("lit_agentrl.checks", "math", "collections.abc", "typing", "pathlib", "re")
_UNUSABLE = {"super", "open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
_BARE = ("object", "ABC", "Protocol", "Generic")  # bases without arguments
_FUTURE = __future__.annotations.compiler_flag
_Definition = ast.ClassDef | ast.FunctionDef
_BEING_READ: set[tuple[str, str]] = set()  # names whose values are being read
UNKNOWN: Any = object()  # stands for a value that the source does not show


class Unreadable(Exception):
    """Error: the source does not show it."""


class Argument(NamedTuple):
    """An argument of a part.

    Attributes:
        annotation: its type; ``Any`` where the source does not show it.
        default: its default; `UNKNOWN` if it has none, or one that the source does not show.
    """

    annotation: Any
    default: Any


class Checks(NamedTuple):
    """Statements that run when a part is made.

    Attributes:
        module: the name of its module.
        statements: its statements.
        base: what ``super().__init__`` makes; None if it is of a library, or nothing.
    """

    module: str
    statements: Sequence[ast.stmt]
    base: Description | None = None


class Description(NamedTuple):
    """Arguments and checks that the source of a part shows.

    Attributes:
        arguments: the arguments by name.
        takes_any: whether it takes further keyword arguments.
        checks: what runs when it is made.
        is_dataclass: whether ``checks`` reads the arguments as attributes of ``self``.
    """

    arguments: dict[str, Argument]
    takes_any: bool
    checks: Sequence[Checks]
    is_dataclass: bool


@functools.cache
def describe(target: str) -> Description | None:
    """Describe a shipped class or function by its source; None if unknown."""
    module, _, name = target.rpartition(".")
    try:
        return describe_definition(*find_definition(module, name))
    except Unreadable:
        return None


def is_read(node: ast.Name | ast.Attribute) -> bool:
    """Return whether a name or attribute is read, not set or deleted."""
    return isinstance(node.ctx, ast.Load)


def list_set(statement: ast.AST) -> list[str]:
    """List the names that a statement sets."""
    names = [each for each in ast.walk(statement) if isinstance(each, ast.Name)]
    return [each.id for each in names if not is_read(each)]


def compile_tree(tree: ast.Expression | ast.Module) -> Any:
    """Compile an expression or statements, in which annotations are not evaluated."""
    tree = ast.fix_missing_locations(tree)
    return compile(
        tree, "<source>", "eval" if isinstance(tree, ast.Expression) else "exec", _FUTURE, dont_inherit=True
    )


def describe_definition(module: str, node: _Definition) -> Description:
    """Describe a definition of a module.

    Raises:
        Unreadable: the source does not show its arguments.
    """
    if isinstance(node, ast.FunctionDef):
        return _describe_function(module, node)
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    if "__new__" in methods or node.keywords:
        raise Unreadable
    if "__init__" in methods:
        described = _describe_function(module, methods["__init__"])
        arguments = {name: each for name, each in described.arguments.items() if name != "self"}
        checks = [each._replace(base=_describe_base(module, node)) for each in described.checks]
        return described._replace(arguments=arguments, checks=checks)
    if any(_get_name(each) == "dataclass" for each in node.decorator_list):
        return _describe_dataclass(module, node, methods.get("__post_init__"))
    if (base := _describe_base(module, node)) is None:
        raise Unreadable
    return base


def _describe_base(module: str, node: ast.ClassDef) -> Description | None:
    """Describe the first base of a class; None if it is of a library."""
    try:
        base = next(name for name in map(_get_name, node.bases) if name not in _BARE)
        return describe_definition(*find_definition(module, base))
    except (StopIteration, Unreadable):
        return None


def _describe_function(module: str, node: ast.FunctionDef) -> Description:
    if node.decorator_list:
        raise Unreadable
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [
        *zip(positional, [*missing, *arguments.defaults], strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    read = {
        each.arg: Argument(_read_type(module, each.annotation), _read_default(module, value))
        for each, value in pairs
    }
    return Description(read, arguments.kwarg is not None, [Checks(module, node.body)], is_dataclass=False)


def _describe_dataclass(module: str, node: ast.ClassDef, after: ast.FunctionDef | None) -> Description:
    arguments: dict[str, Argument] = {}
    inherited: list[Checks] = []
    for base in node.bases:
        try:
            described = describe_definition(*find_definition(module, _get_name(base)))
        except Unreadable:  # of a library, whose classes here have no fields
            continue
        if described.is_dataclass:
            arguments |= described.arguments
            inherited += described.checks
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if ast.unparse(each.annotation).startswith("ClassVar") or _is_hidden(each.value):
            continue
        argument = Argument(_read_type(module, each.annotation), _read_default(module, each.value))
        arguments[each.target.id] = argument
    own = [] if after is None else [Checks(module, after.body)]
    is_extended = after is None or "super().__post_init__" in ast.unparse(after)
    return Description(arguments, False, [*(inherited if is_extended else []), *own], is_dataclass=True)


def _is_hidden(value: ast.expr | None) -> bool:
    """Return whether a field of a dataclass is no argument."""
    return isinstance(value, ast.Call) and any(
        each.arg == "init" and ast.unparse(each.value) == "False" for each in value.keywords
    )


def _get_name(node: ast.expr) -> str:
    """Return the name of a base or decorator, without its arguments."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return ast.unparse(node)


def _read_type(module: str, node: ast.expr | None) -> Any:
    """Return an annotation; ``Any`` stands for what the source does not show."""
    if node is None:
        return Any
    values = {each.id: _get_type(module, each.id) for each in ast.walk(node) if isinstance(each, ast.Name)}
    try:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        return eval(compile_tree(ast.Expression(node)), values)
    except Exception:  # such as an unknown name with brackets
        return Any


def _get_type(module: str, name: str) -> Any:
    value = get_value(module, name)
    if value is not UNKNOWN:
        return value
    try:
        where, node = find_definition(module, name)
    except Unreadable:
        return Any
    # a stand-in, from which messages read the name
    return type(name, (), {"__module__": where}) if isinstance(node, ast.ClassDef) else Any


def _read_default(module: str, node: ast.expr | None) -> Any:
    if node is None:
        return UNKNOWN
    values = {each.id: get_value(module, each.id) for each in ast.walk(node) if isinstance(each, ast.Name)}
    if any(value is UNKNOWN for value in values.values()):
        return UNKNOWN
    try:
        return eval(compile_tree(ast.Expression(node)), values)
    except Exception:  # it needs more than names
        return UNKNOWN


@functools.cache
def _parse(module: str) -> dict[str, ast.stmt]:
    """Parse a module and return its top-level statements by name.

    Raises:
        Unreadable: there is no such module in this package.
    """
    place = _ROOT.joinpath(*module.split(".")[1:])
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if module.split(".")[0] != PACKAGE or not path.is_file():
        raise Unreadable
    found: dict[str, ast.stmt] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name: statement for alias in statement.names}
        elif isinstance(statement, ast.ClassDef | ast.FunctionDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.If):  # imports that are only there for types
            for inner in statement.body:
                if isinstance(inner, ast.ImportFrom):
                    found |= {alias.asname or alias.name: inner for alias in inner.names}
        else:
            found |= dict.fromkeys(list_set(statement), statement)
    return found


def find_definition(module: str, name: str) -> tuple[str, _Definition]:
    """Return the module and the definition of a class or function.

    Raises:
        Unreadable: it is not in this package.
    """
    node = _parse(module).get(name)
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        original = next(alias.name for alias in node.names if name in (alias.asname, alias.name))
        return find_definition(node.module, original)
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return module, node
    raise Unreadable


@functools.cache
def get_value(module: str, name: str) -> Any:
    """Return the value of a global name, `UNKNOWN` if only an import shows it."""
    try:
        node = _parse(module).get(name)
    except Unreadable:
        return UNKNOWN
    if node is None:
        return UNKNOWN if name in _UNUSABLE else getattr(builtins, name, UNKNOWN)
    if (module, name) in _BEING_READ:  # functions that call each other
        return UNKNOWN
    _BEING_READ.add((module, name))
    try:
        return _read_value(module, name, node)
    finally:
        _BEING_READ.remove((module, name))


def _read_value(module: str, name: str, node: ast.stmt) -> Any:
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        original = next(alias.name for alias in node.names if name in (alias.asname, alias.name))
        if node.module in _CHEAP:
            return getattr(importlib.import_module(node.module), original, UNKNOWN)
        return get_value(node.module, original)
    if isinstance(node, ast.Import):
        return importlib.import_module(name) if name in _CHEAP else UNKNOWN
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        return _read_assigned(module, name, node)
    if isinstance(node, ast.FunctionDef) and not node.decorator_list:
        return _make_function(module, node)
    return UNKNOWN


def _read_assigned(module: str, name: str, node: ast.Assign | ast.AnnAssign) -> Any:
    target, value = node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        value = next((each for part, each in pairs if isinstance(part, ast.Name) and part.id == name), None)
    elif not isinstance(target, ast.Name):
        return UNKNOWN
    return _read_default(module, value)


def _make_function(module: str, node: ast.FunctionDef) -> Any:
    """Make a function that reads only known names; return `UNKNOWN` if it reads others."""
    nodes = [each for statement in node.body for each in ast.walk(statement)]
    if any(isinstance(each, ast.Import | ast.ImportFrom | ast.Global) for each in nodes):
        return UNKNOWN
    own = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)} | set(list_set(node))
    read = {each.id for each in nodes if isinstance(each, ast.Name) and is_read(each)} - own
    read |= {
        each.id for default in node.args.defaults for each in ast.walk(default) if isinstance(each, ast.Name)
    }
    if node.name in read:
        return UNKNOWN
    values = {name: get_value(module, name) for name in read}
    if any(value is UNKNOWN for value in values.values()):
        return UNKNOWN
    exec(compile_tree(ast.Module([node], [])), values)
    return values[node.name]
