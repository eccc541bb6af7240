"""Sums of Kronecker products: two by joint diagonalisation, factor by factor, more by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..contraction.equation import broadcast
from ..errors import ParameterError, ShapeError
from .factors import Factor, outer, repartitioned, sizes, spread
from .implicit import conjugate_gradients, solved
from .matmul import kron_matmul

if TYPE_CHECKING:
    from .product import KroneckerProduct


class SumOfProducts:
    """The linear operator ``K_1 + K_2 + …`` of Kronecker products of one shape, never formed.

    ``solve`` and ``logdet`` are for symmetric positive definite sums. Two terms whose factors have the same sizes, the
    last of them definite, are diagonalised together, factor by factor: with ``B = L Lᵀ`` and ``L⁻¹ A L⁻ᵀ = Q Λ Qᵀ``,
    ``A + B = (L Q) (Λ + 1) (L Q)ᵀ``. An identity has the sizes that the other term needs, so
    ``K + s * KroneckerProduct([n])`` is of this kind. Everything else is solved by conjugate gradients.

    Parameters
    ----------
    terms : sequence of KroneckerProduct

    Attributes
    ----------
    terms : tuple of KroneckerProduct
    shape : tuple of int

    Raises
    ------
    ShapeError
        If the terms differ in shape.

    Notes
    -----
    A product with it costs one :func:`kernmantle.kron_matmul` for each term, ``solve`` and ``logdet`` of two terms
    one decomposition for each factor. All have gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> k = km.KroneckerProduct([torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.eye(2)])
    >>> total = k + 0.5 * km.KroneckerProduct([4])
    >>> total @ torch.ones(4)
    tensor([3.5000, 3.5000, 3.5000, 3.5000])
    >>> torch.allclose(total.solve(total @ torch.ones(4)), torch.ones(4))
    True
    """

    __array_ufunc__ = None

    def __init__(self, terms: Sequence[KroneckerProduct]) -> None:
        shapes = {term.shape[-2:] for term in terms}
        if len(shapes) != 1:
            raise ShapeError(f"terms of shapes {', '.join(map(str, sorted(shapes)))} cannot be added")
        placed = next((t for t in terms if any(isinstance(f, torch.Tensor) for f in t.factors)), terms[0])
        self.terms = tuple(placed.like(term.factors, term.scale) if _is_identity(term) else term for term in terms)
        self.dtype, self.device = self.terms[0].dtype, self.terms[0].device
        batch = broadcast([tuple(term.batch) for term in terms])
        if batch is None:
            raise ShapeError(f"batch axes {', '.join(str(tuple(term.batch)) for term in terms)} do not broadcast")
        self.shape = (*batch, *terms[0].shape[-2:])

    def __repr__(self) -> str:
        return f"SumOfProducts({' + '.join(map(repr, self.terms))})"

    def __matmul__(self, v: Any) -> Any:
        total = self.terms[0] @ v
        for term in self.terms[1:]:
            total = term.matmul(v, beta=1, y=total)
        return total

    def __rmatmul__(self, v: Any) -> Any:
        total = v @ self.terms[0]
        for term in self.terms[1:]:
            total = kron_matmul(v, term.factors, alpha=term.scale, beta=1, y=total)
        return total

    def __add__(self, other: Any) -> SumOfProducts:
        terms = getattr(other, "terms", None)
        return NotImplemented if terms is None else SumOfProducts([*self.terms, *terms])

    def __mul__(self, scalar: Any) -> SumOfProducts:
        return SumOfProducts([term * scalar for term in self.terms])

    __rmul__ = __mul__

    def __neg__(self) -> SumOfProducts:
        return self * -1

    def __sub__(self, other: Any) -> SumOfProducts:
        return self + -other

    @property
    def T(self) -> SumOfProducts:
        """The transpose."""
        return SumOfProducts([term.T for term in self.terms])

    def to_dense(self) -> torch.Tensor:
        """The matrix (…, rows, columns)."""
        return _added([term.to_dense() for term in self.terms])

    def diagonal(self) -> torch.Tensor:
        """Entries on the diagonal."""
        return _added([term.diagonal() for term in self.terms])

    def trace(self) -> torch.Tensor:
        """Sum of the diagonal."""
        return _added([term.trace() for term in self.terms])

    def _pair(self) -> tuple[list[Factor], list[Factor]] | None:
        """Factors of both terms with the same sizes, scales in the first; None where there are none."""
        if len(self.terms) != 2:
            return None
        a, b = self.terms
        if any(rows != columns for term in self.terms for rows, columns in sizes(term.factors)):
            return None
        wanted = [rows for rows, _ in sizes(a.factors)]
        first, second = repartitioned(a.factors, wanted), repartitioned(b.factors, wanted)
        if second is None:
            wanted = [rows for rows, _ in sizes(b.factors)]
            first, second = repartitioned(a.factors, wanted), repartitioned(b.factors, wanted)
        return None if first is None or second is None else (first, second)

    def _whitened(self) -> list[tuple[torch.Tensor, torch.Tensor | None]] | None:
        """L⁻¹ A L⁻ᵀ and L for every pair of factors, L None for the identity; None where the sizes differ."""
        pair = self._pair()
        if pair is None:
            return None
        found: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for own, other in zip(*pair, strict=True):
            matrix = torch.eye(own, dtype=self.dtype, device=self.device) if isinstance(own, int) else own
            lower = None
            if isinstance(other, torch.Tensor):
                lower = torch.linalg.cholesky(other)
                half = torch.linalg.solve_triangular(lower, matrix, upper=False)
                matrix = torch.linalg.solve_triangular(lower, half.mH, upper=False)
            found.append((matrix, lower))
        return found

    def _eigenvalues(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        a, b = self.terms
        total = outer([value.unsqueeze(-1) for value in values]).squeeze(-1)
        return total * spread(a.scale, 1) / spread(b.scale, 1)

    def _parameters(self) -> list[torch.Tensor]:
        every = [value for term in self.terms for value in (*term.factors, term.scale)]
        return [value for value in every if isinstance(value, torch.Tensor)]

    def _with_parameters(self, parameters: Sequence[torch.Tensor]) -> SumOfProducts:
        rest = iter(parameters)
        terms = [
            term.like(
                [f if isinstance(f, int) else next(rest) for f in term.factors],
                next(rest) if isinstance(term.scale, torch.Tensor) else term.scale,
            )
            for term in self.terms
        ]
        return SumOfProducts(terms)

    def solve(
        self, b: torch.Tensor, *, tolerance: float | None = None, max_iterations: int | None = None
    ) -> torch.Tensor:
        """``x`` with ``self @ x = b`` for b (…, n, m) or a vector.

        Parameters
        ----------
        b : tensor
        tolerance : float, optional
            Relative residual at which conjugate gradients stop; the square root of the machine's epsilon by default.
        max_iterations : int, optional
            Most steps of conjugate gradients; 10 n by default.

        Returns
        -------
        tensor
            With gradients of every order for b and all factors and scales.

        Raises
        ------
        LinearAlgebraError
            If conjugate gradients do not reach the tolerance. torch raises its LinAlgError where the last of two terms
            is not positive definite.
        """
        if self.shape[-2] != self.shape[-1]:
            raise ShapeError(f"solve needs a square operator, not {self.shape[-2:]}")
        columns = b.unsqueeze(-1) if b.dim() == 1 else b
        columns = columns.expand(torch.broadcast_shapes(columns.shape[:-2], self.shape[:-2]) + columns.shape[-2:])
        x = solved(
            lambda parameters, x: self._with_parameters(parameters) @ x,
            self._solver(tolerance, max_iterations),
            columns,
            self._parameters(),
        )
        return x.squeeze(-1) if b.dim() == 1 else x

    def _solver(self, tolerance: float | None, most: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
        with torch.no_grad():
            fixed = self._with_parameters([parameter.detach() for parameter in self._parameters()])
            parts = fixed._whitened()
            if parts is not None:
                pairs = [torch.linalg.eigh(matrix) for matrix, _ in parts]
                shifted = fixed._eigenvalues([value for value, _ in pairs]) + 1
                vectors = [
                    vector if lower is None else torch.linalg.solve_triangular(lower.mH, vector, upper=True)
                    for (_, vector), (_, lower) in zip(pairs, parts, strict=True)
                ]
                turned = fixed.terms[1].like(vectors, fixed.terms[1].scale ** -0.5)
                return lambda b: turned @ ((turned.mH @ b) / shifted.unsqueeze(-1))
            aim = torch.finfo(self.dtype).eps ** 0.5 if tolerance is None else tolerance
            steps = 10 * self.shape[-1] if most is None else most
            return lambda b: conjugate_gradients(fixed.__matmul__, fixed.diagonal(), b, aim, steps)

    def logdet(self) -> torch.Tensor:
        """Logarithm of the determinant, for two terms that are diagonalised together.

        Raises
        ------
        ParameterError
            For more terms, or two with factors of different sizes.
        """
        parts, pair = self._whitened(), self._pair()
        if parts is None or pair is None:
            raise ParameterError(
                "logdet of a sum needs two terms whose square factors have the same sizes; use "
                "torch.linalg.slogdet(operator.to_dense())"
            )
        shifted = self._eigenvalues([torch.linalg.eigvalsh(matrix) for matrix, _ in parts]) + 1
        last = self.terms[1]
        return shifted.log().sum(-1) + last.like(pair[1], last.scale).logdet()


def _is_identity(term: KroneckerProduct) -> bool:
    return all(isinstance(factor, int) for factor in term.factors)


def _added(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
