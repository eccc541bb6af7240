"""Two layers with an activation between them as one autograd.Function, so that an eager step pays for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from ...config import current
from ...errors import ParameterError
from ...runtime.dispatch import PLANS
from ...torch_ops.call_key import find
from ...torch_ops.execute import allocate_each
from ...torch_ops.info import RunInfo
from ...torch_ops.launch_sequence import Launch, LaunchSequence
from ...torch_ops.saved import Guard, addresses, bound_pass, keep_pass, lie
from ...torch_ops.torch_private import applied_directly, is_autocast_on, is_capturing, plain
from ..mode_product.execute import ACTIVATIONS, is_on_gpu
from ..mode_product.torch_op import Maybe, Options
from .chain_autograd import factor_by_factor
from .chain_launches import LaunchedBackward, LaunchedForward, moved
from .chain_products import Backward, Weights, canonical
from .chain_step import MATRIX, Step, bind_step
from .chain_training import kind_of
from .groups import is_watched, key_and_plan, trains
from .linear import KSLinear
from .matmul import check_activation
from .matrices import MADE
from .pattern import check_weights

_address = torch.Tensor.data_ptr
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
        For another activation, or what is no layer.

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
    if not torch.compiler.is_compiling() and isinstance(first, KSLinear) and isinstance(second, KSLinear):
        found = _bound(x, first, second, activation, residual)
        if found is not None:
            return found
    for name, layer in (("first", first), ("second", second)):
        if not callable(layer):
            raise ParameterError(f"{name} must be a layer, not {type(layer).__name__}: mlp(x, first, second)")
    value = second(ACTIVATIONS[activation](first(x)))
    return value if residual is None else value + residual


def _bound(x: torch.Tensor, first: KSLinear, second: KSLinear, activation: str, residual: Maybe) -> torch.Tensor | None:
    """Return the result of one step; None where layers go their own way."""
    made = MADE.matrices
    if (made and (first in made or second in made)) or is_watched(first) or is_watched(second):
        return None
    if type(x) is not torch.Tensor or is_autocast_on() or is_capturing():
        return None
    bias, other_bias = (each._parameters.get("bias") for each in (first, second))
    inputs = x, residual, bias, other_bias, *first._factors(), *second._factors()
    kind = "mlp", activation, residual is x, residual is None, bias is None, other_bias is None
    tensors = [x, *[each for each in inputs if each is not None and each is not x]]
    found = find((kind, False, first._traced_form, second._traced_form), tensors)
    if found is None:
        if not x.dim() or not trains(x):
            return None
        key, found = key_and_plan(kind, (first, second), x, inputs)
        if found is None:
            if key is None:
                return None
            found = PLANS[key] = _bind((first, second), x, residual, inputs[4:], activation) or _ALONE
    return None if found is _ALONE else _apply(found, first._ran, second._ran, *inputs)


_ALONE = object()
"""The bound call of layers that go their own way."""


@dataclass(eq=False)
class BoundMLP:
    """The steps of two layers for tensors of one layout, of which the first takes the ``count`` first weights.

    ``adds``: the second step adds the residual; ``adds_apart``: it is added behind that. ``backward`` has the passes of
    both that were bound for tensors in one piece, by which gradients of x, the residual, both biases and each weight
    are needed; ``joined`` all of it as launches, where it is nothing else.
    """

    steps: tuple[Step, Any]
    adds: bool
    adds_apart: bool
    activation: str
    count: int
    backward: dict[tuple[bool, ...], tuple[tuple[Backward, Backward], Guard]] = field(default_factory=dict[Any, Any])
    joined: _Joined | None = None


class _Joined:
    """An MLP whose passes are launches alone, each one native call on one table of addresses.

    Forward: weights, x, both biases, the residual and results, those of the first step, what the activation gives and
    those of the second one. Backward: the gradient, what is saved, and results of the second step and the first one.
    """

    __slots__ = ("_backward", "_between", "_forward", "_gives", "_layouts", "_picks", "needed", "saves")

    def __init__(
        self, forwards: Sequence[LaunchedForward], backwards: Sequence[LaunchedBackward], launches: Sequence[Launch],
        counts: tuple[int, int], needed: tuple[bool, ...],
    ) -> None:  # fmt: skip
        (one, other), (first, second), (apply, slope), (count, total) = forwards, backwards, launches, counts
        self._layouts = (*one.layouts, one.layouts[-1], *other.layouts)
        self._gives, self._picks = second.layouts + first.layouts, (len(second.layouts), second.pick, first.pick)
        self._between, self.needed, self.saves = (len(one.layouts), other.saves), needed, one.saves
        x, bias, residual, begin = 1 + total, 2 + total, 4 + total, 5 + total
        between = begin + len(one.layouts)
        end = between + 1 + len(other.layouts)
        self._forward = LaunchSequence([
            *moved(one.launches, [0, x, *range(1, 1 + count), bias, *range(begin, between)]),
            (apply, itemgetter(between - 1, between)),
            *moved(other.launches, [
                0, between, *range(1 + count, x), bias + 1, *range(between + 1, end), residual
            ]),
        ], True)  # fmt: skip
        weights, others = range(2, 2 + count), range(2 + count, 2 + total)
        before, saved = 3 + total, 5 + total
        rest = saved + one.saves
        found = rest + other.saves
        last = found + len(second.layouts)
        positions: Any = range(1 + len(second.layouts))  # behind none
        sloped: int = found + second.pick(positions)[0] - 1  # pyright: ignore[reportOperatorIssue, reportAssignmentType]
        self._backward = LaunchSequence([
            *moved(second.launches, [0, 1, *others, before + 1, *range(rest, last)]),
            (slope, itemgetter(before, sloped, sloped)),
            *moved(first.launches, [
                0, sloped, *weights, 2 + total, *range(saved, rest), *range(last, last + len(first.layouts))
            ]),
        ], True)  # fmt: skip

    def run(
        self, ctx: Any, own: BoundMLP, x: torch.Tensor, others: Sequence[Maybe], weights: Weights
    ) -> torch.Tensor:  # fmt: skip
        """Return the result; ``others`` are both biases and the residual, ``ctx`` takes what is saved."""
        memory, (between, saves) = allocate_each(x, self._layouts), self._between
        inputs, made = list(map(_address, (*weights, x))), list(map(_address, memory))
        self._forward([0, *inputs, *[0 if each is None else each.data_ptr() for each in others], *made])
        first, rest, end = self.saves, between + 1, between + 1 + saves
        read = [*inputs, *made[between - 1 : rest], *made[:first], *made[rest:end]]
        saved = *weights, x, *memory[between - 1 : rest], *memory[:first], *memory[rest:end]
        bias = others[0]
        ctx.made = own, read, first, copy_context(), bias is not None
        ctx.to_save = saved if bias is None else (*saved, bias)
        return memory[-1]

    def run_backward(self, read: Sequence[int], grad: torch.Tensor) -> tuple[Any, Any]:
        """Return the gradients of the second step and of the first one; ``read`` are the addresses of what is saved."""
        found, (count, second, first) = allocate_each(grad, self._gives), self._picks
        self._backward([0, grad.data_ptr(), *read, *map(_address, found)])
        return second((None, *found[:count])), first((None, *found[count:]))


def _join(own: BoundMLP, passes: Sequence[Backward], before: torch.Tensor, needed: tuple[bool, ...]) -> _Joined | None:
    """Return both passes as launches alone; None where something else is part of them."""
    found: list[Any] = [getattr(each, "launched", None) for each in (*own.steps, *passes)]
    if any(each is None for each in found) or own.adds_apart or not all(needed[4:]) or not is_on_gpu(before):
        return None
    launches = [activations().bind_activation(before, own.activation, slope) for slope in (False, True)]
    if any(launch is None for launch in launches):
        return None
    return _Joined(found[:2], found[2:], launches, (own.count, len(needed) - 4), needed)


@lru_cache(maxsize=1)
def activations() -> Any:
    """Return the module of activations on a GPU, loaded with the first step of an MLP there."""
    return import_module("..mode_product.activation", __package__)


def _bind(
    layers: Sequence[KSLinear], x: torch.Tensor, residual: Maybe, weights: Weights, activation: str
) -> BoundMLP | None:
    first, second = layers
    tensors = x, residual, first.bias, second.bias, *weights
    free = not any(layer.batch_last for layer in layers) and x.shape[-1] == first.in_features
    fits = free and first.out_features == second.in_features and any(weight.requires_grad for weight in weights)
    kinds = all(own is None or (own.dtype == x.dtype and own.device == x.device) for own in tensors)
    if not (fits and kinds) or (residual is not None and residual.shape != (*x.shape[:-1], second.out_features)):
        return None
    steps, value, precision, adds = list[Step](), x.detach(), current().precision or "", False
    for layer, added in zip(layers, (None, residual), strict=True):
        own, options = layer._factors(), layer._options._replace(precision=precision)
        check_weights(layer.patterns, own)
        bias = None if layer.bias is None else layer.bias.detach()
        kind = kind_of(canonical(value, False), own, options)
        sums = added.detach() if kind == MATRIX and added is not None and added.is_contiguous() else None
        steps.append(bind_step(kind, value, own, bias, options, True, sums))
        adds = sums is not None and steps[-1].on_addresses
        value = x.new_empty((*x.shape[:-1], layer.out_features))
    apart = residual is not None and not adds
    return BoundMLP((steps[0], steps[1]), adds, apart, activation, len(first._factors()))


@applied_directly
class _MLP(torch.autograd.Function):
    """x, the residual, both biases and all weights to the result, for calls that nothing but autograd sees."""

    @staticmethod
    def forward(
        ctx: Any, own: BoundMLP, info: RunInfo, other_info: RunInfo, x: torch.Tensor, residual: Maybe, bias: Maybe,
        other_bias: Maybe, *weights: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        (first, second), count, joined = own.steps, own.count, own.joined
        if joined is not None:
            info.route, other_info.route = first.route, second.route
            return joined.run(ctx, own, x, (bias, other_bias, residual), weights)
        before, saved = first.forward(x, weights[:count], bias, info)
        between = ACTIVATIONS[own.activation](before)
        if own.adds:
            value, rest = second.forward(between, weights[count:], other_bias, other_info, residual)
        else:
            value, rest = second.forward(between, weights[count:], other_bias, other_info)
            if own.adds_apart:
                value.add_(residual)  # pyright: ignore[reportArgumentType]: there is one
        read = *weights, x, before, between, *saved, *rest
        ctx.made = own, addresses(read), len(saved), copy_context(), bias is not None
        ctx.save_for_backward(*read, *(() if bias is None else (bias,)))
        return value

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        (own, before, saves, context, has_bias), read = ctx.made, ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        read, bias = (read[:-1], read[-1]) if has_bias else (read, None)
        passes, joined = bound_pass(own.backward, needed, before, read, grads), own.joined
        if passes is None and not grads[0].is_contiguous() and not torch.is_grad_enabled():
            grads = (grads[0].contiguous(),)
            passes = bound_pass(own.backward, needed, before, read, grads)
        if passes is not None and joined is not None and joined.needed == needed and not is_capturing():
            (_, of_other, *rest), (of_x, of_bias, *of_weights) = joined.run_backward(before, grads[0])
            return None, None, None, of_x, grads[0] if needed[1] else None, of_bias, of_other, *of_weights, *rest
        if passes is None and (torch.is_grad_enabled() or not plain(grads)):
            return None, None, None, *context.copy().run(_differentiably, own, needed, read, bias, grads[0])
        if passes is None and not lie(before, read):  # steps read tensors as they lay when they were bound
            read = [each if each is None else each.clone(memory_format=torch.contiguous_format) for each in read]
        found, bound = _gradients(own, needed, read, saves, grads[0], passes, context)
        if passes is None and keep_pass(own.backward, needed, before, read, grads, bound):
            value: Any = read[len(needed) - 3]
            own.joined = _join(own, bound, value, needed)
        of_x, of_bias, of_other, every = found
        return None, None, None, of_x, grads[0] if needed[1] else None, of_bias, of_other, *every


_apply: Any = super(torch.autograd.Function, _MLP).apply  # pyright: ignore[reportAttributeAccessIssue]


def _gradients(
    own: BoundMLP, needed: tuple[bool, ...], read: Sequence[Any], saves: int, grad: torch.Tensor,
    bound: tuple[Backward, Backward] | None, context: Any,
) -> tuple[tuple[Maybe, Maybe, Maybe, Sequence[Maybe]], tuple[Backward, Backward]]:  # fmt: skip
    """Return the gradients of x, both biases and all weights, and the passes of both layers."""
    total, count = len(needed) - 4, own.count
    one, other, (x, before, between), rest = read[:count], read[count:total], read[total : total + 3], read[total + 3 :]
    of_one, of_other = needed[4 : 4 + count], needed[4 + count :]

    def bind(step: Step, *operands: Any) -> Backward:
        return context.copy().run(step.bind_backward, *operands)

    asked = needed[0] or needed[2] or any(of_one), needed[3], *of_other
    second = bound[1] if bound else bind(own.steps[1], between, other, rest[saves:], grad, asked)
    of_between, of_other_bias, of_rest = second(between, other, rest[saves:], grad)
    if of_between is None or before is None:
        return (None, None, of_other_bias, [*([None] * count), *of_rest]), (bound[0] if bound else second, second)
    moved = _SLOPES[own.activation](of_between, before)
    asked = needed[0], needed[2], *of_one
    first = bound[0] if bound else bind(own.steps[0], x, one, rest[:saves], moved, asked)
    of_x, of_bias, of_weights = first(x, one, rest[:saves], moved)
    return (of_x, of_bias, of_other_bias, [*of_weights, *of_rest]), (first, second)


def _differentiably(
    own: BoundMLP, needed: tuple[bool, ...], read: Sequence[Any], bias: Maybe, grad: torch.Tensor
) -> tuple[Maybe, ...]:
    """Return the gradients with whatever derivative of them is being recorded."""
    total = len(needed) - 4
    weights, x, options = read[:total], read[total], Options(False, "auto", current().precision or "")
    with torch.enable_grad():
        before = factor_by_factor(x, weights[: own.count], bias, "", options)
        value = factor_by_factor(ACTIVATIONS[own.activation](before), weights[own.count :], None, "", options)
        inputs = (x, None, bias, None, *weights)
        asked = [at for at, needs in enumerate(needed) if needs and inputs[at] is not None]
        made = torch.autograd.grad(value, [inputs[at] for at in asked], grad, create_graph=True)  # pyright: ignore
    found = dict(zip(asked, made, strict=True))
    rows = tuple(range(grad.dim() - 1))
    return (
        found.get(0), grad if needed[1] else None, found.get(2), grad.sum(rows) if needed[3] else None,
        *(found.get(4 + at) for at in range(total)),
    )  # fmt: skip
