"""Load modules of this package without torch and Lightning, for checks that need neither.

Importing the libraries takes seconds, and most wrong options can be told without them.  A module is executed statement
by statement; names of the libraries are bound to `Absent`, and statements that need them are left out.  What remains
is a second copy of its classes and functions, with the same signatures and the same checks, which ends with `Needed`
where it would compute.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

_PACKAGE = "lit_agentrl"
_ROOT = Path(__file__).resolve().parents[1]
_COPIES = f"{_PACKAGE}._without_torch"  # begins the names of the copies
_QUICK = {  # libraries that load at once
    *sys.stdlib_module_names, "gymnasium", "hydra", "numpy", "omegaconf", "rich", "yaml",
}  # fmt: skip
_SLOW = ("torch", "lightning")  # libraries whose classes a config names


class Needed(BaseException):
    """A check needs a library that is not loaded.

    No part takes it for an error of its own, as it is no ``Exception``.
    """


def _refuse(*_: object, **__: object) -> NoReturn:
    raise Needed


class StandIn:
    """A value that is not known yet; using it raises `Needed`."""

    __class__ = property(_refuse)
    __hash__ = _refuse
    __getattr__ = __call__ = __iter__ = __len__ = __bool__ = __eq__ = __ne__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __getitem__ = __neg__ = __invert__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __pow__ = __rpow__ = __float__ = __int__ = __str__ = _refuse


class AbsentBase:
    """A base class of a library that is not loaded."""

    def __init__(self, *_: object, **__: object) -> None:
        raise Needed


class Absent:
    """A library that is not loaded, or something in it.

    It can be named and inherited, and nothing else.
    """

    __call__ = __instancecheck__ = __iter__ = __getitem__ = _refuse

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent()

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        is_first = next(base for base in bases if isinstance(base, Absent)) is self
        return (AbsentBase,) if is_first else ()

    def __or__(self, other: object) -> Any:  # in type hints, such as Tensor | None
        return Any

    __ror__ = __or__


def locate(name: str) -> Any:
    """Return the class or function of this dotted name, or a copy of it.

    For a class of a library it returns a function of the same arguments; None: it cannot be told.
    """
    module, _, member = name.rpartition(".")
    root = module.partition(".")[0]
    if (
        root not in (_PACKAGE, *_SLOW) or _find_file(module) is None
    ):  # a user's modules are imported later, once
        return None
    if root != _PACKAGE:
        return _read_signature(module, member)
    found = vars(load(module)).get(member)
    return None if isinstance(found, Absent) else found


def _read_signature(module: str, member: str, depth: int = 5) -> Any:
    """Return a function with the arguments of a class of a library.

    The source of the library is read and not imported.
    """
    for statement in _parse(module).body:
        if isinstance(statement, ast.ClassDef) and statement.name == member:
            inits = [n for n in statement.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            if not inits:
                return None
            arguments = inits[0].args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            names = ", ".join(f"{argument.arg}=None" for argument in every[1:])
            rest = f", **{arguments.kwarg.arg}" if arguments.kwarg else ""
            return eval(f"lambda self, {names}{rest}: None", {})  # of names alone
        if isinstance(statement, ast.ImportFrom) and depth and not statement.level:
            for alias in statement.names:
                if (
                    (alias.asname or alias.name) == member
                    and statement.module
                    and _find_file(statement.module)
                ):
                    return _read_signature(statement.module, alias.name, depth - 1)
    return None


@cache
def load(name: str) -> ModuleType:
    """Import a module of this package, or make a copy without the libraries."""
    if _is_quick(name):
        return importlib.import_module(name)
    module = ModuleType(name.replace(_PACKAGE, _COPIES, 1))
    sys.modules[module.__name__] = module  # where dataclasses and type hints look names up
    for statement in _parse(name).body:
        if not _bind(statement, vars(module)):
            if isinstance(statement, ast.FunctionDef):  # such as @torch.no_grad()
                statement.decorator_list = [
                    d for d in statement.decorator_list if not _is_absent(d, vars(module))
                ]
            code = compile(
                ast.Module([statement], []), name, "exec", flags=__future__.annotations.compiler_flag
            )
            try:
                exec(code, vars(module))  # of this package
            except (Exception, Needed):  # it needs a name that is missing
                continue
    return module


def _is_absent(node: ast.expr, names: dict[str, Any]) -> bool:
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and isinstance(names.get(node.id), Absent)


def _bind(statement: ast.stmt, names: dict[str, Any]) -> bool:
    """Bind the names of an import whose module is not quick to load.

    Return False for other statements.
    """
    if all(map(_is_quick, _list_imported(statement))):
        return False
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            names[alias.asname or alias.name.partition(".")[0]] = Absent()
        return True
    assert isinstance(statement, ast.ImportFrom) and statement.module is not None, "others import nothing"
    for alias in statement.names:
        inner = f"{statement.module}.{alias.name}"
        if statement.module.partition(".")[0] != _PACKAGE:
            found: Any = Absent()
        elif _find_file(inner) is not None:
            found = load(inner)
        else:
            found = vars(load(statement.module)).get(alias.name, Absent())
        names[alias.asname or alias.name] = found
    return True


def _find_file(name: str) -> Path | None:
    root, *inner = name.split(".")
    found = None if root in ("", _PACKAGE) else find_spec(root)  # which imports nothing
    if found is not None and not found.submodule_search_locations:
        return None
    if root != _PACKAGE and found is None:
        return None
    folder = Path(next(iter(found.submodule_search_locations or ()))) if found else _ROOT
    place = folder.joinpath(*inner)
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


@cache
def _parse(name: str) -> ast.Module:
    file = _find_file(name)
    return ast.parse("" if file is None else file.read_text(encoding="utf-8"))


@cache
def _is_quick(name: str) -> bool:
    """Return whether importing a module loads quick libraries alone."""
    if name.partition(".")[0] != _PACKAGE:
        return name.partition(".")[0] in _QUICK
    return all(all(map(_is_quick, _list_imported(statement))) for statement in _parse(name).body)


def _list_imported(statement: ast.stmt) -> list[str]:
    """Return the names of the modules that a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if not isinstance(statement, ast.ImportFrom) or not statement.module:
        return []
    inner = [f"{statement.module}.{alias.name}" for alias in statement.names]
    is_ours = statement.module.partition(".")[0] == _PACKAGE
    return [statement.module, *(name for name in inner if is_ours and _find_file(name) is not None)]
