"""Contractions of expressions: what is reduced over components is the contraction, the rest its epilogue.

Variables over the axis that stays are operands over m, over the other axis n; components inside a reduction are k,
those of a vector-valued result c. Parameters without components are parameters of the contraction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

import torch

from ...ir.definition import of_expressions
from ...ir.node import Node, const, substitute, var
from ...ir.ops import evaluate
from ...ir.reductions import REDUCTIONS
from ...torch_ops.contract import Contraction
from .expression import BUILDERS, Expression, Fold, Leaf, Map, Number, folded, leaves, substituted
from .replay import noted


@lru_cache(maxsize=4096)
def _contraction(equation: str, maps: tuple[Node, ...], reductions: tuple[str, ...], output: Node) -> Contraction:
    return Contraction.of(of_expressions(equation, maps, [REDUCTIONS[name] for name in reductions], [output]))


@dataclass
class Lowered:
    """A contraction with its operands, each over axes of the equation behind batch axes, and its parameters."""

    contraction: Contraction
    operands: list[torch.Tensor]
    parameters: dict[str, torch.Tensor]


_ORDER = ("mk", "nk", "m", "n")


def _rank(axes: str) -> int:
    """Return the position of an operand: those over rows and over columns of vectors are first and second."""
    return next((at for at, wanted in enumerate(_ORDER) if set(wanted) <= set(axes)), len(_ORDER))


@dataclass
class _Lowering:
    """Operands and expressions of a contraction while they are collected; ``letters`` name the axes i and j.

    ``length`` is the extent of k, 0 without one; with ``single`` operations on both axes are sums over a k of one
    position. With ``rank`` the axis c of components is a batch axis in front of as many, not an axis of the equation.
    """

    letters: dict[str, str]
    length: int
    single: bool = False
    rank: int | None = None
    operands: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[tuple[object, ...], Node] = field(default_factory=dict)
    maps: list[Node] = field(default_factory=list)
    reductions: list[str] = field(default_factory=list)
    found: dict[tuple[str, Node], Node] = field(default_factory=dict)
    done: dict[int, Node] = field(default_factory=dict)

    def outside(self, e: Expression) -> Node:
        """Return the node of an expression in the epilogue."""
        if id(e) not in self.done:
            self.done[id(e)] = self._outside(e)
        return self.done[id(e)]

    def _outside(self, e: Expression) -> Node:
        if isinstance(e, Fold):
            value = self._inside(e.arg, e.dim, {})
            if e.length < self.length:
                identity = const(REDUCTIONS[e.op].init[0])
                mask = self._mask(e.length, leaves(e)[0].tensor)
                value = Node("where", (Node("gt", (mask, const(0))), value, identity))
            return self._accumulated(e.op, value)
        if isinstance(e, Map):
            if self.single and len(e.axes) == 2 and all(len(arg.axes) < 2 for arg in e.args):
                return self._accumulated("sum", self._inside(e, e.dim, {}))
            return BUILDERS[e.op](*map(self.outside, e.args))
        if isinstance(e, Number):
            return const(e.value)
        assert isinstance(e, Leaf)
        return self._variable(e, "c" * (e.dim > 1), e.tensor if e.dim > 1 else e.tensor.squeeze(-1))

    def _inside(self, e: Expression, groups: int, done: dict[int, Node]) -> Node:
        """Return the node of an expression in a map: its components are k, those of several groups c and k."""
        if id(e) not in done:
            if isinstance(e, Map):
                done[id(e)] = BUILDERS[e.op](*(self._inside(arg, groups, done) for arg in e.args))
            elif isinstance(e, Number):
                done[id(e)] = const(e.value)
            else:
                assert isinstance(e, Leaf)
                done[id(e)] = self._component(e, groups)
        return done[id(e)]

    def _component(self, e: Leaf, groups: int) -> Node:
        if self.single:
            if not e.axes:
                return self.outside(e)
            c = "c" * (e.dim > 1)
            return self._variable(e, c + "k", e.tensor.unsqueeze(-1) if c else e.tensor)
        if e.dim == 1:
            return self._variable(e, "", e.tensor.squeeze(-1))
        tensor = e.tensor if groups == 1 else e.tensor.unflatten(-1, (groups, e.dim // groups))
        missing = self.length - tensor.shape[-1]
        if missing:
            tensor = torch.nn.functional.pad(tensor, (0, missing))
        return self._variable(e, "k" if groups == 1 else "ck", tensor)

    def _mask(self, length: int, like: torch.Tensor) -> Node:
        key = "mask", length
        if key not in self.names:
            self.names[key] = var(f"x{len(self.operands)}")
            self.operands.append(("k", (torch.arange(self.length, device=like.device) < length).to(like.dtype)))
        return self.names[key]

    def _accumulated(self, op: str, value: Node) -> Node:
        key = op, value
        if key not in self.found:
            self.found[key] = var(f"s{len(self.maps)}")
            self.maps.append(value)
            self.reductions.append(op)
        return self.found[key]

    def _variable(self, e: Leaf, trailing: str, tensor: torch.Tensor) -> Node:
        key = id(e), trailing, tensor.shape
        if key in self.names:
            return self.names[key]
        own = "".join(self.letters[axis] for axis in sorted(e.axes))
        if not own:
            tensor = tensor.squeeze(tensor.dim() - len(trailing) - 1)
        if self.rank is not None and "c" in trailing:
            tensor = tensor.movedim(tensor.dim() - len(trailing) + trailing.index("c"), 0)
            trailing = trailing.replace("c", "")
            lead = self.rank - (tensor.dim() - 1 - len(own) - len(trailing))
            tensor = tensor.reshape(tensor.shape[0], *(1,) * lead, *tensor.shape[1:])
        axes = own + trailing
        if axes:
            self.names[key] = var(f"x{len(self.operands)}")
            self.operands.append((axes, tensor))
        else:
            self.names[key] = var(f"q{len(self.parameters)}")
            self.parameters[self.names[key].name] = tensor
        return self.names[key]

    def finish(self, output: Node, out: str) -> Lowered:
        """Return the contraction of an epilogue."""
        if not self.maps:
            self.maps, self.reductions, output = [output], ["sum"], var("s0")
        order = sorted(range(len(self.operands)), key=lambda at: _rank(self.operands[at][0]))
        names = {f"x{at}": var(f"x{position}") for position, at in enumerate(order)}
        *maps, output = substitute([*self.maps, output], names)
        equation = ",".join(self.operands[at][0] for at in order) + "->" + out
        contraction = _contraction(equation, tuple(maps), tuple(self.reductions), output)
        left = contraction.definition.parameters  # what a choice between equal parts depends on has gone
        parameters = {name: tensor for name, tensor in self.parameters.items() if name in left}
        return Lowered(contraction, [self.operands[at][1] for at in order], parameters)


def _folds(e: Expression) -> list[Fold]:
    """Return the reductions of components that are not inside others."""
    found: list[Fold] = []

    def note(part: Expression) -> Expression | None:
        if isinstance(part, Fold):
            found.append(part)
            return part
        return None

    substituted(e, note)
    return found


def is_nested(e: Expression) -> bool:
    """Return whether a reduction of components is inside another."""
    return any(fold.arg.folds for fold in _folds(e))


def _unnested(e: Expression) -> Expression:
    """Return the expression with the values of reductions that are inside others."""

    def replace(part: Expression) -> Expression | None:
        if isinstance(part, Fold) and part.arg.folds:
            inner = substituted(part.arg, lambda own: materialized(own) if isinstance(own, Fold) else None)
            return folded(part.op, inner, part.dim)
        return None

    return substituted(e, replace)


def materialized(e: Expression) -> Leaf:
    """Return the values of an expression as a variable over its axes."""
    if isinstance(e, Leaf):
        return e
    if not e.axes:
        # One row stands for no axis.
        rows = substituted(e, lambda part: Leaf(part.tensor, "i") if isinstance(part, Leaf) else None)
        return Leaf(materialized(rows).tensor, "")
    e = _unnested(e)
    axes = "".join(sorted(e.axes))
    letters = {"i": "m", "j": "n"}
    lowering = _Lowering(letters, max((fold.length for fold in _folds(e)), default=0))
    output = lowering.outside(e)
    lowered = lowering.finish(output, "".join(letters[axis] for axis in axes) + "c" * (e.dim > 1))
    values = noted(lowered.contraction, *lowered.operands, params=lowered.parameters)
    if not values.is_floating_point():  # where the largest component is, a number of the formula like any other
        values = values.to(leaves(e)[0].tensor.dtype)
    return Leaf(values if e.dim > 1 else values.unsqueeze(-1), axes)


def _constant(e: Expression) -> Node:
    return BUILDERS[e.op](*map(_constant, e.args)) if isinstance(e, Map) else const(cast(Number, e).value)


def hoisted(e: Expression) -> Expression:
    """Return the expression with the values of all parts that are over one axis only, or over none."""

    def replace(part: Expression) -> Expression | None:
        if not isinstance(part, Map | Fold) or len(part.axes) == 2:
            return None
        if not leaves(part):
            return Number(float(evaluate([_constant(part)], {})[0]))
        return materialized(part) if part.axes or part.dim > 1 or part.folds else part

    return substituted(e, replace)


def lower_rows(e: Expression, row_axis: str) -> Lowered:
    """Return the matrix of a scalar formula over both axes; that of a vector has the components as a batch axis.

    Reductions of components must not be nested.
    """
    letters = {row_axis: "m", "j" if row_axis == "i" else "i": "n"}
    length = max((fold.length for fold in _folds(e)), default=0)
    lowering = _Lowering(letters, length, single=not length, rank=len(e.batch) if e.dim > 1 else None)
    return lowering.finish(lowering.outside(e), "mn")
