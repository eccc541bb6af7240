"""Distances of the rows of a fit from some of them: by a metric, never all of them at once, or from a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ..pairwise import Kernel, argkmin, cdist
from ..pairwise.distances import contraction
from ..pairwise.inputs import find, request
from ..torch_ops.row_reduce import task_of
from .measure import Measure
from .state import Stored

Nearest = tuple[torch.Tensor, torch.Tensor]


class Dissimilarity(Protocol):
    """Distances d(x, y), of which y are rows of the fit."""

    rows: torch.Tensor

    def columns(self, indices: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return the distances of x, by default all rows, from those of these indices: (m, indices)."""
        ...

    def nearest(self, indices: torch.Tensor, count: int, x: torch.Tensor | None = None) -> Nearest:
        """Return the smallest of these distances of every row, and their places among the indices: (m, count) each."""
        ...

    def sums(self, indices: torch.Tensor | slice) -> torch.Tensor:
        """Return the sum over the rows of these indices of their distances from each of them."""
        ...


class OfMetric(Stored):
    """Distances of rows by the name of a metric, or by a kernel that is a distance."""

    def __init__(self, rows: torch.Tensor, metric: Any, options: Mapping[str, Any] | None) -> None:
        found = Measure.of(metric, None, options, "pass a metric, or a distance of your own, lambda a, b: abs(a - b)")
        if isinstance(found.metric, str) and not find(found.metric).symmetric:
            raise ValueError(f"metric={metric!r} is not symmetric: medoids have distances that are")
        self.rows, self.metric, self.options = rows, found.metric, found.fitted(rows).options

    def _of(self, rows: torch.Tensor) -> dict[str, Any]:
        """Return the options, of which arrays are on the device of rows."""
        return {
            name: torch.as_tensor(value).to(rows) if hasattr(value, "shape") else value
            for name, value in self.options.items()
        }

    def columns(self, indices: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return the distances of x, by default all rows, from those of these indices: (m, indices)."""
        left = self.rows if x is None else x
        right = self.rows[indices].to(left)
        if isinstance(self.metric, Kernel):
            return self.metric(left, right)
        return cdist(left, right, self.metric, **self._of(left))

    def nearest(self, indices: torch.Tensor, count: int, x: torch.Tensor | None = None) -> Nearest:
        """Return the smallest of these distances of every row, and their places among the indices: (m, count) each."""
        left = self.rows if x is None else x
        right = self.rows[indices].to(left)
        return argkmin(left, right, count, metric=self.metric, return_values=True, **self._of(left))

    def sums(self, indices: torch.Tensor | slice) -> torch.Tensor:
        """Return the sum over the rows of these indices of their distances from each of them."""
        rows = self.rows[indices]
        if isinstance(self.metric, Kernel):
            return self.metric.transposed().sum(rows, rows)
        own: dict[str, Any] = {"p": None, "w": None, "V": None, "VI": None, "base": None, **self._of(rows)}
        wanted = request(find(self.metric), rows, rows, **own)
        ready = wanted.prepared()
        contract = contraction(wanted.row.name, wanted.variant, ready.weighted, True)
        task, tensors = task_of(contract, "sum", ready.operands, ready.parameters)
        return task.evaluate(tensors)[0]


class OfMatrix(Stored):
    """Distances that are entries of a square matrix, d(x_i, x_j) in row i and column j."""

    def __init__(self, matrix: torch.Tensor) -> None:
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"metric='precomputed' takes the square matrix of the distances, it was given {tuple(matrix.shape)}"
            )
        self.rows = matrix

    def columns(self, indices: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return the columns of these indices."""
        return (self.rows if x is None else x).index_select(1, indices)

    def nearest(self, indices: torch.Tensor, count: int, x: torch.Tensor | None = None) -> Nearest:
        """Return the smallest entries of these columns in every row."""
        found = self.columns(indices, x).topk(count, 1, largest=False)
        return found.values, found.indices

    def sums(self, indices: torch.Tensor | slice) -> torch.Tensor:
        """Return the sums of the columns of a block."""
        return self.rows[indices][:, indices].sum(0)
