"""Forms of matrix entries that kernels compute at less cost: linear ones and powers of 2."""

from __future__ import annotations

from ...compiler.hoist import fold
from ...compiler.nest import Buffer, Nest
from ...compiler.patterns import SCALED, inner_product, is_linear, scale, squared_differences
from ...compiler.row_reduce import RowNest
from ...ir.node import Node, var, variables
from .score_plan import multiplied
from .tiles import Tile

_LEAST_LINEAR = 96
"""Fewest multiplied positions of a pair for which linear entries are made of levels (decision 0053; NVIDIA H200)."""


def ends(rows: RowNest, role: str) -> tuple[Buffer, ...]:
    """Return the operands that entries read of one row ("m") or column ("n"), of their own ("mn"), or of all ("")."""
    used = set(variables(rows.matrix.outputs))
    return tuple(buffer for buffer in rows.matrix.operands if buffer.roles == role and buffer.name in used)


def is_approximate(rows: RowNest) -> bool:
    """Return whether functions of entries may have the special function unit's own accuracy."""
    return rows.matrix.compute == "f32" and rows.matrix.precision != "ieee"


def sums_exponentials(rows: RowNest) -> bool:
    """Return whether rows are log-sum-exps whose exponentials may have that accuracy."""
    return rows.how == "logsumexp" and is_approximate(rows)


def folded_entry(nest: Nest) -> tuple[Node, set[str]]:
    """Return the entry as a function of its sum, its operands and what is the same for all entries; names of that."""
    uniform = [*nest.numbers, *(buffer.name for buffer in nest.operands if not buffer.roles)]
    folded = fold(nest.outputs, uniform, letter="f")
    (output,) = folded.outputs
    return output, {*uniform, *folded.names}


def has_linear_entries(rows: RowNest, tile: Tile) -> bool:
    """Return whether rows are log-sum-exps of entries that are linear in their sums, free of operands of rows.

    Not where exponentials take longer than products, so that nothing else counts.
    """
    nest = rows.matrix
    if multiplied(tile) < _LEAST_LINEAR:
        return False
    if rows.how != "logsumexp" or ends(rows, "m") or not (squared_differences(nest) or inner_product(nest)):
        return False
    return is_linear(*folded_entry(rows.matrix))


def has_powers(rows: RowNest) -> bool:
    """Return whether rows are sums of powers of 2 to squared distances times a factor."""
    if rows.selects or rows.reduction.name != "sum" or squared_differences(rows.matrix) is None:
        return False
    found = scale(rows.matrix, *folded_entry(rows.matrix))
    return found is not None and found.output is Node("exp2", (Node("neg", (var(SCALED),)),))
