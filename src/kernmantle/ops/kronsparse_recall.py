"""The fast eager path on a CPU: a chain that looks like an earlier one goes straight to its prepared kernels.

What it looks like is everything the checks and the plan depend on: shapes, strides, types and settings. Values of
numbers and addresses are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, NamedTuple

import torch

from ..config import current
from ..contraction.kronsparse_cost import quickest, quickest_gradient
from . import kronsparse_run, kronsparse_steps
from .autograd import PLAIN, is_batched, plain, unwatched
from .dtypes import NAMES
from .execute import allocate
from .kronsparse import Maybe, Way
from .kronsparse_chain import backward_of
from .kronsparse_keep import Kept, KeptChain
from .launcher import collecting

Look = tuple[Any, ...]
Multiply = Callable[[torch.Tensor, torch.Tensor, Maybe, "Kept | None"], torch.Tensor]
Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_LIMIT = 1024
_KNOWN: dict[Look, Known | None] = {}


class Known(NamedTuple):
    """A call without its values: products of all factors, by their transposes, and gradients of their weights.

    Without any of them it goes through the matrix that is kept of them all.
    """

    multiply: tuple[Multiply, ...]
    turned: tuple[Multiply, ...]
    summed: tuple[Sum, ...]
    shape: tuple[int, ...]
    activation: str
    way: Way
    keeps: bool
    route: str


def look_of(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str | None, way: Way, kept: bool
) -> Look | None:
    """What a call looks like; None if somebody watches it or it is none for this path."""
    if not x.is_cpu or torch.is_autocast_enabled("cpu") or not unwatched() or collecting():
        return None
    settings, recorded = current(), torch.is_grad_enabled()
    facts: list[Any] = [activation, way, kept, settings.backend, torch.get_num_threads()]
    for value in (x, *weights) if bias is None else (x, *weights, bias):
        if type(value) not in PLAIN or not value.is_cpu or value.is_neg() or is_batched(value):
            return None
        facts += value.shape, value.stride(), value.dtype, recorded and value.requires_grad
    return tuple(facts)


def forget() -> None:
    """Let the next call of every chain go through all checks and be planned anew."""
    _KNOWN.clear()


def recalled(
    look: Look | None, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, kept: KeptChain | None
) -> tuple[torch.Tensor, str] | None:
    """Result of a call that is known and its route, else None."""
    known = None if look is None else _KNOWN.get(look)
    if known is None or (known.keeps and (kept is None or not kept.renew(weights))):
        return None
    if not known.multiply:
        if kept is None or kept.matrix is None or kept.seen != (x.shape, x.dtype, x.device):
            return None  # of another type, as under autocast
        result = kronsparse_run.through(x, kept.matrix, bias, known.activation, known.way.batch_last)
        return result, known.route
    if known.summed:
        result = _Recalled.apply(known, x, bias, *weights)
        return kronsparse_run.ACTIVATIONS[known.activation](result), known.route  # pyright: ignore
    value = _forward(known, x, weights, bias, kept.parts if known.keeps and kept is not None else None)[-1]
    if known.activation:
        kronsparse_run.IN_PLACE[known.activation](value)
    return value.view(known.shape), known.route


def _forward(
    known: Known, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, parts: Sequence[Kept] | None
) -> list[torch.Tensor]:
    """What follows each factor, as (N, features)."""
    value = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    values: list[torch.Tensor] = []
    last = len(weights) - 1
    for place, weight in enumerate(weights):
        part = None if parts is None else parts[place]
        value = known.multiply[place](value, weight, bias if place == last else None, part)
        values.append(value)
    return values


class _Recalled(torch.autograd.Function):
    """A known chain, one step of autograd; see ``kronsparse_chain.Chain``."""

    @staticmethod
    def forward(ctx: Any, known: Known, x: torch.Tensor, bias: Maybe, *weights: torch.Tensor) -> torch.Tensor:
        values = _forward(known, x, weights, bias, None)
        wanted = ctx.needs_input_grad[3:]
        kept = [each if needed else None for each, needed in zip(values, wanted[1:], strict=False)]
        ctx.known, ctx.way, ctx.context = known, known.way, copy_context()
        ctx.save_for_backward(x if any(wanted) else None, *weights, *kept)
        return values[-1] if x.dim() == 2 else values[-1].view(known.shape).detach()  # no view: may be changed in place

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        (grad,) = grads
        run = _backward if not torch.is_grad_enabled() and plain(grads) else backward_of
        return ctx.context.copy().run(run, ctx, grad)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Maybe, ...]:
    known: Known = ctx.known
    _, of_x, of_bias, *wanted = ctx.needs_input_grad
    x, *saved = ctx.saved_tensors
    weights, shape = saved[: len(wanted)], x.shape if x is not None else (*grad.shape[:-1], -1)
    moved = grad.contiguous().view(-1, grad.shape[-1])
    values = [x if x is None or x.dim() == 2 else x.reshape(-1, x.shape[-1]), *saved[len(wanted) :]]
    found: list[Maybe] = [None] * len(weights)
    bias = moved.sum(0) if of_bias else None
    for place in reversed(range(len(weights))):
        after = moved
        if of_x or any(wanted[:place]):  # first: the weights may be in the cache since they were multiplied by
            moved = known.turned[place](after, weights[place], None, None)
        if wanted[place]:
            found[place] = known.summed[place](values[place], after)
    return None, moved.view(shape) if of_x else None, bias, *found


def learn(
    look: Look | None, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, way: Way, kept: KeptChain | None
) -> None:
    """Remember a call that went through all checks."""
    if look is None or look in _KNOWN:
        return
    if len(_KNOWN) >= _LIMIT:
        _KNOWN.clear()
    if kept is not None and kept.matrix is not None and kept.seen == (x.shape, x.dtype, x.device):
        _KNOWN[look] = Known((), (), (), (), look[0] or "", way, True, kronsparse_run.DENSE)
        return
    _KNOWN[look] = _known(look, x.detach(), [weight.detach() for weight in weights], bias, way)


def _known(look: Look, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, way: Way) -> Known | None:
    activation, _, kept, *_ = look
    tracked = any(look[8::4])
    tensors = [x, *weights] if bias is None else [x, *weights, bias]
    uniform = all(tensor.dtype == x.dtype for tensor in tensors) and all(own.is_contiguous() for own in tensors[1:])
    if way.batch_last or way.algorithm not in ("auto", "kernel") or not x.numel() or not uniform:
        return None
    if not kronsparse_run.cpu().ready(x.dtype) or x.stride(-1) != 1 or (x.dim() != 2 and not x.is_contiguous()):
        return None
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    kept = kept and not tracked
    if not tracked and kronsparse_steps.plan(rows[None], weights, way.algorithm, kept) is not None:
        return None
    multiply: list[Multiply] = []
    turned: list[Multiply] = []
    summed: list[Sum] = []
    value, keeps, route = rows, False, ""
    for place, weight in enumerate(weights):
        a, b, c, d = weight.shape
        offset = bias if place == len(weights) - 1 else None
        own = _multiply(value, weight, offset, way, kept)
        if own is None:
            return None
        before, (call, route, packs) = value, own
        value, keeps = value.new_empty((len(rows), a * b * d)), keeps or (kept and packs)
        multiply.append(call)
        if tracked:
            back = _multiply(value, weight.transpose(1, 2), None, way, False)
            turned.append(back[0] if back is not None else _general(way))
            summed.append(_summed((a, b, c, d), before, value, way))
    shape = (*x.shape[:-1], value.shape[1])
    return Known(tuple(multiply), tuple(turned), tuple(summed), shape, activation or "", way, keeps, route)


def _multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, way: Way, kept: bool
) -> tuple[Multiply, str, bool] | None:
    """The product by the kernel, its route and whether something is kept for it; None where another way is quicker."""
    a, b, c, d = pattern = tuple(weight.shape)
    about = len(x), NAMES[x.dtype], "cpu", False
    if way.algorithm == "auto" and quickest(pattern, *about, None, kept)[0] != "kernel":
        return None
    features, dtype = a * b * d, x.dtype
    operand = kronsparse_run.cpu().operand
    call = kronsparse_run.cpu().first((a, b, c, d), x, weight, features, bias is not None, kept)
    start, shape, device = call.start, (len(x), features), x.device

    def run(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, kept: Kept | None) -> torch.Tensor:
        out = allocate(shape, dtype, device)
        own = weight if call.pack is None else operand(call, weight, kept)
        if bias is None or call.adds_bias:
            start(x.data_ptr(), own.data_ptr(), out.data_ptr())
            return out if bias is None else out.add_(bias)
        start(x.data_ptr(), own.data_ptr(), out.data_ptr(), bias.data_ptr())
        return out

    return run, call.route, call.pack is not None


def _general(way: Way) -> Multiply:
    """The product by transposed weights, whichever way."""

    def run(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
        return kronsparse_run.product(x[None], weight.transpose(1, 2)[None], None, "", *way)[0].contiguous()

    return run


def _summed(pattern: tuple[int, int, int, int], x: torch.Tensor, grad: torch.Tensor, way: Way) -> Sum:
    """The gradient of the weights."""
    algorithm, dtype, device = way.algorithm, x.dtype, x.device
    if algorithm == "auto":
        algorithm = quickest_gradient(pattern, len(x), NAMES[dtype], "cpu")[0]
    if algorithm != "kernel":
        return lambda x, grad: kronsparse_run.gradient(x[None], grad[None], pattern, algorithm, way.precision)[0]
    call = kronsparse_run.cpu().summed(pattern, x, grad)

    def run(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        out = allocate(pattern, dtype, device)
        call.start(grad.data_ptr(), x.data_ptr(), out.data_ptr())
        return out

    return run
