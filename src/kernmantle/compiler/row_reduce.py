"""Row reductions of a matrix that is never stored: products, reductions, the smallest or largest entries.

``out[m, c] = Σ_n w[m, n] v[n, c]`` or ``out[m] = ⊕_n w[m, n]``, where ``w = outputs(⊕_k map(operands))`` is a program
of its own. Its lowering has the roles of ``nest`` with one change: nothing but k is reduced inside, so that "l" stands
for the columns of v and of the result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..ir.node import Node, const, rewrite, variables
from ..ir.program import Program
from ..ir.reductions import PRODUCT, REDUCTIONS, SELECTIONS, Reduction
from ..ir.simplify import simplify
from .hoist import fold
from .lower import Lowering
from .nest import Buffer, Nest

HOW = (PRODUCT, *(row.name for row in REDUCTIONS.values() if row.torch), *SELECTIONS)
COLUMNS = "*"


@dataclass(frozen=True)
class Apply:
    """``how`` is the product with v, a reduction over n, or the ``count`` smallest or largest with their positions.

    The first axis of the output of ``inner`` is m, the second one n; the result's column axis is ``COLUMNS``.
    """

    inner: Program
    how: str
    count: int = 0

    @property
    def weighted(self) -> bool:
        """Return whether there is a v."""
        return self.how == PRODUCT

    @property
    def selects(self) -> bool:
        """Return whether the results are some entries and their positions."""
        return self.how in SELECTIONS

    @property
    def reduction(self) -> Reduction:
        """The reduction that joins entries, times v, over n."""
        return REDUCTIONS["sum" if self.weighted else self.how]

    @property
    def row(self) -> str:
        """Axis that stays."""
        return self.inner.out[0]

    @property
    def column(self) -> str:
        """Axis that is reduced."""
        return self.inner.out[1]

    @property
    def out(self) -> str:
        """Axes of the results."""
        return self.row + COLUMNS * (self.weighted or self.selects)

    @property
    def text(self) -> str:
        """Canonical text; ``Apply.parse`` is its inverse."""
        return _text(self)

    @staticmethod
    def parse(text: str) -> Apply:
        """Apply of a canonical text."""
        return _parse(text)

    def __str__(self) -> str:
        v = f" x v[{self.column}, {COLUMNS}]" * self.weighted
        count = f"{self.count} " * self.selects
        return f"{count}{self.how}{v} over {self.column} of ({self.inner})"


@lru_cache(maxsize=1024)
def _text(apply: Apply) -> str:
    return json.dumps([apply.how, apply.count, apply.inner.text])


@lru_cache(maxsize=1024)
def _parse(text: str) -> Apply:
    how, count, inner = json.loads(text)
    return Apply(Program.parse(inner), how, count)


@dataclass(frozen=True)
class RowNest:
    """Loops of an apply: those of the matrix, whose only output is an entry, and what is done with its rows.

    ``matrix`` reads, besides the program's numbers, those that are the values of ``folded``. With ``causal`` row i sees
    the columns 0 to i alone (see ``softmax``).
    """

    matrix: Nest
    how: str
    count: int
    v: Buffer | None
    outs: tuple[Buffer, ...]
    folded: tuple[Node, ...] = ()
    causal: bool = False

    @property
    def reduction(self) -> Reduction:
        """The reduction that joins entries, times v, over n."""
        return REDUCTIONS["sum" if self.how == PRODUCT else self.how]

    @property
    def selects(self) -> bool:
        """Return whether the results are some entries and their positions."""
        return self.how in SELECTIONS

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Operands of the matrix, its entry (which lies nowhere), v, results: the order of pointers and strides."""
        return (*self.matrix.buffers, *([self.v] if self.v is not None else []), *self.outs)


@dataclass(frozen=True)
class RowLowering:
    """A row nest and where the axes went; ``matrix`` serves ``layout.arguments``."""

    rows: RowNest
    matrix: Lowering


def can_lower(apply: Apply, compute: str) -> bool:
    """Return whether there is a nest: one axis reduced inside, no operand of the map over m and n, floats."""
    inner = apply.inner
    mapped = variables([*inner.map])
    plain = all(set(operand.axes) < {*inner.out, *inner.reduced} for operand in inner.operands)
    apart = not any(set(inner.out) <= set(operand.axes) for operand in inner.operands if operand.name in mapped)
    folds = any(reduction.is_fold for reduction in inner.reductions)
    return plain and apart and not folds and len(inner.reduced) == 1 and compute in ("f32", "f64")


@lru_cache(maxsize=1024)
def transposed(text: str) -> str:
    """Return the text of the product with the transposed matrix; the first two tensors change places."""
    apply = Apply.parse(text)
    inner = apply.inner
    swap = str.maketrans(inner.out, inner.out[::-1])
    operands = [replace(operand, axes=operand.axes.translate(swap)) for operand in inner.operands]
    if len(inner.tensors) > 1:
        operands[:2] = reversed(operands[:2])
    changed = replace(inner, operands=tuple(operands)).renamed()
    return replace(apply, inner=replace(changed, map=tuple(simplify(changed.map)))).text


def to_base_two(node: Node, args: tuple[Node, ...]) -> Node:
    """Return a node on new arguments, an exponential to the base 2."""
    if node.op != "exp":
        return Node(node.op, args)
    return Node("exp2", (Node("mul", (args[0], const(1 / math.log(2)))),))


def lower_rows(
    apply: Apply, dtypes: Sequence[str], v: str, out_dtypes: Sequence[str], compute: str, binary: bool = False
) -> RowLowering:
    """Return the nest of an apply; ``dtypes`` are the storage types of the array operands, ``v`` that of v.

    With ``binary`` exponentials of entries are taken to the base 2, their factors folded into one, and by any means as
    accurate as float32.
    """
    inner = apply.inner
    roles = {apply.row: "m", apply.column: "n", inner.reduced: "k"}
    arrays = [operand for operand in inner.operands if not operand.number]
    buffers = tuple(
        Buffer(operand.name, "".join(sorted((roles[axis] for axis in operand.axes), key="mnk".index)), dtype)
        for operand, dtype in zip(arrays, dtypes, strict=True)
    )
    numbers = tuple(operand.name for operand in inner.numbers)
    outputs = rewrite(inner.outputs, lambda leaf: leaf, to_base_two) if binary else inner.outputs
    folded = fold(outputs, numbers, [buffer.name for buffer in buffers if not buffer.roles])
    entry = (Buffer("w", "mn", compute),)
    matrix = Nest(
        buffers, numbers + folded.names, entry, inner.map, inner.reductions, folded.outputs, compute,
        precision="default" if binary else "ieee", reproducible=inner.rounds_alike,
    )  # fmt: skip
    roles |= {COLUMNS: "l"}
    tile = "".join(roles[axis] for axis in apply.out)
    outs = tuple(Buffer(f"out{i}", tile, dtype) for i, dtype in enumerate(out_dtypes))
    rows = RowNest(
        matrix, apply.how, apply.count, Buffer("v", "nl", v) if apply.weighted else None, outs, folded.values
    )
    return RowLowering(rows, Lowering(matrix, roles, "", "", 1))
