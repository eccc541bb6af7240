"""Two layers with something between them as one autograd.Function, so that an eager step pays for one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.autograd import forward_ad

from ...config import current
from ...errors import DtypeError, ParameterError, ShapeError
from ...ir.equation import broadcast
from ...runtime.dispatch import PLANS
from ...torch_ops.call_key import find
from ...torch_ops.joined_launches import Ready
from ...torch_ops.saved import Guard
from ...torch_ops.torch_private import applied_directly, guard_of, is_autocast_on, is_capturing, plain
from ..mode_product.torch_op import Maybe, Options
from .chain_launches import LaunchedBackward, LaunchedForward
from .chain_products import Weights, canonical
from .chain_step import MATRIX, bind_step
from .chain_training import kind_of
from .groups import key_and_plan, trains, unwatched_factors
from .linear import KSLinear
from .matmul import check_bias
from .matrices import MADE
from .packed import PackedKSLinear
from .pattern import check_weights


class StepPasses(NamedTuple):
    """The passes of a step of so many ``weights``, of launches alone; ``adds``: the forward one adds a residual."""

    forward: LaunchedForward
    backward: LaunchedBackward
    weights: int
    adds: bool


class Passes(Protocol):
    """Both passes of two layers and of what is between them."""

    def run(
        self, x: torch.Tensor, others: Sequence[Maybe], weights: Weights
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor], Sequence[Ready], Any]:
        """Return the result, what is saved, first weights and x, memory of the backward pass, and what else that reads.

        ``others`` are both biases and the residual.
        """
        ...

    def run_backward(
        self, saved: Sequence[torch.Tensor], at: list[int], grad: torch.Tensor, ready: Sequence[Ready], rest: Any, /
    ) -> Sequence[Maybe]:
        """Return the gradients of x, both biases and all weights; what is saved lies ``at`` some addresses."""
        ...

    def composed(
        self, x: torch.Tensor, bias: Maybe, weights: Weights, options: Options, records: bool, /
    ) -> torch.Tensor:
        """Return the result without the second bias, ``records``: by what has derivatives of derivatives."""
        ...


Bind = Callable[[Sequence[StepPasses], torch.Tensor], Passes | None]
"""Function that binds both passes of two steps for rows like some."""


@dataclass(eq=False)
class _Bound:
    """Passes for tensors of one layout, the text of ``info`` of both layers, and whether the residual is added within.

    ``saves`` is the guard of what is saved, ``guard`` that of a gradient and what is saved.
    """

    passes: Passes
    routes: tuple[str, str]
    adds: bool
    saves: Guard = None
    guard: Guard = None

    def read(self, grad: torch.Tensor, saved: Sequence[torch.Tensor]) -> list[int] | None:
        """Return the addresses of what is saved; None if the backward pass cannot read it, or the gradient, there."""
        tensors, at = (grad, *saved), list[int]()
        try:
            for each in tensors:
                if each.is_nested or (address := each.data_ptr()) & 15:  # a guard ends the process at nested ones
                    return None
                at.append(address)
        except RuntimeError:  # a batch of gradients, sparse ones
            return None
        if self.guard is None:
            if self.saves is None or not plain((grad,)) or not self.saves(*saved):
                return None
            self.guard = guard_of(tensors)
        elif not self.guard(*tensors) or forward_ad._current_level >= 0:
            return None
        return at[1:]


_ALONE = object()
"""The bound call of layers that go their own way."""


def apply_joined(
    kind: Hashable, bind: Bind, x: torch.Tensor, first: KSLinear, second: KSLinear, residual: Maybe, parts: int = 1
) -> torch.Tensor | None:
    """Return the result of one step; None where layers go their own way.

    ``kind`` says what is between the layers, which takes ``parts`` times the features it gives; ``bind`` binds both
    passes.
    """
    made = MADE.matrices
    if (made and (first in made or second in made)) or type(x) is not torch.Tensor:
        return None
    own, other = unwatched_factors(first), unwatched_factors(second)
    if own is None or other is None or is_autocast_on() or is_capturing():
        return None
    bias, other_bias = first._parameters.get("bias"), second._parameters.get("bias")
    inputs = x, residual, bias, other_bias, *own, *other
    called = kind, residual is x, residual is None, bias is None, other_bias is None
    tensors = [x, *[each for each in inputs if each is not None and each is not x]]
    found: Any = find((called, False, first._traced_form, second._traced_form), tensors)
    if found is None:
        if not x.dim() or not trains(x):
            return None
        key, found = key_and_plan(called, (first, second), x, inputs)
        if found is None:
            if key is None:
                return None
            fits = first.out_features == parts * second.in_features
            found = PLANS[key] = (_bind((first, second), x, residual, bind) if fits else None) or _ALONE
    if found is _ALONE:
        return None
    first._ran.route, second._ran.route = found.routes
    if found.adds or residual is None:
        return _apply(found, *inputs)
    return _apply(found, x, None, *inputs[2:]) + residual


def _bind(layers: Sequence[KSLinear], x: torch.Tensor, residual: Maybe, bind: Bind) -> _Bound | None:
    """Return what takes launches alone, each step by what takes the GPU least: all of them are started at once."""
    first, second = layers
    weights = *first._factors(), *second._factors()
    tensors = x, residual, first.bias, second.bias, *weights
    free = not any(layer.batch_last for layer in layers) and x.shape[-1] == first.in_features
    present = [own for own in tensors if own is not None]
    kinds = all(own.dtype == x.dtype and own.device == x.device and not own.data_ptr() % 16 for own in present)
    once = len(set(map(id, weights))) == len(weights) and all(weight.requires_grad for weight in weights)
    if not (free and kinds and once and x.numel() and x.is_contiguous()):
        return None
    if residual is not None and residual.shape != (*x.shape[:-1], second.out_features):
        return None
    steps, routes, precision, of_x = list[StepPasses](), list[str](), current().precision or "", x.requires_grad
    for layer, added in zip(layers, (None, residual), strict=True):
        own, options = layer._factors(), layer._options._replace(precision=precision)
        check_weights(layer.patterns, own)
        check_bias(layer.bias, layer.patterns[-1])
        value = x.new_empty((*x.shape[:-1], layer.in_features))
        bias = None if layer.bias is None else layer.bias.detach()
        kind = kind_of(canonical(value, False), own, options, True)
        sums = added.detach() if kind == MATRIX and added is not None and added.is_contiguous() else None
        step: Any = bind_step(kind, value, own, bias, options, of_x, sums)
        found = getattr(step, "launched", None)
        if found is None:
            return None
        needed = of_x, layer.bias is not None and layer.bias.requires_grad, *[True] * len(own)
        saved = [value.new_empty(shape) for shape, _ in found.layouts[: found.saves]]
        grad = x.new_empty((*x.shape[:-1], layer.out_features))
        back = getattr(
            step.bind_backward(value, [each.detach() for each in own], saved, grad, needed), "launched", None
        )
        if back is None:
            return None
        steps.append(StepPasses(found, back, len(own), sums is not None))
        routes.append(step.route)
        of_x = True
    passes = bind(steps, x)
    return None if passes is None else _Bound(passes, (routes[0], routes[1]), steps[1].adds)


@applied_directly
class _Joined(torch.autograd.Function):
    """x, the residual, both biases and all weights to the result, for calls that nothing but autograd sees."""

    @staticmethod
    def forward(
        ctx: Any, own: _Bound, x: torch.Tensor, residual: Maybe, bias: Maybe, other_bias: Maybe, *weights: torch.Tensor
    ) -> torch.Tensor:
        value, saved, ctx.ready, rest = own.passes.run(x, (bias, other_bias, residual), weights)
        if own.saves is None:
            own.saves = guard_of(saved)
        ctx.made = own, rest, bias is not None, copy_context()
        ctx.to_save = saved if bias is None else (*saved, bias)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        (own, rest, has_bias, context), saved, (grad,) = ctx.made, ctx.saved_tensors, grads
        needed = ctx.needs_input_grad[1:]
        read, bias = (saved[:-1], saved[-1]) if has_bias else (saved, None)
        # Of threads that go back at once, one has what is ready; gradients are taken over where nothing else has them,
        # and a graph that is kept has it for its first pass.
        ready = ctx.__dict__.pop("ready", ())
        if not grad.is_contiguous():
            grad = grad.contiguous()
        at = None if torch.is_grad_enabled() or is_capturing() else own.read(grad, read)
        if at is None:
            of_x, *found = context.copy().run(_differentiably, own.passes, needed, read, bias, grads[0])
        else:
            of_x, *found = own.passes.run_backward(read, at, grad, ready, rest)
        return None, of_x, grads[0] if needed[1] else None, *found


_apply: Any = super(torch.autograd.Function, _Joined).apply  # pyright: ignore[reportAttributeAccessIssue]


def _differentiably(
    passes: Passes, needed: tuple[bool, ...], read: Sequence[torch.Tensor], bias: Maybe, grad: torch.Tensor
) -> Sequence[Maybe]:
    """Return the gradients of x, both biases and all weights with whatever derivative of them is being recorded."""
    total = len(needed) - 4
    weights, x, options = read[:total], read[total], Options(False, "auto", current().precision or "")
    inputs, asked = (x, bias, None, *weights), (needed[0], needed[2], False, *needed[4:])
    taken, records = [at for at, needs in enumerate(asked) if needs], torch.is_grad_enabled()
    with torch.enable_grad():
        value = passes.composed(x, bias, weights, options, records)
        made = torch.autograd.grad(value, [inputs[at] for at in taken], grad, create_graph=records)  # pyright: ignore
    found: list[Maybe] = [None] * len(asked)
    for at, each in zip(taken, made, strict=True):
        found[at] = each
    if needed[3]:
        found[2] = grad.sum(tuple(range(grad.dim() - 1)))
    return found


def check_layers(x: Any, residual: Any, parts: int = 1, **layers: Any) -> None:
    """Raise the error that says by name what does not fit, before a layer runs.

    The first layer gives ``parts`` times the features that the second one takes.
    """
    for name, layer in layers.items():
        if not callable(layer):
            raise ParameterError(f"{name} must be a layer, not {type(layer).__name__}")
    (one, first), (other, second) = layers.items()
    makes, takes, gives = features(first, "out"), features(second, "in"), features(second, "out")
    if makes and takes and makes != parts * takes:
        times = f"not {parts} times the {takes} that {other} takes" if parts > 1 else f"but {other} takes {takes}"
        raise ShapeError(f"{one} gives {makes} features, {times}")
    if residual is None:
        return
    if not isinstance(residual, torch.Tensor):
        raise DtypeError(f"residual must be a torch tensor, not {type(residual).__name__}")
    if isinstance(x, torch.Tensor) and gives and not getattr(second, "batch_last", False):
        shape, own = (*x.shape[:-1], gives), tuple(residual.shape)
        if own != shape and broadcast([own, shape]) != shape:
            raise ShapeError(f"residual has shape {own}, which does not broadcast to the result {shape}")


def features(layer: Any, end: str) -> int:
    """Return the features that a layer takes ("in") or gives ("out"); 0 where its class or a hook may change them."""
    if type(layer) not in (KSLinear, PackedKSLinear, nn.Linear) or "forward" in vars(layer):
        return 0
    return 0 if layer._forward_hooks or layer._forward_pre_hooks else getattr(layer, f"{end}_features")
