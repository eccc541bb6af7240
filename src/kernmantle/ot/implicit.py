"""Derivatives of potentials and of the value at the optimum, which do not go through the iteration.

The value's gradient is that of the dual objective at fixed potentials (envelope theorem). The potentials satisfy
f = F(g) and g = G(f), whose derivative is a linear system with products with the plan, solved by conjugate gradients.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ..errors import GradientError, KernmantleWarning
from ..linalg.block_cg import iterate, read
from ..torch_ops.recompute import vjp
from ..torch_ops.torch_private import apply_here
from .problem import Problem, balanced

_LIMIT = 1000  # iterations
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
"""Relative residual of the linear system: a hundred and a hundred thousand units of rounding."""


def attached(problem: Problem, f: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return potentials with their first-order derivatives by all tensors of the problem."""
    of_f, of_g = problem.potential(g), problem.transposed.potential(f)
    if of_f.requires_grad or of_g.requires_grad:
        f, g = apply_here(_Attached, problem.detached, f, g, of_f, of_g)
    return balanced(problem, f, g)


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, problem: Problem, f: torch.Tensor, g: torch.Tensor, _f: torch.Tensor, _g: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.problem, ctx.potentials = problem, (f, g)
        return f.clone(), g.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[None, None, None, torch.Tensor, torch.Tensor]:
        if torch.is_grad_enabled():
            raise GradientError(
                "potentials and plans have derivatives of the first order, the value of the second: drop "
                "create_graph=True"
            )
        return None, None, None, *_adjoint(ctx.problem, *ctx.potentials, *cotangents)


def _adjoint(
    problem: Problem, f: torch.Tensor, g: torch.Tensor, of_f: torch.Tensor, of_g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cotangents of F(g) and G(f) for those of the potentials.

    They solve u = of_f - d Sᵀ w and w = of_g - d Rᵀ u, where S and R are the softmax weights of G and F, and d is the
    damping. Without w that is a matrix I - d² Sᵀ Rᵀ, symmetric once the rows are scaled by the roots of a.
    """
    other, damping = problem.transposed, problem.damping
    of_rows, of_columns = problem.softmin(g), other.softmin(f)

    def by_columns(w: torch.Tensor) -> torch.Tensor:
        return damping * problem.weighted(f, of_columns, w)

    def by_rows(u: torch.Tensor) -> torch.Tensor:
        return damping * other.weighted(g, of_rows, u)

    root = problem.a.sqrt()
    inverse = torch.where(root > 0, 1 / root, 0.0)
    constant = torch.where(root > 0, 0.0, of_f)
    right = inverse * (of_f - by_columns(of_g) + by_columns(by_rows(constant)))

    def constant_part(v: torch.Tensor) -> torch.Tensor:
        """Return the part of v that only shifts mass from one potential to the other."""
        return root * ((root * v).sum(-1) / root.square().sum(-1)).unsqueeze(-1)

    def multiply(columns: torch.Tensor) -> torch.Tensor:
        v = columns.view(right.shape)
        result = v - inverse * by_columns(by_rows(root * v))
        return (result + constant_part(v) if problem.rho is None else result).reshape(columns.shape)

    if problem.rho is None:
        right = right - constant_part(right)
    solution = _solved(multiply, right)
    u = root * solution + constant
    return u, of_g - by_rows(u)


def _solved(multiply: Any, right: torch.Tensor) -> torch.Tensor:
    """Return the solution of the system of a whole batch, as one vector."""
    columns, tolerance = right.reshape(-1, 1), _TOLERANCE[right.dtype]
    whole = columns.square().sum(0).sqrt().clamp_min(torch.finfo(right.dtype).tiny)
    run = iterate(multiply, _same, _same, columns, whole, tolerance, _LIMIT)
    (residual,) = read(run.history[-1].double())
    if not residual <= 100 * tolerance:
        warnings.warn(
            f"the derivative of the potentials has a relative residual of {residual:.2g}, where {tolerance:.2g} was "
            "asked: raise eps, or use float64",
            KernmantleWarning, stacklevel=2,
        )  # fmt: skip
    return run.x.view(right.shape)


def _same(columns: torch.Tensor) -> torch.Tensor:
    return columns


def value(problem: Problem, f: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Return the dual objective at the optimum, with derivatives of the first and second order."""
    return apply_here(_Value, problem, f, g, *problem.tensors)


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: Problem, f: torch.Tensor, g: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.problem, ctx.potentials = problem.detached, (f, g)
        ctx.save_for_backward(*tensors)
        return ctx.problem.dual(f, g)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        needed = (False, False, *ctx.needs_input_grad[3:])
        (f, g), saved = ctx.potentials, ctx.saved_tensors
        if torch.is_grad_enabled():
            f, g = attached(ctx.problem.with_tensors(saved), f, g)

        def dual(f: torch.Tensor, g: torch.Tensor, *tensors: torch.Tensor) -> tuple[torch.Tensor]:
            return (ctx.problem.with_tensors(tensors).dual(f, g),)

        rest = iter(vjp(dual, (f, g, *saved), needed, lambda _: cotangents))
        return None, *(next(rest) if wanted else None for wanted in needed)
