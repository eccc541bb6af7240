"""Linear systems of formulas by conjugate gradients, with gradients of every order.

The matrix of a system of few unknowns is stored and factored once. Solutions by the factor are corrected by what the
formula leaves, and the factor preconditions conjugate gradients where that is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import ParameterError, ShapeError
from ...linalg.block_cg import Columns
from ...linalg.cg import cg
from ...linalg.cholesky import Triangle, factorise
from .algebra import flattened, linear_in
from .expression import Expression, Leaf, Symbol, checked_types, components, leaves, substituted
from .lowering import hoisted, materialized

UNKNOWN = -1
"""Position of the variable that a system is solved for."""
_MOST = 10_000
"""Products that a solve may take."""
_FACTORED = 16_384
"""Most unknowns whose matrix is factored, which is 1 GiB of float32. A factor takes n / 3 times the operations of a
product, which conjugate gradients take hundreds of where a ridge is small."""
_RAISED = (0.0, 1.0, 100.0)
"""Numbers added to the diagonal, in this order, until the matrix has a factor; in units of rounding of its trace."""


@dataclass(frozen=True)
class System:
    """``α b + Σ formula(b)`` for a variable b; it stops where the mean square of the residual is below eps²."""

    formula: Expression
    axis: str
    total: Callable[[Expression], torch.Tensor]
    alpha: float
    eps: float

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Tensors of the formula that require a gradient."""
        return [leaf.tensor for leaf in leaves(self.formula) if leaf.tensor.requires_grad]

    def apply(self, b: torch.Tensor, parameters: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """Return the left-hand side, with other tensors for its parameters where they are given."""
        new = {} if parameters is None else dict(zip(map(id, self.parameters), parameters, strict=True))

        def replace(part: Expression) -> Expression | None:
            if isinstance(part, Symbol) and part.position == UNKNOWN:
                unknown = Leaf(b, self.axis)
                return unknown if part.chosen is None else components(unknown, part.chosen)
            if isinstance(part, Leaf) and id(part.tensor) in new:
                return Leaf(new[id(part.tensor)], "".join(part.axes), part.weak)
            return None

        return self.alpha * b + self.total(substituted(self.formula, replace))

    def solved(self, right: torch.Tensor) -> torch.Tensor:
        """Return the solution, without a gradient."""
        operator = _Flat(self, right)
        size = float(right.double().square().mean().sqrt())
        if size == 0:
            return torch.zeros_like(right)
        limit = min(1.0, max(self.eps / size, 4 * torch.finfo(right.dtype).eps))
        inverse, columns = self._inverse(right), right.detach().reshape(-1, 1)
        first = None if inverse is None else _refined(operator, inverse, columns, limit)
        if first is not None and first.converged:
            return first.x.reshape(right.shape)
        found = cg(
            operator, columns[:, 0], preconditioner=inverse, x0=None if first is None else first.x[:, 0],
            tolerance=limit, max_iterations=_MOST,
        )  # fmt: skip
        return found.x.reshape(right.shape)

    def _inverse(self, right: torch.Tensor) -> Columns | None:
        """Return the inverse by a factor of the matrix, nearly where rounding leaves no other; None without one."""
        entries, (n, dim) = linear_in(self.formula, UNKNOWN), right.shape
        if entries is None or entries.extents != {"i": n, "j": n} or entries.batch or not 1 < n <= _FACTORED:
            return None
        with torch.no_grad():
            for units in _RAISED:
                matrix = materialized(hoisted(flattened(hoisted(checked_types(entries))))).tensor.squeeze(-1)
                diagonal = matrix.diagonal()
                unit = torch.finfo(matrix.dtype).eps * diagonal.abs().sum()
                diagonal.add_(self.alpha + units * unit)
                found = factorise(matrix, lower=True, overwrite=True, clean=False)
                if int(found.info) == 0:
                    triangle = Triangle(found.factor, found.lower)
                    return lambda columns: triangle.solve(columns.reshape(n, -1)).reshape(n * dim, -1)
        return None


class _Flat:
    """The system on vectors of all components."""

    requires_grad = False

    def __init__(self, system: System, like: torch.Tensor) -> None:
        self._system, self._like = system, like
        self.shape = (like.numel(), like.numel())
        self.dtype, self.device = like.dtype, like.device

    def __matmul__(self, columns: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [self._system.apply(v.reshape(self._like.shape)).reshape(-1) for v in columns.unbind(-1)], -1
        )


@dataclass(frozen=True)
class _Refined:
    """A solution, and whether its residual is within the tolerance."""

    x: torch.Tensor
    converged: bool


def _refined(operator: _Flat, inverse: Columns, right: torch.Tensor, limit: float) -> _Refined:
    """Return the solution by corrections, each the factor's solution for what is left, while that falls to half."""
    x, rest = torch.zeros_like(right), right
    before = length = float(torch.linalg.vector_norm(right, dtype=torch.float64))
    while True:
        new = x + inverse(rest)
        left = right - operator @ new
        size = float(torch.linalg.vector_norm(left, dtype=torch.float64))
        if size <= limit * length:
            return _Refined(new, True)
        if not size <= before / 2:
            return _Refined(x, False)
        x, rest, before = new, left, size


class _Solved(torch.autograd.Function):
    """The solution as a function of the right-hand side and of the parameters of the system."""

    @staticmethod
    def forward(ctx: Any, system: System, right: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        ctx.system = system
        solution = system.solved(right)
        ctx.save_for_backward(solution)
        return solution

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[Any, ...]:
        (solution,) = ctx.saved_tensors
        system, parameters = ctx.system, ctx.system.parameters
        moved = _Solved.apply(system, cotangents[0], *parameters)
        if not parameters:
            return None, moved
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Views, on which the solution does not depend: its own dependence is what is being computed.
            own = [tensor.view_as(tensor) for tensor in parameters]
            left = system.apply(solution, own)
            found = torch.autograd.grad(left, own, -moved, create_graph=graph, allow_unused=True)  # pyright: ignore[reportOperatorIssue]
        return None, moved, *found


def solve_formula(system: System, right: torch.Tensor) -> torch.Tensor:
    """Return b with ``α b + Σ formula(b)`` equal to a right-hand side (rows, D)."""
    if right.dim() != 2:
        raise ShapeError(f"systems take one right-hand side without batch dimensions; got {tuple(right.shape)}")
    if not system.alpha >= 0 or not system.eps > 0:
        raise ParameterError(f"alpha is at least 0 and eps positive; got {system.alpha} and {system.eps}")
    parameters = system.parameters if torch.is_grad_enabled() else []
    return _Solved.apply(system, right, *parameters)  # pyright: ignore[reportReturnType]
