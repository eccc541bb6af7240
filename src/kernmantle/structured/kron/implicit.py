"""Solutions of symmetric systems as differentiable functions of what their matrices are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import LinearAlgebraError
from ...torch_ops.torch_private import goes_forward, is_transformed

Multiply = Callable[[Sequence[torch.Tensor], torch.Tensor], torch.Tensor]
Solve = Callable[[torch.Tensor], torch.Tensor]


class _Implicit(torch.autograd.Function):
    """Solve A(parameters) x = b: the gradient by b solves the same system, and those by A follow from A x."""

    @staticmethod
    def forward(ctx: Any, multiply: Multiply, solve: Solve, b: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        x = solve(b)
        ctx.multiply, ctx.solve = multiply, solve
        ctx.save_for_backward(x, *parameters)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, *parameters = ctx.saved_tensors
        of_b = _recorded(ctx.multiply, ctx.solve, grads[0], parameters)
        return None, None, of_b, *_slopes(ctx.multiply, x, of_b, parameters, ctx.needs_input_grad[3:])


class _Transformed(torch.autograd.Function):
    """Solve A(parameters) x = b in torch.func and forward mode, where each level has its own parameters."""

    @staticmethod
    def forward(system: System, b: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return system.solver(parameters)(b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.system, saved = inputs[0], (output, *inputs[2:])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, *parameters = ctx.saved_tensors
        of_b = solved(ctx.system, grads[0], parameters)
        return None, of_b, *_slopes(ctx.system.multiply, x, of_b, parameters, ctx.needs_input_grad[2:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[torch.Tensor, int]:
        """Solve for one more batch axis in front, so that a solver may read values."""
        system, *tensors = args
        ranks = [
            tensor.dim() - axes - (dim is not None)
            for tensor, axes, dim in zip(tensors, (2, *system.axes), in_dims[1:], strict=True)
        ]
        moved: list[torch.Tensor] = []
        for tensor, rank, dim in zip(tensors, ranks, in_dims[1:], strict=True):
            shape = tensor.shape if dim is None else tensor.movedim(dim, 0).shape[1:]
            ones = (1,) * (max(ranks) - rank)
            moved.append(tensor if dim is None else tensor.movedim(dim, 0).reshape(info.batch_size, *ones, *shape))
        b, *parameters = moved  # of b there are all batch axes
        b = b.expand(info.batch_size, *b.shape) if in_dims[1] is None else b
        return solved(system, b, parameters), 0

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        x, *parameters = ctx.saved_tensors
        moved = ctx.system.move(parameters, tangents[2:], x)
        return solved(ctx.system, -moved if tangents[1] is None else tangents[1] - moved, parameters)


def _slopes(
    multiply: Multiply, x: torch.Tensor, of_b: torch.Tensor, parameters: Sequence[torch.Tensor], needed: Sequence[bool]
) -> list[torch.Tensor | None]:
    """Return the gradients by the parameters, from that by b."""
    if not any(needed):
        return [None] * len(parameters)
    # x depends on the parameters too: torch.func.vjp holds it fixed, where autograd.grad would recurse.
    vjp: Any = torch.func.vjp(lambda *values: multiply(values, x), *parameters)
    return [slope if wanted else None for slope, wanted in zip(vjp[1](-of_b), needed, strict=True)]


def _recorded(multiply: Multiply, solve: Solve, b: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    if torch.is_grad_enabled() and any(value.requires_grad for value in (b, *parameters)):
        result: Any = _Implicit.apply(multiply, solve, b, *parameters)
        return result
    return solve(b)


@dataclass(frozen=True, eq=False)
class System:
    """A symmetric operator as functions of its parameters: its product with x, the derivative of that, its solver.

    ``axes`` has how many axes of each parameter are no batch axes.
    """

    multiply: Multiply
    move: Callable[[Sequence[torch.Tensor], Sequence[Any], torch.Tensor], torch.Tensor]
    solver: Callable[[Sequence[torch.Tensor]], Solve]
    axes: tuple[int, ...]


def solved(system: System, b: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the solution for b with derivatives of every order."""
    if not torch.compiler.is_compiling() and (is_transformed() or goes_forward()):
        result: Any = _Transformed.apply(system, b, *parameters)
        return result
    return _recorded(system.multiply, system.solver(parameters), b, parameters)


def conjugate_gradients(
    multiply: Solve, diagonal: torch.Tensor, b: torch.Tensor, tolerance: float, most: int
) -> torch.Tensor:
    """Return the solution by conjugate gradients with the diagonal as preconditioner, all columns together.

    The host reads the residual every eighth step, which synchronises with the device.
    """
    scale = diagonal.unsqueeze(-1).reciprocal()
    x, r = torch.zeros_like(b), b
    z = scale * r
    p, rho = z, (r.conj() * z).sum(-2, keepdim=True)
    aim = tolerance * b.norm(dim=-2)
    for step in range(most + 1):
        if step % 8 == 0 and bool((r.norm(dim=-2) <= aim).all()):
            return x
        q = multiply(p)
        curvature = (p.conj() * q).sum(-2, keepdim=True)
        alpha = torch.where(rho == 0, rho, rho / curvature)
        x, r = x + alpha * p, r - alpha * q
        z = scale * r
        rho, before = (r.conj() * z).sum(-2, keepdim=True), rho
        p = z + torch.where(before == 0, before, rho / before) * p
    worst = float((r.norm(dim=-2) / b.norm(dim=-2)).max())
    raise LinearAlgebraError(
        f"conjugate gradients left a relative residual of {worst:.1e} after {most} steps, more than {tolerance:.1e}; "
        "allow more steps or a larger tolerance, or see whether the sum is symmetric positive definite"
    )
