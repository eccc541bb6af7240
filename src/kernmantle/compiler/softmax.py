"""Softmax-weighted sums of rows in one pass, their gradients and their tangents, as nests.

``out[m, c] = Σ_n softmax_n(w[m, n]) v[n, c]``, where the logits ``w = outputs(Σ_k map(operands))`` are a program of its
own. Beside the result, the logarithm of the sum of every row's exponentials is kept: with it the gradients need no
second pass over a row, nor do the tangents. Sums and tangents may be made together, as dual numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..ir.differentiate import differentiate
from ..ir.node import Node, const, substitute, var
from ..ir.program import Program
from ..ir.reductions import PRODUCT, SOFTMAX
from .nest import Buffer
from .patterns import factors, product
from .row_reduce import Apply, RowLowering, RowNest, can_lower, lower_rows

GRADIENTS, TANGENTS, DUALS = "softmax gradients", "softmax tangents", "softmax dual numbers"
RESULT, STATISTIC = "result", "statistic"


@dataclass(frozen=True)
class Weighting:
    """Softmax-weighted sums by the logits of ``inner``; with ``causal`` row i sees the columns 0 to i alone."""

    inner: Program
    causal: bool = False

    @property
    def text(self) -> str:
        """Canonical text; ``Weighting.parse`` is its inverse."""
        return _text(self)

    @staticmethod
    def parse(text: str) -> Weighting:
        """Return the weighting of a canonical text."""
        return _parse(text)


@lru_cache(maxsize=1024)
def _text(weighting: Weighting) -> str:
    return json.dumps([SOFTMAX, weighting.causal, weighting.inner.text])


@lru_cache(maxsize=1024)
def _parse(text: str) -> Weighting:
    _, causal, inner = json.loads(text)
    return Weighting(Program.parse(inner), causal)


def can_weigh(weighting: Weighting) -> bool:
    """Return whether there is a nest: one axis reduced inside, of two operands of rows."""
    return can_lower(Apply(weighting.inner, PRODUCT), "f32")


def _hoisted(inner: Program) -> Program:
    """Return a program whose sum is multiplied by what is the same factor of all its terms, such as a sign."""
    if [reduction.name for reduction in inner.reductions] != ["sum"]:
        return inner
    numbers = {operand.name for operand in inner.numbers}
    same: list[Node] = []
    others: list[Node] = []
    for part in factors(inner.map[0]):
        (same if part.number is not None or (part.op == "var" and part.name in numbers) else others).append(part)
    if not same or not others:
        return inner
    outputs = substitute(inner.outputs, {"s0": Node("mul", (product(same), var("s0")))})
    return replace(inner, map=(product(others),), outputs=tuple(outputs))


def lower_softmax(
    weighting: Weighting, dtypes: Sequence[str], v: str, how: str = SOFTMAX, result: str | None = None
) -> RowLowering:
    """Nest of a weighting, of its gradients by x0, x1 and v, of its tangent, or of both; its entry is to the base 2.

    ``dtypes`` are the storage types of the operands, ``v`` those of v and gradients, ``result``, unless it is v's, that
    of results and their tangents. What is read of them comes before what is written.
    """
    inner = _hoisted(weighting.inner)
    (logit,) = inner.outputs
    inner = replace(inner, outputs=(Node("mul", (logit, const(1 / math.log(2)))),))
    found = lower_rows(Apply(inner, PRODUCT), dtypes, v, [v], "f32", True)
    outs = [Buffer(RESULT, "ml", result or v), Buffer(STATISTIC, "m", "f32")]
    operands = (("x0", "mk"), ("x1", "nk"), ("v", "nl"))
    if how == GRADIENTS:
        outs += [Buffer("cotangent", "ml", v), *(Buffer(f"by_{name}", roles, v) for name, roles in operands)]
    elif how in (TANGENTS, DUALS):
        moves = [Buffer(f"tangent_of_{name}", roles, v) for name, roles in operands]
        outs = [*outs, *moves] if how == TANGENTS else [*moves, *outs]
        outs.append(Buffer("tangent", "ml", result or v))
    return replace(found, rows=replace(found.rows, how=how, causal=weighting.causal, outs=tuple(outs)))


WRITTEN = {SOFTMAX: 2, GRADIENTS: 3, TANGENTS: 1, DUALS: 3}
"""How many of the arrays behind v a kernel writes, the last ones."""


def slope(rows: RowNest) -> Node:
    """Return the derivative of an entry of the matrix by its only accumulator."""
    return differentiate(rows.matrix.outputs[0], ["s0"])[0]
