"""A kernel's matrix as a linear operator."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from ..arrays import is_numpy_like
from ..errors import ShapeError
from .hyperparameters import value_of
from .kernel_inputs import Call
from .matrix import common_batch, spread


class Entries(Protocol):
    """The methods of a kernel that an operator calls."""

    def __call__(self, x: Any, y: Any = None, *, diagonal: Any = None) -> Any:
        """Return all pairs of rows."""
        ...

    def prepared(self, x: Any, y: Any) -> tuple[Call, list[torch.Tensor]]:
        """Return the rows on tensors."""
        ...

    def matmul(self, x: Any, y: Any, v: Any, *, diagonal: Any = None) -> Any:
        """Return the matrix times v."""
        ...

    def diagonal(self, x: Any) -> Any:
        """Return every row with itself."""
        ...

    def transposed(self) -> Entries:
        """Return the kernel k(y, x)."""
        ...

    def __mul__(self, factor: Any) -> Entries:
        """Return the kernel times a number."""
        ...


def _is_scalar(value: Any) -> bool:
    """Return whether it is a number, or an array or tensor of one without axes."""
    return np.ndim(value) == 0 if is_numpy_like(value) else not getattr(value, "ndim", 0)


class Operator:
    """``k(x, y)``, with ``diagonal`` added, that multiplies without being stored.

    It has what scipy's iterative solvers ask of a LinearOperator, and works on tensors alike.

    Attributes
    ----------
    shape : tuple of int
        Batch axes, rows, columns.
    dtype : numpy or torch dtype
        That of x, of the kind of x.
    """

    __array_ufunc__ = None

    def __init__(self, kernel: Entries, x: Any, y: Any = None, diagonal: Any = None) -> None:
        self._kernel, self._x, self._y = kernel, x, y
        self._diagonal = None if diagonal is None else value_of(diagonal, "diagonal")
        call, _ = kernel.prepared(x, y)
        batch = call.batch
        if isinstance(self._diagonal, torch.Tensor):
            batch = common_batch(batch, self._diagonal)
        self.shape = (*batch, call.x.shape[-2], call.y.shape[-2])
        self._numpy = is_numpy_like(x)
        self.dtype: Any = np.dtype(str(call.dtype).removeprefix("torch.")) if self._numpy else call.dtype
        self.device = call.device
        rows, columns = self.shape[-2:]
        if diagonal is not None and rows != columns:
            raise ShapeError(f"diagonal needs as many rows in x as in y, they have {rows} and {columns}")

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        plus = "" if self._diagonal is None else " with a diagonal added"
        return f"<{shape} operator of {self._kernel!r}{plus}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Refuse to be stored unasked: numpy would make an array of one object of it."""
        raise TypeError("an operator stores no entries; operator @ np.eye(n), or the kernel itself, makes its matrix")

    def __matmul__(self, v: Any) -> Any:
        return self._kernel.matmul(self._x, self._y, self._converted(v), diagonal=self._diagonal)

    def __rmatmul__(self, v: Any) -> Any:
        v = v if hasattr(v, "ndim") else np.asarray(v)
        if v.ndim == 1:
            return self.T @ v
        return (self.T @ v.swapaxes(-1, -2)).swapaxes(-1, -2)

    def __mul__(self, other: Any) -> Any:
        """Return the operator times a number, or a product with a vector or matrix, as scipy's LinearOperator."""
        return self._times(other) if _is_scalar(other) else self @ other

    def __rmul__(self, other: Any) -> Any:
        return self._times(other) if _is_scalar(other) else self.__rmatmul__(other)

    def __truediv__(self, other: Any) -> Operator:
        return self._times(1 / other) if _is_scalar(other) else NotImplemented

    def __neg__(self) -> Operator:
        return self._times(-1.0)

    def _times(self, factor: Any) -> Operator:
        factor = value_of(factor, "factor")
        diagonal = None if self._diagonal is None else factor * self._diagonal
        return Operator(self._kernel * factor, self._x, self._y, diagonal)

    def _converted(self, v: Any) -> Any:
        if self._numpy and is_numpy_like(v):
            return np.asarray(v, self.dtype)
        return v.to(self.dtype) if isinstance(v, torch.Tensor) and isinstance(self.dtype, torch.dtype) else v

    def dot(self, v: Any) -> Any:
        """Return the product with a vector or matrix."""
        return self @ v

    def matvec(self, v: Any) -> Any:
        """Return the product with a vector, of shape (n,) or (n, 1)."""
        return self @ v

    def matmat(self, v: Any) -> Any:
        """Return the product with a matrix."""
        return self @ v

    def rmatvec(self, v: Any) -> Any:
        """Return the product of the transpose with a vector."""
        return self.T @ v

    def rmatmat(self, v: Any) -> Any:
        """Return the product of the transpose with a matrix."""
        return self.T @ v

    @property
    def T(self) -> Operator:
        """The transpose."""
        y = self._x if self._y is None else self._y
        return Operator(self._kernel.transposed(), y, self._x, self._diagonal)

    H = T

    def transpose(self) -> Operator:
        """Return the transpose."""
        return self.T

    adjoint = transpose

    def diagonal(self) -> Any:
        """Return the diagonal of a square operator of one set of rows."""
        if self._y is not None and self._y is not self._x:
            raise ShapeError("the diagonal of an operator of two sets of rows needs k(x, y); use k.diagonal(x) for one")
        if self._diagonal is None:
            return self._kernel.diagonal(self._x)
        call, _ = self._kernel.prepared(self._x, None)
        entries = call.diagonal()
        return call.finished(entries + spread(self._diagonal, entries))

    def columns(self, indices: Any) -> Any:
        """Return the columns of the matrix by their indices, as an array (n, len(indices))."""
        y = self._x if self._y is None else self._y
        if self._diagonal is None:
            return self._kernel(self._x, y[..., indices, :])
        call, _ = self._kernel.prepared(self._x, y[..., indices, :])
        matrix = call.matrix()
        if call.batch != self.shape[:-2]:
            matrix = matrix.expand(*self.shape[:-2], *matrix.shape[-2:]).clone()
        matrix[..., indices, range(len(indices))] += spread(self._diagonal, matrix)
        return call.finished(matrix)

    @property
    def requires_grad(self) -> bool:
        """Return whether a gradient is recorded of products with it."""
        call, _ = self._kernel.prepared(self._x, self._y)
        diagonal = isinstance(self._diagonal, torch.Tensor) and self._diagonal.requires_grad
        return call.is_tracked or (diagonal and torch.is_grad_enabled())

    def double(self) -> Operator:
        """Return the same of rows in float64."""
        return self._of(torch.float64)

    def float(self) -> Operator:
        """Return the same of rows in float32."""
        return self._of(torch.float32)

    def _of(self, dtype: torch.dtype) -> Operator:
        numbers = np.float64 if dtype == torch.float64 else np.float32
        x, y = (
            None if rows is None else np.asarray(rows, numbers) if self._numpy else rows.to(dtype)
            for rows in (self._x, self._y)
        )  # fmt: skip
        diagonal = self._diagonal.to(dtype) if isinstance(self._diagonal, torch.Tensor) else self._diagonal
        return Operator(self._kernel, x, y, diagonal)

    def dense(self) -> Any:
        """Return the matrix."""
        return self._kernel(self._x, self._y, diagonal=self._diagonal)
