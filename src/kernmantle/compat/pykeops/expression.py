"""Symbolic vector-valued expressions over variables indexed by i, by j or by neither.

An expression has a number of components, ``dim``. Operations work component by component, one component broadcasts
against many; a ``Fold`` reduces components. What KeOps has beyond that (elements, slices, concatenation, products of
small matrices) is a choice of components, which commutes with both and so ends at the variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import ParameterError, ShapeError
from ...ir.composites import SPELLINGS
from ...ir.node import Node, const

AXES = ("i", "j")
_NOTHING: frozenset[str] = frozenset()


class Expression:
    """A formula; ``extents`` are the sizes of its axes, ``batch`` the batch axes of its arrays."""

    __slots__ = ("axes", "batch", "dim", "extents", "folds", "symbols")

    def __init__(self, dim: int, parts: Sequence[Expression]) -> None:
        self.dim = dim
        if len(parts) < 2:  # most of them, and formulas are built anew for every reduction
            self.axes, self.symbols, self.folds, self.extents, self.batch = _NOTHING, False, False, {}, ()
            for part in parts:
                self.axes, self.symbols, self.folds = part.axes, part.symbols, part.folds
                self.extents, self.batch = part.extents, part.batch
            return
        self.axes = _NOTHING.union(*(part.axes for part in parts))
        self.symbols = any(part.symbols for part in parts)
        self.folds = any(part.folds for part in parts)
        self.extents: dict[str, int] = {}
        for part in parts:
            for axis, extent in part.extents.items():
                if self.extents.setdefault(axis, extent) != extent:
                    raise ShapeError(
                        f"variables over {axis} have {self.extents[axis]} and {extent} rows; they must have as many"
                    )
        self.batch: tuple[int, ...] = ()
        for batch in {part.batch for part in parts} - {()}:
            try:
                self.batch = tuple(torch.broadcast_shapes(self.batch, batch))
            except RuntimeError:
                raise ShapeError(f"batch dimensions {self.batch} and {batch} do not broadcast") from None


class Number(Expression):
    """A constant of the formula."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        super().__init__(1, ())
        self.value = value

    def __str__(self) -> str:
        return str(self.value)


class Leaf(Expression):
    """Values: a tensor (*batch, rows, dim) over i or j, (*batch, 1, dim) over neither, (*batch, m, n, dim) over both.

    A ``weak`` one is of Python numbers and takes the dtype and device of the others. ``whole`` is the variable that it
    is some components of, with their indices.
    """

    __slots__ = ("tensor", "weak", "whole")

    def __init__(self, tensor: torch.Tensor, axes: str, weak: bool = False) -> None:
        super().__init__(tensor.shape[-1], ())
        self.tensor, self.weak = tensor, weak
        self.whole: tuple[Leaf, tuple[int, ...]] | None = None
        self.axes = frozenset(axes)
        lead = max(1, len(axes))
        self.extents = dict(zip(axes, tensor.shape[-1 - lead : -1], strict=True)) if axes else {}
        self.batch = tuple(tensor.shape[: -1 - lead])

    def __str__(self) -> str:
        kind = {"": "Pm", "i": "Vi", "j": "Vj"}.get("".join(sorted(self.axes)), "Vij")
        return f"{kind}({self.dim})"


class Symbol(Expression):
    """A variable that a call gives: its position, its components, its axis, and which components are taken."""

    __slots__ = ("chosen", "position", "size")

    def __init__(self, position: int, size: int, axis: str, chosen: tuple[int, ...] | None = None) -> None:
        super().__init__(size if chosen is None else len(chosen), ())
        self.position, self.size, self.chosen = position, size, chosen
        self.axes, self.symbols = frozenset(axis), True

    def __str__(self) -> str:
        return f"Var({self.position},{self.size},{'ij'.find(''.join(self.axes)) if self.axes else 2})"


class Map(Expression):
    """An operation on the components, by its name in ``BUILDERS``."""

    __slots__ = ("args", "op")

    def __init__(self, op: str, *args: Expression) -> None:
        super().__init__(max(arg.dim for arg in args), args)
        self.op, self.args = op, args
        sizes = {arg.dim for arg in args} - {1}
        if len(sizes) > 1:
            raise ShapeError(f"{op} takes vectors of the same dimension, or of dimension 1; got {sorted(sizes)}")

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"


class Fold(Expression):
    """A reduction of the components of each of ``groups`` consecutive groups, by its name among the reductions."""

    __slots__ = ("arg", "op")

    def __init__(self, op: str, arg: Expression, groups: int = 1) -> None:
        super().__init__(groups, (arg,))
        self.op, self.arg, self.folds = op, arg, True

    @property
    def length(self) -> int:
        """Components of a group."""
        return self.arg.dim // self.dim

    def __str__(self) -> str:
        return f"{self.op}[{self.dim}]({self.arg})"


def _op(name: str, *args: Node) -> Node:
    return SPELLINGS[name](*args)


def _truth(name: str) -> Callable[..., Node]:
    def build(a: Node, b: Node) -> Node:
        return _op("where", _op(name, a, b), const(1), const(0))

    return build


def _atan(x: Node) -> Node:
    size = _op("abs", x)
    scale = _op("rsqrt", _op("add", const(1), _op("square", x)))
    angle = _op("where", _op("lt", size, const(1)), _op("asin", _op("mul", size, scale)), _op("acos", scale))
    return _op("mul", _op("sign", x), angle)


def _atan2(y: Node, x: Node) -> Node:
    """Return the angle from the quotient that is at most 1 in size, so that slopes are right on both axes."""
    steep = _op("gt", _op("abs", y), _op("abs", x))
    upright = _op("sub", _op("copysign", const(math.pi / 2), y), _atan(_op("div", x, y)))
    shift = _op("where", _op("lt", x, const(0)), _op("copysign", const(math.pi), y), const(0))
    flat = _op("where", _op("eq", x, const(0)), const(0), _op("add", _atan(_op("div", y, x)), shift))
    return _op("where", steep, upright, flat)


def _nearest(x: Node) -> Node:
    return _op("copysign", _op("floor", _op("add", _op("abs", x), const(0.5))), x)


BUILDERS: dict[str, Callable[..., Node]] = {
    **SPELLINGS,
    **{f"is_{name}": _truth(name) for name in ("lt", "le", "eq", "ne")},
    "atan": _atan,
    "atan2": _atan2,
    "nearest": _nearest,
    "step": lambda x: _op("where", _op("lt", x, const(0)), const(0), const(1)),
    "ifelse": lambda x, a, b: _op("where", _op("ge", x, const(0)), a, b),
    "clamped": lambda x, a, b: _op("where", _op("lt", x, a), a, _op("where", _op("gt", x, b), b, x)),
    "modulo": lambda x, n, d: _op("sub", x, _op("mul", n, _op("floor", _op("div", _op("sub", x, d), n)))),
    "sinxdivx": lambda x: _op("where", _op("eq", x, const(0)), const(1), _op("div", _op("sin", x), x)),
    "xlogx": lambda x: _op("where", _op("eq", x, const(0)), const(0), _op("mul", x, _op("log", x))),
    "masked_rsqrt": lambda x: _op("where", _op("eq", x, const(0)), const(0), _op("rsqrt", x)),
    "zero": lambda _: const(0),
    "choose": lambda mask, a, b: _op("where", _op("gt", mask, const(0)), a, b),
}
"""Scalar operations by name: those of this library, and what KeOps defines in its own way."""


def folded(op: str, arg: Expression, groups: int = 1) -> Expression:
    """Return the reduction of components; that of single ones is what they are."""
    if arg.dim == groups:
        return Map("mul", arg, Number(0)) if op.startswith("arg") else arg
    return Fold(op, arg, groups)


def components(e: Expression, chosen: tuple[int, ...]) -> Expression:
    """Return the expression of these components, in this order; one component stands for any number of its copies."""
    if e.dim == 1 or chosen == tuple(range(e.dim)):
        return e
    if isinstance(e, Leaf):
        first, count = chosen[0], len(chosen)
        if chosen == tuple(range(first, first + count)):
            values = e.tensor[..., first : first + count]
        else:
            values = e.tensor.index_select(-1, torch.tensor(chosen, device=e.tensor.device))
        part = Leaf(values, "".join(sorted(e.axes)), e.weak)
        whole, before = source(e)
        part.whole = whole, tuple(before[c] for c in chosen)
        return part
    if isinstance(e, Symbol):
        before = e.chosen or tuple(range(e.dim))
        return Symbol(e.position, e.size, "".join(e.axes), tuple(before[c] for c in chosen))
    if isinstance(e, Map):
        return Map(e.op, *(components(arg, chosen) for arg in e.args))
    assert isinstance(e, Fold)
    inner = tuple(c * e.length + k for c in chosen for k in range(e.length))
    return Fold(e.op, components(e.arg, inner), len(chosen))


def source(e: Leaf) -> tuple[Leaf, tuple[int, ...]]:
    """Return the variable that a leaf is components of, and which."""
    return (e, tuple(range(e.dim))) if e.whole is None else e.whole


def constants(values: Sequence[float]) -> Leaf:
    """Return parameters without a dtype of their own."""
    return Leaf(torch.tensor([list(values)], dtype=torch.float64), "", weak=True)


def concatenated(a: Expression, b: Expression) -> Expression:
    """Return the components of one expression and then those of another."""
    left = tuple(range(a.dim)) + (a.dim - 1,) * b.dim
    right = (0,) * a.dim + tuple(range(b.dim))
    mask = constants([1.0] * a.dim + [0.0] * b.dim)
    return Map("choose", mask, components(a, left), components(b, right))


def substituted(e: Expression, values: Callable[[Expression], Expression | None]) -> Expression:
    """Return the expression with some of its parts replaced, shared parts once."""
    done: dict[int, Expression] = {}

    def visit(part: Expression) -> Expression:
        key = id(part)
        if key not in done:
            new = values(part)
            if new is None:
                if isinstance(part, Map):
                    args = [visit(arg) for arg in part.args]
                    new = part if all(a is b for a, b in zip(args, part.args, strict=True)) else Map(part.op, *args)
                elif isinstance(part, Fold):
                    arg = visit(part.arg)
                    new = part if arg is part.arg else Fold(part.op, arg, part.dim)
                else:
                    new = part
            done[key] = new
        return done[key]

    return visit(e)


def leaves(e: Expression) -> list[Leaf]:
    """Return every tensor of an expression, once."""
    found: dict[int, Leaf] = {}

    def note(part: Expression) -> None:
        if isinstance(part, Leaf):
            found.setdefault(id(part), part)

    substituted(e, note)
    return list(found.values())


def transposed(e: Expression) -> Expression:
    """Return the expression with i and j exchanged."""

    def swap(part: Expression) -> Expression | None:
        if isinstance(part, Leaf) and part.axes:
            assert len(part.axes) == 1
            return Leaf(part.tensor, "j" if "i" in part.axes else "i", part.weak)
        if isinstance(part, Symbol) and part.axes:
            return Symbol(part.position, part.size, "j" if "i" in part.axes else "i", part.chosen)
        return None

    return substituted(e, swap)


def checked_types(e: Expression) -> Expression:
    """Return the expression with parameters of Python numbers in the one dtype and on the one device of its tensors."""
    tensors = [leaf.tensor for leaf in leaves(e) if not leaf.weak]
    if not tensors:
        raise ParameterError("the formula has no array; give at least one variable as a tensor or an array")
    first = tensors[0]
    for tensor in tensors:
        if tensor.dtype != first.dtype:
            raise ParameterError(f"variables have dtypes {first.dtype} and {tensor.dtype}; convert them to one")
        if tensor.device != first.device:
            raise ParameterError(f"variables are on {first.device} and {tensor.device}; move them to one device")

    def settle(part: Expression) -> Expression | None:
        if isinstance(part, Leaf) and part.weak:
            return Leaf(part.tensor.to(first.device, first.dtype), "")
        return None

    return substituted(e, settle)


def described(values: Any) -> str:
    """Return the type of an argument, for messages."""
    return f"{type(values).__name__} of shape {tuple(values.shape)}" if hasattr(values, "shape") else repr(values)
