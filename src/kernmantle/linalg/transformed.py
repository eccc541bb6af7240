"""Direct methods under transforms of torch.func and in forward mode, nested as they may be.

Each derivative factors its matrix anew, on whatever the transforms leave of it: a call that nothing but autograd
watches keeps its factor instead, see ``implicit``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functorch  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

from ..errors import GradientError
from .arguments import System, watched
from .solution import Solution

Run = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Solution and infos of plain tensors, whose batch axes broadcast."""
RAN = "torch.func over the direct method"


def check_one_forward() -> None:
    """GradientError for forward mode in forward mode: torch drops tangents of tangents within a ``jvp`` of our own."""
    if sum(each.key() == _functorch.TransformType.Jvp for each in _functorch.get_interpreter_stack() or ()) > 1:
        raise GradientError("solvers have no forward mode within forward mode: take one of both in reverse, as jacrev")


def symmetrised(a: torch.Tensor) -> torch.Tensor:
    """Return the symmetric part."""
    return (a + a.mT) / 2


class _Solved(torch.autograd.Function):
    """Solution and infos; b has the batch of the solution."""

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, run: Run, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG004
        return run(a, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        a, _, ctx.run, ctx.symmetric = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(a, output[0])
        ctx.save_for_forward(a, output[0])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, None, None]:
        a, x = ctx.saved_tensors
        of_b, _ = _solve(a if ctx.symmetric else a.mT, gradients[0], ctx.run, ctx.symmetric)
        of_a = None
        if ctx.needs_input_grad[0]:
            of_a = -(of_b @ x.mT)
            of_a = (symmetrised(of_a) if ctx.symmetric else of_a).sum_to_size(a.shape)
        return of_a, of_b, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[torch.Tensor, None]:
        check_one_forward()
        of_a, of_b, *_ = tangents
        a, x = ctx.saved_tensors
        moved = torch.zeros_like(x) if of_b is None else of_b
        if of_a is not None:
            moved = moved - (symmetrised(of_a) if ctx.symmetric else of_a) @ x
        return _solve(a, moved, ctx.run, ctx.symmetric)[0], None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        (of_a, of_b, *_), (a, b, run, symmetric) = in_dims, args
        b = b.expand(info.batch_size, *b.shape) if of_b is None else b.movedim(of_b, 0)
        if of_a is None:
            return _solve(a, b, run, symmetric), (0, None)
        a = a.movedim(of_a, 0)
        own = a.shape[:-2]
        wide = a.reshape(own[0], *(1,) * (b.dim() - a.dim()), *a.shape[1:])
        x, found = _solve(wide, b, run, symmetric)
        return (x, found.reshape(own)), (0, 0)


def _solve(a: torch.Tensor, b: torch.Tensor, run: Run, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return _Solved.apply(a, b, run, symmetric)  # pyright: ignore[reportReturnType]


class _LogDeterminant(torch.autograd.Function):
    @staticmethod
    def forward(a: torch.Tensor, value: Callable[[torch.Tensor], torch.Tensor], run: Run) -> torch.Tensor:  # noqa: ARG004
        return value(a)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG004
        a, _, ctx.run = inputs
        ctx.save_for_backward(a)
        ctx.save_for_forward(a)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (a,) = ctx.saved_tensors
        return gradients[0][..., None, None] * _inverse(a, ctx.run), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        check_one_forward()
        (a,) = ctx.saved_tensors
        return (_inverse(a, ctx.run) * tangents[0]).sum((-2, -1))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:  # noqa: ARG004
        return _LogDeterminant.apply(args[0].movedim(in_dims[0], 0), *args[1:]), 0


def _inverse(a: torch.Tensor, run: Run) -> torch.Tensor:
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    return _solve(a, eye.expand(a.shape), run, True)[0]


def log_determinant(a: torch.Tensor, value: Callable[[torch.Tensor], torch.Tensor], run: Run) -> torch.Tensor:
    """Return what ``value`` gives for a symmetric matrix, with derivatives by solutions of ``run``."""
    return _LogDeterminant.apply(a, value, run)  # pyright: ignore[reportReturnType]


def solution(pair: System, run: Run, symmetric: bool, **asked: object) -> Solution | None:
    """The solution of a system that a transform sees, None if none does; ``asked`` are options that it cannot have."""
    if not watched(pair.a, pair.b):
        return None
    refuse(**asked)
    x, info = _solve(pair.a, pair.b.expand(pair.shape), run, symmetric)
    return Solution(pair.finished(x), pair.wrap(info), RAN)


def refuse(**asked: object) -> None:
    """Raise GradientError for options that write to what is given, or read what is not there yet."""
    for name, value in asked.items():
        if value:
            raise GradientError(f"{name}={value!r} cannot be had under torch.func or in forward mode: drop it")
