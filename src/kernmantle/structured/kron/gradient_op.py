"""The operator ``kernmantle::kron_backward``: the gradients of Kronecker products in compiled graphs.

It runs the same bound gradients as an eager call, so a compiled backward pass is one operator for any number of
factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...torch_ops.autograd import in_own_memory
from ...torch_ops.flops import counted, flops_of, on_meta
from ...torch_ops.operator import implement
from .bound_gradients import UNBOUND, Found, Maybe, Tensors, conjugate
from .execute import Number, configured, execute
from .gradient import bind_gradients, gradients


def _bind(
    x: torch.Tensor, factors: list[torch.Tensor], grad: torch.Tensor, _: Number, modes: str, options: str,
    needed: list[bool],
) -> Any:  # fmt: skip
    """Return what gives the gradients ``needed``, each in new memory with the layout of its tensor."""
    options = configured(options)
    transposed = all(map(_is_transposed, factors))
    own = [factor.mT for factor in factors] if transposed else factors
    launch = bind_gradients(modes, options, x, own, grad, tuple(needed), transposed)

    def run(x: torch.Tensor, factors: list[torch.Tensor], grad: torch.Tensor, alpha: Number, *_: Any) -> Any:
        """Return x's, if it is needed, and those of the factors."""
        if launch is not UNBOUND:
            own = [factor.mT for factor in factors] if transposed else factors
            through, parts = launch((x, own, grad, ()), conjugate(alpha))
            parts = [part.mT if transposed and part is not None else part for part in parts]
        else:
            through, parts = _one_by_one(modes, options, alpha, x, factors, grad, needed)
        of_x = None if through is None or not needed[0] else through.sum_to_size(x.shape)
        wanted = [part if wanted else None for part, wanted in zip(parts, needed[1:], strict=True)]
        found = in_own_memory([of_x], [x, grad, *factors])
        return found + [_like(one, part) for one, part in zip(factors, wanted, strict=True) if part is not None]

    return run


def _is_transposed(factor: torch.Tensor) -> bool:
    """Return whether a matrix is column-major."""
    return factor.dim() == 2 and not factor.is_contiguous() and factor.mT.is_contiguous()


def _like(factor: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a factor, with the strides of ``torch.empty_like`` of the factor."""
    if part.stride() == factor.stride():
        return part
    return torch.empty_like(factor).copy_(part)


def _one_by_one(
    modes: str, options: str, alpha: Number, x: torch.Tensor, factors: Tensors, grad: torch.Tensor,
    needed: Sequence[bool],
) -> Found:  # fmt: skip
    """Return the gradients by products, each of which is bound separately."""

    def multiply(own: str, numbers: tuple[Number, Number], value: torch.Tensor, matrices: Tensors) -> torch.Tensor:
        return execute(own, options, numbers, value, matrices, None)

    return gradients(modes, alpha, x, factors, grad, needed, multiply)


def _fake(x: torch.Tensor, factors: list[torch.Tensor], *others: Any) -> list[torch.Tensor]:
    of_x, *of_factors = others[-1]
    found = [x.new_empty(x.shape)] if of_x else []
    return found + [torch.empty_like(factor) for factor, wanted in zip(factors, of_factors, strict=True) if wanted]


@counted("kron_backward")
def _flops(x: Any, factors: Any, grad: Any, alpha: Number, modes: str, options: str, needed: Any, **_: Any) -> int:
    own_x, own_grad, *own = on_meta([x, grad, *factors])
    kron = torch.ops.kernmantle.kron.default

    def multiply(text: str, numbers: tuple[Number, Number], value: torch.Tensor, matrices: Tensors) -> torch.Tensor:
        return kron(value, list(matrices), None, *numbers, text, options)

    return flops_of(lambda: gradients(modes, alpha, own_x, own, own_grad, needed, multiply))


_backward = implement("kron_backward", _bind, _fake)


def gradients_by_operator(
    text: str, options: str, alpha: Number, x: torch.Tensor, factors: Tensors, grad: torch.Tensor,
    needed: Sequence[bool],
) -> tuple[Maybe, list[Maybe]]:  # fmt: skip
    """Return the gradients of x and of the factors, those ``needed``, by the operator."""
    found = iter(_backward(x, list(factors), grad, alpha, text, options, list(needed)))
    of_x, *parts = [next(found) if wanted else None for wanted in needed]
    return of_x, parts
