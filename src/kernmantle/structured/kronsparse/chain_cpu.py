"""Chains of Kronecker-sparse products on a CPU, bound to kernels: what remains of a call is their addresses.

Small kernels run in one call one after the other, the gradients too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch

from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from ...torch_ops.info import RunInfo
from ...torch_ops.torch_private import plain
from ..mode_product import execute
from ..mode_product.cost import quickest, quickest_gradient
from ..mode_product.operands import Operands
from ..mode_product.pack import PackedWeights
from ..mode_product.torch_op import Maybe, Options
from ..mode_product.torch_products import BLAS_FARTHEST
from .chain_training import gradients

Call = Any  # of kronsparse_cpu, which is loaded with the first product
Order = tuple[tuple[int, bool], ...]
Parts = Sequence[PackedWeights] | None
Multiply = Callable[[torch.Tensor, torch.Tensor, Maybe, "PackedWeights | None"], torch.Tensor]
_contiguous = torch.Tensor.is_contiguous
Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class KernelChain:
    """Products of all factors, by their transposes, and gradients of their weights, each without addresses.

    ``shape`` is that of the result, ``after`` and ``before`` the features after and before each factor. ``ahead`` runs
    all products in one call, ``back`` what of a backward pass is ``wanted``, in ``order``. ``x_stride`` is that of x.
    """

    multiply: tuple[Multiply, ...]
    shape: tuple[int, ...]
    activation: str
    packs: bool
    route: str
    options: Options
    recorded: bool = False
    transposed: tuple[Multiply, ...] = ()
    summed: tuple[Sum, ...] = ()
    after: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    ahead: Callable[..., None] | None = None
    back: Callable[..., None] | None = None
    wanted: tuple[bool, ...] = ()
    order: Order = ()
    x_stride: tuple[int, ...] = ()

    def __call__(
        self, tensors: tuple[torch.Tensor, Sequence[torch.Tensor], Maybe, Parts], numbers: RunInfo | None, _outs: None
    ) -> torch.Tensor:
        """Return the product; ``numbers`` takes the route."""
        x, weights, bias, parts = tensors
        if numbers is not None:
            numbers.route = self.route
        if self.recorded:
            result = _apply(self, x, bias, *weights)
            return execute.ACTIVATIONS[self.activation](result) if self.activation else result
        value = self.forward(x, weights, bias, parts if self.packs else None)[-1]
        if self.activation:
            execute.INPLACE[self.activation](value)
        return value if len(self.shape) == 2 else value.view(self.shape)

    def forward(
        self, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, parts: Parts
    ) -> list[torch.Tensor]:
        """Return what follows each factor, as (N, features); transposed where the batch is last."""
        if x.dim() != 2:
            x = x.reshape(len(x), -1) if self.options.batch_last else x.reshape(-1, x.shape[-1])
        value, values = x, list[torch.Tensor]()
        if self.ahead is not None:
            addresses: list[int] = []
            for weight, features in zip(weights, self.after, strict=True):
                out = allocate((value.shape[0], features), x.dtype, x.device)
                addresses += value.data_ptr(), weight.data_ptr(), out.data_ptr()
                values.append(out)
                value = out
            self.ahead(*addresses, *(() if bias is None else (bias.data_ptr(),)))
            return values
        last = len(weights) - 1
        for number, weight in enumerate(weights):
            part = None if parts is None else parts[number]
            value = self.multiply[number](value, weight, bias if number == last else None, part)
            values.append(value)
        return values


class _Recorded(torch.autograd.Function):
    """A bound chain, one step of autograd: forward and backward launch its kernels."""

    @staticmethod
    def forward(ctx: Any, own: KernelChain, x: torch.Tensor, bias: Maybe, *weights: torch.Tensor) -> torch.Tensor:
        values = own.forward(x, weights, bias, None)
        wanted = ctx.needs_input_grad[3:]
        saved = [each if needed else None for each, needed in zip(values, wanted[1:], strict=False)]
        ctx.own, ctx.context = own, copy_context()
        ctx.save_for_backward(x if any(wanted) else None, *weights, *saved)
        return values[-1] if x.dim() == 2 else values[-1].view(own.shape).detach()  # no view: may be changed in place

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return ctx.context.copy().run(_backward, ctx, grads[0])


# Function.apply looks for transforms, of which there is none: a call under one has no key.
_apply: Any = super(torch.autograd.Function, _Recorded).apply  # pyright: ignore[reportAttributeAccessIssue]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Maybe, ...]:
    own: KernelChain = ctx.own
    _, of_x, of_bias, *wanted = ctx.needs_input_grad
    x, *saved = ctx.saved_tensors
    weights, values = saved[: len(wanted)], [x, *saved[len(wanted) :]]
    # Hooks on saved tensors may bring them back in another layout.
    moved = (x is not None and x.stride() != own.x_stride) or not all(map(_contiguous, weights))
    if moved or torch.is_grad_enabled() or not plain([grad]):
        through, bias, found = gradients(own.options, x, weights, grad, ctx.needs_input_grad[1:])
        return None, through, bias, *found
    cotangent, flat, last = grad.contiguous(), grad.dim() == 2, own.options.batch_last
    if not flat:
        cotangent = cotangent.view(len(grad), -1) if last else cotangent.view(-1, grad.shape[-1])
        values[0] = None if x is None else x.reshape(len(x), -1) if last else x.reshape(-1, x.shape[-1])
    bias = cotangent.sum(int(last)) if of_bias else None
    if own.back is not None and (of_x, *wanted) == own.wanted:
        through, found = _back_at_once(own, cotangent, values, weights)
    else:
        through, found = _back(own, cotangent, values, weights, _order(of_x, wanted))
    of_input = through
    if not flat:
        of_input = through.view(-1, *grad.shape[1:]) if last else through.view(*grad.shape[:-1], -1)
    return None, of_input if of_x else None, bias, *found


def _order(of_x: bool, wanted: Sequence[bool]) -> Order:
    """Return the numbers of the factors of a backward pass, and whether a step is the gradient of the weight.

    It is summed after the product by the weight, which may be in the cache since it was multiplied by.
    """
    found: list[tuple[int, bool]] = []
    for number in reversed(range(len(wanted))):
        found += [(number, False)] * (of_x or any(wanted[:number])) + [(number, True)] * wanted[number]
    return tuple(found)


def _back(
    own: KernelChain, moved: torch.Tensor, values: Sequence[Any], weights: Sequence[torch.Tensor], order: Order
) -> tuple[torch.Tensor, list[Maybe]]:
    """Return the gradient of the rows before the first factor, and those of the weights."""
    found: list[Maybe] = [None] * len(weights)
    after_of = {len(weights) - 1: moved}
    for number, of_weight in order:
        if of_weight:
            found[number] = own.summed[number](values[number], after_of[number])
        else:
            moved = after_of[number - 1] = own.transposed[number](after_of[number], weights[number], None, None)
    return moved, found


def _back_at_once(
    own: KernelChain, moved: torch.Tensor, values: Sequence[Any], weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[Maybe]]:
    """Return the same, computed in one call."""
    found: list[Maybe] = [None] * len(weights)
    rows, dtype, device = moved.shape[0], moved.dtype, moved.device
    after_of, addresses = [moved] * len(weights), list[int]()
    for number, of_weight in own.order:
        after, weight = after_of[number], weights[number]
        if of_weight:
            made = found[number] = allocate(weight.shape, dtype, device)
            addresses += after.data_ptr(), values[number].data_ptr(), made.data_ptr()
            continue
        moved = allocate((rows, own.before[number]), dtype, device)
        if number:
            after_of[number - 1] = moved
        addresses += after.data_ptr(), weight.data_ptr(), moved.data_ptr()
    if own.back is not None:
        own.back(*addresses)
    return moved, found


@dataclass(frozen=True, eq=False)
class KernelStep:
    """A step of a bound chain in a compiled graph, see ``chain_step.Step``; what it saves is (1, N, features)."""

    chain: KernelChain
    saves_between: bool = True
    on_addresses: bool = False

    @property
    def route(self) -> str:
        """The text of ``info``."""
        return self.chain.route

    def forward(
        self, x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, info: RunInfo
    ) -> tuple[torch.Tensor, list[Maybe]]:
        """Return the product, and what lies between the factors."""
        info.route = self.route
        *between, value = self.chain.forward(x, weights, bias, None)
        return value if x.dim() == 2 else value.view(self.chain.shape).detach(), [each[None] for each in between]

    def bind_backward(
        self, x: Maybe, weights: Sequence[torch.Tensor], saved: Sequence[Maybe], grad: torch.Tensor,  # noqa: ARG002
        needed: Sequence[bool],
    ) -> Callable[..., tuple[Maybe, Maybe, list[Maybe]]]:  # fmt: skip
        """Return the gradients ``needed``, which are those that the chain was bound for."""
        of_x, of_bias, *of_weights = needed
        return partial(_gradients, self.chain, of_bias, _order(of_x, of_weights))


def _gradients(
    own: KernelChain, of_bias: bool, order: Order, x: Maybe, weights: Sequence[torch.Tensor], saved: Sequence[Maybe],
    grad: torch.Tensor,
) -> tuple[Maybe, Maybe, list[Maybe]]:  # fmt: skip
    """Return gradients of x, the bias and the weights; ``saved`` is absent where no gradient of a weight is wanted."""
    cotangent = grad.contiguous().view(-1, grad.shape[-1])
    rows = None if x is None else x.reshape(-1, x.shape[-1])
    values = [rows, *[None if each is None else each[0] for each in saved]]
    bias = cotangent.sum(0) if of_bias else None
    if own.back is not None:
        through, found = _back_at_once(own, cotangent, values, weights)
    else:
        through, found = _back(own, cotangent, values, weights, order)
    of_x = through.view(*grad.shape[:-1], through.shape[-1]) if own.wanted[0] else None
    return of_x, bias, found


def bind_step(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, options: Options, wanted: tuple[bool, ...]
) -> KernelStep | None:
    """Return the step of a chain whose products are all by kernels; None where there is none.

    ``wanted`` says by which of x and the weights gradients are taken.
    """
    found = bind(x, weights, bias, "", options, False, wanted) if x.is_cpu and not options.batch_last else None
    return None if found is None else KernelStep(found)


def bind(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, options: Options, packed: bool,
    wanted: tuple[bool, ...],
) -> KernelChain | None:  # fmt: skip
    """Return a chain whose products are all by kernels, or by one call of torch each; None where there is none.

    ``wanted`` says by which of x and the weights gradients are recorded; it is empty where none is, nor by the bias.
    """
    tensors = [*weights] if bias is None else [*weights, bias]
    if options.algorithm not in ("auto", "kernel") or not x.numel() or any(own.dtype != x.dtype for own in tensors):
        return None
    if not all(own.is_contiguous() for own in tensors):
        return None
    x, weights = x.detach(), [weight.detach() for weight in weights]
    biased = bias is not None
    if options.batch_last:
        return _batch_last(x, weights, biased, activation, options, packed, wanted) if x.is_contiguous() else None
    if x.stride(-1) != 1 or not (x.dim() == 2 or x.is_contiguous()) or not execute.cpu().ready(x.dtype):
        return None
    return _batch_first(x, weights, biased, activation, options, packed, wanted)


def _batch_last(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biased: bool, activation: str, options: Options, packed: bool,
    wanted: tuple[bool, ...],
) -> KernelChain | None:  # fmt: skip
    """Return a chain with the batch last whose products are by the kernel, or one of torch each."""
    value, multiply, packs, route, recorded = x.reshape(len(x), -1).T, list[Multiply](), False, "", bool(wanted)
    transposed, summed = list[Multiply](), list[Sum]()
    for number, weight in enumerate(weights):
        (a, b, c, d), adds = weight.shape, biased and number == len(weights) - 1
        own, is_auto = _by_batch(value, weight, adds, options, packed), options.algorithm == "auto"
        if own is not None:
            call, run = own
            packs = packs or (packed and (call.pack is not None if len(value) == 1 else d > 1))
            route = call.route
        elif is_auto and d == 1 and len(value) <= BLAS_FARTHEST and _chosen(value, weight, packed) == "bmm":
            run, route = _batched, "torch bmm"
        else:
            return None
        multiply.append(run)
        before, value = value, value.new_empty((a * b * d, len(value))).T
        if recorded:
            back = _by_batch(value, weight.transpose(1, 2), False, options, False)
            transposed.append(_general(options) if back is None else back[1])
            summed.append(_summing(_sum_kernel(weight, before, value, options), (a, b, c, d), options))
    order = _order(wanted[0], wanted[1:]) if recorded else ()
    return KernelChain(
        tuple(multiply), (len(value.T), *x.shape[1:]), activation, packs, route, options, recorded, tuple(transposed),
        tuple(summed), wanted=wanted, order=order, x_stride=x.stride(),
    )  # fmt: skip


def _chosen(x: torch.Tensor, weight: torch.Tensor, packed: bool = False) -> str:
    """Return the quickest algorithm for rows of x, with the batch together where it lies so."""
    return quickest(tuple(weight.shape), *execute.described(x[None]), None, packed)[0]


def _by_batch(
    x: torch.Tensor, weight: torch.Tensor, biased: bool, options: Options, packed: bool
) -> tuple[Call, Multiply] | None:
    """Return the product with the batch last by the kernel; None where another algorithm is quicker."""
    is_kernel = options.algorithm == "kernel" or _chosen(x, weight, packed) == "kernel"
    if not (is_kernel and execute.cpu().ready(x.dtype)):
        return None
    (a, b, c, d), count = weight.shape, len(x)
    if count == 1:
        call = execute.cpu().first((a, b, c, d), x, weight, a * b * d, biased, packed)
        return call, _multiplying(call, True)
    call = execute.cpu().last((a, b, c, d), x, weight, count, biased, packed)
    return call, _multiplying_last(call, d > 1)


def _multiplying_last(call: Call, arranged: bool) -> Multiply:
    """Return a product by the kernel; where weights are packed, ``arranged`` as matrices."""
    start, blocks = call.start.run, execute.cpu().blocks

    def run(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, packed: PackedWeights | None) -> torch.Tensor:
        out = allocate((call.features, x.shape[1]), x.dtype, x.device)
        own = blocks(weight[None], packed) if arranged and packed is not None else weight
        start(own.data_ptr(), x.data_ptr(), out.data_ptr(), *(() if bias is None else (bias.data_ptr(),)))
        return out

    return run


def _batched(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, _: PackedWeights | None) -> torch.Tensor:
    """Return the product of blocks of neighbours by blocks of rows."""
    a, b, c = weight.shape[:3]
    value = torch.bmm(weight.view(a, b, c), x.view(a, c, x.shape[1])).view(a * b, x.shape[1])
    return value if bias is None else value.add_(bias[:, None])


def _batch_first(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biased: bool, activation: str, options: Options, packed: bool,
    wanted: tuple[bool, ...],
) -> KernelChain | None:  # fmt: skip
    recorded, rows = bool(wanted), x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    multiply, transposed, summed = list[Call](), list[Call | None](), list[Call | None]()
    value = rows
    for number, weight in enumerate(weights):
        a, b, _, d = weight.shape
        own = _kernel(value, weight, biased and number == len(weights) - 1, options, packed)
        if own is None:
            return None
        multiply.append(own)
        before, value = value, value.new_empty((len(rows), a * b * d))
        if recorded:
            transposed.append(_kernel(value, weight.transpose(1, 2), False, options, False))
            summed.append(_sum_kernel(weight, before, value, options))
    after = tuple([weight.shape[0] * weight.shape[1] * weight.shape[3] for weight in weights])
    in_front = tuple([weight.shape[0] * weight.shape[2] * weight.shape[3] for weight in weights])
    order = _order(wanted[0], wanted[1:]) if recorded else ()
    chosen = [(summed if of_weight else transposed)[number] for number, of_weight in order]
    row = import_module("..mode_product.cpu_start", __package__).in_a_row
    return KernelChain(
        tuple(map(_multiplying, multiply)), (*x.shape[:-1], after[-1]), activation,
        any(packed and call.pack is not None for call in multiply), multiply[-1].route, options, recorded,
        tuple([_general(options) if call is None else _multiplying(call) for call in transposed]),
        tuple([_summing(call, tuple(own.shape), options) for call, own in zip(summed, weights, strict=recorded)]),
        after, in_front, row(multiply), row(chosen) if chosen and all(chosen) else None, wanted, order, x.stride(),
    )  # fmt: skip


def _kernel(x: torch.Tensor, weight: torch.Tensor, biased: bool, options: Options, packed: bool) -> Call | None:
    """Return the product by the kernel; None where another algorithm is quicker."""
    a, b, c, d = weight.shape
    about = len(x), NAMES[x.dtype], "cpu", False
    if options.algorithm == "auto" and quickest((a, b, c, d), *about, None, packed)[0] != "kernel":
        return None
    return execute.cpu().first((a, b, c, d), x, weight, a * b * d, biased, packed)


def _multiplying(call: Call, is_column: bool = False) -> Multiply:
    """Return a product by the kernel; ``is_column``: of one entry of a batch that is last, which lies as a row does."""
    start, operand, features = call.start.run, execute.cpu().operand, call.features

    def run(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, packed: PackedWeights | None) -> torch.Tensor:
        out = allocate((features, 1) if is_column else (len(x), features), x.dtype, x.device)
        own = weight if call.pack is None else operand(call, weight, packed)
        start(x.data_ptr(), own.data_ptr(), out.data_ptr(), *(() if bias is None else (bias.data_ptr(),)))
        return out

    return run


def _general(options: Options) -> Multiply:
    """Return the product by transposed weights, by whichever algorithm."""

    def run(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
        last, algorithm, precision = options
        rows = x.T if last else x
        own = Operands(rows[None], weight.transpose(1, 2)[None], batch_last=last, precision=precision)
        value = execute.product(own, algorithm)[0]
        return (value.T if last else value).contiguous()

    return run


def _sum_kernel(weight: torch.Tensor, x: torch.Tensor, grad: torch.Tensor, options: Options) -> Call | None:
    """Return the gradient of weights by the kernel; None where another algorithm is quicker."""
    a, b, c, d = weight.shape
    if options.algorithm == "auto" and quickest_gradient((a, b, c, d), *execute.described(x[None]))[0] != "kernel":
        return None
    return execute.cpu().summed((a, b, c, d), x, grad)


def _summing(call: Call | None, pattern: Any, options: Options) -> Sum:
    """Return the gradient of weights."""
    if call is None:
        last, algorithm, precision = options

        def of_any(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
            x, grad = (x.T, grad.T) if last else (x, grad)
            return execute.gradient(x[None], grad[None], pattern, algorithm, precision)[0]

        return of_any
    start, wide = call.start.run, call.wide

    def run(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        out = allocate(pattern, torch.float32 if wide else x.dtype, x.device)
        start(grad.data_ptr(), x.data_ptr(), out.data_ptr())
        return out.to(x.dtype) if wide else out

    return run
