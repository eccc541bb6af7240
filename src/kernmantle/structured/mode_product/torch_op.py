"""The torch operators ``kernmantle::kron_sparse`` and ``kernmantle::kron_sparse_weight``, and their derivatives.

The product is linear in ``x`` and in ``weight``. Its derivatives are the product with the transposed pattern and the
sum over the batch of ``kron_sparse_weight``, whose derivatives are these two operators again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any, NamedTuple

import torch

from ...config import current
from ...errors import BackendError
from ...torch_ops.flops import counted
from ...torch_ops.operator import LIBRARY, by_key, implement
from ...torch_ops.torch_private import check_untransformed, decomposed, plain, register_derivative
from . import execute
from .operands import Operands

Maybe = torch.Tensor | None


class Options(NamedTuple):
    """How products are computed: memory order of results, algorithm and precision."""

    batch_last: bool
    algorithm: str
    precision: str


def _run_weight(
    x: torch.Tensor, grad: torch.Tensor, a: int, b: int, c: int, d: int, algorithm: str, precision: str
) -> torch.Tensor:
    return execute.gradient(x, grad, (a, b, c, d), algorithm, precision or current().precision or "")


def _run(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, batch_last: bool, algorithm: str,
    precision: str,
) -> torch.Tensor:  # fmt: skip
    """Run the product in the precision in force if a traced call, which cannot read it, left it open."""
    precision = precision or current().precision or ""
    return execute.product(Operands(x, weight, bias, activation, batch_last, precision), algorithm)


def _fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Maybe,
    activation: str,
    batch_last: bool,
    *options: str,
) -> torch.Tensor:
    _, a, b, _, d = weight.shape
    groups, count, _ = x.shape
    if batch_last:
        return x.new_empty((groups, a * b * d, count)).transpose(1, 2)
    return x.new_empty((groups, count, a * b * d))


def _fake_weight(x: torch.Tensor, grad: torch.Tensor, a: int, b: int, c: int, d: int, *options: str) -> torch.Tensor:
    return x.new_empty((x.shape[0], a, b, c, d))


@decomposed("kron_sparse")
def _by_torch(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, batch_last: bool, *_: str
) -> torch.Tensor:
    """Return the product by torch's operations."""
    groups, (a, b, c, d) = x.shape[0], weight.shape[1:]
    weight = weight.to(x.dtype).expand(groups, a, b, c, d)
    value = torch.einsum(
        "gnikl,gijkl->gijln" if batch_last else "gnikl,gijkl->gnijl", x.unflatten(2, (a, c, d)), weight
    )
    value = value.flatten(1, 3).mT if batch_last else value.flatten(2)
    return execute.ACTIVATIONS[activation](value if bias is None else value + bias[:, None])


@decomposed("kron_sparse_weight")
def _weight_by_torch(x: torch.Tensor, grad: torch.Tensor, a: int, b: int, c: int, d: int, *_: str) -> torch.Tensor:
    return torch.einsum("gnikl,gnijl->gijkl", x.unflatten(2, (a, c, d)), grad.unflatten(2, (a, b, d)))


@counted("kron_sparse")
def _flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the operations: a multiplication and an addition for each weight and row of each group."""
    return 2 * max(x[0], weight[0]) * x[1] * math.prod(weight[1:])


@counted("kron_sparse_weight")
def _flops_weight(x: Sequence[int], grad: Sequence[int], a: int, b: int, c: int, d: int, *_: Any, **__: Any) -> int:
    return 2 * max(x[0], grad[0]) * x[1] * a * b * c * d


def _folded(tensor: torch.Tensor, dim: int | None, size: int, groups: int) -> torch.Tensor:
    """Return a tensor whose mapped axis joined its groups: (size · groups, ...)."""
    moved = tensor[None] if dim is None else tensor.movedim(dim, 0)
    return moved.expand(size, groups, *moved.shape[2:]).reshape(size * groups, *moved.shape[2:])


def _vmap(info: Any, in_dims: Sequence[Any], x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *options: Any) -> Any:
    size, (of_x, of_weight, of_bias, *_) = info.batch_size, in_dims
    groups = x.shape[0 if of_x is None else int(of_x == 0)]
    if of_x is not None and of_weight is None and of_bias is None and groups == 1:
        moved = x.movedim(of_x, 0)
        joined = moved.reshape(1, size * moved.shape[2], moved.shape[-1])
        result = _product(joined, weight, bias, *options)
        return result.unflatten(1, (size, moved.shape[2])).movedim(1, 0), 0
    folded = [
        value if value is None else _folded(value, dim, size, groups)
        for value, dim in ((x, of_x), (weight, of_weight), (bias, of_bias))
    ]
    result = _product(*folded, *options)
    return result.unflatten(0, (size, groups)), 0


def _vmap_weight(info: Any, in_dims: Sequence[Any], x: torch.Tensor, grad: torch.Tensor, *rest: Any) -> Any:
    size, (of_x, of_grad, *_) = info.batch_size, in_dims
    groups = x.shape[0 if of_x is None else int(of_x == 0)]
    result = _weight(_folded(x, of_x, size, groups), _folded(grad, of_grad, size, groups), *rest)
    return result.unflatten(0, (size, groups)), 0


_product = implement("kron_sparse", by_key(_run), _fake, _vmap)
_weight = implement("kron_sparse_weight", by_key(_run_weight), _fake_weight, _vmap_weight)


def _transposed(weight: torch.Tensor) -> torch.Tensor:
    """Return the weights of the transposed matrix."""
    return weight.transpose(2, 3)


def _plus(parts: Sequence[Maybe]) -> Maybe:
    present = [part for part in parts if part is not None]
    return sum(present[1:], present[0]) if present else None


class Product(torch.autograd.Function):
    """The product as an autograd.Function of ``x``, ``weight`` and ``bias``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, *options: Any) -> torch.Tensor:
        return _product(x, weight, bias, "", *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, weight, bias, *options = inputs
        ctx.options = Options(*options)
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.biases = None if bias is None else bias.shape[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        of_x = product(grad, _transposed(weight), None, ctx.options) if wanted[0] else None
        of_weight = weight_gradient(x, grad, weight.shape[1:], ctx.options) if wanted[1] else None
        if of_weight is not None:
            of_weight = of_weight.sum_to_size(weight.shape).to(weight.dtype)
        of_bias = grad.sum(1).sum_to_size((ctx.biases, grad.shape[2])) if wanted[2] else None
        return of_x, of_weight, of_bias, *(None,) * len(ctx.options)


class WeightGradient(torch.autograd.Function):
    """The gradient by the weights as an autograd.Function of ``x`` and the gradient of the product."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, grad: torch.Tensor, *rest: Any) -> torch.Tensor:
        return _weight(x, grad, *rest[:4], *rest[5:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, grad, *rest = inputs
        ctx.pattern, ctx.options = rest[:4], Options(*rest[4:])
        ctx.save_for_backward(x, grad)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        (cotangent,) = grads
        x, grad = ctx.saved_tensors
        of_x = product(grad, _transposed(cotangent), None, ctx.options) if ctx.needs_input_grad[0] else None
        of_grad = product(x, cotangent, None, ctx.options) if ctx.needs_input_grad[1] else None
        return of_x, of_grad, *(None,) * (4 + len(ctx.options))


class ProductWithJvp(Product):
    """With forward mode, which torch.compile does not accept in a Function."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, weight, bias, *options = inputs
        ctx.options = Options(*options)
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        ctx.biases = None if bias is None else bias.shape[0]
        ctx.context = copy_context()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        # In the configuration of the forward call: torch may run this in a thread of its own.
        return ctx.context.copy().run(Product.backward, ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        x, weight, bias, *_ = tangents
        own_x, own_weight = ctx.saved_tensors
        moved = [
            None if x is None else product(x, own_weight, None, ctx.options),
            None if weight is None else product(own_x, weight, None, ctx.options),
        ]
        total = _plus(moved)
        if bias is not None:
            if total is None:
                total = torch.zeros_like(product(own_x, own_weight, None, ctx.options))
            total = total + bias[:, None]
        # torch asks for the layout of the result, which batches of tangents that it runs one by one do not have.
        return total.mT.contiguous().mT if ctx.options.batch_last else total  # pyright: ignore


class WeightGradientWithJvp(WeightGradient):
    """With forward mode."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        WeightGradient.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:2])
        ctx.context = copy_context()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        return ctx.context.copy().run(WeightGradient.backward, ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> torch.Tensor:
        x, grad, *_ = tangents
        own_x, own_grad = ctx.saved_tensors
        moved = [
            None if x is None else weight_gradient(x, own_grad, ctx.pattern, ctx.options),
            None if grad is None else weight_gradient(own_x, grad, ctx.pattern, ctx.options),
        ]
        return _plus(moved)  # pyright: ignore[reportReturnType]


def product(x: torch.Tensor, weight: torch.Tensor, bias: Maybe, options: Options, activation: str = "") -> torch.Tensor:
    """Return the product of (G, N, a c d) and (H, a, b, c, d), with whatever derivative is being recorded."""
    tensors = [x, weight] if bias is None else [x, weight, bias]
    compiling = torch.compiler.is_compiling()
    tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not compiling and torch._C._get_tracing_state() is not None:
        raise BackendError(
            "torch.jit.trace cannot record this product; use torch.compile, torch.export or "
            "torch.onnx.export(..., dynamo=True)"
        )
    if not tracked and not compiling and plain(tensors):
        batch_last, algorithm, precision = options
        return execute.product(Operands(x, weight, bias, activation, batch_last, precision), algorithm)
    if compiling and not tracked:
        return _product(x, weight, bias, activation, *options)
    function = Product if compiling else ProductWithJvp
    return execute.ACTIVATIONS[activation](function.apply(x, weight, bias, *options))


def weight_gradient(x: torch.Tensor, grad: torch.Tensor, pattern: Sequence[int], options: Options) -> torch.Tensor:
    """Return the sum over the batch of the outer products of a result's gradient and ``x``, of shape (G, *pattern)."""
    compiling = torch.compiler.is_compiling()
    tracked = torch.is_grad_enabled() and (x.requires_grad or grad.requires_grad)
    if not tracked and compiling:
        return _weight(x, grad, *pattern, options.algorithm, options.precision)
    if not tracked and plain([x, grad]):
        return execute.gradient(x, grad, tuple(pattern), options.algorithm, options.precision)  # pyright: ignore
    function = WeightGradient if compiling else WeightGradientWithJvp
    return function.apply(x, grad, *pattern, *options)


def _record(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, batch_last: bool, algorithm: str,
    precision: str,
) -> torch.Tensor:  # fmt: skip
    """Record the derivatives of an operator in a graph that torch.export wrote, whose weights are trained."""
    check_untransformed("kron_sparse")
    return product(x, weight, bias, Options(batch_last, algorithm, precision), activation)


def _record_weight(
    x: torch.Tensor, grad: torch.Tensor, a: int, b: int, c: int, d: int, algorithm: str, precision: str
) -> torch.Tensor:
    check_untransformed("kron_sparse_weight")
    return weight_gradient(x, grad, (a, b, c, d), Options(False, algorithm, precision))


register_derivative(
    LIBRARY, "kron_sparse", lambda x, weight, bias, *_: [x, weight] if bias is None else [x, weight, bias], _record
)
register_derivative(LIBRARY, "kron_sparse_weight", lambda x, grad, *_: [x, grad], _record_weight)
