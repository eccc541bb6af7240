"""Passes of a Kronecker-sparse training step on NVIDIA GPUs as small products, several bound to one launch.

``x`` and ``grad`` are (1, N, features) with any strides, weights (a, b, c, d), a bias (features,).
A launch is bound for the layout and alignment of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...torch_ops.cuda import Entry, bind_launch, index_of, limits, load_kernels
from ...torch_ops.dtypes import NAMES
from . import cuda_emit
from .grouped_plan import GroupedProduct, Passes, bias_view, factor, neighbours, numbers_of, plan_grouped, sums

Maybe = torch.Tensor | None
Operands = tuple[Maybe, ...]
"""Left, right, out and bias of the first product, then of the next one."""
Addresses = Sequence[int]
_OPERANDS = 4


@dataclass(frozen=True, eq=False)
class BoundProducts:
    """Products in one launch on tensors of one layout: ``launch`` takes the addresses of their operands.

    An operand that is absent has the address 0. ``products`` say what it computes. It does nothing where its kernel
    was only collected.
    """

    route: str
    products: tuple[GroupedProduct, ...]
    launch: Callable[[Addresses], None]

    def run(self, operands: Operands) -> None:
        """Launch on operands."""
        self.launch(tuple([0 if tensor is None else tensor.data_ptr() for tensor in operands]))


def _access(tensor: torch.Tensor) -> int:
    return math.gcd(16, tensor.data_ptr())


def _passes(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> Passes:
    a, b, c, d = weight.shape
    one, other = ((own.stride(1), own.stride(2), _access(own)) for own in (x, y))
    return factor((a, b, c, d), x.shape[1], one, other, _access(weight))


def bind_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, precision: str, out: torch.Tensor, activation: str = ""
) -> BoundProducts:
    """Return the product with one factor: its operands are x, weight, out and bias."""
    a, b, c, d = weight.shape
    product = _passes(x, weight, out).forward(None if bias is None else bias_view((a, b, c, d), _access(bias)))
    return bind_products([product], out, precision, activation)


def bind_backward(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, of_x: Maybe, of_weight: Maybe, of_bias: Maybe,
    precision: str,
) -> BoundProducts:  # fmt: skip
    """Return the gradients asked for in one launch, whose operands :func:`backward_operands` puts in order."""
    found = [] if of_bias is None else [_sums(grad)]
    if of_x is not None:
        found.append(_passes(of_x, weight, grad).of_x())
    if of_weight is not None:
        found.append(_passes(x, of_weight, grad).of_weight())
    return bind_products(found, grad, precision)


def backward_operands(x: int, grad: int, weight: int, of_x: int, of_weight: int, of_bias: int) -> tuple[int, ...]:
    """Return the operands of the launch, from positions of tensors and of the gradients asked for; 0 is none."""
    found = (grad, 0, of_bias, 0) if of_bias else ()
    if of_x:
        found += (grad, weight, of_x, 0)
    return (*found, grad, x, of_weight, 0) if of_weight else found


def bind_sums(grad: torch.Tensor) -> BoundProducts:
    """Return the sums over rows of a gradient: its operands are grad, None, out and None."""
    return bind_products([_sums(grad)], grad, "")


def _sums(grad: torch.Tensor) -> GroupedProduct:
    return sums(grad.shape[2], grad.shape[1], (grad.stride(1), grad.stride(2), _access(grad)))


def bind_matrix(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> BoundProducts:
    """Return the weights of the product of two factors: its operands are second, first, out and None."""
    return bind_products([_neighbours(first, second, out).forward()], out, "")


@dataclass(frozen=True, eq=False)
class BoundMatrixGradient:
    """Gradients of two factors, from that of the weights of their product, in one launch.

    ``transposed`` says in which order the gradient of the first is computed.
    """

    launch: BoundProducts
    transposed: bool

    def __call__(
        self, first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, of_first: Maybe, of_second: Maybe,
        summed: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:  # fmt: skip
        """Write them; ``summed``: a gradient (1, N, features), and where sums over its rows are written beside."""
        operands: Operands = () if summed is None else (summed[0], None, summed[1], None)
        if of_second is not None:
            operands += (grad, first, of_second, None)
        if of_first is not None:
            operands += (second, grad, of_first, None) if self.transposed else (grad, second, of_first, None)
        self.launch.run(operands)


def bind_matrix_gradient(
    first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, of_first: Maybe, of_second: Maybe, summed: Maybe
) -> BoundMatrixGradient:
    """Return the launch for tensors in one piece; ``summed`` is a gradient (1, N, features) or None."""
    own = _neighbours(first if of_first is None else of_first, second if of_second is None else of_second, grad)
    found = [] if summed is None else [_sums(summed)]
    if of_second is not None:
        found.append(_neighbours(first, of_second, grad).of_x())
    if of_first is not None:
        found.append(_neighbours(of_first, second, grad).of_weight())
    return BoundMatrixGradient(bind_products(found, grad, ""), own.weight.first < own.weight.second)


def _neighbours(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> Passes:
    access = _access(second), _access(first), _access(out)
    return neighbours(tuple(first.shape), tuple(second.shape), access)  # pyright: ignore[reportArgumentType]


def bind_products(
    products: Sequence[GroupedProduct], like: torch.Tensor, precision: str, activation: str = ""
) -> BoundProducts:
    """Return the launch of products of the type and on the device of ``like``."""
    index = index_of(like.device)
    own = limits(index)
    chosen = plan_grouped(own, NAMES[like.dtype], products, activation, 1 if precision == "tf32" else 3)
    entry = Entry(cuda_emit.ENTRY, chosen.threads, chosen.shared, waits=True)
    loaded = load_kernels(chosen, chosen.arch, lambda: cuda_emit.emit_grouped(chosen), entry)
    if loaded is None:
        return BoundProducts(str(chosen), tuple(products), _nothing)
    launches = [
        numbers_of(product, tile, chosen.dtype, chosen.warps, own)
        for product, tile in zip(products, chosen.tiles, strict=True)
    ]
    blocks, arguments, starts = sum(each for _, each in launches), list[int](), list[int]()
    for numbers, count in launches:
        starts.append(len(arguments))
        arguments += (*_OPERANDS * (0,), *numbers, count)
    launch = bind_launch(loaded[0], arguments, starts, _OPERANDS, index, blocks)
    return BoundProducts(str(chosen), tuple(products), launch)


def _nothing(_: Addresses) -> None:
    """Launch nothing, of a kernel that was only collected."""
