"""Softmax-weighted sums of rows in one pass, and their gradients, as nests.

``out[m, c] = Σ_n softmax_n(w[m, n]) v[n, c]``, where the logits ``w = outputs(Σ_k map(operands))`` are a program of its
own. Beside the result, the logarithm of the sum of every row's exponentials is kept: with it the gradients need no
second pass over a row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..ir.differentiate import differentiate
from ..ir.node import Node, const
from ..ir.program import Program
from ..ir.reductions import PRODUCT, SOFTMAX
from .nest import Port
from .row_reduce import Apply, RowLowering, RowNest, can_lower, lower_rows

GRADIENTS = "softmax gradients"
RESULT, STATISTIC, COTANGENT = "result", "statistic", "cotangent"


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
        """Weighting of a canonical text."""
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


def lower_softmax(weighting: Weighting, dtypes: Sequence[str], v: str, pulled: bool = False) -> RowLowering:
    """Nest of a weighting, or, ``pulled``, of its gradients by x0, x1 and v; the entry of its matrix is to the base 2.

    ``dtypes`` are the storage types of the operands, ``v`` those of v, results and gradients.
    """
    (logit,) = weighting.inner.outputs
    inner = replace(weighting.inner, outputs=(Node("mul", (logit, const(1 / math.log(2)))),))
    found = lower_rows(Apply(inner, PRODUCT), dtypes, v, [v], "f32", True)
    outs = [Port(RESULT, "ml", v), Port(STATISTIC, "m", "f32")]
    if pulled:
        outs += [Port(COTANGENT, "ml", v)]
        outs += [Port(f"by_{name}", roles, v) for name, roles in (("x0", "mk"), ("x1", "nk"), ("v", "nl"))]
    how = GRADIENTS if pulled else SOFTMAX
    return replace(found, rows=replace(found.rows, how=how, causal=weighting.causal, outs=tuple(outs)))


def slope(rows: RowNest) -> Node:
    """Return the derivative of an entry of the matrix by its only accumulator."""
    return differentiate(rows.matrix.outputs[0], ["s0"])[0]
