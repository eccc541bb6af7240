"""Training steps of a chain of Kronecker-sparse products in few launches: through its matrix, or for a few rows.

``x`` and gradients are (1, N, features), weights (a, b, c, d), a bias (features,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch

from ...config import current
from ...torch_ops.dtypes import NAMES
from ...torch_ops.info import RunInfo
from ...torch_ops.torch_private import plain
from ..mode_product import execute
from ..mode_product.chain_plan import Pattern, fused, meets
from ..mode_product.cost import dense_seconds, joining_seconds, quickest, quickest_gradient
from ..mode_product.execute import ACTIVATIONS, DENSE, described, empty, uncast, within_blas_strides
from ..mode_product.grouped_plan import DTYPES, grouped_seconds, joined_seconds
from ..mode_product.torch_op import Maybe, Options, product, weight_gradient
from ..mode_product.torch_products import by_dense
from . import chain_execute

_MOST_DENSE = 2**26
_BETWEEN = 5e-7  # what a product takes longer among others in a step
# Rows of halves from which the vendor's product with ones, which reads lines whole, sums quicker; rows up to which they
# are summed beside other work.
_LEAST_ONES, _MOST_SIDE_ROWS = 2048, 4096
FACTORS, GROUPED, MATRIX = "factors", "grouped", "matrix"


@lru_cache(maxsize=1)
def _grouped() -> Any:
    """Loaded with the first step on a GPU."""
    return import_module("..mode_product.grouped", __package__)


@lru_cache(maxsize=1)
def _gpu() -> Any:
    """The same."""
    return import_module("..mode_product.cuda", __package__)


def kind_of(x: torch.Tensor, weights: Sequence[torch.Tensor], options: tuple[bool, str, str]) -> str:
    """How a training step should be quickest: "factors", one product after the other, "grouped" or "matrix"."""
    _, algorithm, precision = options
    batch, dtype, kind, last = described(x)
    if kind != "cuda" or algorithm != "auto" or precision or dtype not in DTYPES or batch == 0:
        return FACTORS
    if current().backend not in ("auto", "cuda"):
        return FACTORS
    patterns = tuple([weight.shape for weight in weights])
    found = expected(patterns, batch, dtype, last, x.device)  # pyright: ignore[reportArgumentType]
    return min(found, key=lambda name: found[name])


@lru_cache(maxsize=1024)
def expected(
    patterns: tuple[Pattern, ...], batch: int, dtype: str, last: bool, device: torch.device
) -> dict[str, float]:
    """What each way to a training step should take on a GPU."""

    def multiplied(pattern: Pattern, transposed: bool) -> float:
        kernel = _gpu().expected(pattern, batch, dtype, not last, device, transposed)
        return quickest(pattern, batch, dtype, "cuda", last, kernel)[1]

    def factor(pattern: Pattern) -> float:
        a, b, c, d = pattern
        summed = quickest_gradient(pattern, batch, dtype, "cuda", last)[1]
        return multiplied(pattern, False) + multiplied((a, c, b, d), True) + summed + 3 * _BETWEEN

    own = _gpu().limits(_gpu().index_of(device))
    found = {FACTORS: sum(map(factor, patterns)), GROUPED: grouped_seconds(patterns, batch, dtype, last, own)}
    (a, _, c, d), final = patterns[0], patterns[-1]
    shape = final[0] * final[1] * final[3], a * c * d
    if len(patterns) > 1 and math.prod(shape) <= _MOST_DENSE:
        made = joining_seconds(patterns, dtype) if not _meet(patterns) else joined_seconds(patterns, dtype, own)
        found[MATRIX] = 3 * (_BETWEEN + dense_seconds(shape, batch, dtype, "cuda")) + made
    return found


def forward(
    kind: str, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, options: tuple[bool, str, str],
    of_x: bool,
    info: RunInfo,
) -> tuple[torch.Tensor, list[Maybe]]:  # fmt: skip
    """The product, and what is kept for :func:`backward`."""
    own = [weight.detach().to(x.dtype) for weight in weights]
    bias = None if bias is None else bias.to(x.dtype)
    if kind == MATRIX:
        matrix = _matrix(own, x)
        value = uncast(
            x.device.type,
            by_dense,
            within_blas_strides(x),
            own[-1][None],
            matrix[None],
            None if bias is None else bias[None],
        )
        info.route = DENSE
        return _ordered(value, options[0]), [matrix if of_x else None]
    between: list[Maybe] = []
    for index, weight in enumerate(own):
        a, b, _, d = weight.shape
        out = empty(x, a * b * d, options[0])
        final = index == len(own) - 1
        info.route = _grouped().forward(x, weight, bias if final else None, "", options[2], out)
        between.append(out)
        x = out
    return x, between[:-1]


def _ordered(value: torch.Tensor, batch_last: bool) -> torch.Tensor:
    """Features, or the batch, together in memory."""
    return value.mT.contiguous().mT if batch_last else value.contiguous()


def backward(
    kind: str, values: Sequence[Maybe], weights: Sequence[torch.Tensor], grad: torch.Tensor, wanted: Sequence[bool],
    options: tuple[bool, str, str],
) -> tuple[Maybe, Maybe, list[Maybe]]:  # fmt: skip
    """Gradients of x, bias and weights, those wanted, from what :func:`forward` kept behind x."""
    if kind == MATRIX:
        return _back_through(values[0], values[1], weights, grad, wanted, options)
    of_x, of_bias, *of_weights = wanted
    found: list[Maybe] = [None] * len(weights)
    bias, moved = None, grad
    for index in reversed(range(len(weights))):
        weight, value = weights[index].detach().to(grad.dtype), values[index]
        deeper = of_x or any(of_weights[:index])
        a, b, c, d = weight.shape
        below = empty(grad, a * c * d, options[0]) if deeper else None
        of_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if of_weights[index] else None
        of_this = grad.new_empty(a * b * d) if of_bias and index == len(weights) - 1 else None
        if below is None and of_weight is None and of_this is None:
            break
        of_y = moved if value is None else value
        _grouped().backward(of_y, moved, weight, below, of_weight, of_this, options[2])
        found[index] = None if of_weight is None else of_weight.to(weights[index].dtype)
        bias = of_this if bias is None else bias
        if below is None:
            break
        moved = below
    return moved if of_x else None, bias, found


def summed(grad: torch.Tensor) -> torch.Tensor:
    """Sums over the rows of a gradient."""
    if grad.is_cuda and grad.dtype.itemsize == 2 and grad.shape[1] >= _LEAST_ONES:
        return uncast("cuda", torch.mv, within_blas_strides(grad)[0].mT, grad.new_ones(grad.shape[1]))
    ours = grad.is_cuda and NAMES.get(grad.dtype) in DTYPES and current().backend in ("auto", "cuda")
    return _grouped().summed(grad) if ours and grad.shape[1] > 0 else grad.sum(1)[0]


def _back_through(
    x: Maybe, matrix: Maybe, weights: Sequence[torch.Tensor], grad: torch.Tensor, wanted: Sequence[bool],
    options: tuple[bool, str, str],
) -> tuple[Maybe, Maybe, list[Maybe]]:  # fmt: skip
    of_x, of_bias, *of_weights = wanted
    kind, own = grad.device.type, [weight.detach().to(grad.dtype) for weight in weights]
    deeper = any(of_weights) and x is not None
    within = of_bias and deeper and _quick(own) and grad.shape[1] <= _MOST_SIDE_ROWS
    found: list[Maybe] = [None] * len(weights)
    below = of_matrix = None
    if deeper and x is not None:
        of_matrix = uncast(kind, torch.matmul, within_blas_strides(grad)[0].mT, within_blas_strides(x)[0])
    apart = of_x and (deeper or of_bias)
    with side_stream(grad.device, apart):
        bias = grad.new_empty(grad.shape[2]) if within else summed(grad) if of_bias else None
        if of_matrix is not None:
            parts = _parted(own, of_matrix, of_weights, (grad, bias) if within and bias is not None else None)
            found = [part if part is None else part.to(each.dtype) for part, each in zip(parts, weights, strict=True)]
    if of_x and matrix is not None:
        below = _ordered(uncast(kind, by_dense, within_blas_strides(grad), own[0][None], matrix.mT[None]), options[0])
    if apart:
        join_side_stream(grad.device)
    return below, bias, found


_SIDES: dict[torch.device, torch.cuda.Stream] = {}


def _splits(device: torch.device) -> bool:
    """Whether work is put on two streams: where that costs the host nothing later."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def side_stream(device: torch.device, wanted: bool) -> Any:
    """What is done here runs beside what follows, until :func:`meet_again`."""
    if not wanted or not _splits(device):
        return nullcontext()
    side = _SIDES.get(device) or _SIDES.setdefault(device, torch.cuda.Stream(device))
    side.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(side)


def join_side_stream(device: torch.device) -> None:
    """What follows waits for what was done beside."""
    if _splits(device) and device in _SIDES:
        torch.cuda.current_stream(device).wait_stream(_SIDES[device])


def _quick(weights: Sequence[torch.Tensor]) -> bool:
    """Whether kernels make the matrix of these weights and take its gradient apart."""
    first = weights[0]
    if not first.is_cuda or NAMES.get(first.dtype) not in DTYPES or current().backend not in ("auto", "cuda"):
        return False
    return meeting(weights)


def meeting(weights: Sequence[torch.Tensor]) -> bool:
    """Whether all factors meet in a product without zeros."""
    return _meet(tuple([tuple(weight.shape) for weight in weights]))  # pyright: ignore[reportArgumentType]


@lru_cache(maxsize=1024)
def _meet(patterns: tuple[Pattern, ...]) -> bool:
    own = patterns[0]
    for pattern in patterns[1:]:
        if not meets(own, pattern):
            return False
        own = fused(own, pattern)
    return len(patterns) > 1 and own[0] == own[3] == 1


def _joined(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Weights of the products of the first, the first two, ... factors."""
    made = [weights[0]]
    for weight in weights[1:]:
        shape = fused(tuple(made[-1].shape), tuple(weight.shape))  # pyright: ignore[reportArgumentType]
        out = weight.new_empty(shape)
        _grouped().join(made[-1], weight, out, "")
        made.append(out)
    return made


def _matrix(weights: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    if _quick(weights):
        return _joined(weights)[-1][0, :, :, 0]
    with torch.no_grad():
        return uncast(x.device.type, chain_execute.joined, weights, x.dtype, x.dtype)


def _parted(
    weights: Sequence[torch.Tensor], of_matrix: torch.Tensor, wanted: Sequence[bool],
    summed: tuple[torch.Tensor, torch.Tensor] | None,
) -> list[Maybe]:  # fmt: skip
    """Gradients of weights from that of their chain's matrix; ``summed``: what is summed beside them, and where."""
    if not _quick(weights):
        with torch.enable_grad():
            own = [weight.detach().requires_grad_() for weight in weights]
            matrix = uncast(of_matrix.device.type, chain_execute.joined, own, of_matrix.dtype, of_matrix.dtype)
            asked = [weight for weight, needed in zip(own, wanted, strict=True) if needed]
            made = torch.autograd.grad(matrix, asked, of_matrix)
        taken = iter([each.contiguous().view(-1).view(each.shape) for each in made])  # strides as of the weights
        return [next(taken) if needed else None for needed in wanted]
    found: list[Maybe] = [None] * len(weights)
    before = _joined(weights[:-1])
    grad = of_matrix.contiguous()[None, :, :, None]
    for index in range(len(weights) - 1, 0, -1):
        deeper = any(wanted[:index])
        of_this = torch.empty_like(weights[index], memory_format=torch.contiguous_format) if wanted[index] else None
        below = torch.empty_like(before[index - 1], memory_format=torch.contiguous_format) if deeper else None
        if of_this is not None or below is not None:
            _grouped().part(before[index - 1], weights[index], grad, below, of_this, "", summed)
            summed = None
        found[index] = of_this
        if below is None:
            return found
        grad = below
    found[0] = grad
    return found


def canonical(x: torch.Tensor, batch_last: bool) -> torch.Tensor:
    """``x`` as (1, N, features)."""
    if batch_last:
        return x.reshape(1, x.shape[0], math.prod(x.shape[1:])).mT
    return x[None] if x.dim() == 2 else x.reshape(1, math.prod(x.shape[:-1]), x.shape[-1])


def shaped(value: torch.Tensor, x: torch.Tensor, batch_last: bool) -> torch.Tensor:
    """A result (1, N, features) with the batch axes of x."""
    if batch_last:
        return value[0].mT.reshape(value.shape[2], *x.shape[1:])
    return value[0] if x.dim() == 2 else value.reshape(*x.shape[:-1], value.shape[2])


@dataclass(frozen=True, eq=False)
class RecordedChain:
    """A chain whose gradients are recorded, of the kind that should be quickest."""

    kind: str
    activation: str
    options: Options
    route: str = ""

    def __call__(self, tensors: tuple[Any, ...], numbers: RunInfo | None, _outs: None) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        x, weights, bias, _ = tensors
        result = _apply((self.options, self.kind, RunInfo() if numbers is None else numbers), x, bias, *weights)
        return ACTIVATIONS[self.activation](result)


class _Recorded(torch.autograd.Function):
    """``x``, ``bias`` and weights to their product, what is between the factors saved for the gradients of weights.

    For calls that nothing but autograd sees: forward mode, transforms and torch.compile go factor by factor.
    """

    @staticmethod
    def forward(
        ctx: Any, by: tuple[Options, str, RunInfo], x: torch.Tensor, bias: Maybe, *weights: torch.Tensor
    ) -> torch.Tensor:
        options, kind, info = by
        value = canonical(x, options.batch_last)
        _, of_x, _, *wanted = ctx.needs_input_grad
        if kind == FACTORS:
            found, between = _by_factors(value, weights, bias, options, info)
        else:
            found, between = forward(kind, value, weights, bias, options, of_x, info)
        if kind != MATRIX:
            between = [each if needed else None for each, needed in zip(between, wanted[1:], strict=True)]
        ctx.options, ctx.kind, ctx.context = options, kind, copy_context()
        ctx.save_for_backward(x if any(wanted) else None, *weights, *between)
        return shaped(found, x, options.batch_last).detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return ctx.context.copy().run(_backward, ctx, grads[0])


# Function.apply looks for transforms, of which there is none: a call under one goes factor by factor.
_apply: Any = super(torch.autograd.Function, _Recorded).apply  # pyright: ignore[reportAttributeAccessIssue]


def _by_factors(
    value: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, options: Options, info: RunInfo
) -> tuple[torch.Tensor, list[Maybe]]:
    """One factor after the other, and what is between them."""
    between: list[Maybe] = []
    last = len(weights) - 1
    for index, weight in enumerate(weights):
        own = bias[None] if index == last and bias is not None else None
        value = execute.product(value, weight[None], own, "", *options, info=info)
        between.append(value)
    return value, between[:-1]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Maybe, ...]:
    if ctx.kind == FACTORS or torch.is_grad_enabled() or not plain([grad]):
        return backward_of(ctx, grad, ctx.kind == MATRIX)
    x, *saved = ctx.saved_tensors
    _, *wanted = ctx.needs_input_grad
    count = len(wanted) - 2
    values = [None if x is None else canonical(x, ctx.options.batch_last), *saved[count:]]
    moved = canonical(grad, ctx.options.batch_last)
    own, bias, found = backward(ctx.kind, values, saved[:count], moved, wanted, ctx.options)
    return None, None if own is None else shaped(own, grad, ctx.options.batch_last), bias, *found


def _multiply(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, options: Options) -> torch.Tensor:
    """``product`` where nothing is recorded."""
    return execute.product(x, weight, bias, "", *options)


def _summed(x: torch.Tensor, grad: torch.Tensor, pattern: Sequence[int], options: Options) -> torch.Tensor:
    """``weight_gradient`` where nothing is recorded."""
    a, b, c, d = pattern
    return execute.gradient(x, grad, (a, b, c, d), options.algorithm, options.precision)


def backward_of(ctx: Any, grad: torch.Tensor, anew: bool = False) -> tuple[Maybe, ...]:
    """Gradients of the way, x, the bias and the weights; ``anew``: what is between the factors is not kept."""
    _, of_x, of_bias, *wanted = ctx.needs_input_grad
    x, *saved = ctx.saved_tensors
    options, weights = ctx.options, saved[: len(wanted)]
    values = [x, *([None] * (len(weights) - 1) if anew else saved[len(wanted) :])]
    if x is not None:
        values[0] = canonical(x, options.batch_last)
        if anew or torch.is_grad_enabled():  # derivatives of this one go through what is between the factors
            for index, weight in enumerate(weights[:-1]):
                values[index + 1] = product(values[index], weight[None], None, options)
    moved = canonical(grad, options.batch_last)
    quiet = not torch.is_grad_enabled() and plain([grad])
    multiply, of_weight = (_multiply, _summed) if quiet else (product, weight_gradient)
    found: list[Maybe] = [None] * len(weights)
    bias = None if not of_bias else summed(moved) if quiet else moved.sum(1)[0]
    alive, apart = [moved], quiet and any(wanted) and (of_x or any(wanted[:-1]))  # what another stream reads stays
    for index in reversed(range(len(weights))):
        weight = weights[index]
        if wanted[index]:
            with side_stream(grad.device, apart):
                found[index] = of_weight(values[index], moved, weight.shape, options)[0].to(weight.dtype)
        if of_x or any(wanted[:index]):
            moved = multiply(moved, weight.transpose(1, 2)[None], None, options)
            alive.append(moved)
    if apart:
        join_side_stream(grad.device)
    return None, shaped(moved, grad, options.batch_last) if of_x else None, bias, *found
