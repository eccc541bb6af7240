"""Solutions of linear systems as differentiable functions of the matrix and the right-hand side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..errors import GradientError
from ..torch_ops.torch_private import apply_here, is_transformed, is_wrapped


class Solver(Protocol):
    """A factored matrix."""

    @property
    def symmetric(self) -> bool:
        """Return whether the matrix is symmetric."""
        ...

    def solve(self, b: torch.Tensor, overwrite: bool = False) -> torch.Tensor:
        """Return the solution for right-hand sides as columns."""
        ...

    def adjoint(self) -> Solver:
        """Return the same for the transposed matrix."""
        ...


class _Solved(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, solver: Solver, found: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        x = found[0] if found else solver.solve(b)
        ctx.solver = solver
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        a, x = ctx.saved_tensors
        solver: Solver = ctx.solver
        of_b = solved(a if solver.symmetric else a.mT, gradients[0], solver.adjoint())
        of_a = None
        if ctx.needs_input_grad[0]:
            of_a = (of_b * (-0.5 if solver.symmetric else -1)) @ x.mT
            of_a = of_a + of_a.mT if solver.symmetric else of_a
            of_a = of_a if of_a.shape == a.shape else of_a.sum_to_size(a.shape)
        return of_a, of_b, None, None


def solved(
    a: torch.Tensor, b: torch.Tensor, solver: Solver, overwrite: bool = False, x: torch.Tensor | None = None
) -> torch.Tensor:
    """``a⁻¹ b`` from a solver of a, with gradients of every order by both; b has the batch of the result.

    ``x`` is that result where it is there already.
    """
    saved = () if x is None else (x,)
    if is_transformed() and (is_wrapped(a) or is_wrapped(b)):
        return _Solved.apply(a, b, solver, saved)  # pyright: ignore[reportReturnType]
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return apply_here(_Solved, a, b, solver, saved)
    return solver.solve(b, overwrite) if x is None else x


class _LogDeterminant(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, value: torch.Tensor, solver: Solver) -> torch.Tensor:
        ctx.solver = solver
        ctx.save_for_backward(a)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (a,) = ctx.saved_tensors
        n = a.shape[-1]
        eye = torch.eye(n, dtype=a.dtype, device=a.device).expand(a.shape)
        return gradients[0][..., None, None] * solved(a, eye, ctx.solver), None, None


def log_determinant(a: torch.Tensor, value: torch.Tensor, solver: Solver) -> torch.Tensor:
    """Return a logarithm of the determinant of a symmetric matrix, known by value, as a function of the matrix."""
    if torch.is_grad_enabled() and a.requires_grad:
        return apply_here(_LogDeterminant, a, value, solver)
    return value


def _check_first_order() -> None:
    """Raise where a gradient is itself recorded: what it depends on through the iteration would be missing."""
    if torch.is_grad_enabled():
        raise GradientError(
            "iterations have gradients of the first order: drop create_graph=True, or use a direct method on the matrix"
        )


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _gap: torch.Tensor, solve: Callable[..., torch.Tensor]) -> torch.Tensor:
        ctx.solve = solve
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        _check_first_order()
        return None, ctx.solve(gradients[0]), None


def attached(x: torch.Tensor, gap: torch.Tensor, solve: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Return a solution x of a symmetric system with the first-order gradient of the system.

    ``gap`` is ``b - a x`` for that x as a constant, differentiable in whatever a and b depend on; ``solve`` takes
    a right-hand side.
    """
    if torch.is_grad_enabled() and gap.requires_grad:
        return apply_here(_Attached, x, gap, solve)
    return x


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, value: torch.Tensor, _surrogate: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:  # noqa: ARG004
        _check_first_order()
        return None, gradients[0]


def with_gradient_of(value: torch.Tensor, surrogate: torch.Tensor) -> torch.Tensor:
    """Return a value with the first-order gradient of another expression of the same shape."""
    if torch.is_grad_enabled() and surrogate.requires_grad:
        return apply_here(_WithGradientOf, value, surrogate)
    return value


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, v: torch.Tensor, _surrogate: torch.Tensor) -> torch.Tensor:
        return v.clone()

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[None, None]:  # noqa: ARG004
        raise GradientError("vectors of the iteration have no gradient, which needs all others; use method='direct'")


def differentiable(multiply: Any, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pairs with the gradients that a part of the spectrum has, where the operator has one."""
    if not torch.is_grad_enabled():
        return w, v
    products = multiply(v)
    if not products.requires_grad:
        return w, v
    surrogate = (v * products).sum(0)
    return with_gradient_of(w, surrogate), apply_here(_NoGradient, v, surrogate)
