"""Runs Kronecker-sparse products without derivatives, by the requested algorithm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional

from ...config import current
from ...ir.node import Node, const, var
from ...ir.program import Operand, Program
from ...ir.reductions import REDUCTIONS
from ...torch_ops.dtypes import NAMES, compute_type
from ...torch_ops.execute import Types, allocate, prepare
from ...torch_ops.info import RunInfo
from .cost import TRANSPOSED, quickest, quickest_gradient
from .operands import Operands
from .pack import PackedWeights
from .torch_products import BLAS_FARTHEST, GRADIENTS, MADE, OWN, by_bmm, by_dense
from .transpose_plan import arranges

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda value: value,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}
INPLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda value: value,
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "silu": torch.ops.aten.silu_,
}
_ACTIVATED: dict[str, Callable[[Node], Node]] = {
    "": lambda value: value,
    "relu": lambda value: Node("max", (value, const(0))),
    "gelu": lambda value: _times(value, Node("add", (const(0.5), _times(const(0.5), _erf(value))))),
    "silu": lambda value: _times(value, Node("sigmoid", (value,))),
}
_DEVICES = ("cpu", "cuda")
DENSE = "torch dense"


def _times(left: Node, right: Node) -> Node:
    return Node("mul", (left, right))


def _erf(value: Node) -> Node:
    return Node("erf", (_times(const(0.5**0.5), value),))


@lru_cache(maxsize=1)
def gpu() -> Any:
    """Return the module of GPU products, loaded with the first one."""
    return import_module(".cuda", __package__)


@lru_cache(maxsize=1)
def sums() -> Any:
    """Return the module of gradients of weights on GPUs, loaded with the first one."""
    return import_module(".weight_gradient", __package__)


@lru_cache(maxsize=1)
def cpu() -> Any:
    """Return the module of CPU products, loaded with the first one."""
    return import_module(".cpu", __package__)


@lru_cache(maxsize=1)
def transposing() -> Any:
    """Return the module of products over transposed rows."""
    return import_module(".transpose", __package__)


def is_on_gpu(x: torch.Tensor) -> bool:
    """Return whether kernels of a GPU may multiply x: it lies on one, and the configuration allows them."""
    return x.is_cuda and current().backend in ("auto", "cuda")


@lru_cache(maxsize=64)
def _product_program(has_bias: bool, activation: str, last: bool) -> str:
    """Return the sum of products over k; with ``last`` the vectors run along the batch."""
    operands = [Operand("x0", "gnikl"), Operand("x1", "gijkl"), *[Operand("x2", "gijl")] * has_bias]
    total = Node("add", (var("s0"), var("x2"))) if has_bias else var("s0")
    product = _times(var("x0"), var("x1"))
    out = "giljn" if last else "gilnj"
    return Program(tuple(operands), out, (product,), (REDUCTIONS["sum"],), (_ACTIVATED[activation](total),)).text


@lru_cache(maxsize=1)
def _gradient_program() -> str:
    operands = (Operand("x0", "gnikl"), Operand("x1", "gnijl"))
    return Program(operands, "giljk", (_times(var("x0"), var("x1")),), (REDUCTIONS["sum"],), (var("s0"),)).text


@lru_cache(maxsize=64)
def _types(dtype: torch.dtype, precision: str) -> str:
    name = NAMES[dtype]
    return Types(compute_type([name]), (name,), precision or "default").text


def described(x: torch.Tensor) -> tuple[int, str, str, bool]:
    """Return what the cost of a product depends on besides its pattern."""
    return x.shape[1], NAMES[x.dtype], x.device.type, x.stride(2) != 1 and x.shape[2] > 1


def _among(algorithm: str, x: torch.Tensor) -> str:
    """Return the algorithm asked for; without a choice where the cost of none is known."""
    return "kernel" if algorithm == "auto" and x.device.type not in _DEVICES else algorithm


def uncast(kind: str, call: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    """Return a call in the types it is given; entering the context takes 6 us."""
    if not torch.is_autocast_enabled(kind):
        return call(*arguments)
    with torch.autocast(kind, enabled=False):
        return call(*arguments)


def product(
    own: Operands, algorithm: str, out: torch.Tensor | None = None, info: RunInfo | None = None
) -> torch.Tensor:
    """Return the product, in ``out`` if there is one."""
    x, weight = own.x, own.weight
    if x.shape[0] * x.shape[1] * own.features == 0:
        return own.allocated() if out is None else out
    if weight.dtype != x.dtype:
        own = own._replace(weight=weight.to(x.dtype))
    algorithm = _among(algorithm, x)
    if algorithm == "auto" and is_on_gpu(x):
        return _auto(own, out, info)
    if algorithm == "auto":
        algorithm = quickest(tuple(weight.shape[1:]), *described(x), None, own.packed is not None)[0]
    return product_by(algorithm, own, out, info)


def _auto(own: Operands, out: torch.Tensor | None, info: RunInfo | None) -> torch.Tensor:
    """Return the product by what should be quickest on a GPU; while tuning, by what is."""
    target = own.allocated() if out is None else out
    arguments = own.x, own.weight, own.bias, own.activation, own.precision, target, own.packed is not None
    algorithm = gpu().choose_algorithm(*arguments)

    def call(name: str) -> torch.Tensor:
        return product_by(name, own, target if name.startswith(("kernel", TRANSPOSED)) else out, info)

    return call(gpu().tune(call, algorithm, *arguments))


def product_by(
    algorithm: str, own: Operands, out: torch.Tensor | None = None, info: RunInfo | None = None
) -> torch.Tensor:
    """Return the product by an algorithm, by the kernel in a tile, or over transposed rows."""
    if algorithm.startswith("kernel"):
        out = own.allocated() if out is None else out
        ran = _by_kernel(own, out, algorithm)
        if info is not None:
            info.route = ran
        return out
    if algorithm == TRANSPOSED:
        out = own.allocated() if out is None else out
        transposing().product(own, out, product_by, info)
        if info is not None:
            info.route = f"transposed rows: {info.route}"
        return out
    value = uncast(own.x.device.type, _by_torch, algorithm, own.x, own.weight, own.bias, own.packed, out)
    if info is not None:
        info.route = f"torch {algorithm}"
    value = ACTIVATIONS[own.activation](value)
    if value is out:
        return value
    if out is None and (value.mT if own.batch_last else value).is_contiguous():
        return value
    return (own.allocated() if out is None else out).copy_(value)


def matrix_product(
    x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, activation: str, batch_last: bool
) -> torch.Tensor:
    """Return the product of x, with features first or last, and one matrix."""
    x = within_blas_strides(x)
    if batch_last:
        columns = x.flatten(1) if x.dim() > 1 else x[:, None]
        value = matrix @ columns if bias is None else torch.addmm(bias[:, None], matrix, columns)
        value = value.view(matrix.shape[0], *x.shape[1:])
    else:
        value = functional.linear(x, matrix, bias)
    return ACTIVATIONS[activation](value)


def within_blas_strides(x: torch.Tensor) -> torch.Tensor:
    """Return x, copied if its strides exceed the integers of BLAS."""
    return x if all(step <= BLAS_FARTHEST for step in x.stride()) else x.contiguous()


def _by_torch(
    algorithm: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, packed: PackedWeights | None,
    out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Return the product by torch's operations, with packed weights; in ``out`` where one can write there."""
    x, made = within_blas_strides(x), None
    if packed is not None and algorithm in MADE:
        made = packed.get_or_pack((algorithm, x.dtype), lambda: MADE[algorithm](weight), x.device)
    elif algorithm == "bmm" and is_on_gpu(x):
        made = block_matrices(weight)
    elif algorithm == "dense" and weight.shape[0] == 1 and makes_dense(weight[0]):
        made = dense_matrix(weight[0])[None]
    if algorithm == "dense":
        return by_dense(x, weight, made, bias)
    if algorithm == "bmm":
        value = by_bmm(x, weight, made, out)
    else:
        value = OWN[algorithm](x, weight) if made is None else OWN[algorithm](x, weight, made)
    if bias is None:
        return value
    return value.add_(bias[:, None]) if value is out else value + bias[:, None]


def makes_dense(weight: torch.Tensor) -> bool:
    """Return whether our pass makes the dense matrix of weights (a, b, c, d)."""
    usual = weight.shape[0] * weight.shape[3] > 1 and weight.numel() > 0 and weight.dtype.itemsize in (2, 4)
    return usual and is_on_gpu(weight)


def dense_matrix(weight: torch.Tensor) -> torch.Tensor:
    """Return the dense matrix of such weights."""
    return transposing().dense_matrix(weight)


def block_matrices(weight: torch.Tensor) -> torch.Tensor:
    """Return the matrices (H, a, d, b, c) of weights, by our pass on a GPU where that is quicker than torch's copy."""
    if weight.is_cuda and weight.dtype.itemsize <= 4 and transposing().is_arranged(weight):
        return transposing().block_matrices(weight)
    return MADE["bmm"](weight)


def _by_kernel(own: Operands, out: torch.Tensor, algorithm: str) -> str:
    """Write the product by our kernels and return the route."""
    x, weight, bias, activation, _, precision, packed = own
    if is_on_gpu(x):
        ran = gpu().product(x, weight, bias, activation, precision, out, packed, algorithm)
        if ran is not None:
            return ran
    if x.device.type == "cpu":
        ran = cpu().product(x, weight, bias, out, packed)
        if ran is not None:
            INPLACE[activation](out)
            return ran
    return _contract(own, out)


def _contract(own: Operands, out: torch.Tensor) -> str:
    """Write the product as a contraction and return the route; vectors run along the batch where it is last."""
    x, weight, bias, activation, last, precision, _ = own
    groups, (_, a, b, c, d) = x.shape[0], weight.shape
    tensors = [x.unflatten(2, (a, c, d)), weight.expand(groups, a, b, c, d)]
    if bias is not None:
        tensors.append(bias.expand(groups, a * b * d).unflatten(1, (a, b, d)))
    target = out.unflatten(2, (a, b, d)).permute((0, 2, 4, 3, 1) if last else (0, 2, 4, 1, 3))
    program = _product_program(bias is not None, activation, last)
    return _execute(program, _types(x.dtype, precision), tensors, target)


def _execute(program: str, types: str, tensors: list[torch.Tensor], target: torch.Tensor) -> str:
    """Run a contraction that writes ``target`` and return its route."""
    tensors = [tensor.resolve_neg() for tensor in tensors]
    found = prepare(program, types, tensors, [target])
    found(tensors, (), [target])
    return f"general contraction: {found.route}"


def gradient(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], algorithm: str, precision: str
) -> torch.Tensor:
    """``out[g, i, j, k, l] = Σ_n grad[g, n, (i, j, l)] x[g, n, (i, k, l)]``."""
    a, b, c, d = pattern
    groups, count, _ = x.shape
    if count == 0:
        return x.new_zeros((groups, a, b, c, d))
    algorithm = _among(algorithm, x)
    if algorithm != "kernel":
        if algorithm == "auto":
            algorithm = quickest_gradient(pattern, *described(x))[0]
        if algorithm == TRANSPOSED and groups == 1 and is_on_gpu(x):
            return transposing().gradient(x, grad, pattern, precision, gradient)
        if algorithm == "bmm" and is_on_gpu(x) and arranges(pattern, x.element_size()):
            return uncast(x.device.type, transposing().gradient_by_bmm, x, grad, a, b, c, d)
        if algorithm in GRADIENTS:
            value = uncast(x.device.type, GRADIENTS[algorithm], x, grad, a, b, c, d).contiguous()
            # An axis of length 1 may have any stride; data-parallel wrappers want that of the weight.
            usual = value.stride() == (a * b * c * d, b * c * d, c * d, d, 1)
            return value if usual else value.view(-1).view(value.shape)
    if is_on_gpu(x):
        bound = sums().bind_gradient(x, grad, pattern, precision)
        if bound is not None:
            return bound(x, grad)
    if x.device.type == "cpu":
        found = cpu().gradient(x, grad, pattern)
        if found is not None:
            return found
    out = allocate((groups, a, b, c, d), x.dtype, x.device)
    tensors = [x.unflatten(2, (a, c, d)), grad.unflatten(2, (a, b, d))]
    _execute(_gradient_program(), _types(x.dtype, precision), tensors, out.permute(0, 1, 4, 2, 3))
    return out


def gradients(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, precision: str, out: torch.Tensor,
    apart: Callable[[], AbstractContextManager[Any]] = nullcontext, alive: list[torch.Tensor] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Write the gradient of x (1, N, a c d) to ``out`` and return that of weights (1, a, b, c, d), on a GPU.

    Both read the same transposed rows. The gradients of weights are summed in the context ``apart``, and the tensors
    that they read are appended to ``alive``.
    """
    alive = list[torch.Tensor]() if alive is None else alive
    return transposing().gradients(x, grad, weight, precision, out, product_by, gradient, apart, alive)
