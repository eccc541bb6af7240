"""Passes of a Kronecker-sparse training step on NVIDIA GPUs as small products, several bound to one launch.

``x`` and ``grad`` are (1, N, features) with any strides, weights (a, b, c, d), a bias (features,).
A launch is bound for the layout and alignment of its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import torch

from ...torch_ops.cuda import Entry, bind_launch, index_of, is_captured, limits, load_kernel
from ...torch_ops.dtypes import NAMES
from . import cuda_emit
from .bound_products import no_launch
from .grouped_plan import (
    GroupedPlan,
    GroupedProduct,
    Passes,
    bias_view,
    factor,
    joined_plan,
    neighbours,
    numbers_of,
    plan_grouped,
    sums,
)

Maybe = torch.Tensor | None
Operands = tuple[Maybe, ...]
"""Left, right, out and bias of the first product, then of the next one."""
Addresses = Sequence[int]
_OPERANDS = 4  # of a product


class PlannedProducts(NamedTuple):
    """The products of a launch on a device, and their plan."""

    plan: GroupedPlan
    products: tuple[GroupedProduct, ...]
    device: int


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


def plan_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: Maybe, precision: str, out: torch.Tensor, activation: str = ""
) -> PlannedProducts:
    """Return the plan of the product with one factor: its operands are x, weight, out and bias."""
    a, b, c, d = weight.shape
    product = _passes(x, weight, out).forward(None if bias is None else bias_view((a, b, c, d), _access(bias)))
    return plan_products([product], out, precision, activation)


def plan_backward(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, of_x: Maybe, of_weight: Maybe, of_bias: Maybe,
    precision: str,
) -> PlannedProducts:  # fmt: skip
    """Return the plan of the gradients asked for, whose operands :func:`backward_operands` puts in order."""
    found = [] if of_bias is None else [_sums(grad)]
    if of_x is not None:
        found.append(_passes(of_x, weight, grad).of_x())
    if of_weight is not None:
        found.append(_passes(x, of_weight, grad).of_weight())
    return plan_products(found, grad, precision)


def backward_operands(x: int, grad: int, weight: int, of_x: int, of_weight: int, of_bias: int) -> tuple[int, ...]:
    """Return the operands of the launch, from positions of tensors and of the gradients asked for; 0 is none."""
    found = (grad, 0, of_bias, 0) if of_bias else ()
    if of_x:
        found += (grad, weight, of_x, 0)
    return (*found, grad, x, of_weight, 0) if of_weight else found


def bind_sums(grad: torch.Tensor) -> BoundProducts:
    """Return the sums over rows of a gradient: its operands are grad, None, out and None."""
    return bind_products([_sums(grad)], grad)


def _sums(grad: torch.Tensor) -> GroupedProduct:
    return sums(grad.shape[2], grad.shape[1], (grad.stride(1), grad.stride(2), _access(grad)))


def bind_matrix(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> BoundMatrices:
    """Return the weights of the product of two factors."""
    return bind_matrices([(first, second, out)])


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

    def on_addresses(
        self, first: int, second: int, grad: int, of_first: int, of_second: int
    ) -> tuple[Callable[[Addresses], None], tuple[int, ...]]:
        """Return the launch and its operands, from positions of both factors and gradients; 0 is none."""
        found = (grad, first, of_second, 0) if of_second else ()
        if of_first:
            found += (second, grad, of_first, 0) if self.transposed else (grad, second, of_first, 0)
        return self.launch.launch, found


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
    return BoundMatrixGradient(bind_products(found, grad), own.weight.first < own.weight.second)


Chain = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Two factors, and the weights of their product or the gradient of these."""


class BoundMatrices(NamedTuple):
    """Products of the factors of several chains in one launch."""

    launch: Callable[[Addresses], None]

    def run(self, operands: Operands) -> None:
        """Launch on the second factor of one chain, the first one, their product and None."""
        self.launch(tuple([0 if tensor is None else tensor.data_ptr() for tensor in operands]))

    def on_addresses(self, first: int, second: int, out: int) -> tuple[int, ...]:
        """Return the operands of one of the chains, from positions of both factors and their product."""
        return second, first, out, 0


def bind_matrices(chains: Sequence[Chain]) -> BoundMatrices:
    """Return the products of several chains in one launch, on the operands of all."""
    return BoundMatrices(bind_products([_neighbours(*chain).forward() for chain in chains], chains[0][2]).launch)


def bind_matrix_gradients(chains: Sequence[Chain]) -> list[BoundMatrixGradient]:
    """Return the gradients of both factors of each chain, which share a launch on the operands of all."""
    own = [_neighbours(*chain) for chain in chains]
    launch = bind_products([product for each in own for product in (each.of_x(), each.of_weight())], chains[0][2])
    return [BoundMatrixGradient(launch, each.weight.first < each.weight.second) for each in own]


def _neighbours(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> Passes:
    access = _access(second), _access(first), _access(out)
    return neighbours(tuple(first.shape), tuple(second.shape), access)  # pyright: ignore[reportArgumentType]


def plan_products(
    products: Sequence[GroupedProduct], like: torch.Tensor, precision: str, activation: str = ""
) -> PlannedProducts:
    """Return the plan of a launch of products of the type and on the device of ``like``."""
    index = index_of(like.device)
    plan = plan_grouped(limits(index), NAMES[like.dtype], products, activation, 1 if precision == "tf32" else 3)
    return PlannedProducts(plan, tuple(products), index)


def bind_products(products: Sequence[GroupedProduct], like: torch.Tensor) -> BoundProducts:
    """Return the launch of products of the type and on the device of ``like``."""
    return _bind(plan_products(products, like, ""))


def bind_each(launches: Sequence[PlannedProducts]) -> Sequence[BoundProducts]:
    """Return launches that follow one another: as one, on the operands of all, where they can be joined."""
    plans, products, indices = zip(*launches, strict=True)
    plan = joined_plan(plans, products, limits(indices[0]))
    if plan is None:
        return list(map(_bind, launches))
    found = _bind(PlannedProducts(plan, tuple(chain.from_iterable(products)), indices[0]))
    if found.launch is not no_launch:
        found = replace(found, launch=JoinedLaunch(found.launch, tuple(launches), indices[0]))
    return [found]


def _bind(planned: PlannedProducts) -> BoundProducts:
    plan, products, index = planned
    entry = Entry(cuda_emit.ENTRY, plan.threads, plan.shared, waits=True)
    kernel = load_kernel(plan, cuda_emit.emit_grouped, entry)
    if kernel is None:
        return BoundProducts(str(plan), products, no_launch)
    total, arguments, positions = 0, list[int](), list[int]()
    for product, tile in zip(products, plan.tiles, strict=True):
        numbers, blocks = numbers_of(product, tile, plan.dtype, plan.warps, limits(index))
        positions += range(len(arguments), len(arguments) + _OPERANDS)
        arguments += (*_OPERANDS * (0,), *numbers, blocks)
        total += blocks
    if plan.levels:  # where blocks are counted
        arguments.append(0)
    launch = bind_launch(kernel, arguments, positions, index, total, counts=bool(plan.levels))
    return BoundProducts(str(plan), products, launch)


@dataclass(frozen=True, eq=False)
class JoinedLaunch:
    """Launches that follow one another as one, in which blocks wait for those before them.

    A graph, which leaves the host nothing to do, has them ``apart``, bound with the first that is captured.
    """

    joined: Callable[[Addresses], None]
    apart: tuple[PlannedProducts, ...]
    device: int
    captured: list[BoundProducts] = field(default_factory=list[BoundProducts])

    def __call__(self, addresses: Addresses) -> None:
        """Launch on the addresses of all operands."""
        if not is_captured(self.device):
            return self.joined(addresses)
        if not self.captured:
            self.captured.extend(map(_bind, self.apart))
        begin = 0
        for each in self.captured:
            end = begin + _OPERANDS * len(each.products)
            each.launch(addresses[begin:end])
            begin = end
        return None
