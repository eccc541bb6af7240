"""Distances between two sets of rows by any metric, and reductions of functions of them, without their matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ..compiler.row_reduce import PRODUCT
from ..errors import ParameterError
from ..ir.definition import Definition, of_expressions
from ..ir.node import var
from ..ir.trace import trace
from ..torch_ops.contract import Contraction
from ..torch_ops.row_reduce import task_of
from ..torch_ops.row_reduce_blocks import ranges
from ..torch_ops.row_select import nearest
from .distances import contraction
from .inputs import Request, find, request
from .kernel import Kernel
from .kernel_form import gram
from .own_metric import OPTIONS

REPORTED = {"cpu": 1 << 27, "cuda": 1 << 33}
"""Distances between two reports of progress: some tenths of a second."""


@dataclass(frozen=True)
class Entry:
    """A function of a distance, and by name of terms of its row and of its column."""

    function: Callable[..., Any]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Distances:
    """The distances between rows x and rows y, which are computed wherever they are reduced.

    The operands are those of the contraction; terms of rows and columns are vectors of their dtype and device. What is
    reduced has the precision of a contraction.
    """

    contraction: Contraction
    operands: tuple[torch.Tensor, ...]
    parameters: Mapping[str, Any]
    is_symmetric: bool
    precision: str | None = "ieee"

    @staticmethod
    def precomputed(matrix: torch.Tensor) -> Distances:
        """Return the distances of a matrix that is there."""
        square = matrix.shape[0] == matrix.shape[1]
        return Distances(_MATRIX, (matrix,), {}, square and bool((matrix == matrix.mT).all()))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows x and of rows y."""
        sizes = {
            axis: size
            for operand, axes in zip(self.operands, self._axes, strict=True)
            for axis, size in zip(axes, operand.shape, strict=True)
        }
        row, column = self.contraction.definition.equation.out
        return sizes[row], sizes[column]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the distances."""
        return self.operands[0].dtype

    @property
    def device(self) -> torch.device:
        """Device of the distances."""
        return self.operands[0].device

    @property
    def _axes(self) -> tuple[str, ...]:
        return self.contraction.definition.equation.operands

    def part(self, rows: slice | torch.Tensor | None = None, columns: slice | torch.Tensor | None = None) -> Distances:
        """Return the distances between some of the rows x and some of the rows y; of one set they stay symmetric."""
        parts: list[torch.Tensor] = []
        chosen = dict(zip(self.contraction.definition.equation.out, (rows, columns), strict=True))
        for operand, axes in zip(self.operands, self._axes, strict=True):
            for position, axis in enumerate(axes):
                if chosen.get(axis) is not None:
                    operand = operand[(*(slice(None),) * position, chosen[axis])]
            parts.append(operand)
        return replace(self, operands=tuple(parts), is_symmetric=self.is_symmetric and rows is columns)

    def matrix(self) -> torch.Tensor:
        """Return the distances, (m, n)."""
        return self.contraction(*self.operands, precision=self.precision, params=self.parameters)

    def reduced(self, how: str, entry: Entry, *, bar: Any = None, **terms: torch.Tensor) -> torch.Tensor:
        """Return a reduction over the rows y of a function of the distances, (m,): "sum", "min", "max".

        A progress bar of tqdm's counts rows x.
        """
        return self._by_parts(bar, entry, terms, lambda part: part._evaluated(how, None))[0]

    def product(self, entry: Entry, v: torch.Tensor, **terms: torch.Tensor) -> torch.Tensor:
        """Return the matrix of a function of the distances times v, (m, c), of v with a row for each of the rows y."""
        return self._joined(entry, terms)._evaluated(PRODUCT, v)[0]

    def smallest(
        self, count: int, entry: Entry | None = None, *, precision: str | None = "ieee", bar: Any = None,
        **terms: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Return the smallest values of a function of the distances in every row, and the rows y of them, (m, count).

        NaN comes last. The values have the gradients of the distances. A progress bar of tqdm's counts rows x.
        """
        values, indices = self._by_parts(
            bar, entry, terms,
            lambda part: nearest(part.contraction, part.operands, part.parameters, count, False, precision),
        )  # fmt: skip
        return values, indices

    def _by_parts(
        self, bar: Any, entry: Entry | None, terms: Mapping[str, torch.Tensor],
        evaluate: Callable[[Distances], Sequence[torch.Tensor]],
    ) -> list[torch.Tensor]:  # fmt: skip
        joined = self._joined(entry, terms)
        if bar is None:
            return list(evaluate(joined))
        count, columns = self.shape
        found: list[Sequence[torch.Tensor]] = []
        for rows in ranges(count, max(1, REPORTED[self.device.type] // max(1, columns))):
            found.append(evaluate(joined.part(rows)))
            bar.update(rows.stop - rows.start)
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    def _evaluated(self, how: str, v: torch.Tensor | None) -> list[torch.Tensor]:
        task, tensors = task_of(self.contraction, how, self.operands, self.parameters, v, 0, self.precision)
        return task.evaluate([tensor.detach() for tensor in tensors])

    def _joined(self, entry: Entry | None, terms: Mapping[str, torch.Tensor]) -> Distances:
        """Return the values of a function of the distances, as if they were distances."""
        if entry is None:
            return self
        along = [terms[name].to(self.operands[0]) for name in (*entry.rows, *entry.columns)]
        of_entries = _of_entries(self.contraction.text, entry)
        return replace(self, contraction=of_entries, operands=(*self.operands, *along), is_symmetric=False)


_MATRIX = Contraction("mn->mn", lambda d: d)


@lru_cache(maxsize=256)
def _of_entries(text: str, entry: Entry) -> Contraction:
    """The contraction whose values are a function of those of another; terms of rows and columns are operands."""
    base = Definition.parse(text)
    row, column = base.equation.out
    axes = [*base.equation.operands, *(row for _ in entry.rows), *(column for _ in entry.columns)]
    first = len(base.equation.operands)
    named = {name: var(f"x{first + position}") for position, name in enumerate((*entry.rows, *entry.columns))}
    roots = trace(entry.function, [base.outputs[0]], named, what="function of a distance").roots
    return Contraction.of(of_expressions(f"{','.join(axes)}->{row}{column}", base.map, base.reductions, roots))


def of_names(metric: Any, options: Mapping[str, Any], x: Any, y: Any) -> tuple[Request, Distances]:
    """Return the checked call of a metric by its name, and its distances."""
    p, w, V, VI, base = (options.get(name) for name in OPTIONS)
    wanted = request(find(metric), x, y, p=p, w=w, V=V, VI=VI, base=base)
    ready = wanted.prepared()
    contract = contraction(wanted.row.name, wanted.variant, ready.weighted, True)
    return wanted, Distances(contract, tuple(ready.operands), ready.parameters, wanted.row.symmetric)


def distances(metric: str | Kernel, options: Mapping[str, Any], x: torch.Tensor, y: torch.Tensor) -> Distances:
    """Return the distances between two matrices of rows, by the name of a metric or a kernel; x and y may be one."""
    if isinstance(metric, Kernel):
        call, _ = metric.prepared(x, y)
        arguments = call.kernel_inputs(call.x, call.y, call.shared)
        found = Distances(gram(call.form), tuple(arguments.operands), arguments.parameters, metric.is_symmetric)
        batch = call.batch
    else:
        wanted, found = of_names(metric, options, x, y)
        batch = wanted.batch
    if batch:
        raise ParameterError(f"a metric is one for all rows, this one has hyperparameters of the batch {batch}")
    return found


def numbered(count: int, like: Distances) -> torch.Tensor:
    """Return 0, 1, 2, ... as terms; ParameterError where their type does not hold so many."""
    if count > 2 / torch.finfo(like.dtype).eps:
        raise ParameterError(f"{count} rows cannot be told apart in {like.dtype}: pass float64")
    return torch.arange(count, dtype=like.dtype, device=like.device)
