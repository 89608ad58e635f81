"""Run the first checks of a part from its source, without importing it.

Only statements are run whose names are all known: arguments with a value, constants, functions of `lit_agentrl.checks`,
and functions that call only these.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from lit_agentrl.config.sources import (
    UNKNOWN,
    Checks,
    Description,
    Unreadable,
    compile_tree,
    describe,
    describe_definition,
    find_definition,
    get_value,
    is_read,
    list_set,
)

_NOT_RUN = (ast.Return, ast.Import, ast.ImportFrom, ast.Yield, ast.YieldFrom, ast.Await, ast.Global)


def run_checks(target: str, values: Mapping[str, Any], unknown: Collection[str] = ()) -> None:
    """Run the first checks of a part whose values are known.

    Args:
        target: the full name of a class or function of this package.
        values: the known values of its arguments; the others have their defaults.
        unknown: arguments whose value is not known.

    Raises:
        ValueError: from a check.
    """
    if (described := describe(target)) is None:
        return
    defaults = {name: each.default for name, each in described.arguments.items() if name not in unknown}
    _run_checks(described, defaults | dict(values))


def _run_checks(described: Description, values: Mapping[str, Any]) -> None:
    known = {name: values.get(name, UNKNOWN) for name in described.arguments}
    for checks in described.checks:
        if described.is_dataclass:
            runner = _Runner(
                checks, {}, {name: value for name, value in known.items() if value is not UNKNOWN}
            )
        else:
            runner = _Runner(checks, dict(known), {})
        runner.run(checks.statements)


class _Runner:
    """Runs statements of which all names are known, in the order of the source.

    Args:
        checks: the statements, and where they stand.
        known: local names; `UNKNOWN` where the value is not known.
        fields: the known attributes of ``self``.
    """

    def __init__(self, checks: Checks, known: dict[str, Any], fields: dict[str, Any]) -> None:
        self._module, self._base = checks.module, checks.base
        self._known, self._fields = known, fields

    def run(self, statements: Sequence[ast.stmt]) -> bool:
        """Run statements; return whether those after them are reached.

        Raises:
            ValueError: from a statement.
        """
        for statement in statements:
            if isinstance(statement, ast.If):
                is_met = self._evaluate(statement.test)
                if is_met is not UNKNOWN:
                    if not self.run(statement.body if is_met else statement.orelse):
                        return False
                    continue
            elif self._execute(statement):
                continue
            self._check_made(statement)
            self._forget(statement)
            if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
                return False
        return True

    def _bind(self, node: ast.AST) -> dict[str, Any] | None:
        """Return the values of all names that a node reads; None if one is unknown."""
        nodes = list(ast.walk(node))
        own = {each.id for each in nodes if isinstance(each, ast.Name) and not is_read(each)}
        own |= {each.arg for each in nodes if isinstance(each, ast.arg)}
        values: dict[str, Any] = {}
        for each in nodes:
            if isinstance(each, _NOT_RUN) or (isinstance(each, ast.Attribute) and not is_read(each)):
                return None
            if not isinstance(each, ast.Name) or not is_read(each) or each.id in own:
                continue
            if each.id == "self":
                values["self"] = SimpleNamespace(**self._fields)
                continue
            value = self._known[each.id] if each.id in self._known else get_value(self._module, each.id)
            if value is UNKNOWN:
                return None
            values[each.id] = value
        return None if self._find_hidden(nodes) else values

    def _find_hidden(self, nodes: Sequence[ast.AST]) -> bool:
        """Return whether nodes use ``self`` otherwise than to read a known attribute."""
        uses = sum(isinstance(each, ast.Name) and each.id == "self" for each in nodes)
        reads = sum(
            isinstance(each, ast.Attribute)
            and isinstance(each.value, ast.Name)
            and each.value.id == "self"
            and is_read(each)
            and each.attr in self._fields
            for each in nodes
        )
        return uses > reads

    def _evaluate(self, expression: ast.expr) -> Any:
        if (values := self._bind(expression)) is None:
            return UNKNOWN
        try:
            return eval(compile_tree(ast.Expression(expression)), values)
        except Exception:  # a value that the part does not expect: its own check tells
            return UNKNOWN

    def _execute(self, statement: ast.stmt) -> bool:
        """Run a statement, keep what it sets, and return whether it could run.

        Raises:
            ValueError: from the statement.
        """
        if (values := self._bind(statement)) is None:
            return False
        try:
            exec(compile_tree(ast.Module([statement], [])), values)
        except ValueError:
            raise
        except Exception:  # as above
            return False
        self._known |= {name: values[name] for name in list_set(statement) if name in values}
        return True

    def _check_made(self, statement: ast.stmt) -> None:
        """Run the checks of an object or base that a statement makes.

        Raises:
            ValueError: from a check.
        """
        call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
        if not isinstance(call, ast.Call) or (described := self._describe_made(call.func)) is None:
            return
        given = dict(zip(described.arguments, call.args, strict=False))
        given |= {each.arg: each.value for each in call.keywords if each.arg}
        defaults = {name: each.default for name, each in described.arguments.items()}
        _run_checks(described, defaults | {name: self._evaluate(value) for name, value in given.items()})

    def _describe_made(self, made: ast.expr) -> Description | None:
        if ast.unparse(made) == "super().__init__":
            return self._base
        try:
            return describe_definition(*find_definition(self._module, ast.unparse(made)))
        except Unreadable:
            return None

    def _forget(self, statement: ast.stmt) -> None:
        """Drop what a statement, which was not run, may set."""
        self._known |= dict.fromkeys(list_set(statement), UNKNOWN)
        if self._find_hidden(list(ast.walk(statement))):
            self._fields = {}
