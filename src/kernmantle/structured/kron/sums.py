"""Sums of Kronecker products: two by joint diagonalisation, factor by factor, more by conjugate gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...arrays import dtype_name, unwrap
from ...errors import DeviceError, DtypeError, GradientError, ParameterError, ShapeError
from ...ir.equation import broadcast
from ...pairwise.inputs import readable
from .factors import Factor, check_right_side, decomposed, outer, repartitioned, sizes, spread
from .implicit import Solve, System, conjugate_gradients, solved
from .matmul import kron_matmul


class Term(Protocol):
    """The methods of a product that a sum calls."""

    factors: tuple[Factor, ...]
    scale: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch axes."""
        ...

    @property
    def T(self) -> Term:
        """The transpose."""
        ...

    @property
    def mH(self) -> Term:
        """The adjoint."""
        ...

    def like(self, factors: Sequence[Factor], scale: Any) -> Term:
        """Return another on the same device."""
        ...

    def matmul(self, v: Any, *, y: Any = None) -> Any:
        """Return ``self @ v``, plus y."""
        ...

    def to(self, *args: Any, **options: Any) -> Term:
        """Return another on another device or of another type."""
        ...

    def to_dense(self) -> torch.Tensor:
        """Return the matrix."""
        ...

    def diagonal(self) -> torch.Tensor:
        """Return the entries on the diagonal."""
        ...

    def trace(self) -> torch.Tensor:
        """Return the sum of the diagonal."""
        ...

    def slogdet(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sign and the logarithm of the absolute determinant."""
        ...

    def __matmul__(self, other: Any) -> Any: ...
    def __rmatmul__(self, v: Any) -> Any: ...
    def __mul__(self, scalar: Any) -> Term: ...


@dataclass(frozen=True)
class _TwoTerms:
    """Factors and scales of two terms ``s ⊗Aᵢ + t ⊗Bᵢ`` with the same sizes, the Bᵢ positive definite."""

    a: Sequence[Factor]
    b: Sequence[Factor]
    s: Any
    t: Any

    def values(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the eigenvalues of the sum over ⊗Bᵢ, from those of every Aᵢ over its Bᵢ."""
        return outer([part.unsqueeze(-1) for part in parts]).squeeze(-1) * spread(self.s, 1) + spread(self.t, 1)


class Addable:
    """Sums, differences and the negative of an operator that is a sum of Kronecker products, or one of them."""

    terms: Any

    def __mul__(self, scalar: Any) -> Any: ...

    def __add__(self, other: Any) -> SumOfProducts:
        terms = getattr(other, "terms", None)
        if terms is None and (hasattr(other, "shape") or isinstance(other, (int, float, complex))):
            raise TypeError("only Kronecker products are added: s * km.KroneckerProduct([n]) is s times the identity")
        return NotImplemented if terms is None else SumOfProducts([*self.terms, *terms])

    def __radd__(self, other: Any) -> Any:
        return self if isinstance(other, int) and other == 0 else self + other  # the 0 that sum() begins with

    def __sub__(self, other: Any) -> SumOfProducts:
        return self + -other

    def __neg__(self) -> Any:
        return self * -1

    def __truediv__(self, scalar: Any) -> Any:
        return self * (1 / scalar)


class SumOfProducts(Addable):
    """The linear operator ``K_1 + K_2 + …`` of Kronecker products of one shape, never formed.

    ``solve`` and ``logdet`` are for symmetric positive definite sums. Two terms whose factors have the same sizes,
    those of one positive definite, are diagonalised together, factor by factor: with ``B = L Lᵀ`` and
    ``L⁻¹ A L⁻ᵀ = Q Λ Qᵀ``, ``s A + t B = (L Q) (s Λ + t) (L Q)ᵀ``, which ``solve`` takes for an indefinite sum too.
    An identity has the sizes that the other term needs, so ``K + s * KroneckerProduct([n])`` is of this kind.
    Everything else is solved by conjugate gradients.

    Parameters
    ----------
    terms : sequence of KroneckerProduct

    Attributes
    ----------
    terms : tuple of KroneckerProduct
    shape : tuple of int

    Raises
    ------
    ShapeError, DtypeError, DeviceError
        If the terms differ in shape, type or device.
    ParameterError
        If there are none.

    Notes
    -----
    A product with it costs one :func:`kernmantle.kron_matmul` for each term, ``solve`` and ``logdet`` of two terms
    one decomposition for each factor, and one more of each where neither is an identity. All have gradients. Source:
    Rakitsch, Lippert, Borgwardt and Stegle, It is all in the noise, 2013.

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

    def __init__(self, terms: Sequence[Term]) -> None:
        if not isinstance(terms, (list, tuple)) or not all(hasattr(term, "factors") for term in terms) or not terms:
            raise ParameterError(f"a sum is made of a list of Kronecker products, not of {terms!r}")
        shapes = {term.shape[-2:] for term in terms}
        if len(shapes) != 1:
            raise ShapeError(f"terms of shapes {', '.join(map(str, sorted(shapes)))} cannot be added")
        placed = next((t for t in terms if any(isinstance(f, torch.Tensor) for f in t.factors)), terms[0])
        self.terms = tuple(placed.like(term.factors, term.scale) if _is_identity(term) else term for term in terms)
        self.dtype, self.device = self.terms[0].dtype, self.terms[0].device
        for index, term in enumerate(self.terms):
            if term.dtype != self.dtype:
                kinds = dtype_name(self.dtype), dtype_name(term.dtype)
                raise DtypeError(f"term 0 is {kinds[0]} but term {index} is {kinds[1]}; convert one with .to(dtype)")
            if term.device != self.device:
                raise DeviceError(f"term 0 is on {self.device} but term {index} on {term.device}; move one with .to")
        batch = broadcast([tuple(term.batch) for term in terms])
        if batch is None:
            raise ShapeError(f"batch axes {', '.join(str(tuple(term.batch)) for term in terms)} do not broadcast")
        self.shape = (*batch, *terms[0].shape[-2:])

    def __repr__(self) -> str:
        return f"SumOfProducts({' + '.join(map(repr, self.terms))})"

    def matmul(self, v: Any) -> Any:
        """Return ``self @ v``, with the shapes and errors of :meth:`KroneckerProduct.matmul`, once for each term."""
        total = self.terms[0].matmul(v)
        for term in self.terms[1:]:
            total = term.matmul(v, y=total)
        return total

    __matmul__ = matmul

    def __rmatmul__(self, v: Any) -> Any:
        total = v @ self.terms[0]
        for term in self.terms[1:]:
            total = kron_matmul(v, term.factors, alpha=term.scale, beta=1, y=total)
        return total

    def __mul__(self, scalar: Any) -> SumOfProducts:
        return SumOfProducts([term * scalar for term in self.terms])

    __rmul__ = __mul__

    def to(self, *args: Any, **options: Any) -> SumOfProducts:
        """Return the sum on another device or of another type, by ``torch.Tensor.to`` with these arguments."""
        return SumOfProducts([term.to(*args, **options) for term in self.terms])

    @property
    def T(self) -> SumOfProducts:
        """The transpose."""
        return SumOfProducts([term.T for term in self.terms])

    def to_dense(self) -> torch.Tensor:
        """Return the matrix (…, rows, columns)."""
        return _added([term.to_dense() for term in self.terms])

    def diagonal(self) -> torch.Tensor:
        """Return the entries on the diagonal."""
        return _added([term.diagonal() for term in self.terms])

    def trace(self) -> torch.Tensor:
        """Return the sum of the diagonal."""
        return _added([term.trace() for term in self.terms])

    def _two_terms(self) -> _TwoTerms | None:
        """Return both terms with the same sizes, that with the better factors last; None where there are none."""
        if len(self.terms) != 2:
            return None
        a, b = self.terms
        if any(rows != columns for term in self.terms for rows, columns in sizes(term.factors)):
            return None
        for one in self.terms:
            wanted = [rows for rows, _ in sizes(one.factors)]
            first, second = repartitioned(a.factors, wanted), repartitioned(b.factors, wanted)
            if first is not None and second is not None:
                return _ordered(_TwoTerms(first, second, a.scale, b.scale))
        return None

    def _whitened(self, terms: _TwoTerms) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """L⁻¹ A L⁻ᵀ and L for every pair of factors, L None for the identity."""
        found: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for own, other in zip(terms.a, terms.b, strict=True):
            matrix = torch.eye(own, dtype=self.dtype, device=self.device) if isinstance(own, int) else own
            lower = None
            if isinstance(other, torch.Tensor):
                lower = decomposed(torch.linalg.cholesky, other, "is not positive definite")
                half = torch.linalg.solve_triangular(lower, matrix, upper=False)
                matrix = torch.linalg.solve_triangular(lower, half.mH, upper=False)
            found.append((matrix, lower))
        return found

    def _described(self) -> list[tuple[torch.Tensor, int]]:
        """Return the tensors among factors and scales, with how many axes of each are no batch axes."""
        every = [each for term in self.terms for each in (*((own, 2) for own in term.factors), (term.scale, 0))]
        return [(value, axes) for value, axes in every if isinstance(value, torch.Tensor)]

    def _parameters(self) -> list[torch.Tensor]:
        return [value for value, _ in self._described()]

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

    def solve(self, b: Any, *, tolerance: float | None = None, max_iterations: int | None = None) -> Any:
        """Return ``x`` with ``self @ x = b`` for b (…, n, m) or a vector.

        Parameters
        ----------
        b : array
            Of the type of the terms.
        tolerance : float, optional
            Relative residual at which conjugate gradients stop; the square root of the machine's epsilon by default.
        max_iterations : int, optional
            Most steps of conjugate gradients; 10 n by default.

        Returns
        -------
        array
            With gradients of every order for b and all factors and scales.

        Raises
        ------
        ShapeError, DtypeError
            For an operator that is not square, or ``b`` that does not fit it.
        LinearAlgebraError
            If conjugate gradients do not reach the tolerance.
        """
        if self.shape[-2] != self.shape[-1]:
            raise ShapeError(f"solve needs a square operator, not {self.shape[-2:]}")
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            raise DtypeError(f"the operator is {dtype_name(self.dtype)}, which does not divide; use .to(torch.float32)")
        wrap, b = unwrap(b, names=("b",))[1], check_right_side(b, self)
        columns = b.unsqueeze(-1) if b.dim() == 1 else b
        columns = columns.expand(torch.broadcast_shapes(columns.shape[:-2], self.shape[:-2]) + columns.shape[-2:])
        system = System(
            lambda parameters, x: self._with_parameters(parameters) @ x,
            lambda parameters, tangents, x: self._with_parameters(parameters)._moved(tangents, x),
            lambda parameters: self._solver(parameters, tolerance, max_iterations),
            tuple([axes for _, axes in self._described()]),
        )
        x = solved(system, columns, self._parameters())
        return wrap(x.squeeze(-1) if b.dim() == 1 else x)

    def _moved(self, tangents: Sequence[Any], x: torch.Tensor) -> torch.Tensor:
        """Return the derivative of the product with x along tangents of the parameters."""
        rest, total = iter(tangents), torch.zeros_like(x)
        for term in self.terms:
            every = [*term.factors, term.scale]
            for index, value in enumerate(every):
                tangent = next(rest) if isinstance(value, torch.Tensor) else None
                if tangent is not None:
                    *factors, scale = [*every[:index], tangent, *every[index + 1 :]]
                    total = total + term.like(factors, scale) @ x
        return total

    def _solver(self, parameters: Sequence[torch.Tensor], tolerance: float | None, most: int | None) -> Solve:
        with torch.no_grad():
            fixed = self._with_parameters([parameter.detach() for parameter in parameters])
            terms = fixed._two_terms()
            if terms is not None:
                parts = self._whitened(terms)
                spectra = [decomposed(torch.linalg.eigh, matrix) for matrix, _ in parts]
                shifted = terms.values([value for value, _ in spectra]).unsqueeze(-1)
                vectors = [
                    vector if lower is None else torch.linalg.solve_triangular(lower.mH, vector, upper=True)
                    for (_, vector), (_, lower) in zip(spectra, parts, strict=True)
                ]
                transformed = fixed.terms[1].like(vectors, 1)
                return lambda b: transformed @ ((transformed.mH @ b) / shifted)
            aim = torch.finfo(self.dtype).eps ** 0.5 if tolerance is None else tolerance
            steps = 10 * self.shape[-1] if most is None else most
            return lambda b: conjugate_gradients(fixed.__matmul__, fixed.diagonal(), b, aim, steps)

    def logdet(self) -> torch.Tensor:
        """Return the logarithm of the determinant, for two terms that are diagonalised together.

        Raises
        ------
        ParameterError
            For more than two terms, factors of different sizes, or no term with positive definite factors.
        """
        terms = self._two_terms()
        if terms is None:
            raise ParameterError(
                "logdet of a sum needs two terms whose square factors have the same sizes, those of one positive "
                "definite; use torch.linalg.slogdet(operator.to_dense())"
            )
        whitened = [matrix for matrix, _ in self._whitened(terms)]
        values = terms.values([decomposed(torch.linalg.eigvalsh, matrix) for matrix in whitened])
        return values.log().sum(-1) + self.terms[1].like(terms.b, 1).slogdet()[1]


def _margin(factors: Sequence[Factor]) -> float:
    """Return the least eigenvalue of a product over its largest: 1 for identities, 0 without positive definiteness."""
    total = 1.0
    for factor in factors:
        if isinstance(factor, torch.Tensor) and factor.numel():
            values = decomposed(torch.linalg.eigvalsh, factor.detach())
            if not readable(values):
                raise GradientError("vmap hides the eigenvalues of factors; pass a batch of factors (…, p, p) instead")
            least = float((values[..., 0] / values.abs().amax(-1)).min())
            total = total * least if least > factor.shape[-1] * torch.finfo(values.dtype).eps else 0.0
    return total


def _ordered(terms: _TwoTerms) -> _TwoTerms | None:
    """Return the pair with its better factors last; None if those of neither are positive definite."""
    if all(isinstance(factor, int) for factor in terms.b):
        return terms
    first, second = _margin(terms.a), _margin(terms.b)
    if max(first, second) == 0:
        return None
    return terms if second >= first else _TwoTerms(terms.b, terms.a, terms.t, terms.s)


def _is_identity(term: Term) -> bool:
    return all(isinstance(factor, int) for factor in term.factors)


def _added(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
