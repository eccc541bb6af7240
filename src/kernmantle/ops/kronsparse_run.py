"""Runs a Kronecker-sparse product without derivatives, by the algorithm asked for.

``x`` is (G, N, a c d) with any strides, ``weight`` (H, a, b, c, d) with H = G or 1, ``bias`` (H, a b d) or None.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch.nn import functional

from ..config import current
from ..contraction.kronsparse_cost import quickest
from ..contraction.program import Operand, Program
from ..contraction.semirings import REDUCTIONS
from ..expr.node import Node, const, var
from .dtypes import NAMES, compute_type
from .execute import Types, allocate, execute, last_route
from .kronsparse_torch import ALGORITHMS, weight_gradient

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda value: value,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}
_ACTIVATED: dict[str, Callable[[Node], Node]] = {
    "": lambda value: value,
    "relu": lambda value: Node("max", (value, const(0))),
    "gelu": lambda value: _times(value, Node("add", (const(0.5), _times(const(0.5), _erf(value))))),
    "silu": lambda value: _times(value, Node("sigmoid", (value,))),
}
_RAN = threading.local()


def _times(left: Node, right: Node) -> Node:
    return Node("mul", (left, right))


def _erf(value: Node) -> Node:
    return Node("erf", (_times(const(0.5**0.5), value),))


@lru_cache(maxsize=1)
def _gpu() -> Any:
    """Loaded with the first product on a GPU."""
    return import_module(".kronsparse_gpu", __package__)


def route() -> str:
    """What this thread's last product ran as."""
    return getattr(_RAN, "route", "")


@lru_cache(maxsize=64)
def _product_program(has_bias: bool, activation: str, last: bool) -> str:
    """Sum of products over k; with ``last`` the vectors run along the batch."""
    operands = [Operand("x0", "gnikl"), Operand("x1", "gijkl"), *[Operand("x2", "gijl")] * has_bias]
    total = Node("add", (var("s0"), var("x2"))) if has_bias else var("s0")
    product = _times(var("x0"), var("x1"))
    out = "giljn" if last else "gilnj"
    return Program(tuple(operands), out, (product,), (REDUCTIONS["sum"],), (_ACTIVATED[activation](total),)).text


@lru_cache(maxsize=1)
def _gradient_program() -> str:
    operands = (Operand("x0", "gnikl"), Operand("x1", "gnijl"))
    return Program(operands, "giljk", (_times(var("x0"), var("x1")),), (REDUCTIONS["sum"],), (var("s0"),)).text


def _types(dtype: torch.dtype, precision: str) -> str:
    name = NAMES[dtype]
    return Types(compute_type([name]), (name,), precision or "default").text


def empty(x: torch.Tensor, features: int, batch_last: bool) -> torch.Tensor:
    """Uninitialised (G, N, features), in memory with the batch last if asked."""
    groups, count, _ = x.shape
    if batch_last:
        return allocate((groups, features, count), x.dtype, x.device).transpose(1, 2)
    return allocate((groups, count, features), x.dtype, x.device)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    batch_last: bool,
    algorithm: str,
    precision: str,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """``out[g, n, (i, j, l)] = activation(Σ_k weight[g, i, j, k, l] x[g, n, (i, k, l)] + bias[g, (i, j, l)])``."""
    _, a, b, _, d = weight.shape
    if out is None:
        out = empty(x, a * b * d, batch_last)
    if out.numel() == 0:
        return out
    if weight.dtype != x.dtype:
        weight = weight.to(x.dtype)
    if algorithm == "auto":
        pattern = tuple(weight.shape[1:])
        algorithm = quickest(pattern, x.shape[1], NAMES[x.dtype], x.device.type)[0]
    if algorithm == "kernel":
        _by_kernel(x, weight, bias, activation, batch_last, precision, out)
        return out
    with torch.autocast(x.device.type, enabled=False):
        value = ALGORITHMS[algorithm](x, weight)
    if bias is not None:
        value = value + bias[:, None]
    _RAN.route = f"torch {algorithm}"
    return out.copy_(ACTIVATIONS[activation](value))


def _by_kernel(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    batch_last: bool,
    precision: str,
    out: torch.Tensor,
) -> None:
    groups, (_, a, b, c, d) = x.shape[0], weight.shape
    if x.is_cuda and current().backend in ("auto", "cuda"):
        ran = _gpu().product(x, weight, bias, activation, precision, out)
        if ran is not None:
            _RAN.route = ran
            return
    tensors = [x.unflatten(2, (a, c, d)), weight.expand(groups, a, b, c, d)]
    if bias is not None:
        tensors.append(bias.expand(groups, a * b * d).unflatten(1, (a, b, d)))
    order = (0, 2, 4, 3, 1) if batch_last else (0, 2, 4, 1, 3)
    target = out.unflatten(2, (a, b, d)).permute(order)
    text = _product_program(bias is not None, activation, batch_last)
    execute(text, _types(x.dtype, precision), tensors, (), [target])
    _RAN.route = last_route()


def gradient(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], algorithm: str, precision: str
) -> torch.Tensor:
    """``out[g, i, j, k, l] = Σ_n grad[g, n, (i, j, l)] x[g, n, (i, k, l)]``."""
    a, b, c, d = pattern
    groups, count, _ = x.shape
    if count == 0:
        return x.new_zeros((groups, a, b, c, d))
    if algorithm not in ("auto", "kernel"):
        with torch.autocast(x.device.type, enabled=False):
            return weight_gradient(x, grad, a, b, c, d).contiguous()
    out = allocate((groups, a, b, c, d), x.dtype, x.device)
    tensors = [x.unflatten(2, (a, c, d)), grad.unflatten(2, (a, b, d))]
    execute(_gradient_program(), _types(x.dtype, precision), tensors, (), [out.permute(0, 1, 4, 2, 3)])
    return out
