"""A chain of Kronecker-sparse products, one step of autograd where it is recorded.

``weights`` are (a, b, c, d) each, ``bias`` (features,) or None, ``x`` has its features first or last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

import torch

from . import kronsparse_run, kronsparse_steps, kronsparse_train
from .checks import autocasts
from .info import RunInfo
from .kronsparse import Maybe, Way, product, weight_gradient
from .kronsparse_pack import PackedChain
from .torch_private import plain

Weights = Sequence[torch.Tensor]


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


def _turned(weight: torch.Tensor) -> torch.Tensor:
    """Weights of the transposed matrix."""
    return weight.transpose(1, 2)


class Chain(torch.autograd.Function):
    """``x``, ``bias`` and weights to their product, what is between the factors packed for the gradients of weights.

    For calls that nobody watches: forward mode, transforms and torch.compile go through each product.
    """

    @staticmethod
    def forward(
        ctx: Any, by: tuple[Way, str, RunInfo], x: torch.Tensor, bias: Maybe, *weights: torch.Tensor
    ) -> torch.Tensor:
        way, kind, info = by
        value = canonical(x, way.batch_last)
        _, of_x, _, *wanted = ctx.needs_input_grad
        if kind == kronsparse_train.FACTORS:
            found, between = _by_factors(value, weights, bias, way, info)
        else:
            found, between = kronsparse_train.forward(kind, value, weights, bias, way, of_x, info)
        if kind != kronsparse_train.MATRIX:
            between = [each if needed else None for each, needed in zip(between, wanted[1:], strict=True)]
        ctx.way, ctx.kind, ctx.context = way, kind, copy_context()
        ctx.save_for_backward(x if any(wanted) else None, *weights, *between)
        return shaped(found, x, way.batch_last).detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return ctx.context.copy().run(_backward, ctx, grads[0])


def _by_factors(
    value: torch.Tensor, weights: Weights, bias: Maybe, way: Way, info: RunInfo
) -> tuple[torch.Tensor, list[Maybe]]:
    """One factor after the other, and what is between them."""
    between: list[Maybe] = []
    last = len(weights) - 1
    for place, weight in enumerate(weights):
        own = bias[None] if place == last and bias is not None else None
        value = kronsparse_run.product(value, weight[None], own, "", *way, info=info)
        between.append(value)
    return value, between[:-1]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Maybe, ...]:
    if ctx.kind == kronsparse_train.FACTORS or torch.is_grad_enabled() or not plain([grad]):
        return backward_of(ctx, grad, ctx.kind == kronsparse_train.MATRIX)
    x, *saved = ctx.saved_tensors
    _, *wanted = ctx.needs_input_grad
    count = len(wanted) - 2
    values = [None if x is None else canonical(x, ctx.way.batch_last), *saved[count:]]
    moved = canonical(grad, ctx.way.batch_last)
    own, bias, found = kronsparse_train.backward(ctx.kind, values, saved[:count], moved, wanted, ctx.way)
    return None, None if own is None else shaped(own, grad, ctx.way.batch_last), bias, *found


def _multiply(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, way: Way) -> torch.Tensor:
    """``product`` where nothing is recorded."""
    return kronsparse_run.product(x, weight, bias, "", *way)


def _summed(x: torch.Tensor, grad: torch.Tensor, pattern: Sequence[int], way: Way) -> torch.Tensor:
    """``weight_gradient`` where nothing is recorded."""
    a, b, c, d = pattern
    return kronsparse_run.gradient(x, grad, (a, b, c, d), way.algorithm, way.precision)


def backward_of(ctx: Any, grad: torch.Tensor, anew: bool = False) -> tuple[Maybe, ...]:
    """Gradients of the way, x, the bias and the weights; ``anew``: what is between the factors is not kept."""
    _, of_x, of_bias, *wanted = ctx.needs_input_grad
    x, *saved = ctx.saved_tensors
    way, weights = ctx.way, saved[: len(wanted)]
    values = [x, *([None] * (len(weights) - 1) if anew else saved[len(wanted) :])]
    if x is not None:
        values[0] = canonical(x, way.batch_last)
        if anew or torch.is_grad_enabled():  # derivatives of this one go through what is between the factors
            for place, weight in enumerate(weights[:-1]):
                values[place + 1] = product(values[place], weight[None], None, way)
    moved = canonical(grad, way.batch_last)
    quiet = not torch.is_grad_enabled() and plain([grad])
    multiply, summed = (_multiply, _summed) if quiet else (product, weight_gradient)
    found: list[Maybe] = [None] * len(weights)
    bias = None if not of_bias else kronsparse_train.summed(moved) if quiet else moved.sum(1)[0]
    held, apart = [moved], quiet and any(wanted) and (of_x or any(wanted[:-1]))  # what another stream reads stays
    for place in reversed(range(len(weights))):
        weight = weights[place]
        if wanted[place]:
            with kronsparse_train.beside(grad.device, apart):
                found[place] = summed(values[place], moved, weight.shape, way)[0].to(weight.dtype)
        if of_x or any(wanted[:place]):
            moved = multiply(moved, _turned(weight)[None], None, way)
            held.append(moved)
    if apart:
        kronsparse_train.meet_again(grad.device)
    return None, shaped(moved, grad, way.batch_last) if of_x else None, bias, *found


def chain(
    x: torch.Tensor, weights: Weights, bias: Maybe, activation: str, way: Way, packed: PackedChain | None = None,
    info: RunInfo | None = None,
) -> torch.Tensor:  # fmt: skip
    """Product with each weight in turn; what it is given is checked already.

    ``packed`` belongs to weights that never change; ``info`` takes the route.
    """
    info = RunInfo() if info is None else info
    parts = None if packed is None else packed.parts
    tensors = [x, *weights] if bias is None else [x, *weights, bias]
    tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if torch.compiler.is_compiling() or not plain(tensors):
        info.route = f"under a transform, factor by factor: {way.algorithm}"
        return _one_by_one(x, weights, bias, activation, way)
    if tracked:
        kind = kronsparse_train.kind_of(canonical(x.detach(), way.batch_last), weights, way)
        return kronsparse_run.ACTIVATIONS[activation](Chain.apply((way, kind, info), x, bias, *weights))  # pyright: ignore
    value, last = canonical(x, way.batch_last), len(weights) - 1
    offset = None if bias is None else bias[None]
    found = kronsparse_steps.plan(value, weights, way.algorithm, packed is not None and not way.precision)
    if found is not None:
        matrix = kronsparse_steps.whole(found[0], x, weights, parts)
        if matrix is not None and packed is not None:
            packed.go_direct(x, -1)
            info.route = kronsparse_run.DENSE
            return kronsparse_run.through(x, matrix, bias, activation, way.batch_last)
        run = kronsparse_steps.run(*found, value, weights, offset, activation, way, parts, info)
        return shaped(run, x, way.batch_last)
    for place, weight in enumerate(weights):
        final = place == last
        value = kronsparse_run.product(
            value, weight[None], offset if final else None, activation if final else "", *way,
            packed=None if parts is None else parts[place], info=info,
        )  # fmt: skip
    if packed is not None and last == 0 and info.route == kronsparse_run.DENSE:
        packed.go_direct(x, 0)
    return shaped(value, x, way.batch_last)


def through_matrix(x: torch.Tensor, bias: Maybe, activation: str, batch_last: bool, packed: PackedChain) -> Maybe:
    """Return the product through the packed matrix that such calls go through.

    None where there is none, or where somebody watches or records the call.
    """
    matrix = packed.matrix_for(x)
    if matrix is None or not plain([x]) or autocasts(x.device):
        return None
    if x.requires_grad and torch.is_grad_enabled():
        return None
    return kronsparse_run.through(x, matrix, bias, activation, batch_last)


def _one_by_one(x: torch.Tensor, weights: Weights, bias: Maybe, activation: str, way: Way) -> torch.Tensor:
    """Each product with whatever derivative is being recorded."""
    value, last = canonical(x, way.batch_last), len(weights) - 1
    for place, weight in enumerate(weights):
        own = bias[None] if place == last and bias is not None else None
        value = product(value, weight[None], own, way, activation if place == last else "")
    return shaped(value, x, way.batch_last)
