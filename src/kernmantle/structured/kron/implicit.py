"""Solutions of linear systems with symmetric operators, differentiable through the system itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import LinearAlgebraError

Multiply = Callable[[Sequence[torch.Tensor], torch.Tensor], torch.Tensor]
Solve = Callable[[torch.Tensor], torch.Tensor]


class _Implicit(torch.autograd.Function):
    """x with A(parameters) x = b: the gradient of b solves the same system, those of A follow from A x."""

    @staticmethod
    def forward(
        ctx: Any, multiply: Multiply, solve: Solve, count: int, b: torch.Tensor, *parameters: torch.Tensor
    ) -> torch.Tensor:
        x = solve(b)
        ctx.multiply, ctx.solve, ctx.count = multiply, solve, count
        ctx.save_for_backward(x, *parameters)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, *parameters = ctx.saved_tensors
        of_b = solved(ctx.multiply, ctx.solve, grads[0], parameters)
        wanted = [index for index in range(len(parameters)) if ctx.needs_input_grad[4 + index]]
        found: list[torch.Tensor | None] = [None] * len(parameters)
        if wanted:
            # x depends on the parameters too: a pullback holds it fixed, where autograd.grad would come back here.
            pulled: Any = torch.func.vjp(lambda *values: ctx.multiply(values, x), *parameters)
            slopes = pulled[1](-of_b)
            for index in wanted:
                found[index] = slopes[index]
        return None, None, None, of_b, *found


def solved(multiply: Multiply, solve: Solve, b: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """``solve(b)``, where ``multiply(parameters, x)`` is the symmetric operator, with gradients of every order."""
    if torch.is_grad_enabled() and any(value.requires_grad for value in (b, *parameters)):
        result: Any = _Implicit.apply(multiply, solve, len(parameters), b, *parameters)
        return result
    return solve(b)


def conjugate_gradients(
    multiply: Solve, diagonal: torch.Tensor, b: torch.Tensor, tolerance: float, most: int
) -> torch.Tensor:
    """Return the solution by conjugate gradients with the diagonal as preconditioner, all columns together.

    The residual is read every eighth step, which waits for the device.
    """
    scale = diagonal.unsqueeze(-1).reciprocal()
    x, r = torch.zeros_like(b), b
    z = scale * r
    p, rho = z, (r * z).sum(-2, keepdim=True)
    aim = tolerance * b.norm(dim=-2)
    for step in range(most + 1):
        if step % 8 == 0 and bool((r.norm(dim=-2) <= aim).all()):
            return x
        q = multiply(p)
        curvature = (p * q).sum(-2, keepdim=True)
        alpha = torch.where(rho == 0, rho, rho / curvature)
        x, r = x + alpha * p, r - alpha * q
        z = scale * r
        rho, before = (r * z).sum(-2, keepdim=True), rho
        p = z + torch.where(before == 0, before, rho / before) * p
    worst = float((r.norm(dim=-2) / b.norm(dim=-2)).max())
    raise LinearAlgebraError(
        f"conjugate gradients left a relative residual of {worst:.1e} after {most} steps, more than {tolerance:.1e}; "
        "allow more steps or a larger tolerance, or see whether the sum is symmetric positive definite"
    )
