"""Passes of a Kronecker-sparse training step on NVIDIA GPUs as small products, several in one launch.

``x`` and ``grad`` are (1, N, features) with any strides, weights (a, b, c, d), a bias (features,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...runtime.dispatch import bound
from ...torch_ops.call_key import program_key
from ...torch_ops.cuda import index_of, limits, start
from ...torch_ops.dtypes import NAMES
from . import cuda_emit
from .cuda import OVERLAPPED, load
from .grouped_plan import GroupedProduct, Passes, bias_view, factor, neighbours, numbers_of, plan_grouped, sums

Maybe = torch.Tensor | None
Operands = tuple[Maybe, Maybe, torch.Tensor, Maybe]  # left, right, out, bias of a product


class _Bound(NamedTuple):
    """What starts products that look alike from their arrays' addresses, and what it is called."""

    run: Callable[[Sequence[int]], None] | None
    route: str


def _access(tensor: torch.Tensor) -> int:
    return math.gcd(16, tensor.data_ptr())


def _passes(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> Passes:
    a, b, c, d = weight.shape
    one, other = ((own.stride(1), own.stride(2), _access(own)) for own in (x, y))
    return factor((a, b, c, d), x.shape[1], one, other, _access(weight))


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, activation: str, precision: str, out: torch.Tensor
) -> str:
    """Write the product with one factor to ``out``; returns what ran."""

    def made() -> list[GroupedProduct]:
        a, b, c, d = weight.shape
        return [_passes(x, weight, out).forward(None if bias is None else bias_view((a, b, c, d), _access(bias)))]

    weight = weight.contiguous()
    return _start("forward", made, [(x, weight, out, bias)], activation, precision)


def backward(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, of_x: Maybe, of_weight: Maybe, of_bias: Maybe,
    precision: str,
) -> str:  # fmt: skip
    """Write the gradients asked for in one launch."""
    weight = weight.contiguous()
    operands: list[Operands] = []
    if of_bias is not None:
        operands.append((grad, None, of_bias, None))
    if of_x is not None:
        operands.append((grad, weight, of_x, None))
    if of_weight is not None:
        operands.append((grad, x, of_weight, None))

    def made() -> list[GroupedProduct]:
        found = [] if of_bias is None else [_sums(grad)]
        if of_x is not None:
            found.append(_passes(of_x, weight, grad).of_x())
        if of_weight is not None:
            found.append(_passes(x, of_weight, grad).of_weight())
        return found

    return _start("backward", made, operands, "", precision)


def summed(grad: torch.Tensor) -> torch.Tensor:
    """Sums over rows of a gradient."""
    out = grad.new_empty(grad.shape[2])
    _start("summed", lambda: [_sums(grad)], [(grad, None, out, None)], "", "")
    return out


def _sums(grad: torch.Tensor) -> GroupedProduct:
    return sums(grad.shape[2], grad.shape[1], (grad.stride(1), grad.stride(2), _access(grad)))


def join(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, precision: str) -> str:
    """Write the weights of the product of two factors that meet to ``out``."""
    first, second = first.contiguous(), second.contiguous()

    def made() -> list[GroupedProduct]:
        return [_neighbours(first, second, out).forward()]

    return _start("join", made, [(second, first, out, None)], "", precision)


def part(
    first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, of_first: Maybe, of_second: Maybe, precision: str,
    summed: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> str:  # fmt: skip
    """Write gradients of two factors, from that of the weights of their product, in one launch.

    ``summed``: a gradient (1, N, features), and where sums over its rows are written beside.
    """
    first, second, grad = first.contiguous(), second.contiguous(), grad.contiguous()
    own = _neighbours(first if of_first is None else of_first, second if of_second is None else of_second, grad)
    transposed = own.weight.first < own.weight.second
    operands: list[Operands] = [] if summed is None else [(summed[0], None, summed[1], None)]
    if of_second is not None:
        operands.append((grad, first, of_second, None))
    if of_first is not None:
        operands.append((second, grad, of_first, None) if transposed else (grad, second, of_first, None))

    def made() -> list[GroupedProduct]:
        found = [] if summed is None else [_sums(summed[0])]
        if of_second is not None:
            found.append(_neighbours(first, of_second, grad).of_x())
        if of_first is not None:
            found.append(_neighbours(of_first, second, grad).of_weight())
        return found

    return _start("part", made, operands, "", precision)


def _neighbours(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> Passes:
    access = _access(second), _access(first), _access(out)
    return neighbours(tuple(first.shape), tuple(second.shape), access)  # pyright: ignore[reportArgumentType]


def _start(
    kind: str, made: Callable[[], list[GroupedProduct]], operands: Sequence[Operands], activation: str, precision: str
) -> str:
    out = operands[0][2]
    key = program_key(
        ("kron_sparse grouped", kind), (activation, precision), [each for one in operands for each in one]
    )
    found: _Bound = bound(key, lambda: _bound(made(), out, activation, precision))  # pyright: ignore[reportArgumentType]
    if found.run is not None:
        found.run([0 if tensor is None else tensor.data_ptr() for each in operands for tensor in each])
    return found.route


def _bound(products: Sequence[GroupedProduct], out: torch.Tensor, activation: str, precision: str) -> _Bound:
    index = index_of(out.device)
    own = limits(index)
    chosen = plan_grouped(own, NAMES[out.dtype], products, activation, 1 if precision == "tf32" else 3)
    early = own.has(OVERLAPPED)
    loaded = load(
        (chosen, early), lambda: cuda_emit.emit_grouped(chosen), chosen.arch,
        (cuda_emit.ENTRY, chosen.threads, chosen.shared, early),
    )  # fmt: skip
    if loaded is None:
        return _Bound(None, str(chosen))
    launches = [
        numbers_of(product, tile, chosen.dtype, chosen.warps, own)
        for product, tile in zip(products, chosen.tiles, strict=True)
    ]
    blocks = sum(each for _, each in launches)

    def run(addresses: Sequence[int]) -> None:
        arguments: list[int] = []
        for number, (numbers, count) in enumerate(launches):
            arguments += (*addresses[4 * number : 4 * number + 4], *numbers, count)
        start(loaded[0], index, blocks, tuple(arguments))

    return _Bound(run, str(chosen))
