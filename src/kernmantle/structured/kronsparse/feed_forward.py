"""Two layers with an activation between them as one autograd.Function, so that an eager step pays for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from ...config import current
from ...errors import ParameterError
from ...runtime.dispatch import PLANS
from ...torch_ops.saved import addresses, lie
from ...torch_ops.torch_private import plain
from ..mode_product.execute import ACTIVATIONS
from ..mode_product.torch_op import Maybe, Options
from .chain_autograd import factor_by_factor
from .chain_products import Backward, Weights, canonical, splits_streams
from .chain_step import Step, bind_step
from .chain_through import ThroughStep, bind_through
from .chain_training import kind_of
from .groups import is_watched, key_and_plan, shares, trains
from .linear import KSLinear
from .matmul import check_activation
from .matrices import MADE, BoundMatrices, bind_matrices
from .pattern import check_weights

Each = TypeVar("Each")
_aten: Any = torch.ops.aten
_SLOPES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "relu": lambda grad, value: _aten.threshold_backward(grad, value, 0),
    "gelu": _aten.gelu_backward.default,
    "silu": _aten.silu_backward.default,
}
"""Gradients of what an activation is applied to, from that of its result."""


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
        For another activation.

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
    if not check_activation(activation):
        raise ParameterError("an MLP has an activation between its layers: 'relu', 'gelu' or 'silu'")
    found = None if torch.compiler.is_compiling() else _bound(x, first, second, activation, residual)
    if found is not None:
        return found
    value = second(ACTIVATIONS[activation](first(x)))
    return value if residual is None else value + residual


def _bound(
    x: torch.Tensor, first: nn.Module, second: nn.Module, activation: str, residual: Maybe
) -> torch.Tensor | None:
    """Return the result of one step; None where layers go their own way."""
    if type(x) is not torch.Tensor or not x.dim() or not trains(x) or splits_streams(x.device):
        return None
    if not (isinstance(first, KSLinear) and isinstance(second, KSLinear)):
        return None
    layers = first, second
    if any(is_watched(layer) for layer in layers):
        return None
    made = MADE.matrices
    if first in made and second in made:
        weights = made[first], made[second]
    elif first in made or second in made:
        return None
    else:
        weights = *first._factors(), *second._factors()
    tensors = x, residual, first.bias, second.bias, *weights
    absent = [each is None for each in tensors[:4]]
    key, found = key_and_plan(f"mlp {activation} {residual is x} {absent}", layers, x, tensors)
    if found is None:
        if key is None:
            return None
        found = PLANS[key] = _bind(layers, x, residual, weights, activation) or _ALONE
    return None if found is _ALONE else _apply(found, layers, *tensors)


_ALONE = object()
"""The bound call of layers that go their own way."""


@dataclass(frozen=True, eq=False)
class BoundMLP:
    """The steps of two layers for tensors of one layout.

    ``matrices`` makes the matrices of both, which steps then take for their weights; without it they take the ``count``
    weights of the first layer, and the rest. ``wanted`` says of x, the residual, both biases and each weight whether
    its gradient is recorded; ``backward`` has the passes of both that were bound for tensors in one piece, by which
    gradients are needed.
    """

    steps: tuple[Step, Step]
    activation: str
    count: int
    matrices: BoundMatrices | None = None
    backward: dict[tuple[bool, ...], tuple[Backward, Backward]] = field(default_factory=dict[Any, Any])

    def halves(self, weights: Sequence[Each]) -> tuple[Sequence[Each], Sequence[Each]]:
        """Return what belongs to the weights of both layers."""
        return weights[: self.count], weights[self.count :]


def _bind(
    layers: Sequence[KSLinear], x: torch.Tensor, residual: Maybe, weights: Weights, activation: str
) -> BoundMLP | None:
    first, second = layers
    tensors, are_made = (x, residual, first.bias, second.bias, *weights), weights[0].dim() == 2
    free = not any(layer.batch_last for layer in layers) and x.shape[-1] == first.in_features
    fits = free and first.out_features == second.in_features and any(weight.requires_grad for weight in weights)
    kinds = all(own is None or (own.dtype == x.dtype and own.device == x.device) for own in tensors)
    if not (fits and kinds) or (residual is not None and residual.shape != (*x.shape[:-1], second.out_features)):
        return None
    if are_made:
        return _bind_through(layers, x, residual, activation, None)
    for layer in layers:
        check_weights(layer.patterns, layer._factors())
    if all(shares(layer, layer._factors(), x, x.dtype) for layer in layers):
        found = _bind_through(layers, x, residual, activation, bind_matrices(weights))
        if found is not None:
            return found
    steps, value, precision = list[Step](), x.detach(), current().precision or ""
    for layer in layers:
        own, options = layer._factors(), layer._options._replace(precision=precision)
        bias = None if layer.bias is None else layer.bias.detach()
        kind = kind_of(canonical(value, False), own, options)
        steps.append(bind_step(kind, value, own, bias, options, True))
        value = x.new_empty((*x.shape[:-1], layer.out_features))
    return BoundMLP((steps[0], steps[1]), activation, len(first._factors()))


def _bind_through(
    layers: Sequence[KSLinear], x: torch.Tensor, residual: Maybe, activation: str, matrices: BoundMatrices | None
) -> BoundMLP | None:
    """Return steps through matrices, which ``matrices`` makes if it is there; None where torch takes some."""
    value, steps, count = x.detach(), list[Step](), 1 if matrices is None else len(layers[0]._factors())
    for layer, added in zip(layers, (None, residual), strict=True):
        bias = None if layer.bias is None else layer.bias.detach()
        matrix = value.new_empty((layer.out_features, layer.in_features))
        step = bind_through(value, matrix, bias, None if added is None else added.detach())
        if step is None:
            return None
        steps.append(step)
        value = x.new_empty((*x.shape[:-1], layer.out_features))
    return BoundMLP((steps[0], steps[1]), activation, count, matrices)


class _MLP(torch.autograd.Function):
    """x, the residual, both biases and all weights to the result, for calls that nothing but autograd sees."""

    @staticmethod
    def forward(
        ctx: Any, own: BoundMLP, layers: Sequence[KSLinear], x: torch.Tensor, residual: Maybe, bias: Maybe,
        other_bias: Maybe, *weights: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        first, second = own.steps
        made = [] if own.matrices is None else own.matrices.make(weights)
        one, other = ([made[0]], [made[1]]) if made else own.halves(weights)
        before, saved = first.forward(x, one, bias, layers[0]._ran)
        between = ACTIVATIONS[own.activation](before)
        if isinstance(second, ThroughStep):
            value, rest = second.forward(between, other, other_bias, layers[1]._ran, residual)
        else:
            value, rest = second.forward(between, other, other_bias, layers[1]._ran)
            if residual is not None:
                value.add_(residual)
        read = *weights, x, bias, before, between, *made, *saved, *rest
        ctx.made = own, addresses(read), len(saved), copy_context(), other_bias
        ctx.save_for_backward(*read)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        (own, before, count, context, _), read = ctx.made, ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled() or not plain(grads):
            return None, None, *context.copy().run(_differentiably, own, needed, read, grads[0])
        grad = grads[0].contiguous()
        same = lie(before, read)
        if not same:  # steps read tensors as they lay when they were bound
            read = [each if each is None else each.clone(memory_format=torch.contiguous_format) for each in read]
        found = own.backward.get(needed) if same and grad.data_ptr() % 16 == 0 else None
        (of_x, of_bias, of_weights), (of_other, of_rest), bound = _gradients(
            own, needed, read, count, grad, found, context
        )
        if found is None and same and grad.data_ptr() % 16 == 0:
            own.backward[needed] = bound
        every: Sequence[Maybe] = (*of_weights, *of_rest)
        if own.matrices is not None:
            every = own.matrices.take_apart(read[: len(needed) - 4], every, True)
        return None, None, of_x, grads[0] if needed[1] else None, of_bias, of_other, *every


_apply: Any = super(torch.autograd.Function, _MLP).apply  # pyright: ignore[reportAttributeAccessIssue]


def _gradients(
    own: BoundMLP, needed: tuple[bool, ...], read: Sequence[Any], saves: int, grad: torch.Tensor,
    bound: tuple[Backward, Backward] | None, context: Any,
) -> tuple[tuple[Maybe, Maybe, Sequence[Maybe]], tuple[Maybe, Sequence[Maybe]], tuple[Backward, Backward]]:  # fmt: skip
    """Return the gradients of x, bias and weights of the first layer, of those of the second, and the passes.

    Of layers whose matrices are made, those of the matrices stand for those of the weights.
    """
    total, (one, other) = len(needed) - 4, own.halves(read[: len(needed) - 4])
    (x, _, before, between), rest = read[total : total + 4], read[total + 4 :]
    of_first, of_second = own.halves(needed[4:])
    deep = needed[0] or needed[2] or any(of_first)
    if own.matrices is not None:
        (one, other), rest = (rest[:1], rest[1:2]), rest[2:]
        of_first, of_second = [any(of_first)], [any(of_second)]
    asked = (deep, needed[3], *of_second)
    second = (
        bound[1] if bound else context.copy().run(own.steps[1].bind_backward, between, other, rest[saves:], grad, asked)
    )
    of_between, of_other, of_rest = second(between, other, rest[saves:], grad)
    if of_between is None or before is None:
        return (None, None, [None] * len(of_first)), (of_other, of_rest), (bound[0] if bound else second, second)
    moved = _SLOPES[own.activation](of_between, before)
    asked = (needed[0], needed[2], *of_first)
    first = bound[0] if bound else context.copy().run(own.steps[0].bind_backward, x, one, rest[:saves], moved, asked)
    return first(x, one, rest[:saves], moved), (of_other, of_rest), (first, second)


def _differentiably(
    own: BoundMLP, needed: tuple[bool, ...], read: Sequence[Any], grad: torch.Tensor
) -> tuple[Maybe, ...]:
    """Return the gradients with whatever derivative of them is being recorded."""
    total = len(needed) - 4
    (x, bias), options = read[total : total + 2], Options(False, "auto", current().precision or "")
    weights = read[:total]  # a matrix is a factor of one block
    with torch.enable_grad():
        one, other = own.halves([weight[None, :, :, None] if weight.dim() == 2 else weight for weight in weights])
        before = factor_by_factor(x, one, bias, "", options)
        value = factor_by_factor(ACTIVATIONS[own.activation](before), other, None, "", options)
        inputs = (x, None, bias, None, *weights)
        asked = [at for at, needs in enumerate(needed) if needs and inputs[at] is not None]
        made = torch.autograd.grad(value, [inputs[at] for at in asked], grad, create_graph=True)  # pyright: ignore
    found = dict(zip(asked, made, strict=True))
    rows = tuple(range(grad.dim() - 1))
    return (
        found.get(0), grad if needed[1] else None, found.get(2), grad.sum(rows) if needed[3] else None,
        *(found.get(4 + at) for at in range(total)),
    )  # fmt: skip
