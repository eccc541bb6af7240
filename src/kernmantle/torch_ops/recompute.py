"""Functions whose intermediate results are recomputed for derivatives, to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from .torch_private import is_recorded, no_transform, takes_functions

Tensors = Sequence[torch.Tensor]
Function = Callable[..., tuple[torch.Tensor, ...]]
Cotangents = Callable[[Tensors], Tensors]


def vjp(function: Function, inputs: Tensors, needed: Sequence[bool], cotangents: Cotangents) -> Tensors:
    """Return the gradients by the inputs that are needed, for cotangents that may depend on the outputs.

    They are differentiable if gradients are being recorded.
    """
    if not no_transform():
        return _transformed(function, inputs, needed, cotangents)
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [
            # A view of its own, so that an array that was passed twice has two gradients.
            value.view_as(value) if graph and value.requires_grad else value.detach().requires_grad_(wanted)
            for value, wanted in zip(inputs, needed, strict=True)
        ]
        outputs = function(*leaves)
    with torch.set_grad_enabled(graph):
        moved = list(zip(outputs, cotangents(outputs), strict=True))
    moved = [(output, cotangent) for output, cotangent in moved if output.requires_grad]
    wanted = [value for value, chosen in zip(leaves, needed, strict=True) if chosen]
    if not moved:
        return tuple(torch.zeros_like(value) for value in wanted)
    return torch.autograd.grad(
        [output for output, _ in moved], wanted, [cotangent for _, cotangent in moved], create_graph=graph,
        materialize_grads=True,
    )  # fmt: skip


def _transformed(function: Function, inputs: Tensors, needed: Sequence[bool], cotangents: Cotangents) -> Tensors:
    """Return the same gradients inside a transform of torch.func, which needs torch.func.vjp instead of autograd."""

    def of(*moving: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(moving)
        return function(*(next(rest) if wanted else value for value, wanted in zip(inputs, needed, strict=True)))

    outputs, vjp = torch.func.vjp(of, *(value for value, wanted in zip(inputs, needed, strict=True) if wanted))[:2]
    return vjp(tuple(cotangents(outputs)))


@dataclass(frozen=True)
class FunctionVjp:
    """Gradients of a function's outputs by its inputs, given the cotangents of the outputs behind the inputs."""

    function: Function
    needed: tuple[bool, ...]
    present: tuple[bool, ...]

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradients by the inputs that are needed; they have derivatives where gradients are recorded."""
        count = len(self.needed)

        def chosen(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            outputs = self.function(*inputs)
            return tuple(output for output, present in zip(outputs, self.present, strict=True) if present)

        return tuple(vjp(chosen, values[:count], self.needed, lambda _: values[count:]))


class _Recomputed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(function: Function, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return function(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.function, ctx.context = inputs[0], copy_context()
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[value for value in output if not value.is_floating_point()])
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        needed = tuple(ctx.needs_input_grad[1:])
        incoming = [cotangent for cotangent in cotangents if cotangent is not None]
        vjp = FunctionVjp(ctx.function, needed, tuple(cotangent is not None for cotangent in cotangents))
        # In the configuration of the forward call: torch may run this in a thread of its own.
        results = iter(ctx.context.copy().run(recompute, vjp, *ctx.saved_tensors, *incoming))
        return None, *(next(results) if wanted else None for wanted in needed)


def recompute(function: Function, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the outputs of a function of tensors, of which only the inputs are saved for derivatives."""
    if takes_functions() and is_recorded(inputs):
        if torch.compiler.is_compiling():  # which traces the function for both passes
            return checkpoint(function, *inputs, use_reentrant=False)
        return _Recomputed.apply(function, *inputs)  # pyright: ignore[reportReturnType]
    return function(*inputs)
