"""Reductions of formulas over i or over j, each by row reductions that never store the matrix.

A scalar formula is one row reduction. The sum of a vector is split into products of scalar formulas with vectors over
one axis, one row reduction for all that have the scalar in common; what does not split, and other reductions of
vectors, have the components as a batch axis. Reductions of components inside others that scalars cannot be taken out
of are evaluated by blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ...errors import ParameterError
from ...torch_ops.info import RunInfo
from ...torch_ops.row_reduce_autograd import RepeatedRows
from ...torch_ops.row_reduce_blocks import BLOCK_BYTES
from ...torch_ops.row_select import nearest
from .algebra import Term, centred, factors, flattened, terms, times
from .expression import Expression, Leaf, Map, Number, checked_types, leaves, substituted
from .lowering import hoisted, is_nested, lower_rows, materialized
from .replay import Again, noted

Tensors = tuple[torch.Tensor, ...]
_OF_ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda entries: entries.sum(-2),
    "min": lambda entries: entries.amin(-2),
    "max": lambda entries: entries.amax(-2),
    "logsumexp": lambda entries: entries.logsumexp(-2),
}


@dataclass(frozen=True)
class Step:
    """A row reduction, and what ran it last."""

    name: str
    info: RunInfo

    def __str__(self) -> str:
        return f"{self.name}: {self.info.route}"


@dataclass
class Route:
    """The row reductions that one reduction of a formula ran as."""

    steps: list[Any] = field(default_factory=list[Any])
    again: Again | None = None

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(map(str, self.steps)))


@dataclass(frozen=True)
class Reducer:
    """Reductions over an axis of expressions that are ready; results are (*batch, rows, components)."""

    axis: str
    route: Route

    @property
    def row_axis(self) -> str:
        """The axis that stays."""
        return "j" if self.axis == "i" else "i"

    def ready(self, e: Expression) -> Expression:
        """Return an expression with the values of whatever is over one axis only."""
        return hoisted(flattened(hoisted(e)))

    def reduced(self, e: Expression, how: str) -> torch.Tensor:
        """Return the sum, smallest, largest or logsumexp of every row."""
        if len(e.axes) < 2:
            return self._dense(materialized(e), how)
        if is_nested(e):
            return self._in_blocks(e, lambda entries: (_OF_ROWS[how](entries),))[0]
        if how == "sum":
            found = self._sum(e)
            if found is not None:
                return found
        return self._rows(e, how)[0]

    def selected(self, e: Expression, how: str, count: int) -> Tensors:
        """Return the ``count`` smallest or largest entries of every row and where they are: (*batch, m, count, dim)."""
        extent = e.extents.get(self.axis, 1)
        if not 1 <= count <= extent:
            raise ParameterError(f"K = {count} entries are asked for of rows with {extent}")
        if len(e.axes) < 2:
            self.route.steps.append("torch: the formula is over one axis only")
            entries = materialized(e).tensor
            return _best(entries.unsqueeze(-2 if self.axis not in e.axes else -3), how, count)
        if is_nested(e):
            return self._in_blocks(e, lambda entries: _best(entries, how, count))
        return self._rows(e, how, None, count)

    def weighted(self, e: Expression, weights: Expression, shift: torch.Tensor) -> torch.Tensor:
        """Return Σ exp(e - shift) weights over the axis."""
        exponentials = Map("exp", Map("sub", e, Leaf(shift, self.row_axis)))
        return self.reduced(Map("mul", exponentials, weights), "sum")

    def _dense(self, values: Leaf, how: str) -> torch.Tensor:
        """Return the reduction of what is not over both axes; a missing axis has one position."""
        self.route.steps.append("torch: the formula is over one axis only")
        return values.tensor if self.axis not in values.axes else _OF_ROWS[how](values.tensor).unsqueeze(-2)

    def _rows(self, e: Expression, how: str, v: torch.Tensor | None = None, count: int = 0) -> Tensors:
        """Return the results of one row reduction."""
        lowered, info = lower_rows(e, self.row_axis), RunInfo()
        own = lowered.contraction, lowered.operands, lowered.parameters
        if count:
            results = noted(nearest, *own, count, how == "largest", info=info)
        else:
            results = (noted(RepeatedRows(), own[0], how, *own[1:], v, info=info),)
        self.route.steps.append(Step(f"{how} over {self.axis}", info))
        if v is not None:
            return results
        return tuple(t.movedim(0, -1) if e.dim > 1 else t.unsqueeze(-1) for t in results)

    def _product(self, scalar: Expression, v: torch.Tensor | None) -> torch.Tensor:
        """Return Σ scalar v over the axis, v (*batch, columns, c) or 1."""
        if len(scalar.axes) == 2:
            if is_nested(scalar):
                weighted = scalar if v is None else Map("mul", scalar, Leaf(v, self.axis))
                return self._in_blocks(weighted, lambda entries: (entries.sum(-2),))[0]
            return self._rows(scalar, "sum" if v is None else "product", v)[0]
        ready = materialized(scalar) if not isinstance(scalar, Number) else None
        if v is None:
            assert ready is not None
            return self._dense(ready, "sum")
        if ready is not None and self.axis in ready.axes:
            v, ready = ready.tensor * v, None
        total = v.sum(-2, keepdim=True)
        return total if ready is None else ready.tensor * total

    def _sum(self, e: Expression) -> torch.Tensor | None:
        """Return the sum as products with vectors over the axis, None where it is none."""
        if e.dim == 1:
            every = factors(e)
            own = [factor for factor in every if factor.axes == {self.axis}]
            rest = [factor for factor in every if factor.axes != {self.axis}]
            scalar = times(rest)
            if not own or len(scalar.axes) < 2:
                return None
            return self._product(scalar, materialized(times(own)).tensor)
        found = terms(centred(e), lambda part: len(part.axes) < 2)
        return None if found is None else self._of_terms(e, found)

    def _of_terms(self, e: Expression, found: Sequence[Term]) -> torch.Tensor:
        """Return the sum of products, those with the same scalar in one row reduction."""
        groups: dict[tuple[int, ...], list[Term]] = {}
        for term in found:
            key = tuple(id(part) for part in term.scalars if not isinstance(part, Number))
            groups.setdefault(key, []).append(term)
        total: torch.Tensor | None = None
        for group in groups.values():
            scalar = times([part for part in group[0].scalars if not isinstance(part, Number)])
            for part in self._of_group(e, scalar, group):
                total = part if total is None else total + part
        assert total is not None
        shape = (*torch.broadcast_shapes(total.shape[:-2], e.batch), e.extents.get(self.row_axis, 1), e.dim)
        return total.expand(shape)

    def _of_group(self, e: Expression, scalar: Expression, group: Sequence[Term]) -> list[torch.Tensor]:
        columns: list[torch.Tensor] = []
        outer: list[torch.Tensor | None] = []
        like = leaves(e)[0].tensor
        for term in group:
            number = math.prod(part.value for part in term.scalars if isinstance(part, Number))
            inner = [part for part in term.vectors if part.axes == {self.axis}]
            other = [part for part in term.vectors if part.axes != {self.axis}]
            column = materialized(times(inner)).tensor if inner else like.new_ones(e.extents[self.axis], 1)
            columns.append(column * number if number != 1 else column)
            outer.append(materialized(times(other)).tensor if other else None)
        batch = torch.broadcast_shapes(*(column.shape[:-2] for column in columns))
        wide = torch.cat([column.expand(*batch, *column.shape[-2:]) for column in columns], -1)
        parts = self._product(scalar, wide).split([column.shape[-1] for column in columns], -1)
        return [part if by is None else part * by for part, by in zip(parts, outer, strict=True)]

    def _in_blocks(self, e: Expression, reduction: Callable[[torch.Tensor], Tensors]) -> Tensors:
        """Return the reduction of blocks of rows, whose entries are stored, and computed again in a backward pass."""
        first = leaves(e)[0].tensor
        widest = max(leaf.dim for leaf in leaves(e))
        row = math.prod(e.batch) * e.extents[self.axis] * widest * first.element_size()
        height = max(1, BLOCK_BYTES.get(first.device.type, BLOCK_BYTES["cuda"]) // max(1, row))
        self.route.steps.append("torch: blocks of rows, because a reduction of components is inside another")
        tracked = torch.is_grad_enabled() and any(leaf.tensor.requires_grad for leaf in leaves(e))
        parts: list[Tensors] = []
        for start in range(0, e.extents[self.row_axis], height):
            block = cut(e, self.row_axis, slice(start, start + height))

            def own(block: Expression = block) -> Tensors:
                entries = materialized(block).tensor
                return reduction(entries if self.row_axis == "i" else entries.transpose(-3, -2))

            parts.append(checkpoint(own, use_reentrant=False) if tracked else own())
        dimension = len(e.batch)
        return tuple(torch.cat(every, dimension) for every in zip(*parts, strict=True))


def cut(e: Expression, axis: str, rows: slice | torch.Tensor) -> Expression:
    """Return the expression on some positions of an axis."""

    def replace(part: Expression) -> Expression | None:
        if not isinstance(part, Leaf) or axis not in part.axes:
            return None
        return Leaf(part.tensor[..., rows, :], axis)

    return substituted(e, replace)


def _best(entries: torch.Tensor, how: str, count: int) -> Tensors:
    """Return entries (..., m, n, dim) and positions, (..., m, count, dim)."""
    found = entries.movedim(-2, -1).topk(count, -1, largest=how == "largest")
    return found.values.movedim(-1, -2), found.indices.movedim(-1, -2)


def reduce_formula(
    e: Expression, how: str, axis: str, *, weights: Expression | None = None, count: int = 0, route: Route
) -> Tensors:
    """Return the results of a reduction; ``how`` is a row of ``compiler.row_reduce.HOW`` or "softmax"."""
    reducer = Reducer(axis, route)
    if weights is None:
        e = reducer.ready(checked_types(e))
        return reducer.selected(e, how, count) if count else (reducer.reduced(e, how),)
    both = checked_types(Map("weighted", e, weights) if weights.dim in (1, e.dim) or e.dim == 1 else e)
    assert isinstance(both, Map)
    e, weights = (reducer.ready(part) for part in both.args)
    if how == "softmax":
        shift = reducer.reduced(e, "logsumexp")
        return (reducer.weighted(e, weights, shift),)
    with torch.no_grad():
        shift = reducer.reduced(e, "max")
        shift = shift.masked_fill(shift == -math.inf, 0)
    return (shift + reducer.weighted(e, weights, shift).log(),)
