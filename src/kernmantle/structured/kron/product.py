"""``KroneckerProduct``: a product of matrices as a linear operator that is never formed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...arrays import check_same_device, check_same_dtype, dtype_name, unwrap
from ...errors import LinearAlgebraError, ParameterError, ShapeError
from ...ir.equation import broadcast
from ...torch_ops.info import RunInfo
from .factors import Factor, check_right_side, decomposed, described, is_one, listed, outer, scaled, sizes, times
from .matmul import multiply
from .sums import Addable


class KroneckerProduct(Addable):
    """The linear operator ``scale * (F_1 ⊗ … ⊗ F_N)``, never formed.

    ``operator @ v`` and ``v @ operator`` multiply from either side, ``scalar * operator`` scales,
    ``operator @ operator`` multiplies products whose factors fit, and ``operator + operator`` is a
    :class:`SumOfProducts`; ``K + s * KroneckerProduct([n])`` adds ``s`` to the diagonal of an (n, n) operator.

    Parameters
    ----------
    factors : sequence of arrays and int
        Matrices (…, p_i, q_i) whose batch axes broadcast; an integer is the identity of that size.
    scale : number or tensor
        One number, or one per batch entry.
    like : tensor, optional
        Where and of which type the operator is when all factors are identities; float32 on the CPU otherwise.

    Attributes
    ----------
    factors : tuple of tensors and int
    shape : tuple of int
        Batch axes, rows, columns.
    info : str
        What the last product with this operator ran as; empty before the first.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
        As for :func:`kron_matmul`; also where a method needs square factors.

    Notes
    -----
    ``solve``, ``inverse``, ``eigh``, ``svd``, ``cholesky``, ``logdet``, ``diagonal`` and ``trace`` work on the
    factors one by one: for n_1 = … = n_N = p they cost O(N p³) where the dense matrix would cost O(p^3N). All have
    the derivatives that ``torch.linalg`` has.

    Examples
    --------
    >>> import kernmantle as km, torch
    >>> k = km.KroneckerProduct([torch.tensor([[2.0, 0.0], [1.0, 1.0]]), 2])
    >>> k @ torch.ones(4)
    tensor([2., 2., 2., 2.])
    >>> k.logdet()
    tensor(1.3863)
    >>> (k + 0.5 * km.KroneckerProduct([4])).diagonal()
    tensor([2.5000, 2.5000, 1.5000, 1.5000])
    """

    __array_ufunc__ = None

    def __init__(self, factors: Sequence[Any], scale: Any = 1, *, like: torch.Tensor | None = None) -> None:
        entries = listed(factors)
        indices = [index for index, factor in enumerate(entries) if not isinstance(factor, int)]
        own: list[torch.Tensor] = []
        if indices:
            names = [f"factors[{index}]" for index in indices]
            own, _ = unwrap(*(entries[index] for index in indices), names=names)
            check_same_device(own, names)
            check_same_dtype(own, names)
            for index, tensor in zip(indices, own, strict=True):
                entries[index] = tensor
            like = own[0]
        self.factors: tuple[Factor, ...] = tuple(entries)
        self.scale = scale
        self._ran = RunInfo()
        self.device = torch.device("cpu") if like is None else like.device
        self.dtype = torch.float32 if like is None else like.dtype
        if isinstance(scale, (bool, str, bytes, list, tuple)) or not hasattr(scale, "__mul__"):
            raise ParameterError(f"scale must be a number or a tensor, not {scale!r}")
        leading = [*(tuple(factor.shape[:-2]) for factor in own), tuple(getattr(scale, "shape", ()))]
        batch = broadcast(leading)
        if batch is None:
            raise ShapeError(f"the batch axes {', '.join(map(str, leading))} of the factors and scale do not broadcast")
        self.shape = (*batch, *(math.prod(side) for side in zip(*sizes(self.factors), strict=True)))

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch axes."""
        return self.shape[:-2]

    @property
    def terms(self) -> tuple[KroneckerProduct, ...]:
        """Itself, as the one term of a sum."""
        return (self,)

    def __repr__(self) -> str:
        ran = f", ran as {self.info}" if self.info else ""
        scale = "" if is_one(self.scale) else "scale * "
        return f"KroneckerProduct({scale}{described(self.factors)}, {dtype_name(self.dtype)} on {self.device}{ran})"

    def like(self, factors: Sequence[Factor], scale: Any) -> KroneckerProduct:
        """Return another product on the same device."""
        like = torch.empty((), dtype=self.dtype, device=self.device)
        return KroneckerProduct(factors, scale, like=like)

    def to(self, *args: Any, **options: Any) -> KroneckerProduct:
        """Return the operator on another device or of another type, by ``torch.Tensor.to`` with these arguments.

        Examples
        --------
        >>> import torch, kernmantle as km
        >>> km.KroneckerProduct([torch.eye(2), 3]).to(torch.float64)
        KroneckerProduct(2x2 ⊗ 3, float64 on cpu)
        """
        factors = [f if isinstance(f, int) else f.to(*args, **options) for f in self.factors]
        scale = self.scale.to(*args, **options) if isinstance(self.scale, torch.Tensor) else self.scale
        like = torch.empty((), dtype=self.dtype, device=self.device).to(*args, **options)
        return KroneckerProduct(factors, scale, like=like)

    def matmul(
        self, v: Any, *, beta: Any = None, y: Any = None, out: Any = None, precision: str | None = None,
        fuse: bool = True, store: bool | None = None,
    ) -> Any:  # fmt: skip
        """Return ``self @ v + beta * y``, which torch.compile traces, as it does not ``@`` of an object.

        Parameters
        ----------
        v : array, shape (columns,) or (…, columns, c)
            Of the dtype of the factors.
        beta, y, out, precision, fuse, store
            As of :func:`kron_matmul`.

        Returns
        -------
        array, shape (rows,) or (…, rows, c)

        Raises
        ------
        ShapeError, DtypeError, DeviceError, OutputError
            As of :func:`kron_matmul`, whose cost and gradients it has.
        """
        return multiply(v, self.factors, "left", self.scale, beta, y, out, precision, fuse, store, self._recorder())

    def _recorder(self) -> RunInfo | None:
        """Return what takes the route of a product, None while one is traced."""
        return None if torch.compiler.is_compiling() else self._ran

    @property
    def info(self) -> str:
        """The backend and plan of the last product with this operator; empty before the first."""
        return self._ran.route

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, KroneckerProduct):
            return multiply(other, self.factors, "left", self.scale, info=self._recorder())
        inner, outer_ = [q for _, q in sizes(self.factors)], [p for p, _ in sizes(other.factors)]
        if inner != outer_:
            raise ShapeError(
                f"{described(self.factors)} @ {described(other.factors)} has no Kronecker form: the factors' "
                "sizes do not fit one by one; multiply by other.to_dense()"
            )
        matched = zip(self.factors, other.factors, strict=True)
        factors = [b if isinstance(a, int) else a if isinstance(b, int) else a @ b for a, b in matched]
        return self.like(factors, times(self.scale, other.scale))

    def __rmatmul__(self, v: Any) -> Any:
        return multiply(v, self.factors, "right", self.scale, info=self._recorder())

    def __mul__(self, scalar: Any) -> KroneckerProduct:
        if not isinstance(scalar, (int, float, complex, np.number, torch.Tensor)):
            return NotImplemented
        return self.like(self.factors, times(self.scale, scalar.item() if isinstance(scalar, np.number) else scalar))

    __rmul__ = __mul__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Refuse to be stored unasked: numpy would make an array of one object of it."""
        raise TypeError("a Kronecker product stores its factors alone; K.to_dense() makes its matrix")

    @property
    def T(self) -> KroneckerProduct:
        """The transpose."""
        return self.like([f if isinstance(f, int) else f.mT for f in self.factors], self.scale)

    mT = T

    @property
    def mH(self) -> KroneckerProduct:
        """The adjoint."""
        scale = self.scale.conj() if isinstance(self.scale, torch.Tensor) else self.scale.conjugate()
        return self.like([f if isinstance(f, int) else f.mH for f in self.factors], scale)

    def _tensors(self) -> list[torch.Tensor]:
        """Return every factor as a matrix."""
        return [torch.eye(f, dtype=self.dtype, device=self.device) if isinstance(f, int) else f for f in self.factors]

    def _each(self, function: Callable[[torch.Tensor], torch.Tensor]) -> list[Factor]:
        """Return a function of every factor that is the identity for the identity."""
        return [factor if isinstance(factor, int) else function(factor) for factor in self.factors]

    def _decomposed(self, function: Callable[[torch.Tensor], Any]) -> list[Any]:
        """Return a decomposition of every factor, and identities as they are."""
        return self._each(lambda factor: decomposed(function, factor))

    def _square(self, what: str) -> None:
        """Raise ShapeError unless all factors are square."""
        if any(rows != columns for rows, columns in sizes(self.factors)):
            raise ShapeError(f"{what} needs square factors, not {described(self.factors)}")

    def to_dense(self) -> torch.Tensor:
        """Return the matrix (…, rows, columns)."""
        return scaled(outer(self._tensors()), self.scale)

    def diagonal(self) -> torch.Tensor:
        """Return the entries (…, min(rows, columns)) on the diagonal."""
        if all(rows == columns for rows, columns in sizes(self.factors)):
            total = outer([f.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) for f in self._tensors()]).squeeze(-1)
        else:
            total = self._entries(torch.arange(min(self.shape[-2:]), device=self.device))
        return scaled(total, self.scale, 1)

    def _entries(self, index: torch.Tensor) -> torch.Tensor:
        """Return the entries at (index, index), without the scale."""
        total = torch.ones((), dtype=self.dtype, device=self.device)
        rows = columns = index
        for factor in reversed(self._tensors()):
            q, p = factor.shape[-2:]
            total = total * factor[..., rows % q, columns % p]
            rows, columns = rows // q, columns // p
        return total

    def trace(self) -> torch.Tensor:
        """Return the sum of the diagonal."""
        if any(rows != columns for rows, columns in sizes(self.factors)):
            return self.diagonal().sum(-1)
        traces = [f if isinstance(f, int) else f.diagonal(dim1=-2, dim2=-1).sum(-1) for f in self.factors]
        return scaled(torch.as_tensor(math.prod(traces), dtype=self.dtype, device=self.device), self.scale, 0)

    def inverse(self) -> KroneckerProduct:
        """Return the inverse, the product of the inverses of the factors.

        Raises
        ------
        ShapeError
            If a factor is not square.
        LinearAlgebraError
            If a factor is singular or the scale is 0.

        Notes
        -----
        Cost: 2 q³ operations for each factor (q, q). Gradients exist.

        Examples
        --------
        >>> import torch, kernmantle as km
        >>> km.KroneckerProduct([torch.tensor([[2.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])]).inverse().to_dense()
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]])
        """
        self._square("inverse")
        if not isinstance(self.scale, torch.Tensor) and self.scale == 0:
            raise LinearAlgebraError("the scale is 0, so there is no inverse; pinv() is the pseudoinverse")
        meaning = "is singular: it has no inverse; pinv() is the pseudoinverse"
        factors = self._each(lambda factor: decomposed(torch.linalg.inv, factor, meaning))
        return self.like(factors, 1 / self.scale)

    def pinv(self) -> KroneckerProduct:
        """Return the pseudoinverse, from those of the factors; that of a scale of 0 is 0."""
        scale: Any = self.scale
        if isinstance(scale, torch.Tensor):
            inverse = torch.where(scale == 0, scale, 1 / torch.where(scale == 0, torch.ones_like(scale), scale))
        else:
            inverse = scale if scale == 0 else 1 / scale
        return self.like(self._decomposed(torch.linalg.pinv), inverse)

    def solve(self, b: Any) -> Any:
        """Return ``x`` with ``self @ x = b``, by the inverses of the factors.

        Parameters
        ----------
        b : array, shape (rows,) or (…, rows, m)
            Of the dtype of the factors.

        Returns
        -------
        array
            Of the shape of ``b``.

        Raises
        ------
        ShapeError
            If a factor is not square, or ``b`` does not fit.
        LinearAlgebraError
            If a factor is singular or the scale is 0.

        Notes
        -----
        Cost: :meth:`inverse`, and one product with it. Gradients exist.

        Examples
        --------
        >>> import torch, kernmantle as km
        >>> swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> km.KroneckerProduct([torch.tensor([[2.0]]), swap]).solve(torch.tensor([2.0, 4.0]))
        tensor([2., 1.])
        """
        check_right_side(b, self)
        return self.inverse().matmul(b)

    def slogdet(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sign and the logarithm of the absolute determinant, (…) each.

        Raises
        ------
        ShapeError
            If a factor is not square.

        Notes
        -----
        The logarithm is ``Σ (n / q) log|det F|`` over the factors F (q, q) of a product (n, n). Cost: q³ operations for
        each. Gradients exist.
        """
        self._square("slogdet")
        n = self.shape[-1]
        scale = torch.as_tensor(self.scale, dtype=self.dtype, device=self.device)
        sign, total = torch.sgn(scale) ** n, n * scale.abs().log()
        for factor in self.factors:
            if isinstance(factor, torch.Tensor):
                own_sign, own = decomposed(torch.linalg.slogdet, factor)
                power = n // factor.shape[-1] if n else 0
                sign, total = sign * own_sign**power, total + own * power
        return sign, total

    def logdet(self) -> torch.Tensor:
        """Return the logarithm of the determinant (…): -inf of 0, NaN of a negative one, complex of a complex one.

        Raises
        ------
        ShapeError
            If a factor is not square.
        """
        sign, total = self.slogdet()
        if sign.is_complex():
            return torch.where(sign == 0, total, sign.log() + total)
        return torch.where(sign < 0, torch.full_like(total, math.nan), total)

    def cholesky(self, *, upper: bool = False) -> KroneckerProduct:
        """Return the triangular product L with ``L @ L.mH`` this one, that of the Cholesky factors of the factors.

        Parameters
        ----------
        upper : bool
            Return the upper factor U with ``U.mH @ U`` instead.

        Raises
        ------
        ShapeError
            If a factor is not square.
        ParameterError
            If the scale is a number that is not positive.
        LinearAlgebraError
            If a factor is not positive definite.

        Notes
        -----
        Cost: q³ / 3 operations for each factor (q, q). Gradients exist.

        Examples
        --------
        >>> import torch, kernmantle as km
        >>> km.KroneckerProduct([torch.tensor([[4.0]]), torch.tensor([[9.0]])]).cholesky().to_dense()
        tensor([[6.]])
        """
        self._square("cholesky")
        if not isinstance(self.scale, torch.Tensor) and not (isinstance(self.scale, (int, float)) and self.scale > 0):
            raise ParameterError(f"cholesky needs a positive scale, not {self.scale!r}")

        def lower_or_upper(factor: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky(factor, upper=upper)

        factors = self._each(lambda factor: decomposed(lower_or_upper, factor, "is not positive definite"))
        return self.like(factors, self.scale**0.5)

    def eigh(self) -> tuple[torch.Tensor, KroneckerProduct]:
        """Return the eigenvalues and eigenvectors of a product of symmetric factors.

        Returns
        -------
        values : tensor, shape (…, n)
            In the order of the product: they are not sorted.
        vectors : KroneckerProduct
            Its columns are the eigenvectors, in the same order.

        Raises
        ------
        ShapeError
            If a factor is not square.

        Notes
        -----
        Cost: about 9 q³ operations for each factor (q, q), of which the lower triangle is read. Gradients exist where
        the eigenvalues of each factor differ.
        """
        self._square("eigh")
        parts = [(self._ones(own), own) if isinstance(own, int) else own for own in self._decomposed(torch.linalg.eigh)]
        return self._combined([values for values, _ in parts]), self.like([vectors for _, vectors in parts], 1)

    def eigvalsh(self) -> torch.Tensor:
        """Return the eigenvalues as of ``eigh``; their derivative exists for repeated ones too."""
        self._square("eigvalsh")
        values = self._decomposed(torch.linalg.eigvalsh)
        return self._combined([self._ones(own) if isinstance(own, int) else own for own in values])

    def svd(self) -> tuple[KroneckerProduct, torch.Tensor, KroneckerProduct]:
        """Return the reduced singular value decomposition, from those of the factors.

        Returns
        -------
        u : KroneckerProduct
        values : tensor, shape (…, k)
            In the order of the product: they are not sorted.
        vh : KroneckerProduct

        Notes
        -----
        ``u.to_dense() @ values.diag() @ vh.to_dense()`` is the matrix. Gradients exist where the singular values of
        each factor differ.
        """
        found = self._decomposed(partial(torch.linalg.svd, full_matrices=False))
        parts = [(own, own, own) if isinstance(own, int) else own for own in found]
        values = [self._ones(own) if isinstance(own, int) else own for _, own, _ in parts]
        sign = torch.sgn(torch.as_tensor(self.scale, dtype=self.dtype, device=self.device))
        left, right = self.like([u for u, _, _ in parts], sign), self.like([v for _, _, v in parts], 1)
        return left, self._combined(values).abs(), right

    def _ones(self, count: int) -> torch.Tensor:
        return torch.ones(count, dtype=self.dtype.to_real(), device=self.device)

    def _combined(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        return scaled(outer([value.unsqueeze(-1) for value in values]).squeeze(-1), self.scale, 1)
