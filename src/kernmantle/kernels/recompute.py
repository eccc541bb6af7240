"""Functions whose intermediate results are computed again for their derivatives, to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]
Function = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Pullback:
    """Gradients of a function's outputs by its inputs, given the cotangents of the outputs behind the inputs."""

    function: Function
    needed: tuple[bool, ...]
    present: tuple[bool, ...]

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gradients by the inputs that are needed; they have derivatives where gradients are recorded."""
        graph = torch.is_grad_enabled()
        count = len(self.needed)
        with torch.enable_grad():
            inputs = [
                # A view of its own, so that an array that was passed twice has two gradients.
                value.view_as(value) if graph and value.requires_grad else value.detach().requires_grad_(wanted)
                for value, wanted in zip(values[:count], self.needed, strict=True)
            ]
            outputs = self.function(*inputs)
            chosen = [output for output, given in zip(outputs, self.present, strict=True) if given]
            pairs = [
                (output, cotangent)
                for output, cotangent in zip(chosen, values[count:], strict=True)
                if output.requires_grad
            ]
            wanted = [value for value, needed in zip(inputs, self.needed, strict=True) if needed]
            if not pairs:
                return tuple(torch.zeros_like(value) for value in wanted)
            return torch.autograd.grad(
                [output for output, _ in pairs], wanted, [cotangent for _, cotangent in pairs],
                create_graph=graph, materialize_grads=True,
            )  # fmt: skip


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Function, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = function(*inputs)
        ctx.function = function
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[output for output in outputs if not output.is_floating_point()])
        ctx.save_for_backward(*inputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        needed = tuple(ctx.needs_input_grad[1:])
        given = [cotangent for cotangent in cotangents if cotangent is not None]
        pullback = Pullback(ctx.function, needed, tuple(cotangent is not None for cotangent in cotangents))
        results = iter(recompute(pullback, *ctx.saved_tensors, *given))
        return None, *(next(results) if wanted else None for wanted in needed)


def recompute(function: Function, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs of a function of tensors, which keeps nothing but its inputs for derivatives."""
    if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
        return _Recomputed.apply(function, *inputs)  # pyright: ignore[reportReturnType]
    return function(*inputs)
