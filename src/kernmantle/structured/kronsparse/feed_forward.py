"""Two layers with an activation between them, each pass of which is one native call in an eager step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from ...torch_ops.joined_launches import GRAD, BothPasses, Ready
from ..mode_product.execute import ACTIVATIONS
from ..mode_product.torch_op import Maybe, Options
from .chain_autograd import factor_by_factor
from .chain_launches import JoinedSteps
from .chain_products import Weights
from .joined_layers import StepPasses, apply_joined, check_layers
from .linear import KSLinear
from .matmul import check_activation


def mlp(
    x: torch.Tensor, first: nn.Module, second: nn.Module, activation: str = "gelu", residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Apply two layers with an activation between them: ``second(activation(first(x))) + residual``.

    An eager training step of two :class:`KSLinear` layers on a GPU is one node of the graph of autograd, which
    applies the activation and adds the residual, forward and back. Everything else is the composition of the four.

    Parameters
    ----------
    x : tensor (..., in_features)
        Rows.
    first, second : Module
        The layers.
    activation : {"gelu", "relu", "silu"}
        Between them.
    residual : tensor (..., out_features), optional
        Added to the result.

    Returns
    -------
    tensor (..., out_features)

    Raises
    ------
    ParameterError
        For another activation, or what is no layer.
    ShapeError
        For layers that do not fit together, and a residual that does not broadcast to the result.
    DtypeError
        For a residual that is no tensor. Errors are raised before a layer runs where its features are known.

    Notes
    -----
    Cost: the FLOP of both layers, and three passes over the rows between them. Gradients exist for x, the residual
    and the parameters of both layers; a step whose gradients are differentiated again is the composition.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> up, down = (km.KSLinear(64, 64, km.kronsparse.monarch((64, 64), 4, 4)) for _ in range(2))
    >>> x = torch.randn(3, 64)
    >>> y = km.kronsparse.mlp(x, up, down, residual=x)
    >>> torch.allclose(y, down(torch.nn.functional.gelu(up(x))) + x)
    True
    """
    if not torch.compiler.is_compiling():  # which guards all that checks read at every call
        if isinstance(first, KSLinear) and isinstance(second, KSLinear):
            found = apply_joined(activation, partial(_bind, activation), x, first, second, residual)
            if found is not None:
                return found
        check_layers(x, residual, first=first, second=second)
    check_activation(activation, is_optional=False)
    value = second(ACTIVATIONS[activation](first(x)))
    return value if residual is None else value + residual


@dataclass(frozen=True, eq=False)
class _MLP:
    """Passes of an MLP whose first layer has ``count`` weights; what lies between layers and factors is one tensor."""

    both: BothPasses
    activation: str
    count: int

    def run(
        self, x: torch.Tensor, others: Sequence[Maybe], weights: Weights
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor], Sequence[Ready], Any]:
        """Return the result, what is saved, and memory of the backward pass."""
        read = *weights, x
        value, _, saved, ready = self.both.run(read, others)
        return value, (*read, *saved), (ready,), None

    def run_backward(
        self, _: Sequence[torch.Tensor], at: list[int], grad: torch.Tensor, ready: Sequence[Ready], _rest: Any
    ) -> Sequence[Maybe]:
        """Return the gradients."""
        return self.both.run_backward(at, grad, *ready)

    def composed(
        self, x: torch.Tensor, bias: Maybe, weights: Weights, options: Options, _records: bool
    ) -> torch.Tensor:
        """Return the result without the second bias, by products that have every derivative."""
        before = factor_by_factor(x, weights[: self.count], bias, "", options)
        return factor_by_factor(ACTIVATIONS[self.activation](before), weights[self.count :], None, "", options)


def _bind(activation: str, steps: Sequence[StepPasses], x: torch.Tensor) -> _MLP | None:
    """Return both passes as launches alone; None where an activation is not launched."""
    check_activation(activation, is_optional=False)
    (one, first, count, _), (other, second, rest, _) = steps
    value = x.new_empty(one.layouts[-1][0])
    apply, slope = (activations().bind_activation(value, activation, slope) for slope in (False, True))
    if apply is None or slope is None:
        return None
    total = count + rest
    x_at, bias, other_bias, residual = range(1 + total, 5 + total)
    own = JoinedSteps(4 + total)
    result, dropped = (
        own.tensor(other.layouts[-1]),
        [[own.tensor(layout) for layout in step.layouts[step.saves : -1]] for step in (one, other)],
    )
    before, between = own.part(one.layouts[-1]), own.part(one.layouts[-1])
    saved = [[own.part(layout) for layout in step.layouts[: step.saves]] for step in (one, other)]
    own.forward(one, x_at, range(1, 1 + count), bias, [*saved[0], *dropped[0], before])
    own.launch(apply, (before, between))
    own.forward(other, between, range(1 + count, x_at), other_bias, [*saved[1], *dropped[1], result], residual)
    back = JoinedSteps(3 + total + own.parts)  # of the gradient, weights, x, the tensor of all parts, and these

    def at(*parts: int) -> list[int]:
        return [3 + total - part for part in parts]

    weights, (before, between) = range(1 + GRAD, 1 + GRAD + total), at(before, between)
    moved = back.part(one.layouts[-1])
    of_rest = back.backward(second, GRAD, weights[count:], [between, *at(*saved[1])], moved)
    back.launch(slope, (before, moved, moved))
    of_x, of_bias, *of_first = back.backward(first, moved, weights[:count], [1 + GRAD + total, *at(*saved[0])])
    gives = of_x, of_bias, of_rest[1], *of_first, *of_rest[2:]
    return _MLP(BothPasses(own, back, gives, x.element_size(), sum(map(len, dropped))), activation, count)


@lru_cache(maxsize=1)
def activations() -> Any:
    """Return the module of activations on a GPU, loaded with the first step of an MLP there."""
    return import_module("..mode_product.activation", __package__)
