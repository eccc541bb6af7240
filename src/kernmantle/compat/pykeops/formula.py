"""Formulas as text: ``"Exp(-g * SqDist(x, y)) * b"`` with declared variables, parsed and never evaluated as Python."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ParameterError
from .expression import Expression, Number, Symbol
from .gradient import differential, gradient
from .operations import OPERATIONS, operation
from .variables import LETTERS, Alias, alias

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "Add", ast.Sub: "Subtract", ast.Mult: "Mult", ast.Div: "Divide", ast.Pow: "Pow", ast.BitOr: "Scalprod",
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], tuple[str, bool]] = {
    ast.Lt: ("LessThan", False), ast.LtE: ("LessOrEqual", False), ast.Gt: ("LessThan", True),
    ast.GtE: ("LessOrEqual", True), ast.Eq: ("Equal", False), ast.NotEq: ("NotEqual", False),
}  # fmt: skip
_PLAIN = {"Pow": 1, "ClampInt": 3, "Elem": 1, "Extract": 1, "OneHot": 1, "Round": 1, "IntCst": 0, "IntInv": 0,
          "RatCst": 0, "Zero": 0, "Kron": 2, "TensorDot": 2}  # fmt: skip
_DERIVATIVES = {"Grad": gradient, "Diff": differential}


class Formula:
    """A parsed formula; ``aliases`` are its variables by position."""

    def __init__(self, text: str, aliases: Sequence[str]) -> None:
        self.text = text
        self.aliases: dict[int, Alias] = {}
        self._names: dict[str, Alias] = {}
        for position, entry in enumerate(aliases):
            own = self._declared(alias(entry, position))
            if own.name is not None:
                if own.name in OPERATIONS:
                    raise ParameterError(f"variable {own.name!r} has the name of an operation; rename it")
                self._names[own.name] = own

    def _declared(self, own: Alias) -> Alias:
        """Note a variable, of which each position has one."""
        declared = self.aliases.setdefault(own.position, own)
        if (declared.axis, declared.dim) != (own.axis, own.dim):
            raise ParameterError(f"{self.text!r} declares variable {own.position} as {declared} and as {own}")
        return own

    def parse(self, text: str) -> Expression:
        """Return the expression of a text over the declared variables, and over those that it declares as ``Var``."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise ParameterError(f"formula {text!r} does not parse: {error.msg} at column {error.offset}") from None
        return self._visit(tree)

    def _visit(self, node: ast.expr) -> Expression:
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            name = _BINARY[type(node.op)]
            return operation(name)(self._visit(node.left), self._visit(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            value = self._visit(node.operand)
            if isinstance(node.op, ast.UAdd):
                return value
            return Number(-value.value) if isinstance(value, Number) else operation("Minus")(value)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARED:
            name, swapped = _COMPARED[type(node.ops[0])]
            sides = [self._visit(node.left), self._visit(node.comparators[0])]
            return operation(name)(*(reversed(sides) if swapped else sides))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return Number(node.value)
        if isinstance(node, ast.Name):
            if node.id not in self._names:
                raise ParameterError(f"formula {self.text!r}: {node.id!r} is not a declared variable")
            return _symbol(self._names[node.id])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node.func.id, node.args)
        raise ParameterError(f"formula {self.text!r}: {ast.unparse(node)!r} is not an operation of KeOps")

    def _call(self, name: str, args: Sequence[ast.expr]) -> Expression:
        if name == "Var":
            position, dim, axis = (_integer(arg, name) for arg in args)
            return _symbol(self._declared(Alias(None, axis, dim, position)))
        build, symbolic = _DERIVATIVES.get(name) or operation(name), _PLAIN.get(name, len(args))
        values = [self._visit(arg) for arg in args[:symbolic]]
        rest = [_literal(arg, name) for arg in args[symbolic:]]
        try:
            return build(*values, *rest)
        except TypeError:
            raise ParameterError(f"formula {self.text!r}: {name} does not take {len(args)} arguments") from None


def _symbol(own: Alias) -> Symbol:
    return Symbol(own.position, own.dim, LETTERS[own.axis])


def _literal(node: ast.expr, name: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ParameterError(f"{name} takes integers there, not {ast.unparse(node)!r}") from None


def _integer(node: ast.expr, name: str) -> int:
    value = _literal(node, name)
    if not isinstance(value, int):
        raise ParameterError(f"{name} takes integers, not {value!r}")
    return value


def positions(aliases: Mapping[int, Alias]) -> list[Alias]:
    """Return the variables in the order of arguments, which has no gap."""
    if sorted(aliases) != list(range(len(aliases))):
        raise ParameterError(f"variables have positions {sorted(aliases)}; they are 0 to {len(aliases) - 1}, each once")
    return [aliases[position] for position in range(len(aliases))]
